/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who of an account may be killed, and what its processes hold, exactly: what is drift, what CPUs keep
 * back and what the dying hold decides nothing. Cost: a few nanoseconds for each record of the machine,
 * some 100 ns for each of the account, and as much again where its counters have to be read anew.
 */
#ifndef BURSAR_WEIGH_BPF_H
#define BURSAR_WEIGH_BPF_H

#include "decision.bpf.h"
#include "spared.bpf.h"

/* A global function: verified once by itself, not in each state of its caller; 7.x took half of its time for this. */
__noinline int keep_candidate(struct decision *decision, __u32 pid, __u32 uid, __s64 pages, __u32 is_spared)
{
	int i, place = CANDIDATES;
	struct event *event;

	if (!decision)
		return 0;
	event = &decision->event;
	event->candidates_met++;
	for (i = CANDIDATES - 1; i >= 0; i--) {
		if (event->candidates[i].pid && event->candidates[i].pages >= pages)
			break;
		if (i < CANDIDATES - 1)
			event->candidates[i + 1] = event->candidates[i];
		place = i;
	}
	if (place >= CANDIDATES)
		return 0;
	/* written out: the verifier of 6.1 does not follow a variable index into a map value here */
	for (i = 0; i < CANDIDATES; i++) {
		if (i != place)
			continue;
		event->candidates[i].pid = pid;
		event->candidates[i].uid = uid;
		event->candidates[i].pages = pages;
		event->candidates[i].is_spared = is_spared;
		bpf_probe_read_kernel(&event->candidates[i].comm, COMM_LEN,
				      &((struct task_struct *)decision->owner)->comm);
	}
	if (event->candidates_kept < CANDIDATES)
		event->candidates_kept++;
	return 0;
}

/* What would go with the files that only this process keeps open. */
__noinline __s64 kept_files(struct decision *decision, __u32 uid)
{
	struct ledger_state *state = ledger_state();

	if (!decision || !state || !decision->counts_files)
		return 0;
	if (decision->first_keeper) {
		decision->first_keeper--;
		return 0;
	}
	return kept_by(state, decision->owner, uid, &decision->descriptors, &decision->kept);
}

/* Whether the running process goes on: the owner of the memory that it has may be another, who is dying. */
static __always_inline bool survives(void)
{
	return !is_dying((__u64)PROBE_READ((__u64)bpf_get_current_task(), struct task_struct, signal));
}

static __always_inline void choose(struct chosen *chosen, __u32 record, __u64 mm, __u64 ctx_id, __s64 pages,
				   __s64 rank, __s64 kept)
{
	chosen->record = record;
	chosen->mm = mm;
	chosen->ctx_id = ctx_id;
	chosen->pages = pages;
	chosen->rank = rank;
	chosen->kept_pages = kept;
}

/* Named by a would_kill: it counts as gone (observed.bpf.h). */
static __always_inline void forgo(struct decision *decision, struct mm_record *record)
{
	decision->forgone += own_pages(record, recorded_pages(record), decision->is_corrected) +
			     kept_files(decision, record->uid);
}

static __always_inline void weigh_dying(struct decision *decision, const struct account *account,
					const struct mm_record *record)
{
	if (has_credit(&record->dying, account->patience.credit_from_ms, page_shift, now_ms()))
		decision->is_dying = 1;
	else
		decision->unkillable += pages_booked(record->booked);
}

/* Its record brought up to date. Returns whether it is dying. */
static __always_inline bool renew(struct decision *decision, struct mm_record *record, __u64 mm, __u64 signal)
{
	bool is_gone = decision->reads_anew ? look_anew(record, mm) : look_again(record, mm, signal);

	if (!is_booked(record, decision->slot))
		book_at(record, decision->slot, mm);
	return is_gone;
}

/* What of its pages may be counted elsewhere too, and what is there in any case. Global, as keep_candidate() is. */
__noinline int weigh_doubt(struct decision *decision, struct mm_record *record, __u64 mm)
{
	__s64 merged, pages;

	if (!decision || !record)
		return 0;
	merged = merged_pages(record, mm, decision->is_corrected);
	decision->merged += merged;
	decision->copied += copied_pages(record, decision->is_corrected, decision->owner);
	decision->soft_doubt += soft_doubt(record, decision->is_corrected) + merged;
	decision->hard_doubt += hard_doubt(record, decision->is_corrected);
	pages = recorded_pages(record) - merged;
	if (pages > decision->largest)
		decision->largest = pages;
	pages = private_pages(record) - merged;
	if (pages > decision->largest_private)
		decision->largest_private = pages;
	return 0;
}

