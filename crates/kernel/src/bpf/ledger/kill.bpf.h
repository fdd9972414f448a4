/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kill: from who was chosen to the signal, or to the mark where none can be sent from here.
 */
#ifndef BURSAR_KILL_BPF_H
#define BURSAR_KILL_BPF_H

#include "decision.bpf.h"
#include "stuck.bpf.h"
#include "mm_sharers.bpf.h"

/*
 * A kill's place in the ring is taken before its signal: the victim may be gone, and tell so from
 * another CPU, before we have written down that it was killed. Readers wait for a place's writer.
 */
static __always_inline void tell_kill(struct ledger_state *state, struct event *place,
				      const struct event *event)
{
	if (!place) {
		__sync_fetch_and_add(&state->events_lost, 1);
		return;
	}
	__builtin_memcpy(place, event, sizeof(*place));
	bpf_ringbuf_submit(place, 0);
}

static __always_inline bool is_his(const struct mm_record *record, const struct chosen *chosen, __u32 slot)
{
	return *(volatile __u64 *)&record->mm == chosen->mm &&
	       *(volatile __u64 *)&record->ctx_id == chosen->ctx_id &&
	       *(volatile __u32 *)&record->account == slot;
}

/* From living only. False: it is another process's record by now, which is left as it was. */
static __always_inline bool set_fate(struct ledger_state *state, struct mm_record *record,
				     const struct chosen *victim, __u32 slot, __u32 fate)
{
	bool is_marked = fate == MM_MARKED;

	/* First, so that nobody takes off what is not there. */
	if (is_marked)
		__sync_fetch_and_add(&state->kills_wanted, 1);
	if (__sync_val_compare_and_swap(&record->state, MM_LIVING, fate) != MM_LIVING && is_marked)
		__sync_fetch_and_add(&state->kills_wanted, -1);
	if (is_his(record, victim, slot))
		return true;
	if (__sync_val_compare_and_swap(&record->state, fate, MM_LIVING) == fate && is_marked)
		__sync_fetch_and_add(&state->kills_wanted, -1);
	record->pid = 0;
	record->marked_pages = 0;
	record->marked_ns = 0;
	return false;
}

static __always_inline void credit_files(struct ledger_state *state, struct account *account, __s64 kept)
{
	__s64 credit = files_credit_of(account);

	if (!credit)
		account->files_credit_ms = now_ms() ?: 1;
	account->files_credit_pages = add_files_credit(credit, kept, account->sure_pages);
	account->files_kill_ticket = *(volatile __u64 *)&state->files_ticket;
}

/* Whom enforcing would kill, told once; if it is not somebody else's record by now. */
static __always_inline int forgo_kill(struct decision *decision, struct mm_record *record)
{
	struct ledger_state *state = ledger_state();
	struct event *event;
	struct account *account;

	if (!decision || !record || !state ||
	    (__sync_fetch_and_or(&record->flags, RECORD_FORGONE) & RECORD_FORGONE))
		return 0;
	account = account_at(decision->slot);
	if (!account || !is_his(record, &decision->victim, decision->slot)) {
		__sync_fetch_and_and(&record->flags, ~RECORD_FORGONE);
		return 0;
	}
	__sync_fetch_and_add(&account->forgone_pages, decision->victim.pages);
	event = &decision->event;
	event->kind = EVENT_WOULD_KILL;
	event->latency_ns = bpf_ktime_get_ns() - event->time_ns;
	emit(state, event);
	return 0;
}

/* Whether somebody else has begun to decide meanwhile: a virtual machine's CPU can stand still for that long
 * (DECISION_STALE_NS). Whom we have chosen is not the one to kill any more. */
static __always_inline bool is_overtaken(const struct decision *decision, const struct account *account)
{
	return *(volatile __u64 *)&account->deciding_ns != decision->event.time_ns;
}

/* Kills whom a decision has chosen. Returns the number of victims, 0 or 1. Global, as is all of a decision that
 * has many ways: verified once, not in each state of its caller. */
