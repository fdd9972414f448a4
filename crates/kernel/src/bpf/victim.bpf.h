/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decision: is this account really over its limit, and if so, who dies.
 *
 * One walk over the records does both. It re-reads every address space of the account exactly, so a
 * kill is never decided on drift, on what CPUs keep back, or on memory of processes already dying;
 * and it finds the largest one that may be killed. Cost: a few nanoseconds for each record of the
 * machine, ~100 ns for each of the account.
 */
#ifndef BURSAR_VICTIM_BPF_H
#define BURSAR_VICTIM_BPF_H

#include "record.bpf.h"

enum {
	SETTLE_STALE_NS = 1000000000,	/* a decision cannot take this long: its mark is a leftover */
	NO_VICTIM_PAUSE_NS = 50000000,	/* nobody to kill: look again after this */
	SIGNAL_GRACE_NS = 20000000,	/* a marked victim has this long before another way is tried */
};

/* One walk's notes. Too large for the stack; one for each kind of context, so that a timer tick that
 * interrupts an event's walk on this CPU does not write over it. */
struct walk {
	__u32 slot;
	__u32 victim;		/* index of the record, NOBODY */
	__u32 marked;		/* a victim is marked and alive */
	__u32 own;		/* index of the record of the running process, NOBODY */
	__u64 marked_ns;
	__s64 victim_pages;
	__u64 own_mm;
	struct event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 3);	/* enum trigger */
	__type(key, __u32);
	__type(value, struct walk);
} walks SEC(".maps");

static __always_inline void emit(struct ledger_state *state, struct event *event)
{
	if (bpf_ringbuf_output(&events, event, sizeof(*event), 0))
		__sync_fetch_and_add(&state->events_lost, 1);
}

/* Dying by anybody's hand. A process dumping core is not: SIGKILL still ends it, and a slow dump
 * would otherwise hold memory that does not count. */
static __always_inline bool is_dying(__u64 signal)
{
	return (FAR_READ(signal, struct signal_struct, flags) & SIGNAL_GROUP_EXIT) &&
	       !FAR_READ(signal, struct signal_struct, core_state);
}

/*
 * A record is living, marked or dying as its owner is: asked anew each time, for "dying" may be taken
 * back. Of two processes that share an address space (CLONE_VM) one may die and leave the memory to
 * the other, which then owns it and counts.
 */
static __always_inline bool refresh_state(struct ledger_state *state, struct mm_record *record,
					  __u64 owner)
{
	__u64 signal = owner ? (__u64)FAR_READ(owner, struct task_struct, signal) : 0;
	struct account *account;

	if (signal && !is_dying(signal)) {
		if (record->state == MM_DYING)
			record->state = MM_LIVING;
		return false;
	}
	/* No owner: being torn down. */
	if (record->state == MM_DYING)
		return true;
	if (__sync_lock_test_and_set(&record->state, MM_DYING) == MM_MARKED) {
		/* The user half, or anybody, was faster. */
		__sync_fetch_and_add(&state->kills_wanted, -1);
		account = account_at(record->account);
		if (account)
			__sync_fetch_and_add(&account->history.kills, 1);
	}
	return true;
}

static __always_inline void keep_candidate(struct event *event, __u64 owner, __u32 pid, __u32 uid,
					   __s64 pages)
{
	int i, place = CANDIDATES;

	event->candidates_met++;
	for (i = CANDIDATES - 1; i >= 0; i--) {
		if (event->candidates[i].pid && event->candidates[i].pages >= pages)
			break;
		if (i < CANDIDATES - 1)
			event->candidates[i + 1] = event->candidates[i];
		place = i;
	}
	if (place >= CANDIDATES)
		return;
	/* written out: the verifier of 6.1 does not follow a variable index into a map value here */
	for (i = 0; i < CANDIDATES; i++) {
		if (i != place)
			continue;
		event->candidates[i].pid = pid;
		event->candidates[i].uid = uid;
		event->candidates[i].pages = pages;
		bpf_probe_read_kernel(&event->candidates[i].comm, COMM_LEN,
				      &((struct task_struct *)owner)->comm);
	}
	if (event->candidates_kept < CANDIDATES)
		event->candidates_kept++;
}

