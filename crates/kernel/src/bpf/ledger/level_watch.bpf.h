/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Somebody waits for an account to come to a level, or to fall below one: the user half is told once, looks who it is,
 * and says what is to be told next. Away from both levels this costs what a notice costs: nothing.
 */
#ifndef BURSAR_LEVEL_WATCH_BPF_H
#define BURSAR_LEVEL_WATCH_BPF_H

#include "victim.bpf.h"

static __always_inline bool is_at_watched(const struct account *account, __s64 level)
{
	return account->watched && (level >= account->watch_above_pages || level < account->watch_below_pages);
}

__noinline int tell_watched(__u32 slot, __s64 level, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	struct event *event;

	if (!state || !account || (account->flags & ACCOUNT_PAUSED) ||
	    __sync_val_compare_and_swap(&account->watched, 1, 0) != 1)
		return 0;
	event = begin_event(EVENT_WATCH_REACHED, trigger, bpf_ktime_get_ns());
	if (!event)
		return 0;
	event->account = slot;
	tell_levels(event, account, level);
	/* Where there is no room the next event tells it. */
	if (!emit(state, event))
		account->watched = 1;
	return 0;
}

#endif /* BURSAR_LEVEL_WATCH_BPF_H */