__noinline int kill_victim(struct decision *decision)
{
	struct ledger_state *state = ledger_state();
	struct event *event, *place;
	struct mm_record *record;
	struct account *account;
	struct chosen *victim;
	bool is_there;
	__u64 task;
	int err;

	if (!decision || !state)
		return 0;
	victim = &decision->victim;
	event = &decision->event;
	account = account_at(decision->slot);
	record = record_at(victim->record);
	if (!account || !record || !is_his(record, victim, decision->slot) || is_overtaken(decision, account))
		return 0;
	/* Its owner; or the task that runs in it and goes on while that one is dying, if it may be killed for it. */
	if (victim->mm == decision->own_mm && means_dying(record->state)) {
		task = (__u64)bpf_get_current_task();
		if (!dies_with(state, record, task))
			return 0;
	} else {
		task = (__u64)PROBE_READ(victim->mm, struct mm_struct, owner);
	}
	event->uid = record->uid;
	event->victim_pages = recorded_pages(record) + victim->kept_pages;
	event->victim_private_pages = private_pages(record);
	describe_victim(event, task);
	if (is_observed(account))
		return forgo_kill(decision, record);
	place = bpf_ringbuf_reserve(&events, sizeof(*place), 0);
	record->pid = event->pid;
	record->marked_pages = small(event->victim_pages);
	record->marked_ns = event->time_ns;
	/* Another process's record by now: it must not be taken for the one that was chosen. */
	if (!is_his(record, victim, decision->slot)) {
		record->marked_ns = 0;
		record->pid = 0;
		if (place)
			bpf_ringbuf_discard(place, 0);
		return 0;
	}
	err = signal_in(task, victim->mm, victim->ctx_id, decision->own_mm);
	if (!err && !means_dying(record->state))
		begin_dying(record, task);
	is_there = set_fate(state, record, victim, decision->slot, err ? MM_MARKED : MM_DYING);
	if (err) {
		if (!is_there) {
			if (place)
				bpf_ringbuf_discard(place, 0);
			return 0;
		}
		account->marked_over_pages = level_now(account) - kill_above(account);
		__sync_fetch_and_add(&state->generation, 1);
		event->kind = EVENT_KILL_ASKED;
	} else {
		if (is_there)
			book_at(record, decision->slot, victim->mm);
		event->kind = EVENT_KILL;
		__sync_fetch_and_add(&account->history.kills, 1);
	}
	decision->has_mm_sharers = is_shared(victim->mm, task);
	if (decision->counts_files) {
		/* They are on their way out; the count sees them still. */
		credit_files(state, account, victim->kept_pages);
	}
	__sync_fetch_and_add(&account->history.failcnt, 1);
	event->latency_ns = bpf_ktime_get_ns() - event->time_ns;
	tell_kill(state, place, event);
	return 1;
}

/* --- those whose signal could not be sent where they were chosen --------------------------- */

enum { ASK_AGAIN_NS = 1000000000 };	/* so long bursard carries a request out (ring_reader.rs) */

/* Whether a request has been carried out by now or never is: once each ASK_AGAIN_NS after the mark. */
static __always_inline bool is_request_over(const struct decision *decision, __u64 marked_ns)
{
	__u64 before = decision->tried_before_ns > marked_ns ? decision->tried_before_ns - marked_ns : 0;
	__u64 since = decision->tried_ns > marked_ns ? decision->tried_ns - marked_ns : 0;

	return since / ASK_AGAIN_NS > before / ASK_AGAIN_NS;
}

/* Whether somebody has to die still. What was credited for the marked one's files has not gone yet. */
static __always_inline bool is_kill_due(struct account *account)
{
	return level_now(account) + files_credit_of(account) > kill_above(account);
}

/* A marked process was signalled. Returns whether its record is still its own: where it has ended since, it may be that
 * of an innocent, who was never marked. */
__noinline int note_retried(__u32 index, __u64 marked_ns, __u64 now, __u64 owner)
{
	struct mm_record *record = record_at(index);
	struct ledger_state *state = ledger_state();
	struct account *account;
	__u64 mm;

	if (!record || !state || __sync_val_compare_and_swap(&record->marked_ns, marked_ns, now) != marked_ns)
		return 0;
	mm = *(volatile __u64 *)&record->mm;
	account = account_at(record->account);
	if (!mm || !account)
		return 0;
	if (!means_dying(record->state))
		begin_dying(record, owner);
	/* Who has found it dying since has counted it, and tells nobody. */
	if (__sync_val_compare_and_swap(&record->state, MM_MARKED, MM_DYING) == MM_MARKED) {
		__sync_fetch_and_add(&state->kills_wanted, -1);
		__sync_fetch_and_add(&account->history.kills, 1);
	}
	book_at(record, record->account, mm);
	return 1;
}

