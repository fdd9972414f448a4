/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an address space holds, as its record has it.
 */
#ifndef BURSAR_PAGES_BPF_H
#define BURSAR_PAGES_BPF_H

#include "clock.bpf.h"
#include "cpus.bpf.h"

/* What a record keeps in 32 bits: enough for 16 TiB in one process. */
static __always_inline __u32 small(__s64 pages)
{
	if (pages < 0)
		return 0;
	return pages > (__u32)-1 ? (__u32)-1 : pages;
}

static __always_inline __s64 recorded_pages(const struct mm_record *record)
{
	__s64 sum = record->pages[MEMBER_ANON] + record->pages[MEMBER_SWAP] +
		    record->pages[MEMBER_SHMEM] + record->pages[MEMBER_PGTABLES] +
		    record->pages[MEMBER_HUGETLB];

	if (count_file)
		sum += record->pages[MEMBER_FILE];
	return sum > 0 ? sum : 0;
}

static __always_inline __s64 private_pages(const struct mm_record *record)
{
	return record->pages[MEMBER_ANON] + record->pages[MEMBER_SWAP];
}

/*
 * What a record has booked, and on which account, in one word. Who exchanges it takes from a sum what was added to that
 * one. So whoever comes in between (the process becomes another user's, the record another process's), each sum is what
 * the records have booked on it. Nothing is booked: 0.
 */
#define BOOKED_BITS 44			/* 64 PiB; above them the slot */

static __always_inline __u64 booked_on(__u32 slot, __s64 pages)
{
	return pages > 0 ? (__u64)slot << BOOKED_BITS | (__u64)pages : 0;
}

static __always_inline __s64 pages_booked(__u64 booked)
{
	return booked & ((1ULL << BOOKED_BITS) - 1);
}

static __always_inline __u32 slot_booked(__u64 booked)
{
	return booked >> BOOKED_BITS;
}

enum { FEW_CPUS = 4 };	/* so many parts are read sooner than it is found out which of them matter */

/* The bits of CPUs that there may be, of 64 from this one on. */
static __always_inline __u64 possible_from(__u32 cpu)
{
	return possible_cpus - cpu < 64 ? (1ULL << (possible_cpus - cpu)) - 1 : ~0ULL;
}

/* Exact pages of one member: the shared part and what CPUs keep back. `cpus`: those that
 * do; NULL: nobody knows. Global: a loop over CPUs, which a verifier goes through once and not for each member and
 * state of who asks; and it takes little of the stack, for most ways end here. */
__noinline __s64 probe_member(__u64 mm, const struct cpu_set *cpus, __u32 member)
{
	const struct cpu_offsets *offsets = cpu_offsets_of();
	__u64 parts, word;
	__s64 pages = 0;
	__u32 first;
	int i;

	if (rss_is_atomic()) {
		bpf_probe_read_kernel(&pages, sizeof(pages), (void *)probe_counter(mm, member));
		return pages;
	}
	pages = PROBE_READ(probe_counter(mm, member), struct percpu_counter, count);
	parts = parts_of(mm, member);
	if (!parts || !offsets)
		return pages;
	if (possible_cpus <= FEW_CPUS) {
		for (first = 0; first < FEW_CPUS && first < possible_cpus; first++)
			pages += part_of(offsets, parts, first);
		return pages;
	}
	for (first = 0; first < MOST_CPUS && first < possible_cpus; first += 64) {
		word = possible_from(first);
		if (cpus)
			word &= *(volatile __u64 *)&cpus->words[first / 64 % CPU_WORDS];
		for (i = 0; i < 64 && word; i++, word &= word - 1)
			pages += part_of(offsets, parts, first + lowest_bit(word));
	}
	return pages;
}

/* Exact, from an address: for walks, and whenever more than one member may have moved. Written down only if the record is
 * still that one's: who lost the processor in the middle would write into somebody else's. Global, for the stack of who
 * reads: nothing of it is left when what follows needs it. */
__noinline int sync_at(struct mm_record *record, __u64 mm)
{
	__s64 anon, swap, shmem, file = 0;

	if (!record)
		return 0;
	anon = probe_member(mm, &record->cpus, MEMBER_ANON);
	swap = probe_member(mm, &record->cpus, MEMBER_SWAP);
	shmem = probe_member(mm, &record->cpus, MEMBER_SHMEM);
	if (count_file)
		file = probe_member(mm, &record->cpus, MEMBER_FILE);
	if (*(volatile __u64 *)&record->mm != mm)
		return 0;
	record->pages[MEMBER_ANON] = anon;
	record->pages[MEMBER_SWAP] = swap;
	record->pages[MEMBER_SHMEM] = shmem;
	if (count_file)
		record->pages[MEMBER_FILE] = file;
	record->pages[MEMBER_PGTABLES] =
		PROBE_READ(mm, struct mm_struct, pgtables_bytes.counter) >> page_shift;
	record->pages[MEMBER_HUGETLB] = probe_hugetlb(mm);
	return 0;
}

#endif /* BURSAR_PAGES_BPF_H */
