/* SPDX-License-Identifier: GPL-2.0-only */
/* What the bench, its growing processes and the observer share; src/board.rs is the same in Rust, and
 * a test there compares the two through BTF. */
#ifndef BURSAR_BENCH_BOARD_H
#define BURSAR_BENCH_BOARD_H

enum { BOARD_SLOTS = 16, BOARD_KILLS = 64 };

/* One growing process; written by itself. A cache line of its own. */
struct slot {
	__u64 pid;		/* 0: empty */
	__u64 pages;		/* what it holds, as bursar counts */
	__u64 is_dead;		/* SIGKILL is on its way; written by the observer */
	__u64 pad[5];
};

struct killed {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u64 held_pages;	/* of all that live, the victim included */
	__u64 pid;
	__u64 victim_pages;
};

struct board {
	__u64 go;		/* grow! */
	__u64 limit_pages;
	__u64 crossed_ns;	/* when one of them first saw the sum above the limit; 0: nobody yet */
	__u64 kills;
	__u64 pad[4];
	struct slot slots[BOARD_SLOTS];
	struct killed killed[BOARD_KILLS];
};

_Static_assert(sizeof(struct board) <= 4096, "one page is mapped");

#endif /* BURSAR_BENCH_BOARD_H */