static long weigh(__u32 index, struct walk **of)
{
	struct walk *walk = *of;
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct account *account;
	__u64 mm, owner, signal;
	bool is_gone;
	__s64 pages;
	__u32 pid;

	if (!record || !state || !record->mm || record->account != walk->slot)
		return 0;
	account = account_at(walk->slot);
	if (!account)
		return 1;
	mm = record->mm;
	if (far_ctx_id(mm) != record->ctx_id)	/* its end was missed: the re-sum closes it */
		return 0;
	owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
	is_gone = refresh_state(state, record, owner);
	sync_far(state, record, mm);
	book(record, account);
	if (is_gone)
		return 0;

	signal = (__u64)FAR_READ(owner, struct task_struct, signal);
	pid = FAR_READ(owner, struct task_struct, tgid);
	pages = recorded_pages(record);
	keep_candidate(&walk->event, owner, pid, record->uid, pages);
	if (record->state == MM_MARKED) {
		walk->marked++;
		if (record->marked_ns > walk->marked_ns)
			walk->marked_ns = record->marked_ns;
		return 0;
	}
	if (pid == 1 || pid == state->guardian_tgid ||
	    (FAR_READ(owner, struct task_struct, flags) & PF_KTHREAD) ||
	    FAR_READ(signal, struct signal_struct, oom_score_adj) <= OOM_SCORE_ADJ_MIN)
		return 0;
	if (mm == walk->own_mm)
		walk->own = index;
	if (pages > walk->victim_pages) {
		walk->victim_pages = pages;
		walk->victim = index;
	}
	return 0;
}

/* 0: the signal is on its way; otherwise why not. */
static __always_inline int signal_victim(__u64 mm, __u64 own_mm)
{
	struct task_struct *task;
	int pid, err = -11; /* EAGAIN: not from here */

	if (mm == own_mm)
		return bpf_send_signal(SIGKILL);
	if (!can_signal_others())
		return err;
	/* The thread, not its group's leader: a dead leader has no address space any more. */
	pid = FAR_READ(FAR_READ(mm, struct mm_struct, owner), struct task_struct, pid);
	task = bpf_task_from_pid(pid);
	if (!task)
		return -3; /* ESRCH */
	/* Between the walk and here the pid may have changed hands: only who has this mm dies. */
	if ((__u64)task->mm == mm)
		err = bpf_send_signal_task(task, SIGKILL, PIDTYPE_TGID, 0);
	bpf_task_release(task);
	return err;
}

static __always_inline void describe_victim(struct event *event, __u64 mm)
{
	__u64 owner = (__u64)FAR_READ(mm, struct mm_struct, owner);

	event->pid = FAR_READ(owner, struct task_struct, tgid);
	event->start_boottime_ns = FAR_READ(FAR_READ(owner, struct task_struct, group_leader),
					    struct task_struct, start_boottime);
	bpf_probe_read_kernel(&event->comm, COMM_LEN, &((struct task_struct *)owner)->comm);
}

static __noinline int kill_victim(struct ledger_state *state, struct account *account,
				  struct walk *walk)
{
	struct mm_record *record = record_at(walk->victim);
	struct event *event = &walk->event;
	__u64 mm;
	int err;

