/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The arithmetic of the one invariant (docs/explanation/accounting.md "One invariant over all states"): what of an
 * account's memory counts, what is credited because it is on its way out, and for how long.
 *
 * Pure functions of numbers, without helpers or maps: the BPF programs use them, and crates/ledger-model compiles
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
	/* So long what is dying is credited at least, and an account may be above its limit by more than an
	 * eighth because of it: a second, with the 200 ms between two re-sums. */
	PATIENCE_MS = 800,
	/* A time in ms may be ahead of another CPU's by so much. */
	CLOCK_SKEW_MS = 100,
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
	/* After so long nobody is dying who was when an account's patience ended (12 days: half of what 32 bits tell apart). */
	CREDIT_FROM_MS = 1 << 30,
	/* Shared pages matter from a thirty-second of the limit on. */
	DOUBT_SHIFT = 5,
	/* How far above its limit an account may be while it waits for a PSS scan. A quarter; where most of the doubt is
	 * about what was given up an eighth, less what does not matter. Where all of it is about what was given back with
	 * MADV_FREE no more than that much: anybody on the machine raises that one. */
	PSS_SCAN_SHIFT = 2,
	HARD_SCAN_SHIFT = 3,
	/* A spared program is one as any other from a quarter of the limit on. */
	SPARED_SHIFT = 2,
	RANK_SHIFT = 44,	/* more pages than any machine has, below 2000 steps of oom_score_adj */
};

/* So long ago is `since_ms`. Another CPU may have written it after `now_ms` was read, and 0 is written as 1: up to CLOCK_SKEW_MS
 * ahead is now. */
RULE __u32 ms_since(__u32 since_ms, __u32 now_ms)
{
	__u32 age = now_ms - since_ms;

	return age >= -(__u32)CLOCK_SKEW_MS ? 0 : age;
}

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
	if (dying->since_ms && ms_since(dying->since_ms, now_ms) < 2 * PATIENCE_MS)
		return;
	dying->credit_pages = pages;
	dying->shared_pages = shared_pages;
	dying->since_ms = now_ms ? now_ms : 1;
}

/* It has no owner any more, and somebody keeps it: nothing of it goes with anybody, and once its account's patience is
 * out it is not waited for either. */
RULE void is_kept(struct dying *dying, __u32 patience_is_out)
{
	dying->shared_pages = 0;
	if (patience_is_out)
		dying->credit_pages = 0;
}

/* Whether it is still credited. `from_ms`: who has been dying since before then is not; 0: no such time. */
RULE int has_credit(const struct dying *dying, __u32 from_ms, __u32 page_shift, __u32 now_ms)
{
	__u32 patience = PATIENCE_MS + (dying->credit_pages >> (DRAIN_BYTES_SHIFT - page_shift));

	if (from_ms && (__s32)(dying->since_ms - from_ms) < 0)
		return 0;
	return ms_since(dying->since_ms, now_ms) <= patience;
}

/*
 * Splits what a dying address space has: what of it is held, and what is credited. Pages that the living share are in
 * neither, for as long as there is credit: after that nobody knows who is still there. Another process may go
 * on filling it (process_vm_writev, /proc/PID/mem, one that shares it), for the dead do not stop it: that is held.
 */
RULE __s64 split_dying(const struct dying *dying, __s64 pages, __u32 from_ms, __u32 page_shift, __u32 now_ms,
		       __s64 *credit_pages)
{
	__s64 most = (__s64)dying->credit_pages + DYING_GROWTH_PAGES - dying->shared_pages;

	*credit_pages = 0;
	if (!has_credit(dying, from_ms, page_shift, now_ms))
		return pages;
	pages -= dying->shared_pages;
	if (pages < 0)
		pages = 0;
	if (most < 0)
		most = 0;
	*credit_pages = pages < most ? pages : most;
	return pages - *credit_pages;
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
	return since_ms && !patience_is_out && ms_since(since_ms, now_ms) <= PATIENCE_MS;
}

/*
 * A limit that begins, or sinks, finds more than one limit's worth there, and nothing of that has grown against it. While
 * it goes its credit has no bound: each death would count against the next one, and nobody would be left. The lowest bit:
 * so much is not known to be there, but may not have been met yet; then patience with it is as ever.
 */
#define PERHAPS 1U

RULE __u32 unbounded_until(__s64 total_pages, __s64 limit_pages, __u32 page_shift, __u32 now_ms)
{
	__s64 over = total_pages - limit_pages;

	if (over <= 0)
		return (now_ms + PATIENCE_MS) | PERHAPS;
	now_ms += PATIENCE_MS + (__u32)(over >> (DRAIN_BYTES_SHIFT - page_shift)) + 2;
	return now_ms & ~PERHAPS ? now_ms & ~PERHAPS : 2;
}

