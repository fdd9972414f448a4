/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The arithmetic of the one invariant (docs/ACCOUNTING.md "One invariant over all states"): what of an
 * account's memory counts, what is credited because it is on its way out, and for how long.
 *
 * Pure functions of numbers, without helpers or maps: the BPF programs use them, and crates/rules compiles
 * this very file natively for a model in which an adversary makes any sequence of moves.
 *
 * Units are in the names. Times are milliseconds of CLOCK_MONOTONIC in 32 bits, so they wrap after 49 days:
 * only differences are compared. 0 stands for "never" where a comment says so.
 */
#ifndef BURSAR_RULES_H
#define BURSAR_RULES_H

#ifndef RULE
#define RULE static __always_inline
#endif

#define NO_LIMIT_PAGES 0x7fffffffffffffffLL

enum rule {
	/* So long what is dying is credited at least, an account may be above its limit by more than an
	 * eighth because of it. */
	PATIENCE_MS = 1000,
	/* A dying address space has so much longer as this rate takes: 4 GiB/s, a third of what a normal
	 * exit frees on a slow machine. 2^22 bytes a millisecond. */
	DRAIN_BYTES_SHIFT = 22,
	/* Above its limit by a shift of this the account's patience runs: an eighth. */
	PATIENCE_SHIFT = 3,
	/* A dying address space may grow by so much: the last faults of its own threads. */
	DYING_GROWTH_PAGES = 512,
	/* What no kill would free leaves the living a sixteenth of the limit, 8 MiB at least: somebody has to
	 * remove the files, or to find out what the dying wait for. */
	RESERVE_SHIFT = 4,
	RESERVE_BYTES_SHIFT = 23,
	/* What is unkillable raises what may be held to a quarter above the limit at most. */
	UNKILLABLE_SHIFT = 2,
	RANK_SHIFT = 44,	/* more pages than any machine has, below 2000 steps of oom_score_adj */
};

/* An address space whose owner was told to die, or has ended. */
struct dying {
	__u32 since_ms;		/* when it last began; 0: never */
	__u32 credit_pages;	/* what it held then */
	__u32 shared_pages;	/* of its pages so many stay with the living that share them */
};

/* It begins to die. "Dying" may be taken back (CLONE_VM): an address space that is dying and living by turns is
 * credited half of the time at most. Two CPUs may find it at once: the second changes nothing. */
RULE void begin_credit(struct dying *dying, __u32 pages, __u32 shared_pages, __u32 now_ms)
{
	if (dying->since_ms && now_ms - dying->since_ms < 2 * PATIENCE_MS)
		return;
	dying->credit_pages = pages;
	dying->shared_pages = shared_pages;
	dying->since_ms = now_ms ? now_ms : 1;
}

/* Whether it is still credited. `from_ms`: who has been dying since before then is not; 0: no such time. */
RULE int has_credit(const struct dying *dying, __u32 from_ms, __u32 page_shift, __u32 now_ms)
{
	__u32 patience = PATIENCE_MS + (dying->credit_pages >> (DRAIN_BYTES_SHIFT - page_shift));

	if (from_ms && (__s32)(dying->since_ms - from_ms) < 0)
		return 0;
	return now_ms - dying->since_ms <= patience;
}

/* What a dying address space adds to its account, credited or not. */
RULE __s64 weight_of_dying(const struct dying *dying, __s64 pages)
{
	pages -= dying->shared_pages;
	return pages > 0 ? pages : 0;
}

/* What of that is credited. Somebody else may go on filling it (process_vm_writev, /proc/PID/mem, who shares
 * it), for the dead do not stop him: that counts. */
RULE __s64 credit_of_dying(const struct dying *dying, __s64 pages, __u32 from_ms, __u32 page_shift, __u32 now_ms)
{
	__s64 weight = weight_of_dying(dying, pages), most;

	if (!has_credit(dying, from_ms, page_shift, now_ms))
		return 0;
	most = weight_of_dying(dying, (__s64)dying->credit_pages + DYING_GROWTH_PAGES);
	return weight < most ? weight : most;
}

