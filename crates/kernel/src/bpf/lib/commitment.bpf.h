/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an address space could come to hold without asking again: private writable memory and stacks,
 * touched or not (S5's privvmpages without page fractions), and shared memory as far as it has been
 * touched: VmData + VmStk + RssShmem of /proc/PID/status.
 *
 * The kernel keeps these numbers itself. A commitment is what the account has been charged for it, which
 * differs only while a request is under way: so nothing has to watch munmap, mremap, exec or exit.
 */
#ifndef BURSAR_COMMITMENT_BPF_H
#define BURSAR_COMMITMENT_BPF_H

#include "record.bpf.h"

/* Whether anything bounds it. */
static __always_inline bool counts_commitment(const struct account *account)
{
	return account->measure == MEASURE_COMMITTED || account->private_barrier_pages != NO_BOUND_PAGES;
}

static __always_inline __s64 probe_commitment(struct mm_record *record, __u64 mm)
{
	/* the ledger's: as exact as held is */
	__s64 shared = *(volatile __s64 *)&record->pages[MEMBER_SHMEM];

	return (__s64)PROBE_READ(mm, struct mm_struct, data_vm) +
	       (__s64)PROBE_READ(mm, struct mm_struct, stack_vm) + (shared > 0 ? shared : 0);
}

/* Charged with its parent's request, until gate_child() sees that it is whole. */
static __always_inline bool is_being_made(__u64 mm)
{
	__u64 owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);

	return owner && PROBE_READ(owner, struct task_struct, __state) == TASK_NEW;
}

/*
 * From anywhere. A task that holds the lock for writing may have been granted pages that are not in
 * the kernel's number yet: then what is recorded stands. It may take the lock between our look and our
 * write, hence the compare-and-swap.
 */
static __always_inline void sync_commitment_at(struct mm_record *record, struct account *account,
						__u64 mm)
{
	__s64 was = *(volatile __s64 *)&record->committed_pages, now = 0;

	if (counts_commitment(account)) {
		if (probe_has_writer(mm + bpf_core_field_offset(struct mm_struct, mmap_lock)))
			return;
		now = probe_commitment(record, mm);
	}
	if (!was && now && is_being_made(mm))
		return;
	if (now != was &&
	    __sync_val_compare_and_swap(&record->committed_pages, was, now) == was)
		__sync_fetch_and_add(&account->committed_pages, now - was);
}

/* By who holds the address space's lock, or is its only user. */
static __always_inline void sync_commitment(struct mm_record *record, struct account *account,
					    __s64 now)
{
	__s64 was = __sync_lock_test_and_set(&record->committed_pages, now);

	if (now != was)
		__sync_fetch_and_add(&account->committed_pages, now - was);
}

#endif /* BURSAR_COMMITMENT_BPF_H */
