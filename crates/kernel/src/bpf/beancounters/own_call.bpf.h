/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the call under way does in a namespace of one's own, read from its number and arguments.
 */
#ifndef BURSAR_OWN_CALL_BPF_H
#define BURSAR_OWN_CALL_BPF_H

#include "compat.bpf.h"
#include "vmlinux_beancounters.h"

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

#endif /* BURSAR_OWN_CALL_BPF_H */