	if (!record)
		return 0;
	mm = record->mm;
	event->uid = record->uid;
	event->victim_pages = recorded_pages(record);
	describe_victim(event, mm);
	record->pid = event->pid;
	record->marked_pages = event->victim_pages;
	record->marked_ns = event->time_ns;
	err = signal_victim(mm, walk->own_mm);
	if (err) {
		record->state = MM_MARKED;
		__sync_fetch_and_add(&state->kills_wanted, 1);
		__sync_fetch_and_add(&state->generation, 1);
		event->kind = EVENT_KILL_ASKED;
	} else {
		record->state = MM_DYING;
		book(record, account);
		event->kind = EVENT_KILL;
		__sync_fetch_and_add(&account->history.kills, 1);
	}
	__sync_fetch_and_add(&account->history.failcnt, 1);
	event->latency_ns = bpf_ktime_get_ns() - event->time_ns;
	emit(state, event);
	return 1;
}

/*
 * Decides for one account. At most one CPU at a time decides for it; the others go on, their growth
 * is part of the next decision. Returns the number of victims, 0 or 1.
 */
static __noinline int settle(struct ledger_state *state, __u32 slot, __u32 trigger, __u64 own_mm)
{
	struct account *account = account_at(slot);
	__u64 now = bpf_ktime_get_ns(), since, spent;
	struct walk *walk;
	struct event *event;
	int victims = 0;

	if (!account || (account->flags & ACCOUNT_PAUSED) || now < account->no_settle_before_ns)
		return 0;
	since = *(volatile __u64 *)&account->settling_ns;
	if (since && now - since < SETTLE_STALE_NS)
		return 0;
	if (__sync_val_compare_and_swap(&account->settling_ns, since, now) != since)
		return 0;
	if (trigger > TRIGGER_NOTIFIER)
		trigger = TRIGGER_NOTIFIER;
	walk = bpf_map_lookup_elem(&walks, &trigger);
	if (!walk)
		goto out;
	event = &walk->event;
	__builtin_memset(walk, 0, sizeof(*walk));
	walk->slot = slot;
	walk->victim = NOBODY;
	walk->own = NOBODY;
	walk->own_mm = own_mm;
	event->time_ns = now;
	event->trigger = trigger;
	event->account = slot;
	event->account_id = account->id;
	bpf_loop(state->mm_high_water, weigh, &walk, 0);

	event->held_pages = account->held_pages + account->unrecorded_pages;
	event->dying_pages = account->dying_pages;
	event->limit_pages = account->limit_pages;
	event->notice_pages = account->notice_pages;
	if (event->held_pages <= account->limit_pages) /* drift, now repaired, or it shrank again */
		goto done;
	raise_maxheld(account, event->held_pages);
	if (walk->marked) {
		/* One breach, one victim. But where nobody can be signalled from here and the user
		 * half does not answer, the limit holds all the same: whoever grows next dies. */
		if (can_signal_others() || walk->own == NOBODY ||
		    now - walk->marked_ns < SIGNAL_GRACE_NS)
			goto done;
		walk->victim = walk->own;
	}
	if (walk->victim == NOBODY) {
		account->no_settle_before_ns = now + NO_VICTIM_PAUSE_NS;
		event->kind = EVENT_NO_VICTIM;
		event->latency_ns = bpf_ktime_get_ns() - now;
		__sync_fetch_and_add(&account->history.failcnt, 1);
		emit(state, event);
		goto done;
	}
	victims = kill_victim(state, account, walk);
done:
	spent = bpf_ktime_get_ns() - now;
	state->settles++;
	if (spent > state->settle_max_ns)
		state->settle_max_ns = spent;
out:
	account->settling_ns = 0;
	return victims;
}

/* --- victims whose signal could not be sent where they were chosen ------------------------- */

