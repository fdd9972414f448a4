/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Network buffers (S5 3.4): what the sockets of an account hold in their queues. No event tells that a queue was read.
 * So each request and each packet books what its socket holds by then, as the difference to what is booked, and where
 * that would pass the barrier all sockets are counted anew before a request is refused.
 *
 * Each message and packet of everybody asks, and nearly all who ask have no bound: the way to that answer is inline and
 * calls no helper.
 */
#ifndef BURSAR_NETWORK_BUFFERS_BPF_H
#define BURSAR_NETWORK_BUFFERS_BPF_H

#include "bill_of_me.bpf.h"
#include "objects.bpf.h"
#include "socket_record.bpf.h"

/* Key: struct sock *. Written and read here. Bound: ledger.max_objects. Full: as charges. A record goes before its
 * socket does, so its address may be read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct socket_buffers);
} socket_buffers SEC(".maps");

/* Index: index_of_record() of a socket. Written and read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << RECORDED_BITS);
	__type(key, __u32);
	__type(value, __u32);
} recorded_sockets SEC(".maps");

enum {
	/* What the kernel adds to a message's bytes: its headers, the rest of a page. */
	MESSAGE_BYTES = 256,
	LEAST_BLOCK = 1024,
	SHARED_INFO_BYTES = 384,
	LINEAR_BYTES = 16384 - SHARED_INFO_BYTES,	/* beyond that in pages */
	STREAM_PIECE = 32768,
	PIECE_EXTRA = 4096 + 1024,
	/* What a queue may hold beyond its socket's bound: one message, or one piece of a stream. */
	LAST_MESSAGE = 65536 + PIECE_EXTRA,
	/* All logins of an account together have so much beyond its barrier. */
	LOGIN_BUFFER_BYTES = 1 << 20,
	/* Counting anew takes at most one part of so many of the time, and not more often than once a millisecond. */
	RECOUNT_SHARE = 16,
	RECOUNT_NS = 1000000,
	RECOUNT_MOST_REST_NS = 200000000,
};

/* Whether a program has nothing to do with a socket: nobody pays for it. */
static __always_inline bool has_no_record(const struct sock *sk, const struct bill_facts *known)
{
	return known && !may_be_in(&recorded_sockets, number_beside(sk, known));
}

static __always_inline struct socket_buffers *buffers_of(__u64 sk)
{
	return may_be_in(&recorded_sockets, number_of_socket(sk)) ? bpf_map_lookup_elem(&socket_buffers, &sk) : NULL;
}

/* packets_under_way(), of a number. */
static __always_inline __s64 sending_now(__u64 sk)
{
	return (__s64)PROBE_READ(sk, struct sock, sk_wmem_alloc.refs.counter) - 1;
}

static __always_inline __s64 receiving_now(__u64 sk)
{
	return PROBE_READ(sk, struct sock, sk_backlog.rmem_alloc.counter);
}

static __always_inline __u64 power_of_two(__u64 bytes)
{
	bytes--;
	bytes |= bytes >> 1;
	bytes |= bytes >> 2;
	bytes |= bytes >> 4;
	bytes |= bytes >> 8;
	return bytes + 1;
}

/* What a message of so many bytes takes at most (skb->truesize). */
static __always_inline __s64 bytes_of_message(__u64 size)
{
	if (size > LINEAR_BYTES)
		return size + (size / STREAM_PIECE + 1) * PIECE_EXTRA;
	size += SHARED_INFO_BYTES;
	return power_of_two(size < LEAST_BLOCK ? LEAST_BLOCK : size) + MESSAGE_BYTES;
}

/* The same with what the queue holds; the kernel itself stops at the socket's own bound. */
static __always_inline __s64 sending_then(__u64 sk, __u32 size)
{
	__s64 now = sending_now(sk), then = now + bytes_of_message(size);
	__s64 most = (__s64)PROBE_READ(sk, struct sock, sk_sndbuf) + LAST_MESSAGE;

	if (then <= most)
		return then;
	return now > most ? now : most;
}

