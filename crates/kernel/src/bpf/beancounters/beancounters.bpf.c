// SPDX-License-Identifier: GPL-2.0-only
/*
 * Beancounters that refuse (S5 2.2): processes, files, sockets, file locks, terminals, queued signals,
 * shared, locked and kernel memory. An account that would pass its barrier has its request answered with an
 * error; nobody else notices.
 *
 * Hooks:   LSM programs and no others decide: they are never skipped. The loader attaches those of a row
 *          when the first account gets a limit on it and takes them away with the last (S5 4 "on-demand
 *          accounting"); until then they cost nothing.
 * Cost:    docs/design/measured-beancounters.md.
 * Absent:  without LSM programs the rows are looked at (resource_iterator.bpf.c) and nothing is refused.
 */
#include <asm-generic/errno.h>

#include "bill_calls.bpf.h"
#include "file_locks.bpf.h"
#include "kernel_memory.bpf.h"
#include "lock_notes.bpf.h"
#include "magic.h"
#include "netlink.bpf.h"
#include "objects.bpf.h"
#include "open_file.bpf.h"
#include "own_call.bpf.h"
#include "shared_memory.bpf.h"
#include "signals.bpf.h"
#include "sockets.bpf.h"
#include "terminals.bpf.h"

enum {
	CAP_NET_ADMIN = 12,
	CAP_SYS_ADMIN = 21,
	CAP_OPT_NOAUDIT = 2,	/* include/linux/security.h */
};

enum bill_row bill_row_type;	/* for the user half: BTF carries the types of variables only */

static __always_inline struct task_struct *me(void)
{
	return bpf_get_current_task_btf();
}

/* --- one program a hook ------------------------------------------------------------------------ */

/* A program more at a hook costs everybody as much as half of the first: so what several rows ask at one hook is asked
 * by one program, which is attached while any of them is limited. The rows that are not have nothing counted. */

/* Processes and threads; an ended one counts until its parent has taken note of it. */
SEC("?lsm/task_alloc")
int BPF_PROG(bill_fork, struct task_struct *child, unsigned long clone_flags, int ret)
{
	struct bill_facts *known = facts();
	__u32 slot = NOBODY;
	struct bill *bill;

	if (ret || !known)
		return ret;
	bill = bill_of_me(known, 1U << BILL_NUMPROC | 1U << BILL_KMEMSIZE, &slot);
	if (!bill)
		return 0;
	if (counts(bill, BILL_KMEMSIZE) && !may_take_of(slot, TASK_BYTES, NOT_COUNTED, true))
		return -ENOMEM;
	if (counts(bill, BILL_NUMPROC) && !charge_piece(bill, slot, BILL_NUMPROC, number_beside(child, known)))
		return -EAGAIN;
	return 0;
}

/* A file that is refused is freed, and gives back what it was charged for by then. */
static __always_inline int bill_new_file(const struct file *file, __u32 rows)
{
	struct bill_facts *known = facts();
	__u32 slot = NOBODY;
	struct bill *bill;
	__u64 number;

	if (!known)
		return 0;
	bill = bill_of_me(known, rows, &slot);
	if (!bill)
		return 0;
	rows &= bill->counted_rows;
	number = number_beside(file, known);
	if ((rows & 1U << BILL_KMEMSIZE) && !may_take_of(slot, FILE_BYTES, NOT_COUNTED, true))
		return -ENOMEM;
	if ((rows & 1U << BILL_NUMFILE) && !charge_piece(bill, slot, BILL_NUMFILE, number))
		return -ENFILE;
	if ((rows & 1U << BILL_SHMPAGES) && !may_make_shared(slot, number))
		return -ENOMEM;
	return 0;
}

SEC("?lsm/file_alloc_security")
int BPF_PROG(bill_file, struct file *file, int ret)
{
	return ret ? ret :
		     bill_new_file(file, 1U << BILL_NUMFILE | 1U << BILL_KMEMSIZE | 1U << BILL_SHMPAGES);
}

/* Where the verifier knows the hook above as one that cannot refuse (from 7.0 on). Skipped where one was
 * preempted: what passed is found by the next look. Shared memory has programs that are not (bill_shared). */
