/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel half and the user half have in common: every type that crosses the boundary,
 * once. BTF carries these into Rust (crates/kernel/src/abi.rs). A few numbers are copied by hand:
 * NO_BOUND_PAGES and BOOKED_BITS into abi.rs, NO_BOUND_PAGES and DOUBT_SHIFT into pss_scan.rs, and into
 * crates/daemon/src/backend/reading.rs by how much an account sinks below its notice before it is told again.
 *
 * Units are in the names: _pages are pages of the machine, _ns are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef BURSAR_ABI_H
#define BURSAR_ABI_H

#include "rules.h"

/* Raised whenever a struct here changes its meaning: pins of another version are replaced, not
 * adopted. struct account_history must keep its layout for ever, see there; so must struct membership,
 * and abi_version its place. */
enum abi_constant {
	ABI_VERSION = 13,
	CPU_WORDS = 4,		/* of a set of CPUs, 64 bits each */
	CPU_BITS = 64 * CPU_WORDS, /* lib/cpus.bpf.h */
	MOST_CPUS = 2048,	/* CPUs whose parts of counters are read */
	TAKEN_EVENTS = 512,	/* the user half may have in its hands before the oldest is overwritten */
	CANDIDATES = 8,		/* largest processes remembered with a kill, for `bursar why` */
	COMM_LEN = 16,		/* TASK_COMM_LEN */
	SPARED_PROGRAMS = 1024,	/* files of programs that are spared, those that upgrades have replaced included */
	EXEMPT_CGROUPS = 4096,	/* directories of control groups that are named */
	EXEMPT_RANGES = 8,	/* uid ranges that `default` does not cover; as many measured otherwise */
	RESUM_INTERVAL_MS = 200, /* S1 3.3 */
	SHARERS = 4096,		/* processes of one account that a PSS scan looks at */
	PSS_SCANS = 8,		/* that can be under way at once, of different accounts */
	SUBUIDS_MET = 256,	/* subordinate uids remembered, of processes outside of user namespaces */
	CALL_CHANGED_LEVEL = 1,	/* what a call returns, see struct run_killer_args */
	SUBORDINATES = 8192,	/* ranges of subordinate uids; a power of two, see owner_of_subuid() */
};

/* "No such bound": the one place where a number stands for its absence. Decoders turn it into None. */
#define NO_BOUND_PAGES NO_LIMIT_PAGES /* abi.rs: NO_BOUND_PAGES */

/* What of an address space is counted (docs/explanation/accounting.md). The first four are the kernel's
 * MM_* numbers (include/linux/mm_types_task.h). */
enum member {
	MEMBER_FILE = 0,
	MEMBER_ANON = 1,
	MEMBER_SWAP = 2,
	MEMBER_SHMEM = 3,
	MEMBER_PGTABLES = 4,
	MEMBER_HUGETLB = 5,	/* mm->hugetlb_usage; no event tells of it, only re-sums see it */
	MEMBERS = 6,
};

/* Which of S1's triggers made a decision. */
enum trigger {
	TRIGGER_EVENT = 0,	/* the RSS event itself */
	TRIGGER_TIMER = 1,	/* the 200 ms timer */
	TRIGGER_NOTIFIER = 2,	/* the user half */
	TRIGGER_PSS_SCAN = 3,	/* the user half, by its answer; on a thread of its own */
	TRIGGER_KILLER = 4,	/* the user half, that was told by EVENT_RUN_KILLER; on another one */
};

