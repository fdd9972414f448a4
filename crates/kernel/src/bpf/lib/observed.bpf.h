/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounts that are only observed. They are counted, weighed and doubted exactly as others are; read where a decision
 * acts, and nowhere before: then an event tells what would have been done, and nobody is told, refused or killed.
 *
 * A kill that was forgone is part of what is observed: whoever would have been killed counts neither as held nor as a
 * candidate in the decisions that follow, until it ends. So each is named once, and the next one is whom enforcing
 * would have killed next.
 */
#ifndef BURSAR_OBSERVED_BPF_H
#define BURSAR_OBSERVED_BPF_H

#include "compat.bpf.h"

static __always_inline bool is_observed(const struct account *account)
{
	return *(volatile __u32 *)&account->flags & ACCOUNT_OBSERVED;
}

static __always_inline bool is_forgone(const struct account *account, const struct mm_record *record)
{
	return (record->flags & RECORD_FORGONE) && is_observed(account);
}

/* A breach answered, or a request refused; not where neither is. */
static __always_inline void count_failure(struct account *account)
{
	if (!is_observed(account))
		__sync_fetch_and_add(&account->history.failcnt, 1);
}

enum { LEAST_SLACK_PAGES = 256 };

/* Who was forgone may go on growing: a sixteenth of the limit passes before anybody looks again, so that this costs no
 * decision at each page. */
static __always_inline __s64 forgone_slack(const struct account *account)
{
	__s64 slack = account->limit_pages >> RESERVE_SHIFT;

	if (!account->forgone_pages)
		return 0;
	return slack < LEAST_SLACK_PAGES ? LEAST_SLACK_PAGES : slack;
}

#endif /* BURSAR_OBSERVED_BPF_H */
