/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is held and no kill would free: files that stay, processes that may not be killed, and address spaces that are
 * dying and are not credited any more. And above what somebody is killed all the same (rules.h).
 */
#ifndef BURSAR_STUCK_BPF_H
#define BURSAR_STUCK_BPF_H

#include "correction.bpf.h"

/* Of what no forgone kill would have freed (lib/observed.bpf.h). */
static __always_inline __s64 kill_above(const struct account *account)
{
	return kill_above_pages(account->limit_pages, account->stuck_pages + account->exempt_pages,
				account->unkillable_pages, page_shift);
}

/*
 * Whether files that stay are more than the limit and the reserve. What the living may hold beside them grows with them,
 * so it bounds nobody who goes on filling them: a System V segment or a mapped file, a part at a time, which is let go of
 * before the next. From here on whoever takes shared memory dies for it, at the event.
 */
static __always_inline bool are_files_too_many(const struct account *account)
{
	return account->stuck_pages > account->limit_pages &&
	       account->stuck_pages - account->limit_pages > reserve_of(account->limit_pages, page_shift);
}

/* From here on a decision is worth its while. The same, where nothing is observed. */
static __always_inline __s64 decide_above(const struct account *account)
{
	__s64 forgone = *(volatile __s64 *)&account->forgone_pages;

	return forgone ? kill_above(account) + forgone + forgone_slack(account) : kill_above(account);
}

/* Files are believed when counted twice: what a process has kept may be on its way out with it. */
static __always_inline void set_unmapped(struct account *account, __s64 unmapped, __s64 sure)
{
	if (sure > unmapped)
		sure = unmapped;
	if (sure > account->sure_pages)
		note_growth(account, sure - account->sure_pages);
	account->sure_pages = sure;
	account->stuck_pages =
		account->staying_pages < account->sure_pages ? account->staying_pages : account->sure_pages;
	account->unmapped_pages = unmapped;
}

#endif /* BURSAR_STUCK_BPF_H */
