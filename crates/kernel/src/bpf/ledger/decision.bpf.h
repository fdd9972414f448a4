/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A decision: what a walk over the records found, whom it may choose, and the event that tells of it.
 */
#ifndef BURSAR_DECISION_BPF_H
#define BURSAR_DECISION_BPF_H

#include "record.bpf.h"
#include "tmpfs_file.bpf.h"

/* A process that may be chosen. The number of its record alone does not identify it: it may end while the others are
 * weighed, and the record may be another's by then. */
struct chosen {
	__u32 record;		/* NOBODY: nobody */
	__u32 goes_last;	/* rules.h goes_last() */
	__u64 mm;
	__u64 ctx_id;
	__s64 pages;
	__s64 rank;		/* rules.h rank_of() */
	__s64 kept_pages;	/* files it alone may keep */
};

/* What the running process has to do with a decision. */
enum running {
	RUNNING_OTHER = 0,	/* nothing */
	RUNNING_OWN = 1,	/* it is one of the account's, perhaps: it can be signalled on any kernel */
	RUNNING_GREW = 2,	/* and it has grown */
	RUNNING_WRITER = 3,	/* it fills the memory of others: of the dying, of who has ended, or shared pages */
	RUNNING_FILLER = 4,	/* it fills files that are too many already, and that no kill frees: stuck.bpf.h */
};

/* Too large for the stack. One for each kind of context: a timer tick that interrupts an event's decision on this CPU
 * does not write over it. */
struct decision {
	__u32 slot;
	__u32 marked;		/* a victim is marked and alive */
	__u32 living;		/* address spaces of the account */
	__u32 is_corrected;	/* what a PSS scan found is in force */
	struct chosen victim;
	struct chosen own;	/* the running process */
	__s64 soft_doubt;	/* see correction.bpf.h */
	__s64 hard_doubt;
	__s64 copied;		/* what processes may have copied of the soft one by faults of their own */
	__s64 booked;		/* of all that were met, their parts of held_pages */
	__s64 held_before;	/* held_pages when the walk began: what comes in its course is nobody's end */
	__s64 private;		/* of the living, anonymous */
	__s64 exempt;		/* of the living, what may not be killed */
	__s64 forgone;		/* of the living, what would have been killed: in nothing else here */
	__s64 unkillable;	/* of the dying, what is credited no more */
	__s64 merged;		/* by KSM: part of the soft doubt */
	__s64 largest;		/* of one address space */
	__s64 largest_private;	/* the same without shared memory */
	__s64 shmem;		/* RssShmem of all address spaces, the dying included */
	__u64 marked_ns;
	__u64 tried_ns;		/* when this one began to try the marked again, and the one before it */
	__u64 tried_before_ns;
	__u64 own_mm;
	__u64 owner;		/* of the memory that is being weighed */
	__u32 running;		/* enum running */
	__u32 is_dying;		/* somebody is, and is still credited */
	__u32 reads_anew;	/* what the records say is not enough */
	__u32 has_mm_sharers;	/* who was killed leaves the memory to others */
	__u32 counts_files;	/* it is files that are too many: who keeps them? */
	__u32 descriptors;	/* that may still be looked at */
	__u32 first_keeper;	/* so many processes more are passed by before */
	/* Of who is being weighed. Kept here, and volatile, so that the verifier forgets them: it would follow each of their
	 * values through all that comes after. */
	volatile __u32 is_protected;
	volatile __u32 goes_last;
	volatile int raised;
	struct kept_files kept;
	struct doubt doubt;
	struct event event;
};

/* A clock interrupt comes on behalf of the timer, and may meet what stands for it on this CPU (resum_deferred.bpf.h). */
enum { DECISION_OF_CLOCK = TRIGGER_KILLER + 1 };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DECISION_OF_CLOCK + 1);	/* enum trigger, and that */
	__type(key, __u32);
	__type(value, struct decision);
} decisions SEC(".maps");

/* That of this kind of context. */
static __always_inline struct decision *decision_of(__u32 trigger)
{
	if (trigger > DECISION_OF_CLOCK)
		trigger = DECISION_OF_CLOCK;
	return bpf_map_lookup_elem(&decisions, &trigger);
}

/* An event begun in them, that tells of `kind` now. */
static __always_inline struct event *begin_event(__u32 kind, __u32 trigger, __u64 now)
{
	struct decision *decision = decision_of(trigger);
	struct event *event;

	if (!decision)
		return NULL;
	event = &decision->event;
	make_event(event, kind, trigger, now);
	return event;
}

/* Told anew of which type it is: whenever a verifier from 6.3 on follows a trusted pointer to another one, it looks for
 * four names among all of the kernel's types. That was a fifth of the time that a start took. */
static __always_inline __u64 mm_of(struct task_struct *task)
{
	if (bpf_ksym_exists(bpf_rdonly_cast))
		task = bpf_rdonly_cast(task, bpf_core_type_id_kernel(struct task_struct));
	return (__u64)task->mm;
}

static __always_inline __u64 own_mm(void)
{
	return mm_of(bpf_get_current_task_btf());
}

/* The same as a number, for what is verified without its callers. */
static __always_inline __u64 probe_own_mm(void)
{
	return (__u64)PROBE_READ((__u64)bpf_get_current_task(), struct task_struct, mm);
}

/* Whether there was room for it. */
static __always_inline bool emit(struct ledger_state *state, struct event *event)
{
	if (!bpf_ringbuf_output(&events, event, sizeof(*event), 0))
		return true;
	__sync_fetch_and_add(&state->events_lost, 1);
	return false;
}

#endif /* BURSAR_DECISION_BPF_H */