enum event_kind {
	EVENT_NOTICE = 1,	/* held rose over the notice level */
	EVENT_KILL = 2,		/* a victim was sent SIGKILL */
	EVENT_KILL_ASKED = 3,	/* the kernel half could not send it from here: user half, do */
	EVENT_NO_VICTIM = 4,	/* over the limit and nothing that may be killed */
	EVENT_FREED = 5,	/* a killed process's address space is gone */
	EVENT_UNRECORDED = 7,	/* no room for a process: only a walk over all tasks counts it */
	EVENT_OOM_SCORE_DUE = 6,	/* processes whose oom_score_adj is not what the last defence wants */
	EVENT_REFUSED = 8,	/* the gate answered ENOMEM or EAGAIN; once a second and account */
	EVENT_FILES = 9,	/* over the limit by files that no kill would free */
	EVENT_COUNT_FILES = 10,	/* more files than a timer may count: user half, run count_files */
	EVENT_PSS_SCAN = 11,	/* how much do this account's processes share? user half, look */
	EVENT_ROW_REFUSED = 12,	/* a beancounter refused (beancounters.h): request is its row, the amounts are
				 * in its own unit; once a second, row and account */
	EVENT_SHORTAGE = 13,	/* the machine may be short of memory; at each tick until the last defence is up */
	EVENT_RUN_KILLER = 14,	/* an account is over a bound, and the event may not decide: user half, run_oom_killer */
	EVENT_WOULD_KILL = 17,	/* observed: a victim was chosen, and nothing was sent to it */
	EVENT_WATCH_REACHED = 16,	/* at a level that the user half watches; once, until it says the next one */
	EVENT_DYING = 15,	/* a process that we have not killed is dying; start and number are 0 where it has left
				 * its address space, and pid is who had it last then */
};

/* What the gate compares with the barrier. */
enum measure {
	MEASURE_RESIDENT = 0,	/* what is held; S1's reservations count as held */
	MEASURE_COMMITTED = 1,	/* S5's privvmpages: what could be held if all of it were touched */
};

/* What the gate was asked for. */
enum request {
	REQUEST_MMAP = 1,
	REQUEST_BRK = 2,
	REQUEST_MREMAP = 3,
	REQUEST_MPROTECT = 4,
	REQUEST_FORK = 5,
	REQUEST_EXEC = 6,
	REQUEST_RESERVE = 7,	/* S1 5.2: transaction_reserve */
	REQUEST_FILE = 8,	/* a file in tmpfs is to grow */
	REQUEST_SECRET = 9,	/* memfd_secret(2) */
};

/*
 * S1 5.2's transactions without a daemon, where the gate is: prctl(GATE_PRCTL, operation, pages, 0, 0).
 * An LSM program can refuse but not say yes, so yes is an errno too: EINPROGRESS. ENOMEM: it would
 * pass the limit. ENXIO: nobody pays for the caller, it has no limit. EINVAL: no such operation, no
 * pages, more pages than any machine has, or a commit of more than is reserved. A kernel without the
 * gate answers EINVAL to all of it; GATE_ASK tells the two apart: EINPROGRESS or ENXIO.
 */
enum gate_prctl {
	GATE_PRCTL = 0x42555253, /* "BURS" */
	GATE_ASK = 0,
	GATE_RESERVE = 1,
	GATE_COMMIT = 2,
};

/* An account's id: a kind in the high half, a number in the low one. Kernel addresses are larger than all of them. */
enum account_kind {
	KIND_USER = 0,		/* a uid's own: 0 … 2^32 − 2 */
	KIND_GROUP = 1,		/* shared by a Unix group's members, by gid */
	KIND_NAMED = 2,		/* shared by who enters it, by a number made of its name */
	KIND_SHIFT = 32,
};

enum account_flag {
	ACCOUNT_USED = 1,	/* the slot belongs to somebody */
	ACCOUNT_DEFAULT = 2,	/* made from the template when its uid was first seen */
	ACCOUNT_PAUSED = 4,	/* counted, never killed in: another kernel half is still in charge */
	ACCOUNT_SHARED = 8,	/* of several users; its id is no uid */
	ACCOUNT_CLOSED = 16,	/* given back; free for another once nothing is held */
	ACCOUNT_OBSERVED = 32,	/* nobody is told, refused or killed: lib/observed.bpf.h */
};