RULE int is_unbounded(__u32 until_ms, __u32 now_ms)
{
	return until_ms && (__s32)(until_ms - now_ms) >= 0;
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

/* At each re-sum. `total_pages`: all that is charged to the account, whatever its state. Returns whether patience has
 * ended now: decisions are to go on as if nothing had been credited so far. */
RULE int keep_patience(struct patience *patience, __s64 total_pages, __s64 limit_pages, __u32 now_ms)
{
	if (total_pages <= limit_pages) {
		patience->credit_from_ms = 0;
		patience->is_out = 0;
	}
	if (patience->credit_from_ms && ms_since(patience->credit_from_ms, now_ms) > CREDIT_FROM_MS)
		patience->credit_from_ms = 0;
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
	if (ms_since(patience->above_ms, now_ms) < PATIENCE_MS)
		return 0;
	patience->above_ms = now_ms;
	patience->credit_from_ms = now_ms;
	patience->is_out = 1;
	return 1;
}

/* An account whose processes may share more than is known. */
struct doubt {
	__s64 level_pages;	/* what counts, as far as is known */
	__s64 limit_pages;
	__s64 bound_pages;	/* the limit, or the notice while that is not passed */
	__s64 soft_pages;	/* may be shared: inherited, or shared memory; out: with what has ended, where that counts */
	__s64 hard_pages;	/* may have ceased to be shared */
	__s64 ended_pages;	/* taken off the correction because processes have left: the most that they shared */
	__s64 sure_pages;	/* of the soft ones, what no page fault has copied and nobody else has unmapped */
	__s64 forked_pages;	/* counted twice for certain: forks made them so, and nothing has undone it */
	__s64 given_pages;	/* given back with MADV_FREE, perhaps */
	__s64 held_pages;	/* the sum of resident sets */
	__s64 largest_pages;	/* of one process: by as much as that grows more is held */
	__s64 sure_of_one_pages; /* of one process: so much is there in any case */
	__s64 asked_pages;	/* what was certain when the limit was crossed, and what was free then; 0: it was not */
	__s64 grown_pages;	/* since it was last within the limit, at most: it holds no more than both */
	__s64 wait_at_most_pages; /* out: a level */
	__s64 at_most_pages;	/* out: no more is held, whatever is shared: forks' doubles are certain */
};

enum wait {
	WAIT_NOT = 0,		/* decide */
	WAIT_FOR_PSS_SCAN = 1,
	WAIT_BUT_GROWERS = 2,	/* but for who grows further */
};

/* What may be counted more than once, of what is held. */
RULE __s64 in_doubt(const struct doubt *doubt)
{
	__s64 pages = doubt->soft_pages + doubt->hard_pages, at_most = doubt->held_pages - doubt->sure_of_one_pages;

	return pages < at_most ? pages : at_most;
}

/*
 * Whether an account that seems to be over its limit, or notice, waits until somebody has looked how much of it is
 * shared. It does not where even the most that could be shared changes nothing, or too little to care.
 */
RULE int wait_for_scan(struct doubt *doubt)
{
	__s64 pages;
	__s64 limit = doubt->limit_pages, certain = doubt->level_pages, most = limit >> PSS_SCAN_SHIFT, left;

	/* Who ends children all the time has this doubt all the time. Where more than a quarter of the limit has really
	 * grown it saves nobody. */
	if (doubt->grown_pages <= most)
		doubt->soft_pages += doubt->ended_pages;
	pages = in_doubt(doubt);
	if (pages <= doubt->bound_pages >> DOUBT_SHIFT && most > doubt->given_pages)
		most = doubt->given_pages;
	else if (pages > doubt->bound_pages >> DOUBT_SHIFT && doubt->hard_pages > doubt->soft_pages)
		most = (limit >> HARD_SCAN_SHIFT) - (limit >> DOUBT_SHIFT);
	pages += doubt->given_pages;
	if (pages <= doubt->bound_pages >> DOUBT_SHIFT || doubt->level_pages - pages > doubt->bound_pages)
		return WAIT_NOT;
	if (doubt->sure_pages > 0)
		certain -= doubt->sure_pages;
	/* What is in doubt may be part of the correction too: what the largest process has is taken for certain. And what
	 * is over the limit already is growth. */
	if (certain < doubt->largest_pages)
		certain = doubt->largest_pages;
	doubt->at_most_pages = doubt->level_pages - (doubt->forked_pages > 0 ? doubt->forked_pages : 0);
	if (doubt->at_most_pages < certain)
		doubt->at_most_pages = certain;
	if (!doubt->asked_pages || doubt->level_pages <= limit) {
		/* What is free of the limit when it is crossed is free for growth beside the quarter. */
		doubt->asked_pages = certain < limit ? certain : limit;
		if (doubt->at_most_pages < limit)
			doubt->asked_pages += limit - doubt->at_most_pages;
	}
	/* What is certain is a difference of estimates, which children that come and end move. */
	left = doubt->asked_pages + most - certain;
	if (left < most - doubt->grown_pages)
		left = most - doubt->grown_pages;
	doubt->wait_at_most_pages = doubt->level_pages + left;
	return left < 0 ? WAIT_BUT_GROWERS : WAIT_FOR_PSS_SCAN;
}

/* Whether a process of a spared program goes after others that hold a sixteenth of the limit: while it holds less than a
 * quarter itself. */
RULE int goes_last(__s64 pages, __s64 limit_pages, int is_spared)
{
	return is_spared && pages < limit_pages >> SPARED_SHIFT;
}

/* A sixteenth of the limit, which is what the reserve is. */
RULE int is_large(__s64 pages, __s64 limit_pages)
{
	return pages >= limit_pages >> RESERVE_SHIFT;
}

/*
 * Who dies: of those that hold a sixteenth of the limit at least whoever its user has put first (its oom_score_adj is
 * above what its user may not go below), else the largest. Who goes last counts as one that holds less.
 */
RULE __s64 rank_of(__s64 pages, __s64 limit_pages, int raised, int is_spared)
{
	if (!is_large(pages, limit_pages) || goes_last(pages, limit_pages, is_spared))
		return pages;
	return (((__s64)(raised > 0 ? raised : 0) + 1) << RANK_SHIFT) + pages;
}

/* Whether somebody of this rank goes before who goes last. */
RULE int is_before_last(__s64 rank)
{
	return rank >> RANK_SHIFT > 0;
}

#endif /* BURSAR_RULES_H */
