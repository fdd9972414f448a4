/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the user half's calls through bpf(2) do to bills (beancounters.bpf.c), in the caller's context: rows begin to be
 * charged and end, what a scan found is stored, what no event tells of is counted.
 */
#ifndef BURSAR_BILL_CALLS_BPF_H
#define BURSAR_BILL_CALLS_BPF_H

#include <asm-generic/errno.h>

#include "charge_row.bpf.h"
#include "file_locks.bpf.h"
#include "shared_memory.bpf.h"
#include "terminals.bpf.h"

static __always_inline void clear_rows(struct bill *bill)
{
	/* Nobody is refused by a row that is not there: who has found it counted may still be at it. */
	static const struct row empty = { .barrier = NO_BOUND_PAGES, .limit = NO_BOUND_PAGES };
	int i;

	for (i = 0; i < BILL_ROWS; i++)
		bill->rows[i] = empty;
	bill->counted_rows = 0;
}

static __always_inline int store_row(struct set_bill_args *args)
{
	__u32 slot = args->slot, which = args->row;
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);
	struct bill_facts *known = facts();
	struct row *row;

	if (!bill || !known || which >= BILL_ROWS)
		return -EINVAL;
	if (bill->state != BILL_MADE) {
		if (!args->counted)
			return 0;
		if (!begin_bill(bill))
			return -EAGAIN;	/* an account of `default` is taking after the template */
		clear_rows(bill);	/* again: who was charging while they were forgotten */
		bill->scanned_bytes = 0;
		bill->account_id = args->account_id;
		/* Atomically, as below: processors and the compiler put plain stores in another order. */
		__sync_lock_test_and_set(&bill->state, BILL_MADE);
	}
	row = &bill->rows[which];
	/* What was charged while it was forgotten, and taken back. */
	if (args->counted && is_forgotten_now(row))
		__sync_lock_test_and_set(&row->held, 0);
	row->barrier = args->barrier;
	row->limit = args->limit;
	row->observed = args->observed;
	/* Last: who finds it counted finds its bounds. */
	__sync_lock_test_and_set(&row->counted, args->counted);
	if (args->counted)
		__sync_fetch_and_or(&bill->counted_rows, 1U << which);
	else
		__sync_fetch_and_and(&bill->counted_rows, ~(1U << which));
	if (args->counted && args->account_id >> KIND_SHIFT)
		__sync_fetch_and_or(&known->entered_rows, 1U << which);
	__sync_fetch_and_add(&known->generation, 1);
	return 0;
}

static __always_inline bool is_forgotten(const struct charge *charge, const struct forget_bill_args *what)
{
	return charge->amount && charge->slot == what->slot && (what->row == BILL_ROWS || charge->row == what->row);
}

static long forget_group(struct bpf_map *map, __u32 *index, struct charge_group *group,
			 struct forget_bill_args *what)
{
	struct charge charge;
	__u64 key;
	int i;

	for (i = 0; i < CHARGES_TOGETHER; i++) {
		key = key_at(group, i);
		charge = unpacked_charge(group->charges[i]);
		if (key > KEY_BEING_WRITTEN && is_forgotten(&charge, what))
			give_back(group, i, key);
	}
	return 0;
}

static long forget_charge(struct bpf_map *map, __u64 *key, struct charge *charge,
			  struct forget_bill_args *what)
{
	if (is_forgotten(charge, what))
		give_back_further(group_of(*key & ~7ULL), *key);
	return 0;
}

/* Whoever holds nothing has no records. */
static __always_inline bool holds_any(struct bill *bill, __u32 which)
{
	__u32 i;

	for (i = 0; i < BILL_ROWS; i++)
		if ((RECORDED_ROWS & (1U << i)) && (which == BILL_ROWS || which == i) && bill->rows[i].held)
			return true;
	return false;
}

static long forget_locks(struct bpf_map *map, __u64 *key, struct charge *charge, struct forget_bill_args *what)
{
	if (charge->slot == what->slot && !bpf_map_delete_elem(map, key))
		note_locked_file(-1);
	return 0;
}

static long forget_terminal(struct bpf_map *map, __u64 *key, struct charge *charge, struct forget_bill_args *what)
{
	if (charge->slot == what->slot)
		give_back_terminal(*key);
	return 0;
}

/* The row is not charged any more: what its objects will give back is nobody's. */
static __always_inline int forget_rows(struct forget_bill_args *args)
{
	struct forget_bill_args what = { .slot = args->slot, .row = args->row };
	struct bill *bill = bpf_map_lookup_elem(&bills, &what.slot);
	struct bill_facts *known = facts();
	struct row *row;

	if (!bill || !known || what.row > BILL_ROWS)
		return -EINVAL;
	stop_counting(what.slot, what.row);
	if (holds_any(bill, what.row)) {
		bpf_for_each_map_elem(&charges, forget_group, &what, 0);
		bpf_for_each_map_elem(&further_charges, forget_charge, &what, 0);
	}
	if (what.row == BILL_ROWS || what.row == BILL_NUMPTY)
		bpf_for_each_map_elem(&terminals, forget_terminal, &what, 0);
	if (what.row == BILL_ROWS || what.row == BILL_NUMFLOCK)
		bpf_for_each_map_elem(&locked_files, forget_locks, &what, 0);
	if (what.row == BILL_ROWS) {
		/* Who finds none may fill them at once. */
		__sync_lock_test_and_set(&bill->state, BILL_BEGUN);
		clear_rows(bill);
		__sync_lock_test_and_set(&bill->state, BILL_NONE);
		__sync_fetch_and_add(&known->generation, 1);
		return 0;
	}
	row = row_of(what.slot, what.row);
	if (row)
		__sync_lock_test_and_set(&row->held, 0);
	return 0;
}

/* What a scan found; held is shown until the next one, or the next request. */
static __always_inline int store_kernel_memory(struct note_kernel_memory_args *args)
{
	__u32 slot = args->slot;
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);
	struct row *row = row_of(slot, BILL_KMEMSIZE);

	if (!bill || !row || bill->account_id != args->account_id)
		return 0;
	bill->scanned_bytes = args->scanned_bytes;
	row->held = args->held_bytes;
	raise_to(&row->maxheld, args->held_bytes);
	return 0;
}

/* Before the rows are shown: what is not known from events is counted. */
static __always_inline int recount_rows(struct forget_bill_args *args)
{
	__u32 slot = args->slot;
	struct row *row;

	if (counted_row(slot, BILL_NUMFLOCK))
		recount_locks(slot);
	if (counted_row(slot, BILL_NUMPTY))
		recount_terminals(slot);
	row = counted_row(slot, BILL_LOCKEDPAGES);
	if (row) {
		row->held = count_locked(slot, 0);
		raise_to(&row->maxheld, row->held);
	}
	return 0;
}

#endif /* BURSAR_BILL_CALLS_BPF_H */