static long recount_socket(struct bpf_map *map, __u64 *key, struct socket_buffers *buffers, void *nothing)
{
	__u32 slot = buffers->slot;
	__u64 sk = *key;
	struct row *row;

	row = row_in_force(slot, BILL_OTHERSOCKBUF);
	if (row)
		book_on_row(row, slot, &buffers->sending, sending_now(sk));
	row = row_in_force(slot, BILL_DGRAMRCVBUF);
	if (row)
		book_on_row(row, slot, &buffers->receiving, receiving_now(sk));
	return 0;
}

/* All accounts' at once: who asks for it too often takes nothing from others. Returns whether it was done. */
static __noinline int recount_in_time(void)
{
	__u64 began = bpf_ktime_get_ns(), due, rest, now;
	struct bill_facts *known = facts();

	if (!known)
		return 0;
	due = *(volatile __u64 *)&known->buffers_due_ns;
	if (began < due ||
	    __sync_val_compare_and_swap(&known->buffers_due_ns, due, began + RECOUNT_MOST_REST_NS) != due)
		return 0;
	bpf_for_each_map_elem(&socket_buffers, recount_socket, NULL, 0);
	now = bpf_ktime_get_ns();
	rest = RECOUNT_SHARE * (now - began);
	/* The task that counted may have been preempted for long, by its own will. */
	if (rest > RECOUNT_MOST_REST_NS)
		rest = RECOUNT_MOST_REST_NS;
	*(volatile __u64 *)&known->buffers_due_ns = now + rest + RECOUNT_NS;
	return 1;
}

/* What S5 3.4.1 gives each socket beyond the barrier; all together never pass the limit. */
static __always_inline __s64 guarantee_of(__u32 slot, const struct row *row)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);
	__s64 sockets = bill ? bill->sockets : 0;

	if (row->limit <= row->barrier || row->limit >= NO_BOUND_PAGES)
		return 0;
	return (__u64)(row->limit - row->barrier) / (__u64)(sockets > 0 ? sockets : 1);
}

/* Whether the running task may not be refused although somebody else's account pays. */
static __always_inline bool sender_is_roots(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ledger_state *state = ledger_state();
	__u32 uid = 1;

	if (!state || is_beyond_refusal(state, task))
		return true;
	return uid_of_cred(task->real_cred, &uid) && !uid && slot_of_task(task) == NOBODY;
}

static __always_inline bool is_beyond_barrier_granted(__u32 slot, struct row *row, __u64 *booked, __s64 then)
{
	return then <= guarantee_of(slot, row) && book_within(row, slot, booked, then, row->limit);
}

/* Returns 1 where a socket may hold so much. `asks`: the running task does; a packet does not wait for a recount. */
static __noinline int may_hold(struct socket_buffers *buffers, __u32 which, __s64 then, bool asks)
{
	__u64 *booked = which == BILL_DGRAMRCVBUF ? &buffers->receiving : &buffers->sending;
	__u32 slot = buffers->slot;
	struct row *row = counted_row(slot, which);

	if (!row || book_within(row, slot, booked, then, row->barrier))
		return 1;
	if (asks && recount_in_time() && book_within(row, slot, booked, then, row->barrier))
		return 1;
	if (is_beyond_barrier_granted(slot, row, booked, then))
		return 1;
	if (asks && row->barrier && login_of_me() &&
	    book_within(row, slot, booked, then, row->barrier + LOGIN_BUFFER_BYTES))
		return 1;
	if (!asks || !sender_is_roots()) {
		tell_bill(slot, which, then - amount_at(booked), asks);
		if (!row->observed)
			return 0;
	}
	book_on_row(row, slot, booked, then);
	return 1;
}

