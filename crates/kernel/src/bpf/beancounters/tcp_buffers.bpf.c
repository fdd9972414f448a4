// SPDX-License-Identifier: GPL-2.0-only
/*
 * Buffers of TCP sockets of an account, held at a barrier (S5 3.4): tcpsndbuf, tcprcvbuf.
 *
 * Hooks:   sockops at the root control group sets sizes: it is asked at each connection of everybody, and at each packet
 *          that a limited account's sockets send. A setsockopt program there notes what programs ask for. LSM programs say who pays, and drop what would not fit. Attached while
 *          somebody has a limit on such a row.
 * Cost:    docs/design/measured-beancounters.md.
 * Absent:  the rows are looked at (resource_iterator.bpf.c) and nothing is held.
 */
#include <asm-generic/errno.h>

#include "tcp_buffers.bpf.h"
#include "open_file.bpf.h"

enum {
	LARGEST_OPTION = 4096,
};

/* --- who pays --------------------------------------------------------------------------------- */

SEC("?lsm/socket_post_create")
int BPF_PROG(tcp_made, struct socket *socket, int family, int type, int protocol, int kern, int ret)
{
	struct bill_facts *known = facts();
	struct tcp_buffers first = {};
	struct sock *sk = socket->sk;
	__u32 slot = NOBODY;

	if (ret || kern || !known || !sk || !is_tcp(sk) || !bill_of_me(known, TCP_ROWS, &slot))
		return ret;
	first.slot = slot;
	record_tcp_socket((__u64)sk, &first, true);
	return 0;
}

static __noinline int record_clone(__u64 listener, __u64 new)
{
	struct tcp_buffers *buffers = tcp_buffers_of(listener), first = {};

	if (!buffers)
		return 0;
	first.slot = buffers->slot;
	first.asked[TCP_SENDING] = buffers->asked[TCP_SENDING];
	first.asked[TCP_RECEIVING] = buffers->asked[TCP_RECEIVING];
	return record_tcp_socket(new, &first, true);
}

/* The owner of the socket that a connection comes in at. */
SEC("?lsm/sk_clone_security")
int BPF_PROG(tcp_accepted, struct sock *sk, struct sock *new)
{
	if (is_tcp(sk) && !has_no_tcp_record(sk, facts()))
		record_clone((__u64)sk, (__u64)new);
	return 0;
}

