/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel half and the user half have in common: every type that crosses the boundary,
 * once. BTF carries these into Rust (crates/kernel/src/abi.rs); nothing is copied by hand.
 *
 * Units are in the names: _pages are pages of the machine, _ns are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef BURSAR_ABI_H
#define BURSAR_ABI_H

/* Raised whenever a struct here changes its meaning: pins of another version are replaced, not
 * adopted. struct account_history must keep its layout for ever, see there. */
enum abi_constant {
	ABI_VERSION = 1,
	MAX_CPUS = 512,		/* CPUs whose part of a counter is read exactly */
	CANDIDATES = 8,		/* largest processes remembered with a kill, for `bursar why` */
	COMM_LEN = 16,		/* TASK_COMM_LEN */
	EXEMPT_RANGES = 8,	/* uid ranges that `default` does not cover */
	RESUM_INTERVAL_MS = 200, /* S1 3.3 */
};

/* "No such bound": the one place where a number stands for its absence. Decoders turn it into None. */
#define NO_BOUND_PAGES 0x7fffffffffffffffLL /* abi.rs: NO_BOUND_PAGES */

/* What of an address space is counted (DESIGN.md "What is counted"). The first four are the kernel's
 * MM_* numbers (include/linux/mm_types_task.h). */
enum member {
	MEMBER_FILE = 0,
	MEMBER_ANON = 1,
	MEMBER_SWAP = 2,
	MEMBER_SHMEM = 3,
	MEMBER_PGTABLES = 4,
	MEMBERS = 5,
};

/* Which of S1's triggers made a decision. */
enum trigger {
	TRIGGER_EVENT = 0,	/* the RSS event itself */
	TRIGGER_TIMER = 1,	/* the 200 ms timer */
	TRIGGER_NOTIFIER = 2,	/* the user half */
};

enum event_kind {
	EVENT_NOTICE = 1,	/* held rose over the notice level */
	EVENT_KILL = 2,		/* a victim was sent SIGKILL */
	EVENT_KILL_ASKED = 3,	/* the kernel half could not send it from here: user half, do */
	EVENT_NO_VICTIM = 4,	/* over the limit and nothing that may be killed */
	EVENT_FREED = 5,	/* a killed process's address space is gone */
	EVENT_UNDEFENDED = 6,	/* processes whose oom_score_adj is not what the last defence wants */
};

enum account_flag {
	ACCOUNT_USED = 1,	/* the slot belongs to somebody */
	ACCOUNT_DEFAULT = 2,	/* made from the template when its uid was first seen */
	ACCOUNT_PAUSED = 4,	/* counted, never killed in: another kernel half is still in charge */
	ACCOUNT_SHARED = 8,	/* of several users; its id is no uid */
	ACCOUNT_CLOSED = 16,	/* given back; free for another once nothing is held */
};

enum mm_state {
	MM_FREE = 0,
	MM_LIVING = 1,
	MM_MARKED = 2,		/* chosen; SIGKILL not yet delivered */
	MM_DYING = 3,		/* SIGKILL delivered, by us or by anybody */
};

/*
 * What an account remembers beyond its processes. Frozen: a kernel half of another version copies
 * it out of the old one's map, so it stays the first member of struct account and never changes.
 */
struct account_history {
	__s64 maxheld_pages;
	__u64 failcnt;
	__u64 kills;
	__u64 notices;
};

struct account {
	/* written at a decision, read by the user half */
	struct account_history history;
	__u32 id;		/* uid, or the number of a shared account */
	__u32 flags;		/* enum account_flag */
	__u64 settling_ns;	/* when the decision under way began; 0: none */
	__u64 no_settle_before_ns; /* after a decision that found nobody to kill */
	__u64 noticed_ns;	/* last notice sent */
	__u32 noticed;		/* held is over the notice level and the user has been told */
	__u32 near;		/* every event is counted exactly */

	/* read at every event, written when somebody changes a limit */
	__s64 limit_pages;
	__s64 barrier_pages;
	__s64 notice_pages;
	__s64 near_pages;	/* from here on `near` */

	/* written by the re-sum only */
	__u64 sum_ticket;	/* S1 section 4.5: a sum of another ticket counts as zero */
	__s64 sum_pages;
	__s64 sum_dying_pages;
	__s64 suspect_pages;	/* drift seen by the last re-sum; repaired when seen twice */
	__s64 suspect_dying_pages;
	__s64 unrecorded_pages;	/* of processes for which the ledger had no room */
	__s64 sum_unrecorded_pages;
	__u32 processes;
	__u32 sum_processes;

	/* written at every charge: keep apart from what is only read */
	__s64 held_pages __attribute__((aligned(64)));
	__s64 dying_pages;
} __attribute__((aligned(64)));

