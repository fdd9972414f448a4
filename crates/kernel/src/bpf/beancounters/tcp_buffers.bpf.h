/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Buffers of TCP sockets (S5 3.4.1, 3.4.2). A socket is granted a size for each direction, and its kernel keeps to it:
 * a writer waits or gets EAGAIN and poll(2) says so, a peer is shown a smaller window. What is granted is booked, so no
 * sum is ever taken, and what sockets hold stays below what is booked.
 *
 * Sizes follow what a connection needs (its congestion window, what its reader has read), as the kernel's own tuning does,
 * and what is left to its account: an eighth of that, as switches share their memory among ports (dynamic thresholds,
 * Choudhury and Hahne 1998). So one connection never has all, and a new one finds something.
 */
#ifndef BURSAR_TCP_BUFFERS_BPF_H
#define BURSAR_TCP_BUFFERS_BPF_H

#include "bill_of_me.bpf.h"
#include "objects.bpf.h"
#include "socket_programs.h"
#include "socket_record.bpf.h"

/* Key: struct sock *. Written and read here. Bound: ledger.max_objects. Full: as charges. A record goes before its
 * socket does, so its address may be read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct tcp_buffers);
} tcp_buffers SEC(".maps");

/* Index: index_of_record() of a socket. Written and read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << RECORDED_BITS);
	__type(key, __u32);
	__type(value, __u32);
} recorded_tcp SEC(".maps");

enum {
	/* What the kernel gives at least for sending (SOCK_MIN_SNDBUF; half of it for receiving): a packet of ONE_PACKET bytes and one more. Whatever the account
	 * holds each socket has it, so it moves. */
	LEAST_SIZE = 4608,
	/* The kernel gives no more than twice net.core.wmem_max and rmem_max. */
	MOST_SIZE = 4 << 20,
	/* What a peer sends before it has heard anything (TCP_INIT_CWND), and room for it. */
	FIRST_PACKETS = 10,
	FIRST_RECEIVING = 64 << 10,
	/* What a packet takes beside its bytes. */
	PACKET_EXTRA = 768,
	/* Connections of limited accounts have segments as on Ethernet, also on the loopback, where the kernel's have 64 KiB:
	 * with a small buffer there would be a segment at each probe, five a second. */
	ONE_PACKET = 1460,
	/* TCP's header with options. */
	HEADER_BYTES = 60,
	SHARES_BITS = 3,
	SHARES_LEFT = 1 << SHARES_BITS,
	TCP_ROWS = 1U << BILL_TCPSNDBUF | 1U << BILL_TCPRCVBUF,
};

static __always_inline __u32 row_of_direction(enum tcp_direction direction)
{
	return direction == TCP_SENDING ? BILL_TCPSNDBUF : BILL_TCPRCVBUF;
}

/* Whether a program has nothing to do with a socket: nobody pays for it. */
static __always_inline bool has_no_tcp_record(const struct sock *sk, const struct bill_facts *known)
{
	return known && !may_be_in(&recorded_tcp, number_beside(sk, known));
}

static __always_inline struct tcp_buffers *tcp_buffers_of(__u64 sk)
{
	return bpf_map_lookup_elem(&tcp_buffers, &sk);
}

static __always_inline __s64 size_now(__u64 sk, enum tcp_direction direction)
{
	return direction == TCP_SENDING ? PROBE_READ(sk, struct sock, sk_sndbuf) : PROBE_READ(sk, struct sock, sk_rcvbuf);
}

static __always_inline __s64 queued_now(__u64 sk, enum tcp_direction direction)
{
	return direction == TCP_SENDING ? PROBE_READ(sk, struct sock, sk_wmem_queued) :
					  PROBE_READ(sk, struct sock, sk_backlog.rmem_alloc.counter);
}

static __always_inline bool is_sized(const struct tcp_buffers *buffers, enum tcp_direction direction)
{
	return buffers->is_sized & 1U << direction;
}

/* By a comparison: verifiers follow no variable index into a record. */
static __always_inline __u64 *booked_in(struct tcp_buffers *buffers, enum tcp_direction direction)
{
	return direction == TCP_SENDING ? &buffers->booked[TCP_SENDING] : &buffers->booked[TCP_RECEIVING];
}

/* What it may hold where its buffer is ours, and else what it does: nothing says how large the kernel lets that grow. */
static __always_inline void book_direction(__u64 sk, struct tcp_buffers *buffers, enum tcp_direction direction)
{
	__u32 slot = buffers->slot;
	struct row *row = row_in_force(slot, row_of_direction(direction));
	__s64 now = queued_now(sk, direction), size = size_now(sk, direction);

	if (!row)
		return;
	if (is_sized(buffers, direction) && now < size)
		now = size;
	book_on_row(row, slot, booked_in(buffers, direction), now);
}

static long recount_tcp_socket(struct bpf_map *map, __u64 *key, struct tcp_buffers *buffers, void *nothing)
{
	book_direction(*key, buffers, TCP_SENDING);
	book_direction(*key, buffers, TCP_RECEIVING);
	return 0;
}

static __always_inline void note_tcp_socket(__u64 sk, __u32 slot, __s32 more)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);

	note_in(&recorded_tcp, sk, more);
	if (bill)
		__sync_fetch_and_add(&bill->tcp_sockets, more);
}

