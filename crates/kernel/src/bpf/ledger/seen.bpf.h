/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What each CPU remembers of the last address space that it charged, and what follows for the sets of CPUs: one that
 * remembers an address space adds to its own part without a word.
 */
#ifndef BURSAR_SEEN_BPF_H
#define BURSAR_SEEN_BPF_H

#include "react.bpf.h"

enum verdict {
	VERDICT_FAR = 1,	/* skip while the member's shared counter stands still */
	VERDICT_NEAR = 2,	/* book each event that no stock has room for */
	VERDICT_NOBODY = 3,	/* nobody pays: skip until the next tick */
};

/* Events of one member that this CPU need not book (lib/near.bpf.h). */
struct stock {
	__s64 shared;		/* the counter's shared part, and … */
	__s32 part;		/* … this CPU's, as of its last event: the next one adds a page to that */
	__u32 member;
	__u32 left;
	__u16 taken;		/* since it has last booked */
	__u16 is_given;		/* the account was not counted exactly when this CPU last booked, nor is it now */
};

/* What this CPU decided about the last address space it charged. Only hints: any mismatch leads to
 * the books. Written by its own CPU with preemption off. One cache line. */
struct seen {
	__u64 mm;
	__u64 ctx_id;
	__u64 generation;
	__u32 index;
	__u32 verdict;
	union {
		__s64 coarse[4];	/* VERDICT_FAR */
		struct stock stock;	/* VERDICT_NEAR */
		struct {		/* VERDICT_NOBODY */
			__u64 tick;
			__u64 cred;	/* whose must stand; 0: it is not one that becomes others */
		};
	};
} __attribute__((aligned(64)));

/* By CPU. Written by its own, read by who renews sets of CPUs. Mapped so that each has a cache line. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);	/* (set): CPUs that may ever be */
	__type(key, __u32);
	__type(value, struct seen);
} seen_on SEC(".maps");

static __always_inline struct seen *seen_by(__u32 cpu)
{
	return bpf_map_lookup_elem(&seen_on, &cpu);
}

/* A full barrier between what is remembered and what is looked at afterwards: see renew_cpus(). */
static __always_inline void remember(struct seen *seen, struct mm_struct *mm, __u64 ctx_id,
				     __u64 generation, __u32 index, __u32 verdict)
{
	seen->mm = 0;
	barrier();
	seen->ctx_id = ctx_id;
	seen->generation = generation;
	seen->index = index;
	seen->verdict = verdict;
	barrier();
	__sync_lock_test_and_set(&seen->mm, (__u64)mm);
}

/* A process without a payer gets one by changing its uid, and that replaces its credentials. The
 * running task's, not the owner's: two loads less, and threads share them. */
static __always_inline __u64 running_cred(void)
{
	struct task_struct *me = bpf_get_current_task_btf();

	return (__u64)me->real_cred;
}

/* Whether nobody pays for an address space, as far as this CPU remembers. Most users of most machines have no limit, and a
 * page that was just cleared has driven out of the cache what could be compared: ctx_id, generation, credentials but for
 * root, who logs others in. A tick later all is asked again, and what was missed until then is in the absolute figures
 * that are read then. */
static __always_inline bool is_nobodys(const struct seen *seen, __u64 mm)
{
	return seen->mm == mm && seen->verdict == VERDICT_NOBODY && seen->tick == bpf_jiffies64() &&
	       (!seen->cred || seen->cred == running_cred());
}

/* The running CPU has changed its part of the counters of this address space. Called before they are read, and again
 * when this is remembered. Global, for the stack of who charges. */
__noinline int note_cpu(struct mm_record *record)
{
	if (record && !rss_is_atomic() && !put_cpu(&record->cpus, bpf_get_smp_processor_id()))
		count_cpus(account_at(record->account), 1);
	return 0;
}

/* Whether a CPU of this bit may change its part without a word. Global, as keeps_back() is. */
__noinline int is_remembered(__u64 mm, __u32 bit)
{
	struct seen *seen;
	__u32 cpu = bit;
	int i;

	for (i = 0; i < MOST_CPUS / CPU_BITS && cpu < possible_cpus; i++, cpu += CPU_BITS) {
		seen = seen_by(cpu);
		if (seen && *(volatile __u64 *)&seen->mm == mm)
			return 1;
	}
	return 0;
}

static __always_inline bool is_needed(__u64 mm, __u32 bit)
{
	return is_remembered(mm, bit) || keeps_back(mm, bit);
}

/*
 * Makes the set of a record that of the CPUs that keep something back, or may do so without a word. A CPU that changes
 * its part at this moment: it puts itself in (note_cpu(), a full barrier behind its part), remembers the address
 * space (another barrier), and looks whether it is still in. Here it is taken out, a full barrier, and then both are
 * looked at again. In whatever order these come one of the two sees the other, and puts it back.
 *
 * An event that ran on another CPU than the change before it (a counter changed without a lock, as exec does once) has
 * left one out: it comes in here.
 */
__noinline int renew_cpus(struct mm_record *record, __u64 mm)
{
	struct account *account = record ? account_at(record->account) : NULL;
	__u32 bit;

	if (!account || rss_is_atomic() || !parts_of(mm, 0))
		return 0;
	for (bit = 0; bit < CPU_BITS && bit < possible_cpus; bit++) {
		if (is_needed(mm, bit)) {
			if (!has_cpu(&record->cpus, bit) && !put_cpu(&record->cpus, bit))
				count_cpus(account, 1);
		} else if (has_cpu(&record->cpus, bit) && remove_cpu(&record->cpus, bit)) {
			if (!is_needed(mm, bit))
				count_cpus(account, -1);
			else if (put_cpu(&record->cpus, bit))
				count_cpus(account, -1);	/* somebody else has, and counted it */
		}
	}
	return 0;
}

/* The last page fault on a CPU, while copies are watched for. Written by copy_on_write.bpf.c. */
struct faulting {
	__u64 reader;	/* the task, where it read; 0: it wrote */
	__u64 counted;	/* the task whose fault in a system call has counted a copy, until it gets the page for it: that is
			 * not counted again */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct faulting);
} faults_on SEC(".maps");

static __always_inline struct faulting *faulting_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&faults_on, &zero);
}

/* Whether the running task is in a system call: an exception leaves -1 where its number would be. */
static __always_inline bool is_in_system_call(void)
{
#if defined(__TARGET_ARCH_x86)
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return (long)regs->orig_ax >= 0;
#elif defined(__TARGET_ARCH_arm64)
	return registers()->syscallno >= 0;
#else
	return false;
#endif
}

#endif /* BURSAR_SEEN_BPF_H */
