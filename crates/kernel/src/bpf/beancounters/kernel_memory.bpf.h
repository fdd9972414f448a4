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

static __always_inline bool add_kernel_memory_for_login(__s64 bytes)
{
	struct login *login = login_of_me();

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
	if (held + bytes > row->barrier && !(logins_go_on && add_kernel_memory_for_login(bytes))) {
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

/* What the call under way does in a namespace of one's own: takes things away or leads to where they are, mounts,
 * sets something of the network, or makes others. The numbers: as in compat.bpf.h; what is not known makes. */
enum own_call { CALL_GIVES_BACK, CALL_MOUNTS, CALL_SETS, CALL_MAKES };

/* By ioctl(2), which io_uring does not do: include/uapi/linux/sockios.h, if_tun.h. All others change, show or take away. */
static __always_inline enum own_call call_of_request(__u32 request)
{
	switch (request) {
	case 0x890b:		/* SIOCADDRT */
	case 0x8916:		/* SIOCSIFADDR */
	case 0x8955:		/* SIOCSARP */
	case 0x8980:		/* SIOCADDDLCI */
	case 0x8983:		/* SIOCSIFVLAN */
	case 0x89a0:		/* SIOCBRADDBR */
	case 0x89a2:		/* SIOCBRADDIF */
	case 0x89f1:		/* SIOCADDTUNNEL */
	case 0x89f5:		/* SIOCADDPRL */
	case 0x400454ca:	/* TUNSETIFF */
		return CALL_SETS;
	}
	return CALL_GIVES_BACK;
}

/* Of setsockopt(2): a table of packet filters, include/uapi/linux/netfilter_ipv4/ip_tables.h IPT_SO_SET_REPLACE (also of
 * IPv6), netfilter_arp/arp_tables.h ARPT_SO_SET_REPLACE, netfilter_bridge/ebtables.h EBT_SO_SET_ENTRIES; a multicast
 * router's entries, mroute.h, mroute6.h. */
static __always_inline bool is_network_option(int level, int option)
{
	enum { SOL_IP = 0, SOL_IPV6 = 41 };

	return (level == SOL_IP || level == SOL_IPV6) &&
	       (option == 64 || option == 96 || option == 128 || (option >= 200 && option <= 210));
}

static __always_inline enum own_call own_call(void)
{
#if defined(__TARGET_ARCH_x86)
	enum { TS_COMPAT = 2, X32_BIT = 0x40000000 };
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	bool is_compat = task->thread_info.status & TS_COMPAT;
	__u32 number = (__u32)regs->orig_ax;

	if (!is_compat)
		number &= ~X32_BIT;
	/* umount, umount2, setns; umount2, setns */
	if (is_compat ? number == 22 || number == 52 || number == 346 :
			number == 166 || number == 308)
		return CALL_GIVES_BACK;
	/* mount; open_tree to fspick, mount_setattr */
	if (number == (is_compat ? 21 : 165) || (number >= 428 && number <= 433) || number == 442)
		return CALL_MOUNTS;
	if (is_compat ? number == 54 : number == 16 || number == 514)	/* ioctl */
		return call_of_request(is_compat ? (__u32)regs->cx : (__u32)regs->si);
#elif defined(__TARGET_ARCH_arm64)
	struct pt_regs *regs = registers();
	bool is_compat = regs->pstate & PSR_MODE32;
	int number = regs->syscallno;

	/* umount2, setns */
	if (is_compat ? number == 52 || number == 375 : number == 39 || number == 268)
		return CALL_GIVES_BACK;
	/* mount; open_tree to fspick, mount_setattr */
	if (number == (is_compat ? 21 : 40) || (number >= 428 && number <= 433) || number == 442)
		return CALL_MOUNTS;
	if (number == (is_compat ? 54 : 29))	/* ioctl */
		return call_of_request(regs->regs[1]);
#endif
	return CALL_MAKES;
}

#endif /* BURSAR_KERNEL_MEMORY_BPF_H */