static __noinline int forget_tcp_socket(__u64 sk)
{
	struct tcp_buffers *buffers = tcp_buffers_of(sk);
	__u32 slot;

	if (!buffers)
		return 0;
	slot = buffers->slot;
	refund_booked(BILL_TCPSNDBUF, &buffers->booked[TCP_SENDING]);
	refund_booked(BILL_TCPRCVBUF, &buffers->booked[TCP_RECEIVING]);
	if (!bpf_map_delete_elem(&tcp_buffers, &sk))
		note_tcp_socket(sk, slot, -1);
	return 0;
}

static __always_inline bool has_tcp_rows(__u32 slot)
{
	return counted_row(slot, BILL_TCPSNDBUF) || counted_row(slot, BILL_TCPRCVBUF);
}

/* Whoever makes a record when its rows are not counted any more takes it back: the walk over all may have passed it. */
static __always_inline int keep_tcp_record(__u64 sk, __u32 slot)
{
	if (has_tcp_rows(slot))
		return 1;
	forget_tcp_socket(sk);
	return 0;
}

/* From now on that account pays. Returns 1 where there was no record of it; with `is_new` one of an earlier socket at
 * its address is given back first. */
static __noinline int record_tcp_socket(__u64 sk, struct tcp_buffers *first, bool is_new)
{
	__u32 slot = first->slot;

	if (!has_tcp_rows(slot))
		return 0;
	first->booked[TCP_SENDING] = first->booked[TCP_RECEIVING] = booked_of(slot, 0);
	note_tcp_socket(sk, slot, 1);
	if (!bpf_map_update_elem(&tcp_buffers, &sk, first, BPF_NOEXIST))
		return keep_tcp_record(sk, slot);
	if (is_new) {
		forget_tcp_socket(sk);
		if (!bpf_map_update_elem(&tcp_buffers, &sk, first, BPF_NOEXIST))
			return keep_tcp_record(sk, slot);
	}
	if (!tcp_buffers_of(sk))
		count_unrecorded();
	note_tcp_socket(sk, slot, -1);
	return 0;
}

/* What is due to a socket at most: an eighth of what is left, or as much where all of the account's have the same. */
static __always_inline __s64 share_of(__u32 slot, const struct row *row, __s64 booked)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);
	__s64 sockets = bill ? *(volatile __s64 *)&bill->tcp_sockets : 0;
	__s64 left = row->barrier - *(volatile __s64 *)&row->held + booked, share;

	if (row->barrier >= NO_BOUND_PAGES)
		return MOST_SIZE;
	share = (__u64)row->barrier / (__u64)((sockets > 0 ? sockets : 1) + SHARES_LEFT);
	if (left > share * SHARES_LEFT)
		share = left >> SHARES_BITS;
	return share < left ? share : left;
}

/* A window that was shown is not taken back: before 6.6 what then comes in is dropped without an answer, and after a quarter
 * of an hour its peer gives up. A packet takes up to twice its bytes. */
static __always_inline __s64 keep_promise(__u64 sk, __s64 then, __s64 now)
{
	__u32 end = PROBE_READ(sk, struct tcp_sock, rcv_wup) + PROBE_READ(sk, struct tcp_sock, rcv_wnd);
	__s32 window = end - PROBE_READ(sk, struct tcp_sock, rcv_nxt);
	__s64 promised = queued_now(sk, TCP_RECEIVING) + (window > 0 ? 2 * (__s64)window : 0);

	if (then >= promised)
		return then;
	return promised < now ? promised : now;
}

/* The size that a socket gets of `wanted`, booked by now, or 0 where it is to be left as it is. */
static __noinline __s64 size_granted(__u64 sk, struct tcp_buffers *buffers, __u32 direction, __s64 wanted)
{
	__u32 slot, which;
	__s64 now, then, share;
	struct row *row;

	if (!buffers || direction >= TCP_DIRECTIONS)
		return 0;
	slot = buffers->slot;
	which = row_of_direction(direction);
	row = counted_row(slot, which);
	if (!row)
		return 0;
	now = size_now(sk, direction);
	if (buffers->asked[direction] && wanted > buffers->asked[direction])
		wanted = buffers->asked[direction];
	if (wanted > MOST_SIZE)
		wanted = MOST_SIZE;
	share = share_of(slot, row, amount_at(booked_in(buffers, direction)));
	then = wanted < share ? wanted : share;
	if (then < LEAST_SIZE)
		then = LEAST_SIZE;
	if (then < now && direction == TCP_RECEIVING && is_sized(buffers, direction))
		then = keep_promise(sk, then, now);
	if (then < wanted && then <= now && queued_now(sk, direction) > now >> 1)
		tell_bill(slot, which, wanted - now, false);
	if (row->observed) {
		book_on_row(row, slot, booked_in(buffers, direction), now);
		return 0;
	}
	/* Steps of an eighth: most events change nothing. */
	if (is_sized(buffers, direction) && then - now <= now >> 3 && now - then <= now >> 3) {
		book_direction(sk, buffers, direction);
		return 0;
	}
	if (then > LEAST_SIZE && !book_within(row, slot, booked_in(buffers, direction), then, row->barrier))
		then = LEAST_SIZE;
	if (then == LEAST_SIZE)
		book_on_row(row, slot, booked_in(buffers, direction), then);
	return then;
}

#endif /* BURSAR_TCP_BUFFERS_BPF_H */