/* Never skipped. */
SEC("?lsm/sk_free_security")
int BPF_PROG(tcp_free, struct sock *sk)
{
	if (!has_no_tcp_record(sk, facts()))
		forget_tcp_socket((__u64)sk);
	return 0;
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* The kernel doubles what it is told, for what packets take beside their bytes. It sets the clamp of the window once, by the
 * buffer that there is when a connection begins. Returns 1 where the kernel has set it. */
static __noinline int resize(struct bpf_sock_ops *ctx, __u32 direction, __s64 size)
{
	int half = size >> 1, clamp = size;

	if (bpf_setsockopt(ctx, SOL_SOCKET, direction == TCP_SENDING ? SO_SNDBUF : SO_RCVBUF, &half, sizeof(half)))
		return 0;
	if (direction == TCP_RECEIVING)
		bpf_setsockopt(ctx, IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof(clamp));
	return 1;
}

static __noinline int set_size(struct bpf_sock_ops *ctx, __u64 sk, struct tcp_buffers *buffers, __u32 direction,
			       __s64 wanted)
{
	__s64 size = size_granted(sk, buffers, direction, wanted);

	if (!buffers || direction >= TCP_DIRECTIONS)
		return 0;
	if (!size) {
		/* The row has gone, and the other one has not: it may have what the kernel gives. */
		if (is_sized(buffers, direction) &&
		    !row_in_force(buffers->slot, row_of_direction(direction)) && resize(ctx, direction, MOST_SIZE))
			__sync_fetch_and_and(&buffers->is_sized, ~(1U << direction));
		return 0;
	}
	/* Where the kernel does not set it its own tuning goes on: then what is held is booked. */
	if (resize(ctx, direction, size))
		__sync_fetch_and_or(&buffers->is_sized, 1U << direction);
	book_direction(sk, buffers, direction);
	return 0;
}

/* The congestion window once under way and once waiting, as tcp_sndbuf_expand(). */
static __always_inline __s64 sending_wanted(struct bpf_sock_ops *ctx)
{
	__u64 packets = ctx->snd_cwnd > FIRST_PACKETS ? ctx->snd_cwnd : FIRST_PACKETS;

	return 2 * packets * ((__u64)ctx->mss_cache + PACKET_EXTRA);
}

/* What its reader has read in a round trip and as much again, twice for what packets take, as
 * tcp_rcv_space_adjust(). */
static __always_inline __s64 receiving_wanted(__u64 sk)
{
	__s64 wanted = 4 * (__s64)PROBE_READ(sk, struct tcp_sock, rcvq_space.space) + 32 * ONE_PACKET;

	return wanted > FIRST_RECEIVING ? wanted : FIRST_RECEIVING;
}

static __always_inline bool is_held(__u32 slot, __u32 which)
{
	struct row *row = counted_row(slot, which);

	return row && !row->observed;
}

/* One that its program wants smaller stays so. */
static __noinline int limit_segments(struct bpf_sock_ops *ctx, __u64 sk, __u32 slot)
{
	__u32 asked = PROBE_READ(sk, struct tcp_sock, rx_opt.user_mss);
	int bytes = ONE_PACKET;

	if (asked && asked <= ONE_PACKET)
		return 0;
	if (is_held(slot, BILL_TCPSNDBUF) || is_held(slot, BILL_TCPRCVBUF))
		bpf_setsockopt(ctx, IPPROTO_TCP, TCP_MAXSEG, &bytes, sizeof(bytes));
	return 0;
}

/* At each packet that it sends, and before each that its program has it send: so what somebody set in a way that tcp_option()
 * does not see, as by a call of 32 bits, is taken back before it is used. */
static __noinline int set_sizes(struct bpf_sock_ops *ctx, __u64 sk, struct tcp_buffers *buffers)
{
	set_size(ctx, sk, buffers, TCP_SENDING, sending_wanted(ctx));
	set_size(ctx, sk, buffers, TCP_RECEIVING, receiving_wanted(sk));
	return 0;
}

static __noinline int begin_connection(struct bpf_sock_ops *ctx, __u64 sk, struct tcp_buffers *buffers)
{
	set_size(ctx, sk, buffers, TCP_SENDING, sending_wanted(ctx));
	set_size(ctx, sk, buffers, TCP_RECEIVING, FIRST_RECEIVING);
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	return 0;
}

/* No helper is called for connections that nobody pays for. */
SEC("?sockops")
int tcp_events(struct bpf_sock_ops *ctx)
{
	struct tcp_buffers *buffers;
	struct bpf_sock *sk;
	__u64 address;

	if (!ctx->is_fullsock)
		return 1;
	sk = ctx->sk;
	if (!sk || has_no_tcp_record((const struct sock *)sk, facts()))
		return 1;
	address = number_of(sk);
	buffers = tcp_buffers_of(address);
	if (!buffers)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		limit_segments(ctx, address, buffers->slot);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		begin_connection(ctx, address, buffers);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		set_sizes(ctx, address, buffers);
		break;
	}
	return 1;
}

/* --- what its program asks for ------------------------------------------------------------------- */

/* What it asks for is the most that it gets, as ever: setsockopt(2) says nothing when it gives less. */
static __noinline int note_asked(struct bpf_sockopt *ctx, __u64 sk, __u32 direction)
{
	struct tcp_buffers *buffers = tcp_buffers_of(sk);
	int *value = ctx->optval;
	__s64 size;

	if (!buffers || direction >= TCP_DIRECTIONS || (void *)(value + 1) > ctx->optval_end)
		return 0;
	size = 2 * (__s64)*value;
	if (size < LEAST_SIZE)
		size = *value < 0 ? MOST_SIZE : LEAST_SIZE;
	buffers->asked[direction] = size;
	return is_sized(buffers, direction) && size > size_now(sk, direction);
}

static __noinline int is_any_sized(__u64 sk)
{
	struct tcp_buffers *buffers = tcp_buffers_of(sk);

	return buffers && buffers->is_sized;
}

/* A packet is what is always taken. */
static __noinline int is_larger_packet(struct bpf_sockopt *ctx, __u64 sk)
{
	struct tcp_buffers *buffers = tcp_buffers_of(sk);
	int *value = ctx->optval;

	if (!buffers || (void *)(value + 1) > ctx->optval_end)
		return false;
	return (*value <= 0 || *value > ONE_PACKET) &&
	       (is_held(buffers->slot, BILL_TCPSNDBUF) || is_held(buffers->slot, BILL_TCPRCVBUF));
}

static __always_inline bool is_of_buffers(const struct bpf_sockopt *ctx)
{
	if (ctx->level == IPPROTO_TCP)
		return ctx->optname == TCP_MAXSEG;
	if (ctx->level != SOL_SOCKET)
		return false;
	return ctx->optname == SO_SNDBUF || ctx->optname == SO_SNDBUFFORCE || ctx->optname == SO_RCVBUF ||
	       ctx->optname == SO_RCVBUFFORCE || ctx->optname == SO_BUF_LOCK;
}

