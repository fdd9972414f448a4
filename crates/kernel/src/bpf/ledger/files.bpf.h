/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Files in memory: what an account's users keep beyond what its processes map.
 *
 * Cost:    some sums for each account at each re-sum.
 * Absent:  where no program of ours counts files (docs/explanation/accounting.md), nothing is kept beyond what is mapped.
 */
#ifndef BURSAR_FILES_BPF_H
#define BURSAR_FILES_BPF_H

#include "seen.bpf.h"

#define FILES_TOLD_PAUSE_NS 60000000000ULL	/* who does not remove them is told again after this */

static __noinline int tell_of_files(struct ledger_state *state, struct account *account, __u32 slot,
				    __u32 trigger)
{
	__s64 held = level_now(account);
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if (held <= account->limit_pages || (account->flags & ACCOUNT_PAUSED) ||
	    (account->files_told_ns && now - account->files_told_ns < FILES_TOLD_PAUSE_NS))
		return 0;
	/* Only where they are what is over: what processes hold beyond is a matter of kills. */
	if (account->stuck_pages + reserve_of(account->limit_pages, page_shift) <= account->limit_pages)
		return 0;
	account->files_told_ns = now;
	count_failure(account);
	event = begin_event(EVENT_FILES, trigger, now);
	if (!event)
		return 0;
	event->account = slot;
	event->uid = account->number;
	tell_levels(event, account, held);
	event->victim_pages = account->stuck_pages;
	emit(state, event);
	return 0;
}

/*
 * Files of the account's users count beyond what its processes map: max(files, RssShmem) in all, so a
 * page counts once at least, and twice only where it is mapped more than once or is another's. Dying
 * address spaces' RssShmem counts here too: what they map is still a file of somebody's.
 */
__noinline int book_files(__u32 slot, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__s64 unmapped, sure;
	__u64 counted;

	if (!state || !account)
		return 0;
	unmapped = unmapped_pages(account, account->shmem_pages);
	sure = account->sure_pages;
	counted = *(volatile __u64 *)&account->files_seen;
	if (account->files_counted != counted) {
		sure = account->counted_pages;
		/* What has gone since somebody was killed for files is what was credited. */
		if (counted > account->files_kill_ticket && unmapped < sure)
			account->files_credit_pages -= sure - unmapped < account->files_credit_pages ?
							       sure - unmapped :
							       account->files_credit_pages;
		account->counted_pages = unmapped;
		account->files_counted = counted;
		if (unmapped > sure)
			state->files_wanted = 1;
	}
	set_unmapped(account, unmapped, sure);
	if (account->stuck_pages)
		tell_of_files(state, account, slot, trigger);
	return 0;
}

#endif /* BURSAR_FILES_BPF_H */
