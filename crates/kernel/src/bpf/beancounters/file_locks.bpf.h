/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numflock: what a request for a file lock adds, and when the kernel's lists of locks are read again.
 */
#ifndef BURSAR_FILE_LOCKS_BPF_H
#define BURSAR_FILE_LOCKS_BPF_H

#include <asm-generic/errno.h>

#include "bill_of_me.bpf.h"
#include "charge_row.bpf.h"
#include "lock_count.bpf.h"
#include "lock_split.bpf.h"

enum { F_UNLCK = 2 };

static __always_inline void note_locked_file(__s64 more)
{
	struct bill_facts *known = facts();

	if (known)
		__sync_fetch_and_add(&known->locked_files, more);
}

static __noinline int give_back_locks(__u64 file)
{
	struct charge *charge = bpf_map_lookup_elem(&locked_files, &file);

	if (!charge)
		return 0;
	refund(charge);
	if (!bpf_map_delete_elem(&locked_files, &file))
		note_locked_file(-1);
	return 0;
}

static __always_inline __u64 lock_context_of(__u64 file)
{
	__u64 inode = (__u64)PROBE_READ(file, struct file, f_inode);

	return inode ? (__u64)PROBE_READ(inode, struct inode, i_flctx) : 0;
}

/* No event tells of a lock's end: closing a descriptor is one, and so is a lock over others. So what a request added
 * is an upper bound, and where it meets the barrier the lists are read: those of the file, which are often enough, and
 * then others' too, in the time of who asks for a lock: LOCKS_A_RECOUNT at most. The upper bound stays for what lies
 * beyond. */
struct recount {
	__u64 met;
	__u32 slot;
};

/* Returns how many elements of lists were met. */
static __noinline int recount_file(struct charge *charge, __u64 file)
{
	__s64 now, was;
	struct row *row;
	__u64 found;

	if (!charge)
		return 0;
	was = *(volatile __s64 *)&charge->amount;
	found = locks_through(lock_context_of(file), file);
	now = (__u32)found;
	if (now < was && (found & MORE_LOCKS)) /* there may be more behind these, or behind another file's */
		return found >> MET_SHIFT;
	row = row_of(charge->slot, BILL_NUMFLOCK);
	if (row && now != was && __sync_val_compare_and_swap(&charge->amount, was, now) == was)
		__sync_fetch_and_add(&row->held, now - was);
	return found >> MET_SHIFT;
}

static long recount_locked_file(struct bpf_map *map, __u64 *file, struct charge *charge,
				struct recount *recount)
{
	__u64 met = 0;

	/* Also where there was none: a process that waited for the lock has it by now. */
	if (charge->slot != recount->slot)
		return 0;
	/* Read so that the verifier knows nothing of it, as in count_list(). */
	bpf_probe_read_kernel(&met, sizeof(met), &recount->met);
	if (met >= LOCKS_A_RECOUNT)
		return 1;
	recount->met = met + recount_file(charge, *file);
	return 0;
}

static __noinline int recount_locks(__u32 slot)
{
	struct recount recount = { .slot = slot };
	struct bill_facts *known = facts();

	if (known)
		__sync_fetch_and_add(&known->recounts, 1);
	bpf_for_each_map_elem(&locked_files, recount_locked_file, &recount, 0);
	return 0;
}

static __always_inline bool add_locks(struct row *row, __u32 slot, struct charge *charge, __u64 file, __s64 more,
				      __s64 top)
{
	if (add_within(row, more, top))
		return true;
	recount_file(charge, file);
	if (add_within(row, more, top))
		return true;
	recount_locks(slot);
	return add_within(row, more, top);
}

/* The file's record; of two threads that lock one new file at once both find that of the first. */
static __always_inline struct charge *charge_of_locks(__u64 file, __u32 slot)
{
	struct charge first = { .slot = slot, .row = BILL_NUMFLOCK };
	struct charge *charge = bpf_map_lookup_elem(&locked_files, &file);

	if (charge)
		return charge;
	if (!bpf_map_update_elem(&locked_files, &file, &first, BPF_NOEXIST))
		note_locked_file(1);
	charge = bpf_map_lookup_elem(&locked_files, &file);
	if (!charge)
		count_unrecorded();
	return charge;
}

/* A lock is granted up to the barrier, also one that splits another. An unlock that splits one is granted up to the
 * limit (S5 2.2; OpenVZ's UB_SOFT): a program that gives back most often expects no refusal. */
static __noinline int bill_lock_request(__u64 file, __u32 type)
{
	struct bill_facts *known = facts();
	struct charge *charge;
	__u32 slot = NOBODY;
	struct bill *bill;
	struct row *row;
	__s64 more;

	if (!known)
		return 0;
	bill = bill_of_me(known, 1U << BILL_NUMFLOCK, &slot);
	if (!bill)
		return 0;
	more = (type != F_UNLCK) + splits_a_lock(file, lock_context_of(file));
	if (!more)
		return 0;
	row = &bill->rows[BILL_NUMFLOCK];
	charge = charge_of_locks(file, slot);
	if (!charge)
		return 0;
	if (charge->slot != slot) {	/* opened by one account, locked by another: the first pays */
		slot = charge->slot;
		row = row_of(slot, BILL_NUMFLOCK);
		if (!row)
			return 0;
	}
	if (!add_locks(row, slot, charge, file, more, type == F_UNLCK ? row->limit : row->barrier)) {
		tell_bill(slot, BILL_NUMFLOCK, more, true);
		if (!row->observed)
			return -ENOLCK;
		add_beyond(row, more);
	}
	__sync_fetch_and_add(&charge->amount, more);
	if (is_forgotten_now(row))
		give_back_locks(file);
	return 0;
}

#endif /* BURSAR_FILE_LOCKS_BPF_H */
