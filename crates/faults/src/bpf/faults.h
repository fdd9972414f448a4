/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the fault watcher's programs and its user half have in common. BTF carries it into Rust.
 * Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef BURSAR_FAULTS_H
#define BURSAR_FAULTS_H

enum fault_constant {
	MAX_PROCESSES = 4096,	/* processes told apart in one watch */
	MAX_SLOTS = 16384,	/* mappings told apart in one watch */
	MAX_SITES = 16384,	/* (mapping, instruction) pairs told apart */
	MAX_TARGETS = 1024,	/* process and user numbers that a watch can name */
	NAME_LEN = 64,		/* of a file, without its folder */
	TASK_NAME_LEN = 16,	/* TASK_COMM_LEN */
	STACK_DEPTH = 16,	/* return addresses kept with one recorded fault */
	BUCKETS = 256,		/* of a histogram: four for each power of two */
};

/* What kind of mapping an address lies in. */
enum mapping_kind {
	MAPPING_BY_KERNEL = 0,	/* no address: the kernel did it itself (populate, mlock, ptrace ...) */
	MAPPING_STACK = 1,
	MAPPING_HEAP = 2,	/* what brk() grows */
	MAPPING_FILE = 3,
	MAPPING_ANON = 4,
	MAPPING_UNKNOWN = 5,	/* the mapping could not be looked up */
	MAPPING_OVERFLOW = 6,	/* more mappings than MAX_SLOTS */
	MAPPING_UNSEEN = 7,	/* nobody looked: a part of a storm */
};

/* Whether a thread's faults are counted. */
enum counting {
	COUNTING_NOT = 0,
	COUNTING_SOON = 1,	/* somebody is about to note where its counters stand */
	COUNTING = 2,
};

enum target_kind {
	TARGET_PROCESS = 1,
	TARGET_USER = 2,
	TARGET_THREAD = 3,
};

struct target {
	enum target_kind kind;
	__u32 id;
};

/* What the user half switches while a watch goes on; written as a whole. */
struct switches {
	__u32 window;		/* the number of the window in which faults are timed, now or last */
	__u32 is_timing;	/* faults that begin now are timed, and booked where they end */
	__u32 is_recording;
	__u32 is_away;		/* nobody sees where faults begin */
};

/* One thread that is watched. Written by itself, in its own faults; read by anybody. */
struct thread_state {
	__u64 minor, major;	/* the kernel's counters when we last booked */
	__u64 begin_ns;		/* the fault under way entered the kernel; 0: booked already */
	__u64 start, size;	/* the mapping that it looked up last, */
	__u64 space;		/* in which address space, */
	__u64 generation;	/* as of which of its generations, */
	__u32 slot;		/* and its slot */
	__u32 process;		/* index, plus 1; 0: not yet met */
	__u32 kernel_slot;	/* for faults without an address */
	__u32 unseen_slot;	/* for those of spans in which nobody looks */
	enum counting counting;	/* if at all, among threads_alive */
	__u32 window;		/* switches.window at begin_ns */
	__u32 is_protected;	/* the fault under way met a page that is there and may not be written */
	__u32 pad;
};

/* The mapping of a CPU's last fault, until another thread runs there. */
struct seen {
	__u64 mm;		/* address of the address space */
	__u64 generation;
	__u64 start, size;	/* of no size: none */
	__u64 entries;		/* faults that began there and are not booked yet */
	__u32 slot, kernel_slot; /* the same: of a process that is not watched */
	__u64 pad[2];
};
_Static_assert(sizeof(struct seen) == 64, "a cache line");

/* What a thread has not yet booked. */
struct unbooked {
	__u64 minor, major;
	__u32 slot;
	__u32 pad;
};

struct process_key {
	__u64 start_boottime_ns;
	__u32 tgid;
	__u32 pad;
};

struct process {
	__u64 start_boottime_ns;
	__u32 tgid;
	__u32 uid;
	char comm[TASK_NAME_LEN];
};

struct slot_key {
	__u64 id1, id2;		/* which one, see slot_of() */
	__u32 process;
	__u32 kind;
};

/* A mapping, as it was when its first fault was met. */
struct slot {
	__u64 start, end;
	__u64 inode;
	__u32 device;		/* as the kernel numbers it inside: major << 20 | minor */
	enum mapping_kind kind;
	__u32 process;		/* index */
	__u32 flags;		/* VM_READ, VM_WRITE, VM_EXEC, VM_SHARED */
	__u32 is_written_back;	/* a file that goes to a disk: its pages are made read-only each time */
	__u32 pad;
	char name[NAME_LEN];	/* of the file */
};

struct counts {
	__u64 minor, major;
	__u64 timed;		/* of those, as far as their ends were watched, */
	__u64 timed_protected;	/* and of these: is_protected */
};

struct site_key {
	__u64 instruction;
	__u32 slot;
	__u32 pad;
};

struct histograms {
	__u64 minor[BUCKETS];
	__u64 major[BUCKETS];
	__u64 minor_ns, major_ns; /* sums */
	__u64 minor_max_ns, major_max_ns;
};

/* One fault, whole. */
struct fault_record {
	__u64 time_ns;
	__u64 latency_ns;	/* 0: not timed */
	__u64 address;
	__u64 instruction;
	__u32 slot;
	__u32 tgid;
	__u32 tid;
	__u32 is_major;
	__u32 is_kernel;	/* met while the kernel worked for the process */
	__s32 stack_bytes;
	char comm[TASK_NAME_LEN];
	__u64 stack[STACK_DEPTH];
};

/* Facts of bad days; each only grows. */
struct watch_state {
	__u32 processes;	/* used indexes */
	__u32 slots;
	__u64 threads_alive;	/* watched threads whose task_struct is still there */
	__u64 processes_lost;	/* more than MAX_PROCESSES */
	__u64 slots_lost;	/* more than MAX_SLOTS */
	__u64 lookups_failed;	/* the address space was locked: mapping unknown */
	__u64 sites_lost;
	__u64 records;		/* given out so far */
	__u64 records_lost;
	__u64 threads_lost;	/* no memory for a thread's state */
};

#endif /* BURSAR_FAULTS_H */