SEC("?fmod_ret/security_file_alloc")
int BPF_PROG(bill_file_try, struct file *file)
{
	return bill_new_file(file, 1U << BILL_NUMFILE | 1U << BILL_KMEMSIZE);
}

/* It exists by now; refused it goes at once. */
SEC("?lsm/socket_post_create")
int BPF_PROG(bill_socket, struct socket *socket, int family, int type, int protocol, int kern, int ret)
{
	struct bill_facts *known = facts();
	struct sock *sk = socket->sk;
	__u32 slot = NOBODY;
	struct bill *bill;
	__u64 number;

	if (ret || !known)
		return ret;
	if (kern)
		return may_make_kernel_socket(family, protocol) ? 0 : -ENOMEM;
	bill = bill_of_me(known, 1U << BILL_NUMTCPSOCK | 1U << BILL_NUMOTHERSOCK | 1U << BILL_KMEMSIZE, &slot);
	if (!bill)
		return 0;
	if (counts(bill, BILL_KMEMSIZE) && !may_take_of(slot, SOCKET_BYTES, NOT_COUNTED, true))
		return -ENOMEM;
	if (!sk)
		return 0;
	number = number_beside(sk, known);
	/* The row as a constant: verifiers follow no variable index into the bill. */
	return row_of_socket(sk) == BILL_NUMTCPSOCK ? may_make_socket(bill, slot, BILL_NUMTCPSOCK, number) :
						      may_make_socket(bill, slot, BILL_NUMOTHERSOCK, number);
}

/* --- numproc ------------------------------------------------------------------------------- */

/* A session begins as root's process, for which nobody was charged: it is the user's from now on, and
 * never refused. What somebody has paid for stays with him. */
SEC("?lsm/task_fix_setuid")
int BPF_PROG(bill_setuid, struct cred *new, const struct cred *old, int flags, int ret)
{
	struct ledger_state *state = ledger_state();
	struct bill_facts *known = facts();
	struct task_struct *task = me();
	__u32 uid = 0;

	if (ret || !state || !known || is_bursard(state, task) || !uid_of_cred(new, &uid) || !uid)
		return ret;
	if (state->entered && membership_of(task))	/* whoever it becomes, its account pays */
		return ret;
	charge(account_of(state, uid), BILL_NUMPROC, number_beside(task, known), 1, true);
	return 0;
}

/* As soon as it cannot be seen any more; RCU frees it some time later. May be skipped. */
SEC("?fentry/release_task")
int BPF_PROG(bill_task_gone, struct task_struct *task)
{
	struct bill_facts *known = facts();

	if (known)
		uncharge_now(number_beside(task, known), BILL_NUMPROC);
	return 0;
}

/* Never skipped. */
SEC("?lsm/task_free")
int BPF_PROG(bill_task_free, struct task_struct *task)
{
	struct bill_facts *known = facts();

	if (known)
		uncharge_now(number_beside(task, known), BILL_NUMPROC);
	return 0;
}

/* --- numpty -------------------------------------------------------------------------------- */

enum { SB_IS_BORN = 1 << 29 };	/* include/linux/fs.h, SB_BORN */

/* Mounting makes inodes in devpts, too, before it is there. The answer is ENOMEM whatever is said here
 * (fs/devpts/inode.c). */
SEC("?lsm/inode_alloc_security")
int BPF_PROG(bill_terminal, struct inode *inode, int ret)
{
	struct super_block *super = inode->i_sb;

	if (ret || !super || super->s_magic != DEVPTS_SUPER_MAGIC || !(super->s_flags & SB_IS_BORN))
		return ret;
	return charge_terminal(slot_of_me(), (__u64)inode) ? 0 : -ENOMEM;
}

/* The master is closed. May be skipped. */
SEC("?fentry/devpts_pty_kill")
int BPF_PROG(bill_terminal_gone, struct dentry *entry)
{
	give_back_terminal((__u64)entry->d_inode);
	return 0;
}

/* --- numfile, numflock ---------------------------------------------------------------------- */

SEC("?lsm/file_lock")
int BPF_PROG(bill_lock, struct file *file, unsigned int command, int ret)
{
	return ret ? ret : bill_lock_request((__u64)file, command);
}

