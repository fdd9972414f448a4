/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types as far as the beancounters read them; as in vmlinux.h.
 */
#ifndef BURSAR_VMLINUX_BEANCOUNTERS_H
#define BURSAR_VMLINUX_BEANCOUNTERS_H

#include "vmlinux.h"
#include "vmlinux_files.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct refcount_struct refcount_t;

struct tty_struct {
	struct tty_struct *link;
	void *driver_data;
};

struct tty_file_private {
	struct tty_struct *tty;
};

struct net {
	struct user_namespace *user_ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;	/* CONFIG_NET_NS */
};

struct sk_buff_head {
	__u32 qlen;
};

struct sock {
	struct sock_common __sk_common;
	struct {
		atomic_t rmem_alloc;
		int len;
	} sk_backlog;
	int sk_rcvbuf;
	int sk_sndbuf;
	struct sk_buff_head sk_error_queue;
	refcount_t sk_wmem_alloc;
	int sk_wmem_queued;
	u16 sk_type;
	u16 sk_protocol;
};

struct tcp_options_received {
	u16 user_mss;
};

struct tcp_sock {
	struct tcp_options_received rx_opt;
	u32 rcv_nxt;
	u32 rcv_wup;
	u32 rcv_wnd;
	u16 advmss;
	u32 mss_cache;
	struct {
		u32 space;
	} rcvq_space;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

struct msghdr {
	unsigned int msg_flags;
};

struct sk_buff {
	unsigned int len;
	unsigned char *data;
	unsigned int truesize;
};

struct bpf_map;
struct request_sock;
struct kernel_siginfo;
struct fown_struct;
struct kern_ipc_perm;

struct file_lock_context {
	struct list_head flc_flock;
	struct list_head flc_posix;
	struct list_head flc_lease;
};

/* Before 6.9 (a69ce85ec9af "filelock: split common fields into struct file_lock_core") */
struct file_lock___whole {
	struct list_head fl_list;
	void *fl_owner;
	unsigned char fl_type;
	struct file *fl_file;
	long long fl_start;
	long long fl_end;
};

struct file_lock_core {
	struct list_head flc_list;
	void *flc_owner;
	unsigned char flc_type;
	struct file *flc_file;
};

struct file_lock {
	struct file_lock_core c;
	long long fl_start;
	long long fl_end;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

#pragma clang attribute pop

#endif /* BURSAR_VMLINUX_BEANCOUNTERS_H */
