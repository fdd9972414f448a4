/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounts that processes enter and never leave (S5 2.1: "once a task moves to a separate group it never
 * comes back"). A process is a member by what is tied to its task: neither setuid nor setsid, exec or a
 * namespace changes it, and it goes with the task.
 *
 * Looked at only where who pays is worked out anew, and only once somebody has entered anything
 * (ledger_state.entered): for everybody else it costs a load and a compare there.
 */
#ifndef BURSAR_MEMBERSHIP_BPF_H
#define BURSAR_MEMBERSHIP_BPF_H

#include "maps.bpf.h"

/* include/uapi/linux/bpf.h */
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

/* Written by: bursard for who enters (through a pidfd), membership.bpf.c for who is born a member. Read by
 * who charges. Bound: the tasks there are. Full: never; an allocation may fail, see membership.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct membership);
} members SEC(".maps");

/*
 * Before 6.2 a look-up finds nothing while another one is under way on the same CPU (bpf_task_storage.c
 * bpf_task_storage_trylock()): then nobody knows. Something that is surely there tells: where it is not
 * found either, the look-up was one of those. Each object has its own; bound as above.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} witness SEC(".maps");

/* Sleepable programs, which calls are, read what is tied to a task since 5.17 (0fe4b381a59e "bpf: Allow bpf_local_storage
 * to be used by sleepable programs"), which has bpf_loop(), too. Before it nobody enters an account. */
static __always_inline bool has_members(void)
{
	return has_bpf_loop;
}

static __always_inline bool may_have_missed(struct task_struct *me)
{
	return has_members() && rss_is_atomic() &&
	       !bpf_task_storage_get(&witness, me, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* The id of a shared account where a user namespace would stand: kernel addresses are larger. */
static __always_inline bool is_entered(__u64 user_ns)
{
	return user_ns && !(user_ns >> (KIND_SHIFT + 8));
}

static __always_inline __u64 id_of_membership(const struct membership *membership)
{
	enum { FORMER_SHARED = 1U << 31, FORMER_NAMED = 1U << 30 };
	__u32 number = membership->number, kind = membership->kind;

	if (!kind) {
		kind = number & FORMER_NAMED ? KIND_NAMED : KIND_GROUP;
		if (kind == KIND_GROUP)
			number &= ~FORMER_SHARED;
	}
	return (__u64)kind << KIND_SHIFT | number;
}

/* The account a task is in; 0: none. Threads that were there before their process entered go by their
 * leader. */
static __always_inline __u64 membership_of(struct task_struct *task)
{
	struct membership *membership;
	struct task_struct *leader;

	if (!has_members())
		return 0;
	membership = bpf_task_storage_get(&members, task, 0, 0);
	if (membership)
		return id_of_membership(membership);
	leader = task->group_leader;
	if (!leader || leader == task)
		return 0;
	membership = bpf_task_storage_get(&members, leader, 0, 0);
	return membership ? id_of_membership(membership) : 0;
}

#define MEMBERSHIP_UNKNOWN (~0ULL)

/* The account that the owner of an address space is in. While it is being forked its owner is a task that
 * is nobody yet: then it is its parent's, who runs. */
static __noinline __u64 __attribute__((unused)) entered_by(struct task_struct *owner)
{
	struct task_struct *me = bpf_get_current_task_btf();
	__u64 account;

	if (!owner)
		return 0;
	account = membership_of(owner);
	if (!account && owner != me && owner->pid == me->pid)
		account = membership_of(me);
	if (!account && may_have_missed(me))
		return MEMBERSHIP_UNKNOWN;
	return account;
}

#endif /* BURSAR_MEMBERSHIP_BPF_H */
