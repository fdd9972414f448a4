// SPDX-License-Identifier: GPL-2.0-only
/*
 * A look at the machine: every task and every open file, with what of it is on somebody's bill. Nothing
 * is counted between two looks (S5 4 "on-demand accounting").
 *
 * Hooks:   iter/task, iter/task_file; no trampolines, so this works everywhere.
 * Cost:    about 2 µs a task and 2 µs an open file, in the reader's own time.
 */
#include "pending.bpf.h"
#include "bills.h"
#include "locks.bpf.h"
#include "objects.bpf.h"

enum {
	SOCK_DGRAM = 2,
};

/* for the user half: BTF carries the types of variables only */
struct seen_task seen_task_type;
struct seen_file seen_file_type;
enum seen_kind seen_kind_type;

/* The account that a task has entered, if there still is one; 0: none. Where a look-up finds nothing
 * although it should (entered.bpf.h), this look has it with its user. */
static __always_inline __u32 entered_now(struct ledger_state *state, struct task_struct *task)
{
	struct payer payer = {};

	if (state->entered)
		pay_into(&payer, membership_of(task));
	return payer.entered;
}

SEC("iter/task")
int see_tasks(struct bpf_iter__task *ctx)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *task = ctx->task;
	struct seen_task seen = {};
	struct payer payer = {};
	struct mm_struct *mm;

	if (!task || !state || (task->flags & PF_KTHREAD) || !payer_of_task(task, &payer))
		return 0;
	seen.uid = payer.uid;
	seen.tgid = task->tgid;
	seen.tid = task->pid;
	seen.entered = entered_now(state, task);
	seen.pending_signals = pending_signals_of(task);
	mm = task->mm;
	if (mm) {
		seen.mm = (__u64)mm;
		seen.file_pages = far_member(state, seen.mm, MEMBER_FILE);
		seen.anon_pages = far_member(state, seen.mm, MEMBER_ANON);
		seen.swap_pages = far_member(state, seen.mm, MEMBER_SWAP);
		seen.shmem_pages = far_member(state, seen.mm, MEMBER_SHMEM);
		seen.data_pages = mm->data_vm;
		seen.stack_pages = mm->stack_vm;
		seen.locked_pages = mm->locked_vm;
		seen.pinned_pages = mm->pinned_vm.counter;
		seen.table_bytes = mm->pgtables_bytes.counter;
		seen.areas = mm->map_count;
	}
	bpf_seq_write(ctx->meta->seq, &seen, sizeof(seen));
	return 0;
}

SEC("iter/task_file")
int see_files(struct bpf_iter__task_file *ctx)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct seen_file seen = {};
	struct socket *socket;
	struct inode *inode;
	struct sock *sk;

	if (!file || !task || !state || !uid_of_cred(file->f_cred, &seen.uid))
		return 0;
	seen.entered = entered_now(state, task);
	seen.file = (__u64)file;
	inode = file->f_inode;
	if (inode) {
		seen.inode = (__u64)inode;
		if ((inode->i_mode & S_IFMT) == S_IFIFO)
			seen.kind = SEEN_PIPE;
		else if (is_pty_master(inode))
			seen.kind = SEEN_PTY;
		if (bpf_core_field_exists(inode->i_flctx))
			seen.locks = locks_through((__u64)inode->i_flctx, (__u64)file);
	}
	socket = bpf_sock_from_file(file);
	sk = socket ? socket->sk : NULL;
	if (sk) {
		seen.receive_bytes = sk->sk_backlog.rmem_alloc.counter;
		seen.kind = SEEN_SOCKET;
		if (is_tcp(sk)) {
			seen.kind = SEEN_TCP;
			seen.send_bytes = sk->sk_wmem_queued;
		} else {
			if (sk->sk_type == SOCK_DGRAM)
				seen.kind = SEEN_DATAGRAM;
			/* a socket that lives has one of its own (sock_init_data()) */
			seen.send_bytes = sk->sk_wmem_alloc.refs.counter - 1;
		}
	}
	bpf_seq_write(ctx->meta->seq, &seen, sizeof(seen));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
