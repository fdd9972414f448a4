/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Near a bound a CPU need not book each page that the running process adds: it has a stock (lib/near.bpf.h).
 *
 * Cost:    an event that the stock has room for costs a read of the CPU's own part of the counter.
 * Absent:  before 6.2 each event near a bound is booked.
 */
#ifndef BURSAR_STOCK_BPF_H
#define BURSAR_STOCK_BPF_H

#include "seen.bpf.h"

static __always_inline __s32 own_part(__u64 mm, __u32 member)
{
	const struct cpu_offsets *offsets = cpu_offsets_of();

	return offsets ? part_of(offsets, parts_of(mm, member), bpf_get_smp_processor_id()) : 0;
}

/* An address space that is taken apart is withdrawn as a whole when it ends; what it gives back until then may be late
 * where a level that is too high decides nothing. */
static __always_inline bool is_told_by_its_end(const struct seen *seen, const struct mm_struct *mm)
{
	return seen->stock.is_given && !mm->mm_users.counter;
}

/* Only what the process adds itself, and it is one that may go on: whose doing a change is, and whether it is to die, is
 * told by what is booked. */
static __always_inline void fill_stock(struct seen *seen, const struct mm_record *record, const struct account *account,
				       __u32 member, __s64 shared)
{
	seen->stock.taken = 0;
	seen->stock.left = 0;
	seen->stock.is_given = account->near == NEAR;
	if (rss_is_atomic() || !seen->stock.is_given || record->state != MM_LIVING || own_mm() != seen->mm)
		return;
	seen->stock.shared = shared;
	seen->stock.part = own_part(seen->mm, member);
	seen->stock.member = member;
	seen->stock.left = STOCK_PAGES;
}

/* Whether this event is one of the stock: the running process has added one page to this CPU's part, as at the one before.
 * All else is booked: what is given back, huge pages, what others do, and what makes the CPU add its part to what is
 * shared. Global, so that the verifier goes through it once. */
__noinline int take_of_stock(struct seen *seen, __u32 member, __s64 shared)
{
	struct mm_record *record;
	__s32 part;

	if (!seen || !seen->stock.left || seen->stock.member != member || seen->stock.shared != shared ||
	    own_mm() != seen->mm)
		return 0;
	record = record_at(seen->index);
	part = own_part(seen->mm, member);
	if (!record || part != seen->stock.part + 1)
		return 0;
	seen->stock.part = part;
	seen->stock.left--;
	seen->stock.taken++;
	record->grown_events++;
	return 1;
}

/* This CPU turns to another address space: what it has not booked of the last one is booked, so that it has one stock out
 * and not one for each. */
__noinline int book_what_was_taken(struct seen *seen)
{
	struct mm_record *record = seen ? record_at(seen->index) : NULL;
	__u32 slot;
	__u64 mm;

	if (!record)
		return 0;
	mm = seen->mm;
	seen->stock.taken = 0;
	slot = slot_of(record, mm);
	if (slot == NOBODY || record->ctx_id != seen->ctx_id)
		return 0;
	sync_at(record, mm);
	book_at(record, slot, mm);
	return 0;
}

#endif /* BURSAR_STOCK_BPF_H */