SEC("?lsm/file_free_security")
int BPF_PROG(bill_file_free, struct file *file)
{
	struct bill_facts *known = facts();

	if (!known)
		return 0;
	uncharge_file(number_beside(file, known));
	if (known->locked_files)
		give_back_locks((__u64)file);
	return 0;
}

/* --- sockets -------------------------------------------------------------------------------- */

/* A packet that asks for a connection; refused it is dropped, as where the backlog is full. */
SEC("?lsm/inet_conn_request")
int BPF_PROG(bill_connection, struct sock *sk, struct sk_buff *packet, struct request_sock *request, int ret)
{
	struct bill_facts *known = facts();

	if (ret || !known)
		return ret;
	return has_left(slot_charged(number_beside(sk, known), BILL_NUMTCPSOCK), BILL_NUMTCPSOCK, 1, false) ?
		       0 :
		       -ENOBUFS;
}

/* Who pays for a connection that was not asked for by a process of his: the owner of the socket it came in at. Not of TCP
 * are those of MPTCP (mptcp_sk_clone_init()), vsock and AF_ALG. */
SEC("?lsm/sk_clone_security")
int BPF_PROG(bill_accepted, struct sock *sk, struct sock *new)
{
	struct bill_facts *known = facts();
	__u32 which = row_of_socket(sk), slot;

	if (!known)
		return 0;
	slot = slot_charged(number_beside(sk, known), which);
	if (slot != NOBODY)
		charge(slot, which, number_beside(new, known), 1, true);
	return 0;
}

SEC("?lsm/unix_stream_connect")
int BPF_PROG(bill_unix_accepted, struct sock *sk, struct sock *listener, struct sock *new, int ret)
{
	struct bill_facts *known = facts();
	__u32 slot;

	if (ret || !known)
		return ret;
	slot = slot_charged(number_beside(listener, known), BILL_NUMOTHERSOCK);
	return charge(slot, BILL_NUMOTHERSOCK, number_beside(new, known), 1, false) ? 0 : -ENOBUFS;
}

/* As soon as it cannot be used any more; RCU frees those of UDP some time later. May be skipped. One of which packets are
 * under way stays until they are gone. */
SEC("?fentry/sk_common_release")
int BPF_PROG(bill_socket_gone, struct sock *sk)
{
	struct bill_facts *known = facts();

	if (known && packets_under_way(sk) <= 0)
		uncharge_now(number_beside(sk, known), BILL_NUMOTHERSOCK);
	return 0;
}

/* Never skipped. */
SEC("?lsm/sk_free_security")
int BPF_PROG(bill_socket_free, struct sock *sk)
{
	struct bill_facts *known = facts();

	if (known)
		uncharge_now(number_beside(sk, known), BILL_NUMOTHERSOCK);
	return 0;
}

/* --- numsiginfo ----------------------------------------------------------------------------- */

SEC("?lsm/task_kill")
int BPF_PROG(bill_signal, struct task_struct *target, struct kernel_siginfo *info, int signal,
	     const struct cred *cred, int ret)
{
	return ret ? ret : may_queue_signal(target, signal, true) ? 0 : -EAGAIN;
}

/* Of a file that is ready (F_SETSIG with O_ASYNC), or whose lease ends. Nobody sends it: a packet may have come in. Refused
 * nothing is sent, no SIGIO in its place either (fs/fcntl.c send_sigio_to_task()). */
SEC("?lsm/file_send_sigiotask")
int BPF_PROG(bill_signal_of_file, struct task_struct *target, struct fown_struct *owner, int signal, int ret)
{
	return ret ? ret : may_queue_signal(target, signal, false) ? 0 : -EAGAIN;
}

/* --- shmpages ------------------------------------------------------------------------------- */

/* Where no LSM program can refuse a file (bill_file_try) the inode decides, whose refusal would be told as ENOSPC: this
 * and bill_mapping answer ENOMEM before it is made. */
SEC("?lsm/shm_alloc_security")
int BPF_PROG(bill_segment_ask, struct kern_ipc_perm *segment, int ret)
{
	__u64 bytes = 0;

	if (ret || shared_call(&bytes) != SHARED_GET)
		return ret;
	return has_left(slot_of_task(me()), BILL_SHMPAGES, pages_of(bytes), true) ? 0 : -ENOMEM;
}

