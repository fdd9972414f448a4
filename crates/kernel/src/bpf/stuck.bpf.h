/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is held and no kill would free, files and the memory of who is stuck; and above what somebody is
 * killed all the same.
 */
#ifndef BURSAR_STUCK_BPF_H
#define BURSAR_STUCK_BPF_H

#include "correction.bpf.h"

enum {
	FILES_GRACE_NS = 1000000000,	/* a file's pages go that long after who kept it was killed */
	/* Where what no kill would free leaves less than a sixteenth of the limit (8 MiB at least),
	 * processes may hold that all the same: somebody has to remove the files, or to find out what the
	 * dying wait for. */
	FILES_RESERVE_SHIFT = 4,
	FILES_RESERVE_BYTES_SHIFT = 23,
	/* What is stuck raises what is held at most to a quarter beyond the limit: it is no way to hold ever
	 * more. */
	LINGERING_SHIFT = 2,
};

static __always_inline __s64 files_reserve(const struct account *account)
{
	__s64 share = account->limit_pages >> FILES_RESERVE_SHIFT;
	__s64 least = 1LL << (FILES_RESERVE_BYTES_SHIFT - page_shift);

	share = share > least ? share : least;
	return share < account->limit_pages ? share : account->limit_pages;
}

/* Above this somebody is killed: the limit, unless what no kill would free fills it. */
static __always_inline __s64 kill_above(const struct account *account)
{
	__s64 stuck = account->stuck_pages, lingering = account->lingering_pages;
	__s64 limit = account->limit_pages, reserve, most;

	if ((!stuck && !lingering) || limit == NO_BOUND_PAGES)
		return limit;
	reserve = files_reserve(account);
	most = limit + (limit >> LINGERING_SHIFT) - reserve;
	stuck += (lingering < most ? lingering : most) + reserve;
	return stuck > limit ? stuck : limit;
}

/* Files are believed when counted twice: what a process has kept may be on its way out with it. */
static __always_inline void set_unmapped(struct account *account, __s64 unmapped, __s64 sure)
{
	account->sure_pages = sure < unmapped ? sure : unmapped;
	account->stuck_pages =
		account->staying_pages < account->sure_pages ? account->staying_pages : account->sure_pages;
	account->unmapped_pages = unmapped;
}

#endif /* BURSAR_STUCK_BPF_H */
