/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numtcpsock and numothersock: the row of a socket, and whether one more may be made.
 */
#ifndef BURSAR_SOCKETS_BPF_H
#define BURSAR_SOCKETS_BPF_H

#include <asm-generic/errno.h>

#include "charge_row.bpf.h"
#include "kernel_memory.bpf.h"
#include "netlink.bpf.h"
#include "objects.bpf.h"

static __always_inline __u32 row_of_socket(struct sock *sk)
{
	return is_tcp(sk) ? BILL_NUMTCPSOCK : BILL_NUMOTHERSOCK;
}

/* A network namespace that has been counted begins with the kernel's own netlink sockets: so none passes the
 * barrier of kmemsize, however many are asked for at once. Only the first of them is asked about, rtnetlink's, which is
 * registered before all others (core_initcall): others do more than fail. audit_net_init() ends in audit_panic(), where
 * another thread has taken what was left in between. */
static __noinline int may_make_kernel_socket(int family, int protocol)
{
	return family != AF_NETLINK || protocol != NETLINK_ROUTE ||
	       may_take_kernel_memory(namespace_bytes[UCOUNT_NET_NAMESPACES], COUNTED_ALREADY, false);
}

static __always_inline int may_make_socket(struct bill *bill, __u32 slot, __u32 which, __u64 number)
{
	return !counts(bill, which) || charge_piece(bill, slot, which, number) ? 0 : -ENOBUFS;
}

#endif /* BURSAR_SOCKETS_BPF_H */
