/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What kind of thing a file or a socket is, to the beancounters: charged (beancounters.bpf.c) and looked at
 * (resource_iterator.bpf.c) by one rule.
 */
#ifndef BURSAR_OBJECTS_BPF_H
#define BURSAR_OBJECTS_BPF_H

#include "compat.bpf.h"
#include "vmlinux_beancounters.h"

/* include/linux/socket.h, uapi/linux/in.h, uapi/linux/stat.h, uapi/linux/major.h */
enum {
	AF_UNIX = 1,
	AF_INET = 2,
	AF_INET6 = 10,
	AF_NETLINK = 16,
	IPPROTO_TCP = 6,
	S_IFMT = 0170000,
	S_IFIFO = 0010000,
	S_IFCHR = 0020000,
	PTY_MASTER = 5 << 20 | 2,	/* /dev/ptmx */
};

static __always_inline bool is_pty_master(struct inode *inode)
{
	return (inode->i_mode & S_IFMT) == S_IFCHR && inode->i_rdev == PTY_MASTER;
}

static __always_inline bool is_tcp(struct sock *sk)
{
	__u32 family = sk->__sk_common.skc_family;

	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == IPPROTO_TCP;
}

/* Bytes in the send queue, and on their way; of a local socket also what its readers have not read. A socket that lives has
 * one of its own (sock_init_data()). */
static __always_inline __s64 packets_under_way(const struct sock *sk)
{
	return (__s64)sk->sk_wmem_alloc.refs.counter - 1;
}

#endif /* BURSAR_OBJECTS_BPF_H */