/* What its user wants of it; while the last defence has raised them all, that is not to be told from it. */
static __always_inline int raised_by_user(const struct ledger_state *state, __u64 signal, int adj)
{
	return state->raised_adj ? 0 : adj - PROBE_READ(signal, struct signal_struct, oom_score_adj_min);
}

/* Most are neither among the largest, nor the victim; and so much is known with a few compares. `rank`: the highest that
 * it may have. */
static __always_inline bool is_outdone(const struct decision *decision, __s64 pages, __s64 rank)
{
	return decision->event.candidates_kept == CANDIDATES && decision->event.candidates[CANDIDATES - 1].pages >= pages &&
	       decision->victim.rank >= rank;
}

static __always_inline long weigh(__u32 index, struct decision **of)
{
	struct decision *decision = *of;
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct account *account;
	__u64 mm, ctx_id, owner, signal;
	__s64 pages, rank, kept;
	bool is_gone;
	int adj;
	__u32 pid;

	if (!record || !state)
		return 0;
	mm = *(volatile __u64 *)&record->mm;
	ctx_id = record->ctx_id;
	if (!mm || record->account != decision->slot)
		return 0;
	account = account_at(decision->slot);
	if (!account)
		return 1;
	if (probe_ctx_id(mm) != ctx_id)	/* its end was missed: the re-sum closes it */
		return 0;
	owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	signal = owner ? (__u64)PROBE_READ(owner, struct task_struct, signal) : 0;
	is_gone = renew(decision, record, mm, signal);
	decision->booked += pages_booked(record->booked);
	decision->shmem += record->pages[MEMBER_SHMEM];
	if (means_dying(record->state))
		weigh_dying(decision, account, record);
	if (is_gone && (!owner || mm != decision->own_mm || !survives()))
		return 0;

	decision->owner = owner;
	if (is_forgone(account, record)) {
		forgo(decision, record);
		return 0;
	}
	pages = recorded_pages(record);
	decision->living++;
	decision->private += record->pages[MEMBER_ANON];
	weigh_doubt(decision, record, mm);
	pages = own_pages(record, pages, decision->is_corrected);
	kept = decision->counts_files ? kept_files(decision, record->uid) : 0;
	pages += kept;
	adj = PROBE_READ(signal, struct signal_struct, oom_score_adj);
	decision->raised = is_large(pages, account->limit_pages) ? raised_by_user(state, signal, adj) : 0;
	if (is_outdone(decision, pages, rank_of(pages, account->limit_pages, decision->raised, false)) &&
	    record->state != MM_MARKED && mm != decision->own_mm && !is_protected(state, owner, record->pid, adj)) {
		decision->event.candidates_met++;
		return 0;
	}
	pid = PROBE_READ(owner, struct task_struct, tgid);
	decision->is_protected = is_protected(state, owner, pid, adj);
	/* Not where several users share it: one could hold it with such programs, and others' would die. */
	decision->goes_last = goes_last(pages, account->limit_pages,
				    account->id >> KIND_SHIFT == KIND_USER && is_spared(record));
	keep_candidate(decision, pid, record->uid, pages, decision->goes_last);
	if (record->state == MM_MARKED) {
		decision->marked++;
		if (record->marked_ns > decision->marked_ns)
			decision->marked_ns = record->marked_ns;
		return 0;
	}
	if (decision->is_protected) {
		decision->exempt += pages;
		return 0;
	}
	rank = rank_of(pages, account->limit_pages, decision->raised, decision->goes_last);
	if (mm == decision->own_mm) {
		choose(&decision->own, index, mm, ctx_id, pages, rank, kept);
		decision->own.goes_last = decision->goes_last;
	}
	if (rank > decision->victim.rank)
		choose(&decision->victim, index, mm, ctx_id, pages, rank, kept);
	return 0;
}
LOOP_BODY(weigh, struct decision **, records_made())

#endif /* BURSAR_WEIGH_BPF_H */