enum mm_state {
	MM_FREE = 0,
	MM_LIVING = 1,
	MM_MARKED = 2,		/* chosen; SIGKILL not yet delivered */
	MM_DYING = 3,		/* told to die, by us or by anybody, or ended: credited for a while (rules.h) */
};

/* How exactly an account is counted. */
enum nearness {
	NOT_NEAR = 0,
	NEAR = 1,		/* each event of it is booked, or on a CPU's stock of some (lib/near.bpf.h); */
	NEAR_AND_READ = 2,	/* the same, and all its records have been read since */
	EXACT = 3,		/* each is booked, */
	EXACT_AND_READ = 4,	/* and all its records have been read since: they say what there is */
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
	__u32 number;		/* of its id; frozen, as history is */
	__u32 flags;		/* enum account_flag; frozen */
	__u64 id;
	__u64 deciding_ns;	/* when the decision under way began; 0: none */
	__u64 no_decision_before_ns; /* after a decision that found nobody to kill */
	__u64 noticed_ns;	/* last notice sent */
	__u32 noticed;		/* held is over the notice level and the user has been told */
	__u32 near;		/* enum nearness */

	/* read at every event, written when somebody changes a limit */
	__s64 limit_pages;
	__s64 barrier_pages;
	__s64 notice_pages;
	__s64 near_pages;	/* from here on `near` */
	__s64 private_barrier_pages; /* of what is committed alone: the row privvmpages */

	/* written by the re-sum only */
	__u64 sum_ticket;	/* S1 section 4.5: a sum of another ticket counts as zero */
	__s64 sum_pages;
	__s64 sum_dying_pages;
	__s64 suspect_pages;	/* drift seen by the last re-sum; repaired when seen twice */
	__s64 suspect_dying_pages;
	__u32 processes;
	__u32 sum_processes;

	/* written by the walk over all tasks only */
	__u64 walk_ticket;
	__s64 walked_pages;	/* held, in no record: of processes for which the ledger had no room, … */
	__s64 late_pages;	/* … so much of which came into one since that walk began */
	__s64 late_before_pages; /* late_pages when this walk came to the account */
	__s64 sum_unrecorded_pages;
	__u32 unrecorded_processes;
	__u32 sum_unrecorded_processes;
	__u32 measure;		/* enum measure */
	__s32 cpus;		/* that may keep something back, over all its records; and by the re-sum: */
	__s32 sum_cpus;
	__u32 private_observed;	/* what the row privvmpages would refuse is told, and granted */
	__s64 sum_committed_pages; /* by the re-sum, as sum_pages */
	__s64 suspect_committed_pages;
	__s64 exempt_pages;	/* of held: of processes that may not be killed, as of the last decision */
	__s64 unkillable_pages;	/* of held: of the dying that are credited no more */
	__s64 sum_unkillable_pages;
	__s64 sum_reserved_pages;
	__s64 suspect_reserved_pages;
	__s64 forgone_pages;	/* of held: of whom would have been killed, as of the last decision or re-sum */
	__s64 sum_forgone_pages;

	/* written at every charge: keep apart from what is only read */
	__s64 held_pages __attribute__((aligned(64)));
	__s64 dying_pages;	/* of the dying, credited: not in held */
	__s64 collapsed_pages;	/* sum of its records' */
	__s64 grown_pages;	/* more was booked, or copied, since it was last within its limit; forks add nothing */

	/* written by the gate */
	__s64 committed_pages;	/* of its records and of children being made; where counts_commitment() */
	__s64 forking_pages;	/* of it the children's: in no record yet */
	__s64 reserved_pages;	/* sum of its records' reserved_pages */
	/* the row privvmpages, where it has a bound: */
	__s64 private_maxheld_pages;
	__u64 private_failcnt;
	__u64 private_told_ns;	/* last refusal told */
	__u64 private_untold;	/* refusals since then */
	__s64 promised_pages;	/* reserved of the user half; void where that has died */
	__u64 recounted_ns;	/* when a request near the barrier last read all records */
	__u64 recount_ns;	/* how long that took */
	__u64 refused_told_ns;	/* last refusal told */
	__u64 refused_untold;	/* refusals since then */

