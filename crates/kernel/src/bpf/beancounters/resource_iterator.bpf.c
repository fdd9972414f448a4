// SPDX-License-Identifier: GPL-2.0-only
/*
 * A look at the machine: every task and every open file, with what of it is on somebody's bill. Nothing
 * is counted between two looks (S5 4 "on-demand accounting").
 *
 * Hooks:   iter/task, iter/task_file; no trampolines, so this works everywhere.
 * Cost:    about 2 µs a task and 2 µs an open file, 0.2 µs one in a table of files that several tasks
 *          share, in the reader's own time; of file locks lock_notes.bpf.h.
 */
#include "pages.bpf.h"
#include "beancounters.h"
#include "user_counts.bpf.h"
#include "lock_notes.bpf.h"
#include "objects.bpf.h"

enum {
	SOCK_DGRAM = 2,
};

/* for the user half: BTF carries the types of variables only */
struct seen_task seen_task_type;
struct seen_file seen_file_type;
enum seen_kind seen_kind_type;

/* The account that a task has entered, if there still is one; 0: none. Where a look-up finds nothing
 * although it should (membership.bpf.h), this look has it with its user. */
static __always_inline __u64 entered_now(struct ledger_state *state, struct task_struct *task)
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

	if (!task || !state || (task->flags & PF_KTHREAD) || !payer_of_task(task, &payer) ||
	    payer.entered == NOBODYS_ID)
		return 0;
	seen.uid = payer.uid;
	seen.tgid = task->tgid;
	seen.tid = task->pid;
	seen.entered = entered_now(state, task);
	seen.pending_signals = pending_signals_of(task);
	seen.namespace_bytes = namespace_bytes_of(task);
	mm = task->mm;
	if (mm) {
		seen.mm = number_of(mm);
		seen.file_pages = probe_member(seen.mm, NULL, MEMBER_FILE);
		seen.anon_pages = probe_member(seen.mm, NULL, MEMBER_ANON);
		seen.swap_pages = probe_member(seen.mm, NULL, MEMBER_SWAP);
		seen.shmem_pages = probe_member(seen.mm, NULL, MEMBER_SHMEM);
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

/* Key: struct files_struct *; value: the task that has shown it. Full: it is shown again. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} tables SEC(".maps");

/* Whose descriptors are met now: most are of the task before. */
struct showing {
	__u64 session;		/* of the iterator */
	__u64 table;		/* struct files_struct * */
	__u32 tid;
	__u32 is_again;		/* another task has shown this table */
};

struct showing showing;

static long forget_table(struct bpf_map *map, __u64 *key, __u32 *tid, void *nothing)
{
	bpf_map_delete_elem(map, key);
	return 0;
}

/* The iterator knows of threads that share their leader's table, and of no processes that do (clone(2) with
 * CLONE_FILES): theirs it shows once for each. */
static __noinline __u32 is_shown_again(__u64 table, __u32 tid, __u64 session)
{
	__u32 *before;

	if (showing.session != session) {
		bpf_for_each_map_elem(&tables, forget_table, NULL, 0);
		showing.session = session;
		showing.table = 0;
	}
	if (showing.table == table && showing.tid == tid)
		return showing.is_again;
	showing.table = table;
	showing.tid = tid;
	before = bpf_map_lookup_elem(&tables, &table);
	showing.is_again = before && *before != tid;
	if (!before)
		bpf_map_update_elem(&tables, &table, &tid, BPF_ANY);
	return showing.is_again;
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
	__u32 locks = 0;
	struct sock *sk;

	if (!file || !task || !state ||
	    is_shown_again((__u64)task->files, task->pid, ctx->meta->session_id) ||
	    is_exempt(number_of(task)) || !uid_of_cred(file->f_cred, &seen.uid))
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
			locks = noted_locks((__u64)inode->i_flctx, (__u64)file,
					    ctx->meta->session_id);
		seen.locks = locks & LOCKS_NUMBER;
		seen.is_cut = !!(locks & LOCKS_BEYOND);
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
			seen.send_bytes = packets_under_way(sk);
		}
	}
	bpf_seq_write(ctx->meta->seq, &seen, sizeof(seen));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
