// SPDX-License-Identifier: GPL-2.0-only
/*
 * Members' children are members, before they run. And who has just become a user's process (login.bpf.h).
 *
 * Hooks:   lsm/task_alloc, which no event skips and which may refuse the fork; tp_btf/task_newtask and
 *          tp_btf/sched_process_fork where LSM programs are not to be had: tracing programs, which are
 *          skipped where they interrupt themselves, and so two of them. SEC("syscall"), by
 *          bursard. fentry/security_task_fix_setuid.
 * Cost:    a load and a compare for each new task while nobody has entered anything, then a look-up.
 * Absent:  nobody can enter an account; who logs in is refused what everybody is.
 */
#include <asm-generic/errno.h>

#include "membership.bpf.h"
#include "login.bpf.h"

/* Memory comes from a CPU's own small stock, which an interrupt fills up again (kernel/bpf/memalloc.c):
 * who finds it empty finds it filled a moment later. */
enum { TRIES = 32 };

/* Returns 0 where the child is what its parent is; else nobody knows, or there was no memory for it. */
static __noinline int inherit(struct task_struct *child)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *me = bpf_get_current_task_btf();
	struct membership born = {};
	__u64 account;
	int i;

	if (!has_members() || !state || !state->entered || !child)
		return 0;
	account = membership_of(me);
	if (!account)
		return may_have_missed(me) ? -1 : 0;
	born.number = (__u32)account;
	born.kind = account >> KIND_SHIFT;
	for (i = 0; i < TRIES; i++)
		if (bpf_task_storage_get(&members, child, &born, BPF_LOCAL_STORAGE_GET_F_CREATE))
			return 0;
	__sync_fetch_and_add(&state->members_lost, 1);
	return -1;
}

SEC("lsm/task_alloc")
int BPF_PROG(inherit_membership, struct task_struct *child, unsigned long clone_flags, int ret)
{
	if (ret)
		return ret;
	return inherit(child) ? -EAGAIN : 0;
}

SEC("tp_btf/task_newtask")
int BPF_PROG(member_born, struct task_struct *child, unsigned long clone_flags)
{
	inherit(child);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(member_forked, struct task_struct *parent, struct task_struct *child)
{
	inherit(child);
	return 0;
}

/* Root's process becomes a user's. */
SEC("fentry/security_task_fix_setuid")
int BPF_PROG(note_login, struct cred *new, const struct cred *old)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct login login = { .since_ns = bpf_ktime_get_ns(), .began_ns = leader->start_boottime };
	__u64 key = key_of_login(new->uid.val, leader->tgid);

	if (!old->uid.val && new->uid.val && !is_secure_exec())
		bpf_map_update_elem(&logins, &key, &login, BPF_ANY);
	return 0;
}

/* A process has entered an account: from now on memberships are looked at, and who pays for it is worked
 * out anew. */
SEC("syscall")
int note_entry(void *ctx)
{
	struct ledger_state *state = ledger_state();

	if (!state)
		return -EINVAL;
	state->entered = 1;
	__sync_fetch_and_add(&state->payers_generation, 1);
	__sync_fetch_and_add(&state->generation, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