	/* tmpfs files (docs/explanation/accounting.md), by the count of files: */
	__u64 files_ticket;	/* a sum of another ticket counts as zero */
	__s64 sum_files_pages;
	__s64 sum_staying_pages;
	__s64 files_pages;	/* of all files its users own, mapped or not, swapped or not */
	__s64 staying_pages;	/* of those, what would outlive all processes */
	/* by the re-sum: */
	__s64 sum_shmem_pages;
	__s64 shmem_pages;	/* RssShmem of all its address spaces, the dying included */
	__s64 unmapped_pages;	/* what files_pages exceeds shmem_pages by */
	__s64 stuck_pages;	/* of sure_pages, what no kill would free */
	__s64 sure_pages;	/* of unmapped_pages, what two counts in a row have found: held,
				 * in no record */
	__s64 counted_pages;	/* unmapped_pages as of the last count */
	__u64 files_counted;	/* which that was */
	__u64 files_seen;	/* the last count that met all its files, or more than the one before */
	/* by decisions: */
	__u64 files_told_ns;	/* last EVENT_FILES */
	__u64 no_victim_told_ns; /* last EVENT_NO_VICTIM */
	/* correction.bpf.h: what held counts more than once */
	__s64 correction_pages;	/* in force; sinks with what may have ceased to be shared */
	__s64 correction_shmem_pages; /* of it at most so much is shared memory */
	__u64 correction_until_ns; /* not after this */
	__u64 corrected_ns;	/* when it was established; 0: never */
	__u64 asked_ns;		/* a PSS scan was asked for and has not been answered; 0: none */
	__s64 asked_pages;	/* what was not in doubt when it was first over its limit; 0: it is not */
	__s64 doubt_pages;	/* what was: the gate refuses nobody for it, … */
	__s64 doubted_pages;	/* … of so much that was held then, or less since */
	__u64 over_ns;		/* since when it has been over its limit for what is in doubt, scanned or not; 0: it is not */
	__s64 unmapped_in_doubt_pages; /* so much has been unmapped since: it may have been the other user's of a page */
	__s64 forked_pages;	/* counted twice since forks within it, less what was unmapped since; without what is copied */
	__s64 born_forked_pages; /* the same by forks since the PSS scan under way has begun */
	__u64 scan_ns;	/* how long the last one took */
	__s64 born_lost_pages;	/* given up, since the PSS scan began, by processes younger than it, and by those that have ended */
	__s64 ended_pages;	/* taken off the correction in force because processes have left since it was begun to be sought */
	__u64 lazyfree_pages;	/* the machine's, as of the beginning of the last PSS scan that has ended */
	__u64 lazyfree_begun_pages; /* and of the one under way */
	__s64 worn_pages;	/* copied since the PSS scan, nobody knows whose: in doubt */
	__u64 scanning_ns;	/* when the PSS scan under way began; 0: none */
	__s64 marked_over_pages; /* by so much it was over its limit when a victim was last marked */
	__s64 wait_at_most_pages; /* a question waits for its answer below this level; 0: none waits */

	struct patience patience; /* with what is credited, by the re-sum */
	__u32 files_credit_ms;	/* since when files_credit_pages are; 0: nothing is */
	__s64 files_credit_pages; /* of files that go with who was killed for them */
	__u64 files_kill_ticket; /* counts begun before that kill */

	/* level_watch.bpf.h: who waits is told once of the level at or above, or below, which it comes */
	__s64 watch_above_pages;
	__s64 watch_below_pages;
	__u32 watched;
	__u32 unbounded_until_ms; /* its credit has no bound until then: rules.h is_unbounded(); 0: it has */
} __attribute__((aligned(64)));

