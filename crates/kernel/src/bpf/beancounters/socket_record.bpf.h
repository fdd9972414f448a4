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

/* In place of what is booked once it has gone back: a recount may still be at the record. */
#define BOOKED_GONE (-(1LL << 62))

static __always_inline struct row *row_in_force(__u32 slot, __u32 which)
{
	struct row *row = slot == NOBODY ? NULL : row_of(slot, which);

	return row && row->counted ? row : NULL;
}

/* Books what is there, whatever the barrier is. Another CPU that books the same socket meanwhile knows as much. */
static __always_inline void book(struct row *row, __s64 *booked, __s64 now)
{
	__s64 was = *(volatile __s64 *)booked;

	if (was != BOOKED_GONE && now != was && __sync_val_compare_and_swap(booked, was, now) == was)
		add_beyond(row, now - was);
}

/* Returns false, and books nothing, where the row would hold more than `top`. What is less than booked always goes. */
static __always_inline bool book_within(struct row *row, __s64 *booked, __s64 then, __s64 top)
{
	__s64 was = *(volatile __s64 *)booked, more = then - was;

	if (was == BOOKED_GONE)
		return true;
	if (more <= 0) {
		book(row, booked, then);
		return true;
	}
	if (!add_within(row, more, top))
		return false;
	if (__sync_val_compare_and_swap(booked, was, then) != was)
		__sync_fetch_and_add(&row->held, -more);
	return true;
}

/* What it has booked goes back, once; to be called before its record is deleted, as refund(). */
static __always_inline void refund_booked(__u32 slot, __u32 which, __s64 *booked)
{
	__s64 amount = __sync_lock_test_and_set(booked, BOOKED_GONE);
	struct row *row = row_of(slot, which);

	if (row && amount != BOOKED_GONE)
		__sync_fetch_and_add(&row->held, -amount);
}

#endif /* BURSAR_SOCKET_RECORD_BPF_H */