/* Whether the kernel is not to do it: the buffer is ours. */
static __always_inline bool is_for_us(struct bpf_sockopt *ctx, __u64 sk)
{
	if (ctx->level == IPPROTO_TCP)
		return is_larger_packet(ctx, sk);
	switch (ctx->optname) {
	case SO_SNDBUF:
	case SO_SNDBUFFORCE:
		return note_asked(ctx, sk, TCP_SENDING);
	case SO_RCVBUF:
	case SO_RCVBUFFORCE:
		return note_asked(ctx, sk, TCP_RECEIVING);
	}
	return is_any_sized(sk);
}

SEC("?cgroup/setsockopt")
int tcp_option(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	int length = ctx->optlen;

	if (sk && is_of_buffers(ctx) && length >= (int)sizeof(int) &&
	    !has_no_tcp_record((const struct sock *)sk, facts()))
		/* The kernel takes what we have seen, not what another thread has written there since. */
		ctx->optlen = is_for_us(ctx, number_of(sk)) ? -1 : (int)sizeof(int);
	else if (length > LARGEST_OPTION)
		ctx->optlen = 0;	/* else older kernels refuse what is larger than they show us */
	return 1;
}

/* --- what would not fit --------------------------------------------------------------------------- */

/* The kernel looks whether a buffer is full before it takes a packet, and a packet may be of 64 KiB (GRO, the loopback).
 * What is dropped is sent again, by segments, and one of those is always taken: S5's guarantee of one packet. */
static __noinline int may_take_packet(__u64 sk, __s64 bytes, __u32 length)
{
	struct tcp_buffers *buffers = tcp_buffers_of(sk);
	__u32 slot = buffers ? *(volatile __u32 *)&buffers->slot : NOBODY;
	struct row *row = row_in_force(slot, BILL_TCPRCVBUF);
	__s64 then;

	if (!row || !buffers || row->observed || !is_sized(buffers, TCP_RECEIVING))
		return 1;
	then = queued_now(sk, TCP_RECEIVING) + bytes;
	if (then <= size_now(sk, TCP_RECEIVING) ||
	    length <= (__u32)PROBE_READ(sk, struct tcp_sock, advmss) + HEADER_BYTES)
		return 1;
	return book_within(row, slot, &buffers->booked[TCP_RECEIVING], then, row->barrier);
}

SEC("?lsm/socket_sock_rcv_skb")
int BPF_PROG(tcp_received, struct sock *sk, struct sk_buff *packet, int ret)
{
	if (ret || !is_tcp(sk) || has_no_tcp_record(sk, facts()))
		return ret;
	return may_take_packet((__u64)sk, packet->truesize, packet->len) ? 0 : -ENOBUFS;
}

/* --- what was there before the limit -------------------------------------------------------------- */

SEC("iter/task_file")
int meet_tcp(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct tcp_buffers first = {};
	struct socket *socket;
	struct sock *sk;

	first.slot = slot_of_file(file, ctx->task);
	if (!file || first.slot == NOBODY)
		return 0;
	socket = bpf_sock_from_file(file);
	sk = socket ? socket->sk : NULL;
	if (sk && is_tcp(sk))
		record_tcp_socket((__u64)sk, &first, false);
	return 0;
}

/* --- calls of the user half ----------------------------------------------------------------------- */

/* A record whose rows are not charged any more goes: its socket may end unseen. */
static long forget_tcp_record(struct bpf_map *map, __u64 *key, struct tcp_buffers *buffers,
			      struct forget_bill_args *what)
{
	__u64 sk = *key;	/* an element that is gone may be another's */

	if (buffers->slot != what->slot)
		return 0;
	if (what->row == BILL_TCPSNDBUF)
		forget_booked(what->slot, &buffers->booked[TCP_SENDING]);
	else if (what->row == BILL_TCPRCVBUF)
		forget_booked(what->slot, &buffers->booked[TCP_RECEIVING]);
	if (what->row != BILL_ROWS &&
	    (row_in_force(what->slot, BILL_TCPSNDBUF) || row_in_force(what->slot, BILL_TCPRCVBUF)))
		return 0;
	if (!bpf_map_delete_elem(map, &sk))
		note_tcp_socket(sk, what->slot, -1);
	return 0;
}

/* Before forget_bill, which sets held to 0. */
SEC("syscall")
int forget_tcp(struct forget_bill_args *args)
{
	struct forget_bill_args what = { .slot = args->slot, .row = args->row };

	if (what.row > BILL_ROWS)
		return -EINVAL;
	stop_counting(what.slot, what.row);
	bpf_for_each_map_elem(&tcp_buffers, forget_tcp_record, &what, 0);
	return 0;
}

/* Before the rows are shown, and now and then. */
SEC("syscall")
int recount_tcp(struct forget_bill_args *args)
{
	bpf_for_each_map_elem(&tcp_buffers, recount_tcp_socket, NULL, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