SEC("?lsm/inode_alloc_security")
int BPF_PROG(bill_shared, struct inode *inode, int ret)
{
	struct super_block *super = inode->i_sb;
	struct bill_facts *known = facts();

	if (ret || !known || !super || super->s_magic != TMPFS_MAGIC)
		return ret;
	return may_make_shared(slot_of_me(), number_beside(inode, known)) ? 0 : -ENOMEM;
}

SEC("?lsm/inode_free_security")
int BPF_PROG(bill_shared_free, struct inode *inode)
{
	struct bill_facts *known = facts();

	if (known)
		uncharge_now(number_beside(inode, known), BILL_SHMPAGES);
	return 0;
}

/* --- mappings: shmpages and lockedpages ------------------------------------------------------- */

/* One program for two rows: of each mapping the flags are looked at, mostly no more. mlock(2) asks no
 * security module, only RLIMIT_MEMLOCK, process by process. */
SEC("?lsm/mmap_file")
int BPF_PROG(bill_mapping, struct file *file, unsigned long reqprot, unsigned long prot,
	     unsigned long flags, int ret)
{
	if (ret || !(flags & (MAP_LOCKED | MAP_ANONYMOUS)))
		return ret;
	if ((flags & MAP_LOCKED) && !may_map_locked())
		return -EAGAIN;
	if ((flags & MAP_SHARED) && (flags & MAP_ANONYMOUS) && !may_map_shared())
		return -ENOMEM;
	return 0;
}

/* --- kmemsize ------------------------------------------------------------------------------- */

/* It is counted by now; what is answered goes to who has asked. */
SEC("?lsm/userns_create")
int BPF_PROG(bill_user_namespace, const struct cred *cred, int ret)
{
	__s64 bytes = namespace_bytes[UCOUNT_USER_NAMESPACES];
	struct bill_facts *known = facts();
	__u32 slot = NOBODY;

	if (ret || !known || !bill_of_me(known, 1U << BILL_KMEMSIZE, &slot))
		return ret;
	if (!is_counted_for_payer(cred) && !may_evade(slot, bytes))
		return -EPERM;
	return may_take_of(slot, bytes, COUNTED_ALREADY, false) ? 0 : -ENOMEM;
}

/* Routes and addresses that are not asked for by netlink: SIOCADDRT and its like. */
static __noinline int may_set_network(void)
{
	struct bill_facts *known = facts();
	__u32 slot = NOBODY;

	if (!known || own_call() != CALL_SETS || !bill_of_me(known, 1U << BILL_KMEMSIZE, &slot))
		return 1;
	return take_kernel_memory(slot, NETWORK_SETTING_BYTES);
}

/* Tables of iptables-legacy and their like, however it is asked for: io_uring does it too, under its own number or, of linked
 * requests, under any. In network namespaces that root has not made, wherever who asks is: their owner may. */
SEC("?lsm/socket_setsockopt")
int BPF_PROG(bill_socket_option, struct socket *socket, int level, int option, int ret)
{
	struct bill_facts *known = facts();
	struct sock *sk = socket->sk;
	__u32 slot = NOBODY;

	if (ret || !known || !is_network_option(level, option) || !sk ||
	    !is_in_own_network(sk) || !bill_of_me(known, 1U << BILL_KMEMSIZE, &slot))
		return ret;
	return take_kernel_memory(slot, NETWORK_SETTING_BYTES) ? 0 : -EPERM;
}

/* All that makes something in a user namespace of one's own asks for this there: unshare(2), clone(2), mounts
 * of all kinds. A mount namespace is a copy of the one around. Who asks whether it might is not refused. */
SEC("?lsm/capable")
int BPF_PROG(bill_own_namespace, const struct cred *cred, struct user_namespace *ns, int capability,
	     unsigned int options, int ret)
{
	__s64 bytes = MOUNT_BYTES;
	enum own_call call;

	if (ret || (capability != CAP_SYS_ADMIN && capability != CAP_NET_ADMIN) || (options & CAP_OPT_NOAUDIT) ||
	    !ns || ns->level <= 0)
		return ret;
	if (capability == CAP_NET_ADMIN)
		return may_set_network() ? 0 : -EPERM;
	call = own_call();
	if (call == CALL_GIVES_BACK)
		return 0;
	if (call == CALL_MAKES)
		bytes += mounts_around((__u64)me()) * MOUNT_BYTES;
	return may_take_kernel_memory(bytes, NOT_COUNTED, false) ? 0 : -EPERM;
}

