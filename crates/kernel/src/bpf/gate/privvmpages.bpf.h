/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The row privvmpages (S5 3.1): what an account has committed has a bound of its own, beside the one that memory's
 * barrier may be (MEASURE_COMMITTED). Charged by try_charge(), kept with the account.
 */
#ifndef BURSAR_PRIVVMPAGES_BPF_H
#define BURSAR_PRIVVMPAGES_BPF_H

#include "reservation.bpf.h"
#include "beancounters.h"

enum { ROW_PAGE_SHIFT = 12 };	/* the unit of the row's bounds: OpenVZ's page */

/* Whether it is this bound that a request would pass. */
static __always_inline bool passes_private(const struct account *account, __s64 pages, const struct tops *tops)
{
	return *(volatile __s64 *)&account->committed_pages + pages > tops->private;
}

static __noinline int tell_private_refusal(struct account *account, __u32 slot, __s64 pages)
{
	struct ledger_state *state = ledger_state();
	__u64 now = bpf_ktime_get_ns();
	__u32 to_rows = page_shift - ROW_PAGE_SHIFT;
	struct event *event;

	if (!state || !account)
		return 0;
	if (!account->private_observed)
		__sync_fetch_and_add(&account->private_failcnt, 1);
	__sync_fetch_and_add(&account->private_untold, 1);
	if (!may_tell(&account->private_told_ns, REFUSAL_PAUSE_NS, now))
		return 0;
	event = reserve_event(state, EVENT_BILL, TRIGGER_EVENT, now);
	if (!event)
		return 0;
	event->account = slot;
	event->account_id = account->id;
	event->observed = account->private_observed;
	name_asker(event);
	event->held_pages = account->committed_pages << to_rows;
	event->barrier_pages = account->private_barrier_pages << to_rows;
	event->request_pages = pages << to_rows;
	event->request = BILL_PRIVVMPAGES;
	event->refusals = __sync_lock_test_and_set(&account->private_untold, 0);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* As far as who starts up, or logs in, may go. */
static __always_inline __s64 private_top_of_beginners(const struct account *account)
{
	__s64 top = account->private_barrier_pages;

	return top == NO_BOUND_PAGES ? NO_BOUND_PAGES : top + RESERVE_PAGES;
}

#endif /* BURSAR_PRIVVMPAGES_BPF_H */
