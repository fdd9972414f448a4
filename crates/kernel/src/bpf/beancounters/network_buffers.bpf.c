// SPDX-License-Identifier: GPL-2.0-only
/*
 * Network buffers of an account, held at a barrier (S5 3.4): what its sockets send, what its datagram sockets receive.
 *
 * Hooks:   LSM programs decide; one fentry program ends a charge earlier. As beancounters.bpf.c: attached while
 *          somebody has a limit on such a row.
 * Cost:    nothing while nobody has such a limit; then a look-up for each message and each packet, in an array where
 *          no bound concerns it. Counting anew costs a read of each socket with a record, in at most a sixteenth of
 *          the time.
 * Absent:  the rows are looked at (resource_iterator.bpf.c) and nothing is refused.
 */
#include <asm-generic/errno.h>

#include "network_buffers.bpf.h"
#include "open_file.bpf.h"

enum {
	MSG_DONTWAIT = 0x40,
};

/* --- who pays --------------------------------------------------------------------------------- */

SEC("?lsm/socket_post_create")
int BPF_PROG(buffers_made, struct socket *socket, int family, int type, int protocol, int kern, int ret)
{
	struct bill_facts *known = facts();
	struct sock *sk = socket->sk;
	__u32 slot = NOBODY;

	if (!ret && !kern && known && sk && !is_tcp(sk) && bill_of_me(known, BUFFER_ROWS, &slot))
		record_socket((__u64)sk, slot, true);
	return ret;
}

/* As with numothersock, the owner of the socket that a connection comes in at. */
static __noinline int record_accepted(__u64 listener, __u64 new)
{
	struct socket_buffers *buffers = buffers_of(listener);

	if (buffers)
		record_socket(new, buffers->slot, true);
	return 0;
}

SEC("?lsm/unix_stream_connect")
int BPF_PROG(buffers_unix_accepted, struct sock *sk, struct sock *listener, struct sock *new, int ret)
{
	if (!ret && !has_no_record(listener, facts()))
		record_accepted((__u64)listener, (__u64)new);
	return ret;
}

/* As soon as it cannot be used any more; RCU frees those of UDP some time later, and what is in their queues only then
 * (udp_destruct_common()). May be skipped. One of which packets are under way or in its queues stays until they are gone. */
SEC("?fentry/sk_common_release")
int BPF_PROG(buffers_gone, struct sock *sk)
{
	if (!has_no_record(sk, facts()) && packets_under_way(sk) <= 0 && receiving_now((__u64)sk) <= 0)
		forget_socket((__u64)sk);
	return 0;
}

/* Never skipped. A local socket is not freed before its readers have read what it sent. */
SEC("?lsm/sk_free_security")
int BPF_PROG(buffers_free, struct sock *sk)
{
	if (!has_no_record(sk, facts()))
		forget_socket((__u64)sk);
	return 0;
}

/* --- othersockbuf ------------------------------------------------------------------------------- */

/* What the kernel sends for itself has no file. Who does not want to wait is to try again. Who does cannot be made to
 * wait here: send(2) has ENOBUFS for that. */
SEC("?lsm/socket_sendmsg")
int BPF_PROG(buffers_sending, struct socket *socket, struct msghdr *message, int size, int ret)
{
	struct bill_facts *known = facts();
	struct sock *sk = socket->sk;
	__u32 slot = NOBODY;

	if (ret || !known || !sk || !socket->file || is_tcp(sk))
		return ret;
	if (!bill_of_me(known, BUFFER_ROWS, &slot)) {
		slot = NOBODY;
		if (has_no_record(sk, known))
			return 0;
	}
	if (may_send((__u64)sk, size, slot))
		return 0;
	return message->msg_flags & MSG_DONTWAIT ? -EAGAIN : -ENOBUFS;
}

/* sendmmsg(2) asks the hook above of the first of those messages only that name the same receiver (____sys_sendmsg()). Each
 * datagram asks here, when what it takes is known and in the queue's sum. The receiver is locked, so nothing is counted
 * anew. */