/* mount(2), with an errno that says what is wrong. */
SEC("?lsm/sb_mount")
int BPF_PROG(bill_mount, const char *device, const struct path *path, const char *type,
	     unsigned long flags, void *data, int ret)
{
	return ret ? ret : may_take_kernel_memory(MOUNT_BYTES, NOT_COUNTED, false) ? 0 : -ENOMEM;
}

/* What is asked for by netlink. What is given back, changed or looked at is not refused. */
SEC("?lsm/netlink_send")
int BPF_PROG(bill_netlink, struct sock *sk, struct sk_buff *packet, int ret)
{
	struct bill_facts *known = facts();
	__u32 slot = NOBODY;
	__u64 bytes;

	if (ret || !known || !bill_of_me(known, 1U << BILL_KMEMSIZE, &slot))
		return ret;
	/* There it says little of a message that it is not a list's: programs of all kinds ask for this and that. */
	if (sk->sk_protocol == NETLINK_GENERIC && !is_in_own_network(sk))
		return 0;
	bytes = making_bytes((__u64)packet->data, packet->len, sk->sk_protocol);
	return !bytes || take_kernel_memory(slot, bytes * MADE_OF_MESSAGE) ? 0 : -ENOMEM;
}

/* --- what was there before the limit ---------------------------------------------------------- */

/* Read to its end after a limit was set, and now and then: what a skipped program let pass is found. */
SEC("iter/task")
int meet_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct bill_facts *known = facts();

	if (task && known)
		charge(slot_of_task(task), BILL_NUMPROC, number_beside(task, known), 1, true);
	return 0;
}

SEC("iter/task_file")
int meet_files(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	__u32 slot = slot_of_file(file, ctx->task);
	struct bill_facts *known = facts();
	struct socket *socket;
	struct inode *inode;
	struct sock *sk;
	__u64 number;

	if (!file || !known || slot == NOBODY)
		return 0;
	number = number_beside(file, known);
	charge(slot, BILL_NUMFILE, number, 1, true);
	inode = file->f_inode;
	if (inode && is_pty_master(inode))
		meet_terminal(slot, terminal_of_master(file));
	socket = bpf_sock_from_file(file);
	sk = socket ? socket->sk : NULL;
	if (sk)
		charge(slot, row_of_socket(sk), number_beside(sk, known), 1, true);
	return 0;
}

/* Apart from the one above: both together are more than the verifier follows. */
SEC("iter/task_file")
int meet_locks(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	__u32 slot = slot_of_file(file, ctx->task);
	struct row *row = counted_row(slot, BILL_NUMFLOCK);
	struct charge first = { .slot = slot, .row = BILL_NUMFLOCK };
	__u64 address = (__u64)file;

	if (!row || bpf_map_lookup_elem(&locked_files, &address))
		return 0;
	first.amount = noted_locks(lock_context_of(address), address, ctx->meta->session_id) &
		       LOCKS_NUMBER;
	if (!first.amount || bpf_map_update_elem(&locked_files, &address, &first, BPF_NOEXIST))
		return 0;
	note_locked_file(1);
	add_beyond(row, first.amount);
	if (is_forgotten_now(row))
		give_back_locks(address);
	return 0;
}

/* --- calls of the user half ------------------------------------------------------------------- */

SEC("syscall")
int set_bill(struct set_bill_args *args)
{
	return store_row(args);
}

SEC("syscall")
int forget_bill(struct forget_bill_args *args)
{
	return forget_rows(args);
}

SEC("syscall")
int note_kernel_memory(struct note_kernel_memory_args *args)
{
	return store_kernel_memory(args);
}

SEC("syscall")
int recount_bill(struct forget_bill_args *args)
{
	return recount_rows(args);
}

char LICENSE[] SEC("license") = "GPL";