enum record_flag {
	RECORD_GREW = 1,	/* has had an event of its own: what it inherited is known */
	RECORD_SCANNED = 2,	/* looked at by the PSS scan that the correction is from */
	RECORD_BORN = 4,	/* began while a PSS scan was under way */
	RECORD_NEW = 8,		/* nothing of it was booked yet */
	RECORD_FORKED = 16,	/* others were forked from it since the PSS scan that the correction is from */
	RECORD_FORKS = 32,	/* and since the PSS scan under way has begun */
	RECORD_DEATH_TOLD = 64,	/* by EVENT_DYING: once in its life */
	RECORD_FORGONE = 128,	/* would have been killed: once in its life, while the bounds stay */
};

/* CPUs that keep part of an address space's counters back (lib/cpus.bpf.h). */
struct cpu_set {
	__u64 words[CPU_WORDS];
};

/* The file of a program, if it is root's and only root may write to it. Numbers of inodes come again, with another
 * generation. */
struct program {
	__u64 inode;		/* 0: none that anybody could be spared for */
	__u32 device;		/* of its superblock: what stat(2) says may be another one */
	__u32 generation;
};

/* One address space that is charged to an account. */
struct mm_record {
	__u64 mm;		/* struct mm_struct *, 0: this record is free */
	__u64 ctx_id;		/* unique for the life of the machine: tells a reused address */
	__u32 account;		/* slot of who pays; of a free record: the free one below it, plus 1, with FREE_LINK */
	enum mm_state state;
	__u32 uid;		/* of whom we last saw owning it */
	__u32 pid;		/* its owner's process, as of the last look, or when it was marked */
	__u64 user_ns;
	__s64 pages[MEMBERS];
	__u64 booked;		/* its part of an account's held_pages, and which account's: pages.bpf.h booked_on() */
	__u64 booked_dying;	/* its part of dying_pages, likewise */
	__u32 ticket;		/* last re-sum that met it */
	__u32 payers_generation; /* as of which `account` is right */
	__u64 marked_ns;	/* when it was chosen; 0: never */
	__u32 marked_pages;	/* what it had then */
	struct dying dying;
	__s64 committed_pages;	/* its part of account.committed_pages */
	__s64 reserved_pages;	/* its part of account.reserved_pages: gone when it is */

	/* correction.bpf.h */
	__s64 shared_pages;	/* may be mapped elsewhere too, as of the PSS scan */
	__s64 lost_pages;	/* of these, at most so many since are not any more */
	__s64 given_up_pages;	/* unmapped or copied since a PSS scan listed it, counted while it matters */
	/* correction.bpf.h small(): */
	__u32 inherited_pages;	/* anonymous, from whom it was forked; so far, before RECORD_GREW */
	__u32 duplicate_pages;	/* its RSS less its PSS, as of the PSS scan */
	__u32 known_by_many_pages; /* what others may map as well, as of the PSS scan */
	__u32 flags;		/* enum record_flag */
	__u32 fault_base;	/* its page faults when pages of it began to be shared */
	__u32 grown_events;	/* own events since then that made it grow, as far as each was looked at: a fault each */
	__s64 collapsed_pages;	/* khugepaged has added so many: not the process's doing */
	struct cpu_set cpus;	/* whose parts are read */
	struct program program;	/* what it has executed, or was forked from */
} __attribute__((aligned(64)));

/* One process in a PSS scan: written by begin_pss_scan, completed by the user half, read by end_pss_scan. */
struct sharer {
	__u64 mm;
	__u64 ctx_id;		/* addresses come again, these do not */
	__u32 record;
	__u32 tid;		/* a thread of it that lives */
	__s64 shared_pages;	/* found: of its pages at most so many are mapped elsewhere too; -1: not looked at */
	__s64 duplicate_pages;	/* found: its RSS less its PSS */
	__u32 shmem_pages;	/* its shared memory, mapped, before the user half looks */
	__u32 hugetlb_pages;	/* what it maps of the pool of huge pages, likewise */
	__s64 once_pages;	/* found: its PSS, and its part of the pool */
	__s64 duplicate_shmem_pages; /* found: of the duplicates, what is shared memory */
};

