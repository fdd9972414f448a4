/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What sockops and setsockopt programs of a control group are given: the kernel's own API (linux/bpf.h), as far as it is
 * used here. Verifiers know these by their offsets, so nothing of it is relocated.
 */
#ifndef BURSAR_SOCKET_PROGRAMS_H
#define BURSAR_SOCKET_PROGRAMS_H

#include "vmlinux.h"

struct bpf_sock;

struct bpf_sock_ops {
	__u32 op;
	__u32 args[4];
	__u32 family;
	__u32 addresses[10];
	__u32 ports[2];
	__u32 is_fullsock;
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 bpf_sock_ops_cb_flags;
	__u32 state;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 counts[13];
	__u64 bytes_received;
	__u64 bytes_acked;
	struct bpf_sock *sk __attribute__((aligned(8)));
};

struct bpf_sockopt {
	struct bpf_sock *sk __attribute__((aligned(8)));
	void *optval __attribute__((aligned(8)));
	void *optval_end __attribute__((aligned(8)));
	__s32 level;
	__s32 optname;
	__s32 optlen;
	__s32 retval;
};

/* linux/bpf.h */
enum {
	BPF_SOCK_OPS_TCP_CONNECT_CB = 3,
	BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB = 4,
	BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB = 5,
	BPF_SOCK_OPS_TCP_LISTEN_CB = 11,
	BPF_SOCK_OPS_HDR_OPT_LEN_CB = 14,
	BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG = 1 << 6,
};

/* asm-generic/socket.h, linux/tcp.h */
enum {
	SOL_SOCKET = 1,
	SO_SNDBUF = 7,
	SO_RCVBUF = 8,
	SO_SNDBUFFORCE = 32,
	SO_RCVBUFFORCE = 33,
	SO_BUF_LOCK = 72,
	TCP_MAXSEG = 2,
	TCP_WINDOW_CLAMP = 10,
};

_Static_assert(__builtin_offsetof(struct bpf_sock_ops, sk) == 184, "as linux/bpf.h has it");
_Static_assert(__builtin_offsetof(struct bpf_sock_ops, snd_cwnd) == 76, "as linux/bpf.h has it");
_Static_assert(__builtin_offsetof(struct bpf_sock_ops, mss_cache) == 112, "as linux/bpf.h has it");

#endif /* BURSAR_SOCKET_PROGRAMS_H */
