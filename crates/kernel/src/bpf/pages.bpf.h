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

/* Exact, from an address: for walks, and whenever more than one member may have moved. */
static __always_inline void sync_far(struct ledger_state *state, struct mm_record *record, __u64 mm)
{
	record->pages[MEMBER_ANON] = far_member(state, mm, MEMBER_ANON);
	record->pages[MEMBER_SWAP] = far_member(state, mm, MEMBER_SWAP);
	record->pages[MEMBER_SHMEM] = far_member(state, mm, MEMBER_SHMEM);
	if (count_file)
		record->pages[MEMBER_FILE] = far_member(state, mm, MEMBER_FILE);
	record->pages[MEMBER_PGTABLES] =
		FAR_READ(mm, struct mm_struct, pgtables_bytes.counter) >> page_shift;
	record->pages[MEMBER_HUGETLB] = far_hugetlb(mm);
}

#endif /* BURSAR_PAGES_BPF_H */