/* Of a task: the account it has entered, or was born in. The next version takes the map as it is. Before version 7
 * there was no kind: numbers from 2^31 on were gids, from 2^31 + 2^30 on made of names. */
struct membership {
	__u32 number;
	__u32 kind;		/* enum account_kind; 0: written before version 7 */
};

/* A folio that is dirty, and because of whom. */
struct dirty_folio {
	__u64 payer;		/* an account's id */
	__u32 pages;
	__u32 pad;
};

/* Dirty page cache by who made it so. */
struct dirty_sum {
	__s64 dirty_pages;	/* now */
	__u64 dirtied_pages;	/* ever, since somebody first asked */
	__u64 written_pages;
	__u64 cancelled_pages;	/* truncated or removed before they were written */
};

struct dirty_facts {
	__u64 folios_lost;	/* no room: nobody's */
	__u64 payers_lost;
	__u64 forgotten;	/* cleaned unseen */
};

struct uid_range {
	__u32 first, last;	/* both included; empty: last < first */
};

/* Subordinate uids (subuid(5)) and whose they are. */
struct subordinate {
	__u32 first, last;	/* both included; empty: last < first */
	__u32 owner;
	__u32 pad;
};

/* The ledger's state that is nobody's in particular; one of it. */
struct ledger_state {
	__u32 abi_version;
	__u32 complete;		/* set last by the loader: limits hold */
	__u64 generation;	/* raised whenever what a CPU remembers of an mm may be wrong */
	__u64 payers_generation; /* raised whenever somebody else pays for a uid than before */
	__u64 free_records;	/* stack of records given back: low half the top one plus 1, high
				 * half a tag that tells an old top from the same one come back */
	__u64 ticket;		/* of the last re-sum */
	__u64 walk_ticket;	/* of the last walk over all tasks */
	__u64 next_walk_ticket;	/* when the timer's next one is due */
	__u64 walk_boottime_ns;	/* when the last one began */
	__u32 mm_high_water;	/* records ever used: walks stop here */
	__u32 account_high_water;
	__u32 kills_wanted;	/* victims marked whose signal could not be sent */
	__u32 timer_running;
	__u32 bursard_tgid;	/* bursard, never a victim: is_bursard(); when it is dead its number is another's */
	__u32 entered;		/* somebody has entered an account: memberships are looked at */
	__u32 uid_min;		/* `default` starts here */
	__u32 raised_adj;	/* oom_score_adj of processes with a limit (S1 3.4); 0: left alone */
	__u32 undefended;	/* processes the last re-sum met with another one */
	__u32 undefended_told;	/* as many of them the user half was told of */
	__u32 timer_walks_tasks; /* the timer finds missed processes itself (from 6.7 on) */
	__u32 signals_others;	/* the event itself can kill another process (from 6.13 on) */
	__u32 walk_wanted;	/* the next re-sum is to meet all tasks, whoever's turn it is */
	__u32 unrecorded;	/* processes the last walk met for which there was no room */
	__u64 unrecorded_told_ns; /* when the user half was asked to walk */
	__u64 resummed_ns;	/* when the last re-sum began */
	__u64 undefended_ns;	/* when it was told */
	__u64 short_below_pages; /* of the whole machine; 0: nobody wants to know */
	__u64 zone_counters;	/* where the kernel counts the machine's pages; 0: not known */
	__u64 node_counters;
	__u64 deaths_from_pages; /* deaths of so much are told of; 0: nobody wants to know */
	__u64 bursard_start_ns; /* when bursard began, CLOCK_BOOTTIME */
	__u64 answering_mm;	/* of who is there to be asked for PSS scans; 0: nobody */
	__u64 last_retry_ns;
	__u64 killer_asked_ns;	/* when run_oom_killer was asked for; 0: it has begun since */
	__u64 watching;		/* copies of shared pages are counted; by the user half */
	__u64 lazyfree_pages;	/* ever given back with MADV_FREE, by anybody (vmstat's pglazyfree), as the
				 * user half has last seen it: they stay resident until somebody needs them */
	struct uid_range exempt[EXEMPT_RANGES];
	struct uid_range committed[EXEMPT_RANGES]; /* measured so, whatever the template says */

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
	__u64 resuming_ns;	/* when the re-sum under way began; 0: none */
	__u64 resums;
	__u64 resum_ns;		/* the last one's duration */
	__u64 resum_max_ns;
	__u64 resum_tasks;	/* processes met by the last one */
	__u64 decisions;
	__u64 longest_decision_ns;

