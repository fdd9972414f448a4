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

static __noinline int tell_private_refusal(struct account *account, __u32 slot, __s64 pages)
{
	struct ledger_state *state = ledger_state();
	__u32 to_rows = page_shift - ROW_PAGE_SHIFT;
	struct event *event;

	if (!state || !account)
		return 0;
	if (!account->private_observed)
		__sync_fetch_and_add(&account->private_failcnt, 1);
	event = begin_row_refusal(state, account, slot, BILL_PRIVVMPAGES, &account->private_told_ns,
				  &account->private_untold);
	if (!event)
		return 0;
	event->observed = account->private_observed;
	name_asker(event, account);
	event->held_pages = account->committed_pages << to_rows;
	event->barrier_pages = account->private_barrier_pages << to_rows;
	event->request_pages = pages << to_rows;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

#endif /* BURSAR_PRIVVMPAGES_BPF_H */
