/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which CPUs keep part of an address space's counters back. An RSS event runs on the CPU whose part has changed, so
 * the ledger knows them without looking, and reads the parts of those alone (docs/design/12-cpus-of-a-record.md).
 *
 * A set has CPU_BITS bits. On machines with more CPUs a bit stands for all that are a multiple of CPU_BITS apart.
 */
#ifndef BURSAR_CPUS_BPF_H
#define BURSAR_CPUS_BPF_H

#include "maps.bpf.h"

enum {
	TASK_NEW = 0x800,	/* include/linux/sched.h: its fork(2) is under way */
	/* A part goes from a batch below zero to a batch above it. */
	SWING_BATCHES = 2,
};

/* How many bits of a word are set. BPF has no instruction for it. */
static __always_inline __u32 bits_in(__u64 word)
{
	word -= (word >> 1) & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + ((word >> 2) & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return (word * 0x0101010101010101ULL) >> 56;
}

static __always_inline __u32 lowest_bit(__u64 word)
{
	return bits_in((word & -word) - 1);
}

static __always_inline __s64 cpus_in(const struct cpu_set *cpus)
{
	return bits_in(cpus->words[0]) + bits_in(cpus->words[1]) + bits_in(cpus->words[2]) + bits_in(cpus->words[3]);
}

static __always_inline __u64 *word_of(struct cpu_set *cpus, __u32 cpu)
{
	return &cpus->words[cpu / 64 % CPU_WORDS];
}

/* Returns whether it was there. A full barrier, as the next one is: see renew_cpus(). */
static __always_inline bool put_cpu(struct cpu_set *cpus, __u32 cpu)
{
	__u64 bit = 1ULL << (cpu % 64);

	return __sync_fetch_and_or(word_of(cpus, cpu), bit) & bit;
}

static __always_inline bool remove_cpu(struct cpu_set *cpus, __u32 cpu)
{
	__u64 bit = 1ULL << (cpu % 64);

	return __sync_fetch_and_and(word_of(cpus, cpu), ~bit) & bit;
}

static __always_inline bool has_cpu(struct cpu_set *cpus, __u32 cpu)
{
	return *(volatile __u64 *)word_of(cpus, cpu) >> (cpu % 64) & 1;
}

/* What one CPU keeps back of the counter whose parts begin there. */
static __always_inline __s64 part_of(const struct cpu_offsets *offsets, __u64 parts, __u32 cpu)
{
	return PROBE_READ(parts + offsets->of[cpu % MOST_CPUS], struct refcount_struct, refs.counter);
}

static __always_inline __u64 parts_of(__u64 mm, __u32 member)
{
	return (__u64)PROBE_READ(probe_counter(mm, member), struct percpu_counter, counters);
}

/* What the CPUs of a set, of which each may keep back its part, can hide of one account. Before 6.2 threads keep back,
 * and nobody knows how many there are. */
static __always_inline __s64 kept_back_by(__s64 cpus)
{
	__s64 members = count_file ? 4 : 3;

	return cpus * counter_batch * (rss_is_atomic() ? 1 : SWING_BATCHES * members);
}

static __always_inline bool has_part(const struct cpu_offsets *offsets, __u64 mm, __u32 member, __u32 cpu)
{
	__u64 parts = parts_of(mm, member);

	return parts && part_of(offsets, parts, cpu);
}

/* Whether a CPU of this bit keeps anything back. Global, as others that loops over CPUs call: a verifier goes through it
 * once and not for each CPU. */
__noinline int keeps_back(__u64 mm, __u32 bit)
{
	const struct cpu_offsets *offsets = cpu_offsets_of();
	__u32 cpu = bit;
	int i;

	if (!offsets)
		return 0;
	for (i = 0; i < MOST_CPUS / CPU_BITS && cpu < possible_cpus; i++, cpu += CPU_BITS)
		if (has_part(offsets, mm, 0, cpu) || has_part(offsets, mm, 1, cpu) ||
		    has_part(offsets, mm, 2, cpu) || has_part(offsets, mm, 3, cpu))
			return 1;
	return 0;
}

/* Of an address space that is met late: all CPUs are asked. One that is being made has been nowhere yet, and each
 * event of it puts its CPU in. Returns how many were not there. */
__noinline int find_cpus(struct cpu_set *cpus, __u64 mm)
{
	__u64 owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	int found = 0;
	__u32 bit;

	if (!cpus || (!rss_is_atomic() && owner && PROBE_READ(owner, struct task_struct, __state) == TASK_NEW))
		return 0;
	for (bit = 0; bit < CPU_BITS && bit < possible_cpus; bit++)
		if (rss_is_atomic() || keeps_back(mm, bit))
			found += !put_cpu(cpus, bit);
	return found;
}

#endif /* BURSAR_CPUS_BPF_H */
