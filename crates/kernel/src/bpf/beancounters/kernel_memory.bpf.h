/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kmemsize: what an account has of the kernel's own memory, and whether it may have more made. Compared are
 * its namespaces, which the kernel counts by user, and with them all else as bursard's last scan found it: no
 * object is charged for, so there is nothing that must be given back.
 */
#ifndef BURSAR_KERNEL_MEMORY_BPF_H
#define BURSAR_KERNEL_MEMORY_BPF_H

#include "bill_of_me.bpf.h"
#include "user_counts.bpf.h"

enum {
	/* What one of them takes, as crates/policy/src/beancounters.rs has it: a task with an address space, a
	 * file with its inode, a socket. */
	TASK_BYTES = 35500,
	FILE_BYTES = 1110,
	SOCKET_BYTES = 3800,
	/* a route; of a table of filters the scan finds the rest */
	NETWORK_SETTING_BYTES = 512,
	/* A login may have so much made beyond the barrier: some processes and what they open. */
	LOGIN_KERNEL_BYTES = 4 << 20,
};

/* Whether the running task is asked about something that is counted for its user by now. */
enum counting { NOT_COUNTED, COUNTED_ALREADY };

/* `held`: with what is asked for. What logins have left behind is no room for further ones; who may have none has none. */
static __always_inline bool add_kernel_memory_for_login(const struct row *row, __s64 held, __s64 bytes)
{
	struct login *login;

	if (!row->barrier || held > row->barrier + LOGINS_AT_ONCE * LOGIN_KERNEL_BYTES)
		return false;
	login = login_of_me();
	if (!login)
		return false;
	if (__sync_fetch_and_add(&login->kernel_bytes, bytes) + bytes <= LOGIN_KERNEL_BYTES)
		return true;
	__sync_fetch_and_add(&login->kernel_bytes, -bytes);
	return false;
}

/* Of an account whose row is charged. */
static __always_inline __s64 kernel_bytes_of(__u32 slot, struct task_struct *task)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);

	return namespace_bytes_of(task) + (bill ? bill->scanned_bytes : 0);
}

/* Whether the running task may have so many bytes of objects made, where `slot` pays and has such a row. Nothing is
 * added: what they take is found by the next scan, or is counted by the kernel. */
static __noinline int may_take_of(__u32 slot, __s64 bytes, enum counting counting, bool logins_go_on)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct row *row = row_of(slot, BILL_KMEMSIZE);
	__s64 held;

	if (!row)
		return 1;
	held = kernel_bytes_of(slot, task);
	if (counting == COUNTED_ALREADY)
		held -= bytes;
	if (held + bytes > row->barrier && !(logins_go_on && add_kernel_memory_for_login(row, held + bytes, bytes))) {
		row->held = held;
		tell_bill(slot, BILL_KMEMSIZE, bytes, true);
		if (!row->observed)
			return 0;
	}
	row->held = held + bytes;
	raise_to(&row->maxheld, held + bytes);
	return 1;
}

static __noinline int may_take_kernel_memory(__s64 bytes, enum counting counting, bool logins_go_on)
{
	struct bill_facts *known = facts();
	__u32 slot = NOBODY;

	if (!known || !bill_of_me(known, 1U << BILL_KMEMSIZE, &slot))
		return 1;
	return may_take_of(slot, bytes, counting, logins_go_on);
}

/* A user namespace, and all in it, is counted by the kernel for the effective uid of who makes it, where we look for what
 * is counted for who pays. Another one outside of all namespaces is that of a set-uid program, or a subordinate uid that
 * was taken for good. Root's programs make theirs for root. */
static __always_inline bool is_counted_for_payer(const struct cred *cred)
{
	struct user_namespace *ns = cred->user_ns;
	__u32 uid = cred->euid.val;

	return !uid || (ns && ns->level > 0) || (uid == cred->uid.val && owner_of_subuid(uid) == NOBODY);
}

/* Whether what is counted for somebody else may be made all the same: where the row is only observed. */
static __noinline int may_evade(__u32 slot, __s64 bytes)
{
	struct row *row = row_of(slot, BILL_KMEMSIZE);

	if (!row)
		return 1;
	tell_bill(slot, BILL_KMEMSIZE, bytes, true);
	return row->observed;
}

/* The same of what no scan has found yet: until the next one it is added up. */
static __noinline int take_kernel_memory(__u32 slot, __s64 bytes)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);

	if (!bill)
		return 1;
	if (!may_take_of(slot, bytes, NOT_COUNTED, false))
		return 0;
	__sync_fetch_and_add(&bill->scanned_bytes, bytes);
	return 1;
}

#endif /* BURSAR_KERNEL_MEMORY_BPF_H */
