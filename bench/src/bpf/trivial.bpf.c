// SPDX-License-Identifier: GPL-2.0-only
/*
 * S1's "trivial" killer (section 2.2): at every RSS event all processes of the machine are looked at,
 * the resident sets of the user's are added up, and above his limit the largest of them is killed. The
 * ideal of precision, and what it costs.
 *
 * Hooks:   tp_btf/rss_stat, in the context that changes the set.
 * Cost:    a walk over all processes for every event.
 * Absent:  needs the open-coded task iterator (from 6.7 on). Where the event cannot kill another
 *          process (before 6.13), the one that crosses the limit dies instead of the largest.
 */
#include "compat.bpf.h"

const volatile __u32 limited_uid = 0;
const volatile __s64 limit_pages = 0;	/* beyond this the largest dies */

/* A resident set as the kernel's own get_mm_rss() reads it, without file pages as everywhere here. */
static __always_inline __s64 rss_pages(struct mm_struct *mm)
{
	__s64 anon = mm_coarse(mm, MEMBER_ANON), shmem = mm_coarse(mm, MEMBER_SHMEM);

	return (anon > 0 ? anon : 0) + (shmem > 0 ? shmem : 0);
}

static __always_inline int kill_process(int pid, int own)
{
	struct task_struct *victim;
	int err = -3;

	if (pid == own || !can_signal_others())
		return bpf_send_signal(SIGKILL);
	victim = bpf_task_from_pid(pid);
	if (victim) {
		err = bpf_send_signal_task(victim, SIGKILL, PIDTYPE_TGID, 0);
		bpf_task_release(victim);
	}
	return err;
}

static __always_inline int scan_and_kill(struct mm_struct *mm)
{
	struct task_struct *owner = mm->owner, *task, *me = bpf_get_current_task_btf();
	__s64 held = 0, largest = -1;
	struct bpf_iter_task it;
	int victim = 0;

	if (!owner || owner->real_cred->uid.val != limited_uid || me->mm != mm)
		return 0;
	bpf_rcu_read_lock();
	bpf_iter_task_new(&it, NULL, 0 /* BPF_TASK_ITER_ALL_PROCS */);
	while ((task = bpf_iter_task_next(&it))) {
		struct mm_struct *other = task->mm;
		__s64 pages;

		if (!other || task->real_cred->uid.val != limited_uid ||
		    (task->signal->flags & SIGNAL_GROUP_EXIT))
			continue;
		pages = rss_pages(other);
		held += pages;
		if (pages > largest) {
			largest = pages;
			victim = task->tgid;
		}
	}
	bpf_iter_task_destroy(&it);
	bpf_rcu_read_unlock();
	/* One breach, one victim: what dies was not counted. */
	if (held > limit_pages && victim)
		kill_process(victim, me->tgid);
	return 0;
}

SEC("tp_btf/rss_stat")
int BPF_PROG(bench_trivial, struct mm_struct *mm, int member)
{
	return scan_and_kill(mm);
}

char LICENSE[] SEC("license") = "GPL";
