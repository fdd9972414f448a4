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

/* One member has been booked: what its next event is compared with. There is a stock only for what the process adds itself,
 * and for one that may go on: whose doing a change is, and whether it is to die, is told by what is booked. Global, as all
 * here is, so that the verifier goes through it once; and it looks for itself, for the stack of who charges. */
__noinline int remember_member(struct seen *seen, __u32 member, __s64 shared)
{
	struct mm_record *record = seen ? record_at(seen->index) : NULL;
	struct account *account = record ? account_at(record->account) : NULL;

	if (!account)
		return 0;
	if (seen->verdict == VERDICT_FAR) {
		seen->coarse[member & 3] = shared;
		return 0;
	}
	seen->stock.taken = 0;
	seen->stock.left = 0;
	seen->stock.is_given = has_stocks(account);
	if (rss_is_atomic() || !seen->stock.is_given || record->state != MM_LIVING || own_mm() != seen->mm)
		return 0;
	seen->stock.shared = shared;
	seen->stock.part = own_part(seen->mm, member);
	seen->stock.member = member;
	seen->stock.left = STOCK_PAGES;
	return 0;
}

/* The running process has added one page to this CPU's part, as at the event before. All else is booked: what is given
 * back, huge pages, what others do, and what makes the CPU add its part to what is shared. */
static __always_inline bool take_of_stock(struct seen *seen, __u32 member, __s64 shared)
{
	struct mm_record *record;
	__s32 part;

	if (!seen->stock.left || seen->stock.member != member || seen->stock.shared != shared ||
	    own_mm() != seen->mm)
		return false;
	record = record_at(seen->index);
	part = own_part(seen->mm, member);
	if (!record || part != seen->stock.part + 1)
		return false;
	seen->stock.part = part;
	seen->stock.left--;
	seen->stock.taken++;
	record->grown_events++;
	return true;
}

/* Whether pages of another member were taken: then all members are read. */
static __always_inline bool is_other_in_stock(const struct seen *seen, __u32 member)
{
	return seen->verdict == VERDICT_NEAR && seen->stock.taken && seen->stock.member != member;
}

/* Whether an event of the stock's member, which is booked now, has added pages: the process's sum may have grown by what was
 * taken before. Only what grows the process counts against its page faults (copied_pages()). */
__noinline int has_stock_grown(struct seen *seen, __u32 member, __s64 shared)
{
	if (!seen || !seen->stock.taken || seen->verdict != VERDICT_NEAR)
		return 1;
	return shared - seen->stock.shared + own_part(seen->mm, member) - seen->stock.part > 0;
}

/* Whether an event near a bound need not be booked: it is one of the stock. Or its address space is being taken apart. That is
 * withdrawn as a whole when it ends; until then the level may be too high where that decides nothing. */
__noinline int may_stay_unbooked(struct seen *seen, __u32 member, __s64 shared)
{
	if (!seen || seen->verdict != VERDICT_NEAR)
		return 0;
	return take_of_stock(seen, member, shared) ||
	       (seen->stock.is_given && !PROBE_READ(seen->mm, struct mm_struct, mm_users.counter));
}

/* This CPU turns to an address space, `next`: what it has not booked of the one before is booked, so that it has one stock
 * out and not one for each. */
__noinline int book_what_was_taken(struct seen *seen, __u64 next)
{
	struct mm_record *record;
	__u32 slot;
	__u64 mm;

	if (!seen || !seen->mm || seen->mm == next || seen->verdict != VERDICT_NEAR || !seen->stock.taken)
		return 0;
	record = record_at(seen->index);
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
