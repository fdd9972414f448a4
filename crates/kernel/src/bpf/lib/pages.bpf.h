/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an address space holds, as its record has it.
 */
#ifndef BURSAR_PAGES_BPF_H
#define BURSAR_PAGES_BPF_H

#include "maps.bpf.h"

/* What a record keeps in 32 bits: enough for 16 TiB in one process. */
static __always_inline __u32 small(__s64 pages)
{
	if (pages < 0)
		return 0;
	return pages > (__u32)-1 ? (__u32)-1 : pages;
}

/* CLOCK_MONOTONIC, as rules.h has it. */
static __always_inline __u32 now_ms(void)
{
	return bpf_ktime_get_ns() / 1000000;
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

/* Exact pages of one member: the shared part and every CPU's own (research/beancounters.md 8.5). Global: a
 * loop over up to MAX_CPUS CPUs, which a verifier goes through once and not for each member and state of who
 * asks. */
__noinline __s64 far_member(__u64 mm, __u32 member)
{
	struct ledger_state *state = ledger_state();
	__u64 counter = far_counter(mm, member), parts;
	__s64 pages = 0;
	__u32 cpu;

	if (rss_is_atomic()) {
		bpf_probe_read_kernel(&pages, sizeof(pages), (void *)counter);
		return pages;
	}
	pages = FAR_READ(counter, struct percpu_counter, count);
	parts = (__u64)FAR_READ(counter, struct percpu_counter, counters);
	if (!parts || !state)
		return pages;
	for (cpu = 0; cpu < MAX_CPUS && cpu < possible_cpus; cpu++)
		pages += FAR_READ(parts + state->cpu_offset[cpu], struct refcount_struct, refs.counter);
	return pages;
}

/* Exact, from an address: for walks, and whenever more than one member may have moved. */
static __always_inline void sync_far(struct mm_record *record, __u64 mm)
{
	record->pages[MEMBER_ANON] = far_member(mm, MEMBER_ANON);
	record->pages[MEMBER_SWAP] = far_member(mm, MEMBER_SWAP);
	record->pages[MEMBER_SHMEM] = far_member(mm, MEMBER_SHMEM);
	if (count_file)
		record->pages[MEMBER_FILE] = far_member(mm, MEMBER_FILE);
	record->pages[MEMBER_PGTABLES] =
		FAR_READ(mm, struct mm_struct, pgtables_bytes.counter) >> page_shift;
	record->pages[MEMBER_HUGETLB] = far_hugetlb(mm);
}

#endif /* BURSAR_PAGES_BPF_H */