	/* the count of files */
	__u64 tmpfs_type;	/* struct file_system_type * of tmpfs; 0: files are not counted */
	__u64 ramfs_type;	/* the same of ramfs; 0: there is none */
	__u64 files_ticket;	/* counts begun */
	__u64 files_counted;	/* ticket of the last one that is in the accounts */
	__s64 files_shmem_pages; /* machine_shmem() when that one began */
	__u64 files_counting_ns; /* when the one under way began; 0: none */
	__u64 files_ns;		/* the last one's duration */
	__u64 files_max_ns;
	__u64 files_met;	/* inodes met by the last one */
	__u64 files_skipped;	/* counts that ended before the last file */
	__u64 files_asked_ns;	/* when the user half was asked to count */
	__u64 files_full_ns;	/* duration of the user half's last count */
	__u64 members_lost;	/* children of members that could not be made members */
	__u32 files_timer;	/* a timer counts them */
	__u32 files_wanted;	/* somebody waits for the next count */

	__u32 subordinates;	/* where in their map those in force begin: 0, or in the middle */
	__u32 exempts_cgroups;	/* processes in some control groups are nobody's */

	/* the user half's own, which outlive it here (events_in_hand.rs) */
	__u64 events_taken;	/* read from the ring, of those that are to be recorded */
	__u64 events_mark;	/* how many of them are recorded, and the number that the next one is given */
	__u64 events_waiting;	/* recorded in its memory only */
	__u64 events_tries;	/* how often it ended while it recorded the first of those that are not */
	__u64 events_unrecorded; /* gone with one that was killed; a fact of bad days */
	__u64 events_lost_told;	/* of events_lost so many are recorded as lost */

	__u32 subuids_met[SUBUIDS_MET]; /* by the low bits: the last one; 0: none */
};

struct candidate {
	__u32 pid;
	__u32 uid;
	__s64 pages;
	char comm[COMM_LEN];
	__u32 is_spared;	/* others that hold enough go first */
	__u32 pad;
};

struct event {
	enum event_kind kind;
	enum trigger trigger;
	__u64 time_ns;
	__u32 account;		/* slot */
	__u32 observed;		/* the account was: what is told would have been so */
	__u64 account_id;
	__u32 pid;
	__u32 uid;
	char comm[COMM_LEN];
	__u64 start_boottime_ns; /* of the process: tells it from a later one of the same pid */
	__u64 pidfs_number;	/* so does this, which its pidfd has too; 0 where there is none */
	__s64 held_pages;	/* before the victim was taken off */
	__s64 dying_pages;
	__s64 limit_pages;
	__s64 notice_pages;
	__s64 victim_pages;
	__s64 victim_private_pages; /* of these, what its end gives back: not shared memory */
	__u64 latency_ns;	/* kill: from the decision to the signal, or to the request for it; freed: from the signal */
	__u32 candidates_met;	/* processes weighed */
	__u32 candidates_kept;
	struct candidate candidates[CANDIDATES];
	__s64 barrier_pages;	/* refused: */
	__s64 reserved_pages;
	__s64 committed_pages;
	__s64 request_pages;
	__u32 request;		/* enum request */
	__u32 measure;		/* enum measure */
	__u64 refusals;		/* this one and those not told before it */
	__u32 namespace_pid;	/* of a victim: its number in its own PID namespace; 0: it has no other */
	__u32 shares_with;	/* of a victim: its memory was chosen under this process's number; 0: under its own */
};