/* One address space that is charged to an account. */
struct mm_record {
	__u64 mm;		/* struct mm_struct *, 0: this record is free */
	__u64 ctx_id;		/* unique for the life of the machine: tells a reused address */
	__u32 account;		/* slot of who pays; of a free record: the free one below it, plus 1 */
	enum mm_state state;
	__u32 uid;		/* of whom we last saw owning it */
	__u32 pid;		/* process, once it is marked or dying */
	__u64 user_ns;
	__s64 pages[MEMBERS];
	__s64 booked_pages;	/* its part of account.held_pages */
	__s64 booked_dying_pages; /* its part of account.dying_pages */
	__u64 ticket;		/* last re-sum that met it */
	__u64 marked_ns;	/* when it was chosen; 0: never */
	__s64 marked_pages;
	__u64 payers_generation; /* as of which `account` is right */
};

struct uid_range {
	__u32 first, last;	/* both included; empty: last < first */
};

/* The ledger's state that is nobody's in particular; one of it. */
struct ledger_state {
	__u32 abi_version;
	__u32 complete;		/* set last by the loader: limits hold */
	__u64 generation;	/* raised whenever what a CPU remembers of an mm may be wrong */
	__u64 payers_generation; /* raised whenever somebody else pays for a uid than before */
	__u64 free_records;	/* stack of records given back: low half the top one plus 1, high
				 * half a tag that tells an old top from the same one come back */
	__u64 ticket;
	__u32 mm_high_water;	/* records ever used: walks stop here */
	__u32 account_high_water;
	__u32 kills_wanted;	/* victims marked whose signal could not be sent */
	__u32 timer_running;
	__u32 guardian_tgid;	/* bursard; never a victim */
	__u32 uid_min;		/* `default` starts here */
	__u32 raised_adj;	/* oom_score_adj of processes with a limit (S1 3.4); 0: left alone */
	__u32 undefended;	/* processes the last re-sum met with another one */
	__u32 undefended_told;	/* as many of them the user half was told of */
	__u32 timer_walks_tasks; /* the timer finds missed processes itself (from 6.7 on) */
	__u32 signals_others;	/* the event itself can kill another process (from 6.13 on) */
	__u32 pad;
	__u64 undefended_ns;	/* when it was told */
	__u64 last_retry_ns;
	struct uid_range exempt[EXEMPT_RANGES];

	/* facts of bad days; each only grows */
	__u64 events_lost;	/* ring buffer full */
	__u64 records_full;	/* no room for a process */
	__u64 records_leaked;	/* records that could not be given back */
	__u64 accounts_full;	/* no room for an account */
	__u64 drift_repaired_pages;
	__u64 drift_repairs;
	__u64 stale_records;	/* processes whose end was missed */
	__u64 missed_processes;	/* processes whose beginning was missed */
	__u64 kills_retried;
	__u64 kills_failed;
	__u64 resums;
	__u64 resum_ns;		/* the last one's duration */
	__u64 resum_max_ns;
	__u64 resum_tasks;	/* processes met by the last one */
	__u64 settles;
	__u64 settle_max_ns;

	__u64 cpu_offset[MAX_CPUS]; /* distance from a per-CPU address to a CPU's copy */
};

struct candidate {
	__u32 pid;
	__u32 uid;
	__s64 pages;
	char comm[COMM_LEN];
};

struct event {
	enum event_kind kind;
	enum trigger trigger;
	__u64 time_ns;
	__u32 account;		/* slot */
	__u32 account_id;
	__u32 pid;
	__u32 uid;
	char comm[COMM_LEN];
	__u64 start_boottime_ns; /* of the process: tells it from a later one of the same pid */
	__s64 held_pages;	/* before the victim was taken off */
	__s64 dying_pages;
	__s64 limit_pages;
	__s64 notice_pages;
	__s64 victim_pages;
	__u64 latency_ns;	/* kill: from the event to the signal; freed: from the signal */
	__u32 candidates_met;	/* processes weighed */
	__u32 candidates_kept;
	struct candidate candidates[CANDIDATES];
};

/* Arguments of the SEC("syscall") programs: S1 section 4.1's three calls, and our own. */
struct set_limit_args {
	__u32 slot;		/* 0: the template of `default` */
	__u32 flags;		/* of the template: ACCOUNT_USED if `default` has a limit */
	__s64 limit_pages, barrier_pages, notice_pages;
};

struct open_account_args {
	__u32 id;
	__u32 flags;		/* enum account_flag; ACCOUNT_USED is added */
	__u32 slot;		/* in: a closed slot to take, or 0; out: the account */
	__u32 opened;		/* out: 0 if it was there already */
	struct account_history history; /* in: of a former life; used if opened */
};

struct run_killer_args {
	__u32 trigger;
	__u32 decisions;	/* out */
};

struct configure_args {
	__u32 guardian_tgid;
	__u32 uid_min;
	__u32 raised_adj;
	__u32 in_charge;	/* decide from now on; until then accounts may be paused */
	struct uid_range exempt[EXEMPT_RANGES];
};

_Static_assert(sizeof(struct account_history) == 32, "frozen: other versions read it");
_Static_assert(sizeof(struct account) == 256, "kept in whole cache lines");
_Static_assert(sizeof(struct mm_record) == 128, "two cache lines, none shared");

#endif /* BURSAR_ABI_H */
