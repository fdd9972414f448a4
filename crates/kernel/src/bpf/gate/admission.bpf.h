/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decision of the gate: may this account grow by so much. One rule for all requests (S5 1.3):
 * level + request ≤ barrier, or ≤ limit for what may not fail lightly.
 *
 * Near the bound the account's records are read anew, so that nobody is refused for what others have
 * given back; at most once a millisecond, for a refused program likes to ask again, and for a twentieth of a CPU.
 */
#ifndef BURSAR_ADMISSION_BPF_H
#define BURSAR_ADMISSION_BPF_H

#include "commitment.bpf.h"
#include "event.bpf.h"

enum {
	RECOUNT_PAUSE_NS = 1000000,
	RECOUNT_SHARE = 20,		/* but so many times as long as the last one took … */
	RECOUNT_MOST_PAUSE_NS = RESUM_INTERVAL_MS * 1000000, /* … though no longer than until the next re-sum */
	REFUSAL_PAUSE_NS = 1000000000,	/* one account, one event a second: no flood */
	/* An address space of at most so many pages is starting up, or is a shell: it may go up to the
	 * limit. ld.so, the thread area and the first brk fail badly. */
	SMALL_PAGES = 256,
	/* Those, and who logs in, go so far beyond it: a user at his limit can still run `kill`. */
	RESERVE_PAGES = 512,
	SMALL_PAGE_SHIFT = 12,
	LEAST_SHIFT = 2,
};

/* Both are of 4 KiB. Of larger pages it takes as many bytes, but a quarter as many pages at least: what a program has
 * at least is so many mappings, each a page or more. */
static __always_inline __s64 by_page_size(__s64 pages)
{
	__u32 larger = page_shift - SMALL_PAGE_SHIFT;

	return pages >> (larger < LEAST_SHIFT ? larger : LEAST_SHIFT);
}

/* How far a request may go: with the account's level, and with what is committed alone. */
struct tops {
	__s64 level;
	__s64 private;
};

/* What counts against the barrier, if so much came to be held and so much to be committed beyond what is
 * in the sums already. Of the caller's own reservation `credit` is set off: it was counted when made. A function of
 * its own, for the stack of who asks: 512 bytes for all that call each other. */
static __noinline __s64 level_of(struct account *account, __s64 to_hold, __s64 to_commit, __s64 credit,
				 bool doubts_count)
{
	__s64 level = level_from(account, *(volatile __s64 *)&account->held_pages) + to_hold;

	if (!doubts_count)
		level -= doubt_of(account);

	if (account->measure == MEASURE_COMMITTED) {
		__s64 committed = *(volatile __s64 *)&account->committed_pages + to_commit;

		if (committed > level)
			level = committed;
	}
	return level + *(volatile __s64 *)&account->reserved_pages - credit;
}

static __always_inline long recount_record(__u32 index, __u32 *slot)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct account *account;
	__u64 mm;

	if (!record || !state || record->account != *slot)
		return 0;
	mm = record->mm;
	if (!mm)
		return 0;
	account = account_at(*slot);
	if (!account)
		return 1;
	if (probe_ctx_id(mm) != record->ctx_id)	/* its end was missed: the re-sum closes it */
		return 0;
	sync_at(record, mm);
	sync_commitment_at(record, account, mm);
	book_at(record, *slot, mm);
	return 0;
}
LOOP_BODY(recount_record, __u32 *, records_made())

/* Reads the account anew. False: somebody has just done so. */
static __noinline bool recount(struct ledger_state *state, struct account *account, __u32 slot)
{
	__u64 now = bpf_ktime_get_ns(), was = *(volatile __u64 *)&account->recounted_ns;
	__u64 pause = *(volatile __u64 *)&account->recount_ns * RECOUNT_SHARE;

	if (pause < RECOUNT_PAUSE_NS)
		pause = RECOUNT_PAUSE_NS;
	if (pause > RECOUNT_MOST_PAUSE_NS)
		pause = RECOUNT_MOST_PAUSE_NS;
	if (ns_since(was, now) < pause ||
	    __sync_val_compare_and_swap(&account->recounted_ns, was, now) != was)
		return false;
	LOOP(recount_record, &slot);
	account->recount_ns = bpf_ktime_get_ns() - now;
	return true;
}

/* Up to where files may grow: a part of the limit is left free of them (rules.h reserve_of()). */
static __always_inline __s64 top_of_files(const struct account *account)
{
	__s64 top = account->barrier_pages, most = account->limit_pages;

	if (most == NO_BOUND_PAGES)
		return top;
	most -= reserve_of(most, page_shift);
	return most < top ? most : top;
}

static __noinline int tell_refusal(struct account *account, __u32 slot, __u32 request, __s64 pages, __s64 level)
{
	struct ledger_state *state = ledger_state();
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if (!state || !account)
		return 0;
	count_failure(account);
	__sync_fetch_and_add(&account->refused_untold, 1);
	if (!may_tell(&account->refused_told_ns, REFUSAL_PAUSE_NS, now))
		return 0;
	event = reserve_event(state, EVENT_REFUSED, TRIGGER_EVENT, now);
	if (!event)
		return 0;
	event->account = slot;
	name_asker(event, account);
	tell_levels(event, account, level);
	event->barrier_pages = request == REQUEST_FILE ? top_of_files(account) : account->barrier_pages;
	event->reserved_pages = account->reserved_pages;
	event->committed_pages = account->committed_pages;
	event->request_pages = pages;
	event->request = request;
	event->measure = account->measure;
	event->refusals = __sync_lock_test_and_set(&account->refused_untold, 0);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Whether it is the bound of privvmpages that a request would pass. */
static __always_inline bool passes_private(const struct account *account, __s64 pages, const struct tops *tops)
{
	return *(volatile __s64 *)&account->committed_pages + pages > tops->private;
}

/*
 * Adds `pages` to what the account has committed if it then stays within `tops`. Add first, look
 * then, take back if need be: whoever races with us is seen by one of the two at least, so that they are
 * never passed; at worst both are refused at the very edge. What does not fit beforehand is not added: a
 * terabyte that is asked for in vain would have others refused who are far from any edge, and for as long
 * as its asker is preempted here.
 */
static __always_inline bool try_charge(struct account *account, __s64 pages, __s64 to_hold, __s64 credit,
				       const struct tops *tops)
{
	__s64 committed;

	if (passes_private(account, pages, tops) ||
	    level_of(account, to_hold, pages, credit, false) > tops->level)
		return false;
	committed = __sync_fetch_and_add(&account->committed_pages, pages) + pages;
	if (committed <= tops->private && level_of(account, to_hold, 0, credit, false) <= tops->level) {
		raise_to(&account->private_maxheld_pages, committed);
		return true;
	}
	__sync_fetch_and_add(&account->committed_pages, -pages);
	return false;
}

#endif /* BURSAR_ADMISSION_BPF_H */