/* Files go when nobody keeps them any more: those of a process that was killed for them are credited as its own
 * memory is, until `patience` ends, and no page twice. `sure_pages`: what its files hold beyond what is mapped. */
RULE __s64 add_files_credit(__s64 credit_pages, __s64 kept_pages, __s64 sure_pages)
{
	credit_pages += kept_pages;
	return credit_pages < sure_pages ? credit_pages : sure_pages;
}

/* `since_ms`: when the first of it was given; 0: none was. */
RULE int has_files_credit(__u32 since_ms, __u32 patience_is_out, __u32 now_ms)
{
	return since_ms && !patience_is_out && now_ms - since_ms <= PATIENCE_MS;
}

/* What of an account's credit is above one limit counts: however fast it grows, it is at twice its limit at most. */
RULE __s64 excess_of_credit(__s64 credit_pages, __s64 limit_pages)
{
	return credit_pages > limit_pages ? credit_pages - limit_pages : 0;
}

/* What the living may hold beside what no kill would free. */
RULE __s64 reserve_of(__s64 limit_pages, __u32 page_shift)
{
	__s64 share = limit_pages >> RESERVE_SHIFT, least = 1LL << (RESERVE_BYTES_SHIFT - page_shift);

	if (share < least)
		share = least;
	return share < limit_pages ? share : limit_pages;
}

/* Above this somebody is killed: the limit, unless what no kill would free fills it. `stuck_pages`: files that stay, and
 * processes that may not be killed; `unkillable_pages`: of address spaces that are dying and not credited any more. */
RULE __s64 kill_above_pages(__s64 limit_pages, __s64 stuck_pages, __s64 unkillable_pages, __u32 page_shift)
{
	__s64 reserve, most;

	if ((!stuck_pages && !unkillable_pages) || limit_pages == NO_LIMIT_PAGES)
		return limit_pages;
	reserve = reserve_of(limit_pages, page_shift);
	most = limit_pages + (limit_pages >> UNKILLABLE_SHIFT) - reserve;
	stuck_pages += (unkillable_pages < most ? unkillable_pages : most) + reserve;
	return stuck_pages > limit_pages ? stuck_pages : limit_pages;
}

/* An account's patience with what is credited. */
struct patience {
	__u32 above_ms;		/* since when it has been above its limit by more than an eighth; 0: it is not */
	__u32 credit_from_ms;	/* who has been dying since before then counts; 0: no such time */
	__u32 is_out;		/* nothing has gone in time: files are credited no more */
};

/* At each audit. `total_pages`: all that is charged to the account, whatever its state. Returns whether patience has
 * ended now: decisions are to go on as if nothing had been credited so far. */
RULE int keep_patience(struct patience *patience, __s64 total_pages, __s64 limit_pages, __u32 now_ms)
{
	if (total_pages <= limit_pages) {
		patience->credit_from_ms = 0;
		patience->is_out = 0;
	}
	if (limit_pages == NO_LIMIT_PAGES || total_pages <= limit_pages + (limit_pages >> PATIENCE_SHIFT)) {
		patience->above_ms = 0;
		return 0;
	}
	if (!now_ms)
		now_ms = 1;
	if (!patience->above_ms) {
		patience->above_ms = now_ms;
		return 0;
	}
	if (now_ms - patience->above_ms < PATIENCE_MS)
		return 0;
	patience->above_ms = now_ms;
	patience->credit_from_ms = now_ms;
	patience->is_out = 1;
	return 1;
}

/*
 * Who dies: of those that hold a sixteenth of the limit at least whoever its user has put first (its oom_score_adj is
 * above what its user may not go below), else the largest.
 */
RULE __s64 rank_of(__s64 pages, __s64 limit_pages, int raised)
{
	if (raised < 0 || pages < limit_pages >> RESERVE_SHIFT)
		raised = 0;
	return ((__s64)raised << RANK_SHIFT) + pages;
}

#endif /* BURSAR_RULES_H */
