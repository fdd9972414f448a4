/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What messages for the kernel ask it to make in a network namespace: routes, rules, addresses, devices, packet filters,
 * peers of tunnels.
 * A process has what it asks for as soon as it is answered, and a scan finds it up to ten seconds later: so until then a
 * message stands for several times its own length.
 */
#ifndef BURSAR_NETLINK_BPF_H
#define BURSAR_NETLINK_BPF_H

#include "vmlinux_beancounters.h"
#include "compat.bpf.h"
#include "loop.bpf.h"

enum {
	/* include/uapi/linux/netlink.h */
	NETLINK_ROUTE = 0,
	NETLINK_XFRM = 6,
	NETLINK_NETFILTER = 12,
	NETLINK_GENERIC = 16,
	NLM_F_DUMP = 0x300,
	/* include/uapi/linux/genetlink.h: the family that tells of the others */
	GENL_ID_CTRL = 0x10,
	NLMSG_ALIGNTO = 4,
	/* include/uapi/linux/rtnetlink.h: from here on one in four makes */
	RTM_BASE = 16,
	RTM_KINDS = 3,
	/* include/uapi/linux/netfilter/nfnetlink.h */
	NFNL_SUBSYS_IPSET = 6,
	NFNL_SUBSYS_NFTABLES = 10,
	/* nf_tables.h: tables, chains, rules, sets, elements, objects, flow tables */
	NFTABLES_MAKE = 1 << 0 | 1 << 3 | 1 << 6 | 1 << 9 | 1 << 12 | 1 << 18 | 1 << 22,
	/* ip_set.h: sets, elements */
	IPSET_MAKE = 1 << 2 | 1 << 9,
	/* xfrm.h: states, policies, states to be */
	XFRM_BASE = 0x10,
	XFRM_MAKE = 1 << 0 | 1 << 3 | 1 << 6,
	MESSAGES_LOOKED_AT = 8192,	/* what comes behind them is taken for what makes something */
	/* What is made takes so many times as much as what asks for it (docs/design/measured-beancounters.md). */
	MADE_OF_MESSAGE = 8,
};

struct nlmsghdr {
	__u32 nlmsg_len;
	__u16 nlmsg_type;
	__u16 nlmsg_flags;
	__u32 nlmsg_seq;
	__u32 nlmsg_pid;
};

static __always_inline bool is_one_of(__u32 mask, __u32 command)
{
	return command < 32 && (mask >> command & 1);
}

/* Which command of generic netlink makes something each family has for itself (WireGuard, IPVS, L2TP, and modules that nobody
 * here knows): all but those that list things. */
static __always_inline bool makes_something(__u32 protocol, __u16 type, __u16 flags)
{
	__u32 command = type & 0xff;

	switch (protocol) {
	case NETLINK_ROUTE:
		return type >= RTM_BASE && !((type - RTM_BASE) & RTM_KINDS);
	case NETLINK_XFRM:
		return type >= XFRM_BASE && is_one_of(XFRM_MAKE, type - XFRM_BASE);
	case NETLINK_NETFILTER:
		switch (type >> 8) {
		case 0:	/* a batch begins or ends */
			return false;
		case NFNL_SUBSYS_NFTABLES:
			return is_one_of(NFTABLES_MAKE, command);
		case NFNL_SUBSYS_IPSET:
			return is_one_of(IPSET_MAKE, command);
		}
		return !command;	/* IPCTNL_MSG_CT_NEW and the like */
	case NETLINK_GENERIC:
		return type > GENL_ID_CTRL && (flags & NLM_F_DUMP) != NLM_F_DUMP;
	}
	return false;
}

/* Hides a number from the verifier, to which all turns of a loop look alike then. */
static __always_inline __u64 unknown(__u64 number)
{
	__u64 same = 0;

	bpf_probe_read_kernel(&same, sizeof(same), &number);
	return same;
}

struct message_walk {
	__u64 at;
	__u64 left;
	__u32 protocol;
	__u64 bytes;	/* of those that make something */
};

static __always_inline long meet_message(__u32 index, struct message_walk *walk)
{
	struct nlmsghdr head = {};
	__u64 length, made = 0;

	if (walk->left < sizeof(head) || bpf_probe_read_kernel(&head, sizeof(head), (void *)walk->at))
		return 1;
	length = head.nlmsg_len;
	if (length < sizeof(head) || length > walk->left)
		return 1;
	if (index == MESSAGES_LOOKED_AT - 1)
		made = walk->left;
	else if (makes_something(walk->protocol, head.nlmsg_type, head.nlmsg_flags))
		made = length;
	length = (length + NLMSG_ALIGNTO - 1) & ~(__u64)(NLMSG_ALIGNTO - 1);
	if (length > walk->left)
		length = walk->left;
	walk->at = unknown(walk->at + length);
	walk->left = unknown(walk->left - length);
	walk->bytes = unknown(walk->bytes + made);
	return 0;
}
LOOP_BODY(meet_message, struct message_walk *, MESSAGES_LOOKED_AT)

/* Whether a socket is in a network namespace of a user's own: elsewhere only root has things made. */
static __always_inline bool is_in_own_network(const struct sock *sk)
{
	const struct net *net;

	if (!bpf_core_field_exists(sk->__sk_common.skc_net))
		return false;
	net = sk->__sk_common.skc_net.net;
	return net && net->user_ns && net->user_ns->level > 0;
}

/* The length of those messages in a packet that ask for something to be made. */
static __noinline __u64 making_bytes(__u64 data, __u32 length, __u32 protocol)
{
	struct message_walk walk = { .at = data, .left = length, .protocol = protocol };

	LOOP(meet_message, &walk);
	return unknown(walk.bytes);
}

#endif /* BURSAR_NETLINK_BPF_H */
