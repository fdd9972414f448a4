/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records of sockets: whether there may be one of a socket, and booking on the row of who pays for it.
 *
 * An array says how many records there are of sockets with one index. Of an index with 0 there is none, and sockets of
 * users without a bound cost no more than that look, which calls no helper.
 */
#ifndef BURSAR_SOCKET_RECORD_BPF_H
#define BURSAR_SOCKET_RECORD_BPF_H

#include "row.bpf.h"

enum { RECORDED_BITS = 16 };

/* `number`: the socket's distance from bill_facts. */
static __always_inline __u32 index_of_record(__u64 number)
{
	return (number * 0x9e3779b97f4a7c15ULL) >> (64 - RECORDED_BITS);
}

/* For verifiers a socket is an address or a number, and number_beside() is for addresses only. */
static __always_inline __u64 number_of_socket(__u64 sk)
{
	return number_of((const void *)sk) - number_of(facts());
}

/* `index_map`: an array of 1 << RECORDED_BITS numbers. */
static __always_inline bool may_be_in(void *index_map, __u64 number)
{
	__u32 index = index_of_record(number);
	__u32 *records = bpf_map_lookup_elem(index_map, &index);

	return !records || *(volatile __u32 *)records;
}

/* Before a record is made, and after it has gone. */
static __always_inline void note_in(void *index_map, __u64 sk, __s32 more)
{
	__u32 index = index_of_record(number_of_socket(sk));
	__u32 *records = bpf_map_lookup_elem(index_map, &index);

	if (records)
		__sync_fetch_and_add(records, more);
}

/*
 * What a record has booked, and on which account, in one word, as the ledger's records have it (pages.bpf.h). An element of
 * the map becomes another socket's at once, also while somebody is at it: who has read the former one's slot then books
 * nothing, for the word has another one.
 */
enum { AMOUNT_BOOKED_BITS = 44 };	/* 16 TiB; above them the slot, of which there are 65,536 at most */

/* In place of it once it has gone back: no slot's. */
#define BOOKED_GONE (~0ULL)

static __always_inline __u64 booked_of(__u32 slot, __s64 bytes)
{
	return (__u64)slot << AMOUNT_BOOKED_BITS | (__u64)(bytes > 0 ? bytes : 0);
}

static __always_inline __u32 slot_in(__u64 booked)
{
	return booked >> AMOUNT_BOOKED_BITS;
}

static __always_inline __s64 amount_in(__u64 booked)
{
	return booked & ((1ULL << AMOUNT_BOOKED_BITS) - 1);
}

static __always_inline __s64 amount_at(const __u64 *booked)
{
	return amount_in(*(const volatile __u64 *)booked);
}

static __always_inline struct row *row_in_force(__u32 slot, __u32 which)
{
	struct row *row = slot == NOBODY ? NULL : row_of(slot, which);

	return row && row->counted ? row : NULL;
}

/* Books what is there, whatever the barrier is. Another CPU that books the same socket meanwhile knows as much. `slot`: whose
 * row it is. */
static __always_inline void book_on_row(struct row *row, __u32 slot, __u64 *booked, __s64 now)
{
	__u64 was = *(volatile __u64 *)booked, then = booked_of(slot, now);

	if (slot_in(was) == slot && then != was && __sync_val_compare_and_swap(booked, was, then) == was)
		add_beyond(row, amount_in(then) - amount_in(was));
}

/* Returns false, and books nothing, where the row would hold more than `top`. What is less than booked always goes. */
static __always_inline bool book_within(struct row *row, __u32 slot, __u64 *booked, __s64 now, __s64 top)
{
	__u64 was = *(volatile __u64 *)booked, then = booked_of(slot, now);
	__s64 more = amount_in(then) - amount_in(was);

	if (slot_in(was) != slot)	/* gone, or another's by now */
		return true;
	if (more <= 0) {
		book_on_row(row, slot, booked, now);
		return true;
	}
	if (!add_within(row, more, top))
		return false;
	if (__sync_val_compare_and_swap(booked, was, then) != was)
		__sync_fetch_and_add(&row->held, -more);
	return true;
}

/* What it has booked goes back, once, to who has paid; to be called before its record is deleted, as refund(). */
static __always_inline void refund_booked(__u32 which, __u64 *booked)
{
	__u64 was = __sync_lock_test_and_set(booked, BOOKED_GONE);
	struct row *row = was == BOOKED_GONE ? NULL : row_of(slot_in(was), which);

	if (row)
		__sync_fetch_and_add(&row->held, -amount_in(was));
}

/* The row is not charged any more, and what it holds is set to 0. */
static __always_inline void forget_booked(__u32 slot, __u64 *booked)
{
	__u64 was;
	int i;

	for (i = 0; i < 4; i++) {	/* others may be booking still */
		was = *(volatile __u64 *)booked;
		if (slot_in(was) != slot ||	/* gone, or another's by now */
		    __sync_val_compare_and_swap(booked, was, booked_of(slot, 0)) == was)
			return;
	}
}

#endif /* BURSAR_SOCKET_RECORD_BPF_H */