static __always_inline void note_socket(__u64 sk, __u32 slot, __s32 more)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);

	note_in(&recorded_sockets, sk, more);
	if (bill)
		__sync_fetch_and_add(&bill->sockets, more);
}

static __noinline int forget_socket(__u64 sk)
{
	struct socket_buffers *buffers = buffers_of(sk);
	__u32 slot;

	if (!buffers)
		return 0;
	slot = buffers->slot;
	refund_booked(BILL_OTHERSOCKBUF, &buffers->sending);
	refund_booked(BILL_DGRAMRCVBUF, &buffers->receiving);
	if (!bpf_map_delete_elem(&socket_buffers, &sk))
		note_socket(sk, slot, -1);
	return 0;
}

static __always_inline bool has_buffer_rows(__u32 slot)
{
	return counted_row(slot, BILL_OTHERSOCKBUF) || counted_row(slot, BILL_DGRAMRCVBUF);
}

/* Whoever makes a record when its rows are not counted any more takes it back: the walk over all may have passed it. */
static __always_inline int keep_record(__u64 sk, __u32 slot)
{
	if (has_buffer_rows(slot))
		return 1;
	forget_socket(sk);
	return 0;
}

/* From now on that account pays. Returns 1 where there was no record of it; with `is_new` one of an earlier socket at
 * its address is given back first. */
static __noinline int record_socket(__u64 sk, __u32 slot, bool is_new)
{
	struct socket_buffers first = { .slot = slot };

	first.sending = first.receiving = booked_of(slot, 0);
	if (!has_buffer_rows(slot))
		return 0;
	note_socket(sk, slot, 1);
	if (!bpf_map_update_elem(&socket_buffers, &sk, &first, BPF_NOEXIST))
		return keep_record(sk, slot);
	if (is_new || !bpf_map_lookup_elem(&socket_buffers, &sk)) {
		forget_socket(sk);
		if (!bpf_map_update_elem(&socket_buffers, &sk, &first, BPF_NOEXIST))
			return keep_record(sk, slot);
		count_unrecorded();
	}
	note_socket(sk, slot, -1);
	return 0;
}

enum { BUFFER_ROWS = 1U << BILL_OTHERSOCKBUF | 1U << BILL_DGRAMRCVBUF };

/* A message of the running task. Who sends first with a socket that nobody pays for does, where it has a bound: `slot`,
 * or NOBODY. */
static __noinline int may_send(__u64 sk, __u32 size, __u32 slot)
{
	struct socket_buffers *buffers = buffers_of(sk);

	if (!buffers && slot != NOBODY && record_socket(sk, slot, false))
		buffers = bpf_map_lookup_elem(&socket_buffers, &sk);
	if (!buffers)
		return 1;
	/* What comes back to its error queue (SO_TIMESTAMPING) passes no filter: sock_queue_err_skb(). So a process that does
	 * not read that sends no more; what others send it keeps nobody from it. */
	if (PROBE_READ(sk, struct sock, sk_error_queue.qlen) && !may_hold(buffers, BILL_DGRAMRCVBUF, receiving_now(sk), true))
		return 0;
	return may_hold(buffers, BILL_OTHERSOCKBUF, sending_then(sk, size), true);
}

static __noinline int may_receive(__u64 sk, __u32 bytes)
{
	struct socket_buffers *buffers = buffers_of(sk);

	return !buffers || may_hold(buffers, BILL_DGRAMRCVBUF, receiving_now(sk) + bytes, false);
}

/* What has been read since is free. */
static __noinline int note_reading(__u64 sk)
{
	struct socket_buffers *buffers = buffers_of(sk);
	__u32 slot = buffers ? buffers->slot : NOBODY;
	struct row *row = row_in_force(slot, BILL_DGRAMRCVBUF);

	if (row && buffers)
		book_on_row(row, slot, &buffers->receiving, receiving_now(sk));
	return 0;
}

#endif /* BURSAR_NETWORK_BUFFERS_BPF_H */