static __noinline int may_have_sent(__u64 sk)
{
	struct socket_buffers *buffers = buffers_of(sk);

	return !buffers || sender_is_roots() || may_hold(buffers, BILL_OTHERSOCKBUF, sending_now(sk), false);
}

SEC("?lsm/unix_may_send")
int BPF_PROG(buffers_sent, struct socket *socket, struct socket *receiver, int ret)
{
	struct sock *sk = socket->sk;

	if (ret || !sk || has_no_record(sk, facts()))
		return ret;
	return may_have_sent((__u64)sk) ? 0 : -EAGAIN;
}

/* --- dgramrcvbuf -------------------------------------------------------------------------------- */

/* A packet of UDP, raw sockets, netlink and others; refused it is dropped, as where the socket's own bound is passed. */
SEC("?lsm/socket_sock_rcv_skb")
int BPF_PROG(buffers_received, struct sock *sk, struct sk_buff *packet, int ret)
{
	if (ret || sk->__sk_common.skc_family == AF_UNIX || is_tcp(sk) || has_no_record(sk, facts()))
		return ret;
	return may_receive((__u64)sk, packet->truesize) ? 0 : -ENOBUFS;
}

SEC("?lsm/socket_recvmsg")
int BPF_PROG(buffers_read, struct socket *socket, struct msghdr *message, int size, int flags, int ret)
{
	struct sock *sk = socket->sk;

	if (!ret && sk && sk->__sk_common.skc_family != AF_UNIX && !is_tcp(sk) && !has_no_record(sk, facts()))
		note_reading((__u64)sk);
	return ret;
}

/* --- what was there before the limit -------------------------------------------------------------- */

SEC("iter/task_file")
int meet_buffers(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	__u32 slot = slot_of_file(file, ctx->task);
	struct socket_buffers *buffers;
	struct socket *socket;
	struct sock *sk;
	__u64 address;

	if (!file || slot == NOBODY)
		return 0;
	socket = bpf_sock_from_file(file);
	sk = socket ? socket->sk : NULL;
	if (!sk || is_tcp(sk))
		return 0;
	address = (__u64)sk;
	if (!record_socket(address, slot, false))
		return 0;
	buffers = bpf_map_lookup_elem(&socket_buffers, &address);
	if (buffers)
		recount_socket(NULL, &address, buffers, NULL);
	return 0;
}

/* --- calls of the user half ----------------------------------------------------------------------- */

/* A record whose rows are not charged any more goes: its socket may end unseen. */
static long forget_buffer(struct bpf_map *map, __u64 *key, struct socket_buffers *buffers,
			  struct forget_bill_args *what)
{
	__u64 sk = *key;	/* an element that is gone may be another's */

	if (buffers->slot != what->slot)
		return 0;
	if (what->row == BILL_DGRAMRCVBUF)
		forget_booked(what->slot, &buffers->receiving);
	else if (what->row == BILL_OTHERSOCKBUF)
		forget_booked(what->slot, &buffers->sending);
	if (what->row != BILL_ROWS &&
	    (row_in_force(what->slot, BILL_OTHERSOCKBUF) || row_in_force(what->slot, BILL_DGRAMRCVBUF)))
		return 0;
	if (!bpf_map_delete_elem(map, &sk))
		note_socket(sk, what->slot, -1);
	return 0;
}

/* Before forget_bill, which sets held to 0. */
SEC("syscall")
int forget_buffers(struct forget_bill_args *args)
{
	struct forget_bill_args what = { .slot = args->slot, .row = args->row };

	if (what.row > BILL_ROWS)
		return -EINVAL;
	stop_counting(what.slot, what.row);
	bpf_for_each_map_elem(&socket_buffers, forget_buffer, &what, 0);
	return 0;
}

/* Before the rows are shown, and now and then. */
SEC("syscall")
int recount_buffers(struct forget_bill_args *args)
{
	bpf_for_each_map_elem(&socket_buffers, recount_socket, NULL, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