static __always_inline long retry_one(__u32 index, struct decision **of)
{
	struct decision *decision = *of;
	struct mm_record *record = record_at(index);
	struct ledger_state *state = ledger_state();
	struct account *account;
	struct event *place;
	__u64 mm, ctx_id, marked_ns, owner, now;
	bool is_shared_mm, is_over;
	int err;

	if (!record || !state)
		return 0;
	mm = *(volatile __u64 *)&record->mm;
	ctx_id = *(volatile __u64 *)&record->ctx_id;
	marked_ns = *(volatile __u64 *)&record->marked_ns;
	if (!mm || *(volatile __u32 *)&record->state != MM_MARKED)
		return 0;
	/* The one that was marked has ended, and another one been marked in its record before that was noticed. */
	if (!marked_ns) {
		if (!__sync_fetch_and_add(&record->marked_ns, 0))
			take_mark_back(state, record);
		return 0;
	}
	account = account_at(record->account);
	if (!account || probe_ctx_id(mm) != ctx_id)
		return 0;
	/* Who was asked has killed it, and tells. */
	if (look_anew(record, mm))
		return 0;
	owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	is_over = is_request_over(decision, marked_ns);
	/* It is not the one that the mark was for if that has ended and left its memory to another. Nobody has to die where
	 * the account is within its limit by now; what bursard was asked for it may still be about to do. */
	if (is_observed(account) || !dies_with(state, record, number_of((void *)owner)) ||
	    (is_over && !is_kill_due(account))) {
		__sync_val_compare_and_swap(&record->marked_ns, marked_ns, 0);
		take_mark_back(state, record);
		return 0;
	}
	if (!is_kill_due(account))
		return 0;
	place = bpf_ringbuf_reserve(&events, sizeof(*place), 0);
	note_owner(record, tgid_of(owner));
	is_shared_mm = is_shared(mm, owner);
	/* Before the signal: after it the record may be another's. */
	decision->event.account = record->account;
	decision->event.uid = record->uid;
	decision->event.victim_pages = record->marked_pages;
	decision->event.victim_private_pages = private_pages(record);
	describe_victim(&decision->event, owner);
	err = signal_in(owner, mm, ctx_id, decision->own_mm);
	/* Not while nobody answers: the ring has room for some hundred. */
	if (err && (!is_over || !state->answering_mm)) {
		if (place)
			bpf_ringbuf_discard(place, 0);
		return 0;
	}
	now = bpf_ktime_get_ns();
	decision->event.kind = err ? EVENT_KILL_ASKED : EVENT_KILL;
	decision->event.time_ns = marked_ns;
	tell_levels(&decision->event, account, level_now(account));
	decision->event.latency_ns = now - marked_ns;
	if (!err) {
		__sync_fetch_and_add(&state->kills_retried, 1);
		is_shared_mm &= note_retried(index, marked_ns, now, number_of((void *)owner));
	}
	tell_kill(state, place, &decision->event);
	if (!err && is_shared_mm)
		kill_mm_sharers(index, decision->event.trigger);
	return 0;
}
LOOP_BODY(retry_one, struct decision **, records_made())

enum { RETRY_PAUSE_NS = 1000000 };	/* a try costs a walk */

__noinline int retry_kills(__u32 trigger, __u32 running)
{
	struct ledger_state *state = ledger_state();
	struct decision *decision = decision_of(trigger);

	if (!state || !decision)
		return 0;
	__builtin_memset(decision, 0, sizeof(*decision));
	decision->tried_ns = bpf_ktime_get_ns();
	decision->tried_before_ns = __sync_lock_test_and_set(&state->last_retry_ns, decision->tried_ns);
	decision->own_mm = running != RUNNING_OTHER ? probe_own_mm() : 0;
	decision->event.trigger = trigger == DECISION_OF_CLOCK ? TRIGGER_TIMER : trigger;
	LOOP(retry_one, &decision);
	return 0;
}

#endif /* BURSAR_KILL_BPF_H */