static long retry_one(__u32 index, struct walk **of)
{
	struct walk *walk = *of;
	struct mm_record *record = record_at(index);
	struct ledger_state *state = ledger_state();
	struct account *account;
	__u64 now;

	if (!record || !state || record->state != MM_MARKED)
		return 0;
	if (far_ctx_id(record->mm) != record->ctx_id)
		return 0;
	if (signal_victim(record->mm, walk->own_mm))
		return 0;
	now = bpf_ktime_get_ns();
	if (__sync_val_compare_and_swap(&record->state, MM_MARKED, MM_DYING) != MM_MARKED)
		return 0;
	__sync_fetch_and_add(&state->kills_wanted, -1);
	__sync_fetch_and_add(&state->kills_retried, 1);
	account = account_at(record->account);
	if (!account)
		return 0;
	walk->event.kind = EVENT_KILL;
	walk->event.time_ns = now;
	walk->event.account = record->account;
	walk->event.account_id = account->id;
	walk->event.uid = record->uid;
	walk->event.held_pages = account->held_pages + account->unrecorded_pages;
	walk->event.dying_pages = account->dying_pages;
	walk->event.limit_pages = account->limit_pages;
	walk->event.notice_pages = account->notice_pages;
	walk->event.victim_pages = record->marked_pages;
	walk->event.latency_ns = now - record->marked_ns;
	describe_victim(&walk->event, record->mm);
	__sync_fetch_and_add(&account->history.kills, 1);
	book(record, account);
	emit(state, &walk->event);
	return 0;
}

enum { RETRY_PAUSE_NS = 1000000 };	/* a try costs a walk */

static __noinline int retry_kills(struct ledger_state *state, __u32 trigger, __u64 own_mm)
{
	__u64 now = bpf_ktime_get_ns();
	struct walk *walk;

	state->last_retry_ns = now;
	if (trigger > TRIGGER_NOTIFIER)
		trigger = TRIGGER_NOTIFIER;
	walk = bpf_map_lookup_elem(&walks, &trigger);
	if (!walk)
		return 0;
	__builtin_memset(walk, 0, sizeof(*walk));
	walk->own_mm = own_mm;
	walk->event.trigger = trigger;
	bpf_loop(state->mm_high_water, retry_one, &walk, 0);
	return 0;
}

/* --- notice -------------------------------------------------------------------------------- */

enum { NOTICE_PAUSE_NS = 1000000000 };	/* one account, one notice a second: no flood */

static __noinline int give_notice(struct ledger_state *state, struct account *account, __u32 slot,
				  __s64 held, __u32 trigger)
{
	__u64 now = bpf_ktime_get_ns();
	struct event *event;
	struct walk *walk;

	if ((account->flags & ACCOUNT_PAUSED) ||
	    __sync_val_compare_and_swap(&account->noticed, 0, 1) != 0)
		return 0;
	if (account->noticed_ns && now - account->noticed_ns < NOTICE_PAUSE_NS)
		return 0;
	account->noticed_ns = now;
	__sync_fetch_and_add(&account->history.notices, 1);
	if (trigger > TRIGGER_NOTIFIER)
		trigger = TRIGGER_NOTIFIER;
	walk = bpf_map_lookup_elem(&walks, &trigger);
	if (!walk)
		return 0;
	event = &walk->event;
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = EVENT_NOTICE;
	event->trigger = trigger;
	event->time_ns = now;
	event->account = slot;
	event->account_id = account->id;
	event->uid = account->id;
	event->held_pages = held;
	event->dying_pages = account->dying_pages;
	event->limit_pages = account->limit_pages;
	event->notice_pages = account->notice_pages;
	emit(state, event);
	return 0;
}

/* What an account's new level asks for. `held` is what this very booking produced. */
static __always_inline void react(struct ledger_state *state, struct account *account, __u32 slot,
				  __s64 held, __u32 trigger, __u64 own_mm)
{
	held += account->unrecorded_pages;
	if (held < account->near_pages)
		return;
	if (!account->near) {
		account->near = 1;
		__sync_fetch_and_add(&state->generation, 1);
	}
	if (held >= account->notice_pages && !account->noticed)
		give_notice(state, account, slot, held, trigger);
	if (held > account->limit_pages)
		settle(state, slot, trigger, own_mm);
	else
		raise_maxheld(account, held);
}

#endif /* BURSAR_VICTIM_BPF_H */
