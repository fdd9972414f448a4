/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What crosses the boundary between stall.bpf.c and the user half. BTF carries these types into the
 * skeleton. Apart from abi.h, for this object lives and dies with bursard and is never taken over.
 */
#ifndef BURSAR_STALL_H
#define BURSAR_STALL_H

enum stall_constant {
	STALL_BUCKETS = 32,	/* of a histogram: bucket n holds [2^(n-1), 2^n) microseconds */
	STALL_USERS = 4096,	/* uids with a row of their own */
	STALL_TASKS = 8192,	/* tasks that can stall at once */
	STALL_NODES = 64,	/* NUMA nodes whose kswapd is timed */
	STALL_OTHERS = -1,	/* the row of uids that found no room */
	STALL_SPANS = 16,	/* spans of 10 s of which the slowest reaction is remembered */
};

/* Of one uid, or of all. Counters since the object was loaded. */
struct stall_row {
	__u64 reclaims;		/* allocations that had to reclaim by themselves */
	__u64 reclaim_ns;	/* time they took */
	__u64 compactions;	/* zones that allocations had to compact by themselves */
	__u64 compaction_ns;
	__u64 longest_ns;	/* the longest of either */
	__u64 wakeups;		/* times it emptied a zone far enough to wake kswapd */
};

struct stall_total {
	struct stall_row all;
	__u64 tasks_full;	/* stalls not timed: too many at once */
	__u64 users_full;	/* stalls booked on STALL_OTHERS */
	__u64 reactions;	/* times that kswapd was woken and came */
	/* kswapd's slowest reaction, from wake-up to work, in each of the last spans of 10 s:
	 * which span (monotonic time / 10 s) stands in a slot, and the nanoseconds */
	__u64 span[STALL_SPANS];
	__u64 slowest_ns[STALL_SPANS];
	__u64 reclaim_log2_us[STALL_BUCKETS];
	__u64 reaction_log2_us[STALL_BUCKETS];
};

_Static_assert(sizeof(struct stall_row) == 48, "read as bytes");
_Static_assert(sizeof(struct stall_total) == 48 + 24 + 2 * 8 * (STALL_SPANS + STALL_BUCKETS), "read as bytes");

#endif /* BURSAR_STALL_H */