/* Arguments of the SEC("syscall") programs: S1 section 4.1's three calls, and our own. Each returns 0 or a negative
 * errno, or CALL_CHANGED_LEVEL where run_oom_killer is to see next what the account's level asks for. */
struct set_limit_args {
	__u32 slot;		/* 0: the template of `default` */
	__u32 flags;		/* ACCOUNT_OBSERVED; of the template all: ACCOUNT_USED if `default` has a limit */
	__s64 limit_pages, barrier_pages, notice_pages;
	__s64 private_barrier_pages;
	__u32 measure;		/* enum measure */
	__u32 private_observed;
};

struct open_account_args {
	__u64 id;
	__u32 pad;
	__u32 flags;		/* enum account_flag; ACCOUNT_USED is added */
	__u32 slot;		/* in: a closed slot to take, or 0; out: the account */
	__u32 opened;		/* out: 0 if it was there already */
	struct account_history history; /* in: of a former life; used if opened */
};

struct run_killer_args {
	__u32 trigger;		/* enum trigger: TRIGGER_NOTIFIER, TRIGGER_PSS_SCAN or TRIGGER_KILLER, each of one thread */
	__u32 decisions;	/* out */
	__u32 slot;		/* an account to look at in any case; 0: only at those that are over */
	__u32 is_change;	/* a call has changed what this account's level asks for: nobody else is looked at */
};

struct promise_args {
	__u32 slot;
	__u32 pad;
	__s64 pages;
};

struct watch_args {
	__u32 slot;
	__u32 pad;
	__s64 above_pages;	/* NO_BOUND_PAGES: none */
	__s64 below_pages;	/* 0: none */
};

struct set_subordinates_args {
	__u32 subordinates;	/* as in struct ledger_state */
	__u32 pad;
};

struct count_files_args {
	__s32 fd;		/* of a tmpfs file of the caller's, to find tmpfs by */
	__u32 pad;
};

struct identify_args {
	__s32 fd;		/* of the caller's, of a program's file */
	__u32 pad;
	struct program program;	/* out */
};

struct begin_pss_scan_args {
	__u32 slot;
	__u32 place;		/* which of PSS_SCANS */
	__u32 count;		/* out: entries of its part of the sharers map */
	__u32 pad;
	__u64 began_ns;		/* out: names this PSS scan */
};

struct end_pss_scan_args {
	__u32 slot;
	__u32 place;		/* as begin_pss_scan had it */
	__u32 count;
	__u32 unused;
	__u64 began_ns;		/* as begin_pss_scan said */
	__u64 lifetime_ns;	/* the correction is in force so long at most */
	__s64 correction_pages;	/* out */
	__s64 held_pages;	/* out: without it */
	__u32 is_near;		/* out */
	__u32 pad;
};

struct configure_args {
	__u32 uid_min;
	__u32 raised_adj;
	__u32 exempts_cgroups;
	__u32 in_charge;	/* decide from now on; until then accounts may be paused */
	__u64 short_below_pages;
	__u64 deaths_from_pages;
	struct uid_range exempt[EXEMPT_RANGES];
	struct uid_range committed[EXEMPT_RANGES];
};

_Static_assert(sizeof(struct account_history) == 32, "frozen: other versions read it");
_Static_assert(sizeof(struct account) == 832, "kept in whole cache lines");
_Static_assert(sizeof(struct sharer) == 64, "read and written by the user half");
_Static_assert(sizeof(struct mm_record) == 256, "four cache lines, none shared");

#endif /* BURSAR_ABI_H */
