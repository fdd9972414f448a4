// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gate for files in tmpfs: write(2), fallocate(2) and their kin that would make one grow past its
 * owner's barrier are answered with ENOSPC, block by block, as by a file system that is full. A part of the limit is
 * left free of files: a user who has filled /tmp logs in and removes it.
 *
 * Whoever writes to a mapping of a file is not asked: refusing a page fault is SIGBUS. Such pages count.
 *
 * Hooks:   fentry/shmem_write_begin, fentry/shmem_fallocate: which file the running task is about to
 *          enlarge; fmod_ret/security_vm_enough_memory_mm: shmem asks it for each block, and tells a
 *          refused caller ENOSPC. It is asked about mmap, fork and page faults too: a block of ours it is
 *          only while the task holds the lock of that very file (inode_lock()).
 * Charge:  between two counts of files an account is charged for what was granted since the last one
 *          began; deleting is seen by the next count, made here and now before anybody is refused.
 * Cost:    docs/design/measured-gate.md.
 * Absent:  files are counted, nobody is refused. Tracing programs are skipped where one was preempted
 *          (gate.bpf.c): a block that slips through is in the next count.
 */
#include <asm-generic/errno.h>

#include "gate/admission.bpf.h"
#include "tmpfs_count.bpf.h"

enum {
	GROWTHS = 8,		/* counts begun while the last one is still what is known */
	COUNT_PAUSE_NS = 1000000, /* nobody has files counted more often than this, … */
	COUNT_SHARE = 4,	/* … nor for a larger part of the time than one of these */
};

/* Who is about to enlarge a file that counts for a user with a limit. */
struct writer {
	__u64 inode;		/* 0: none such */
	__u32 slot;		/* of the file's owner */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct writer);
} writers SEC(".maps");

/* What was granted to an account's files since the count `ticket` began. */
struct growth {
	__u64 ticket;
	__s64 pages;
};

struct growths {
	struct growth of[GROWTHS];
};

/* Key: account slot. Written and read here only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u32);
	__type(value, struct growths);
} grown SEC(".maps");

__u64 counted_ns;	/* when somebody who would have been refused last had files counted */

static __always_inline bool has_barrier(const struct account *account)
{
	return account && (account->flags & ACCOUNT_USED) && !(account->flags & ACCOUNT_PAUSED) &&
	       account->barrier_pages != NO_BOUND_PAGES;
}

/* --- who writes what ------------------------------------------------------------------------ */

/* The account to charge; NOBODY where the file's owner or its writer has no limit. */
static __always_inline __u32 slot_of_growth(struct ledger_state *state, struct task_struct *me,
					    struct inode *inode)
{
	struct payer payer = {};
	__u32 owner, slot;

	if (!state->tmpfs_type || is_beyond_refusal(state, me) || !payer_of_task(me, &payer) ||
	    payer.entered == NOBODYS_ID)
		return NOBODY;
	slot = account_of(state, payer.uid);
	if (slot == NOBODY || !has_barrier(account_at(slot)))
		return NOBODY;
	owner = payer_in(inode->i_sb->s_user_ns, inode->i_uid.val); /* as tmpfs_count.bpf.h add_file() has it */
	if (owner != payer.uid)
		slot = account_of_owner(owner);
	return slot != NOBODY && has_barrier(account_at(slot)) ? slot : NOBODY;
}

static __always_inline int note_writer(struct inode *inode)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *me = bpf_get_current_task_btf();
	struct writer *writer;
	__u32 slot;

	if (!state || !inode)
		return 0;
	slot = slot_of_growth(state, me, inode);
	writer = bpf_task_storage_get(&writers, me, NULL,
				      slot != NOBODY ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (!writer)
		return 0;
	writer->slot = slot;
	/* Inodes' addresses come again: what was noted of an earlier file must not stand. */
	writer->inode = slot != NOBODY ? (__u64)inode : 0;
	return 0;
}

static __always_inline bool is_locked_by(__u64 inode, struct task_struct *me)
{
	return probe_writer(inode + bpf_core_field_offset(struct inode, i_rwsem)) == (__u64)me;
}

/* --- whether there is room ------------------------------------------------------------------ */

static __always_inline void add_growth(struct growths *growths, const struct account *account,
				       __u64 ticket, __s64 pages)
{
	struct growth *growth = &growths->of[ticket % GROWTHS];
	__u64 was = *(volatile __u64 *)&growth->ticket;

	/* What the account's last count has met is forgotten. Who adds in this very moment may be, too:
	 * until the next count. */
	if (was != ticket && __sync_val_compare_and_swap(&growth->ticket, was, ticket) == was &&
	    was < account->files_seen)
		growth->pages = 0;
	__sync_fetch_and_add(&growth->pages, pages);
}

/* Held, and reserved, with the files as they are now. */
static __always_inline __s64 level_with_files(struct account *account, struct growths *growths)
{
	__u64 seen = *(volatile __u64 *)&account->files_seen;
	__s64 pages = 0;
	int i;

	for (i = 0; i < GROWTHS; i++)
		if (*(volatile __u64 *)&growths->of[i].ticket >= seen)
			pages += *(volatile __s64 *)&growths->of[i].pages;
	return level_now(account) - account->sure_pages + unmapped_pages(account, account->shmem_pages - pages) +
	       *(volatile __s64 *)&account->reserved_pages - doubt_of(account);
}

/* Add first, look then (admission.bpf.h try_charge()). */
static __noinline bool grow(struct account *account, struct growths *growths, __s64 pages, __s64 top)
{
	struct ledger_state *state = ledger_state();
	__u64 ticket;

	if (!state || !account || !growths)
		return true;
	ticket = *(volatile __u64 *)&state->files_ticket;
	add_growth(growths, account, ticket, pages);
	if (level_with_files(account, growths) <= top)
		return true;
	add_growth(growths, account, ticket, -pages);
	return false;
}

/* Somebody may just have deleted what fills the account. */
static __always_inline bool count_now(struct ledger_state *state)
{
	__u64 now = bpf_ktime_get_ns(), was = *(volatile __u64 *)&counted_ns;
	__u64 pause = state->files_ns * COUNT_SHARE;

	state->files_wanted = 1;
	if (pause < COUNT_PAUSE_NS)
		pause = COUNT_PAUSE_NS;
	if (ns_since(was, now) < pause || __sync_val_compare_and_swap(&counted_ns, was, now) != was)
		return false;
	count_all(state, FEW_FILES, true);
	return true;
}

static __noinline int refuse_blocks(__u32 slot, __s64 pages)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	struct growths *growths = bpf_map_lookup_elem(&grown, &slot);
	__s64 top;

	if (!state || !account || !growths || pages <= 0 || !has_barrier(account))
		return 0;
	top = top_of_files(account);
	/* Far from it what CPUs keep back does not matter. */
	if (grow(account, growths, pages, top - kept_back_by(*(volatile __s32 *)&account->cpus + 1)))
		return 0;
	recount(state, account, slot);
	if (grow(account, growths, pages, top))
		return 0;
	if (count_now(state) && grow(account, growths, pages, top))
		return 0;
	tell_refusal(account, slot, REQUEST_FILE, pages, level_with_files(account, growths));
	if (!is_observed(account))
		return -ENOMEM;	/* which shmem makes ENOSPC */
	add_growth(growths, account, *(volatile __u64 *)&state->files_ticket, pages);
	return 0;
}

/* --- programs ------------------------------------------------------------------------------- */

/* Its first argument is a file before 6.17 and a kiocb since; the second is the same in all. */
SEC("fentry/shmem_write_begin")
int BPF_PROG(block_write, void *unused, struct address_space *mapping)
{
	return note_writer(mapping->host);
}

SEC("fentry/shmem_fallocate")
int BPF_PROG(block_fallocate, struct file *file)
{
	return note_writer(file->f_inode);
}

SEC("fmod_ret/security_vm_enough_memory_mm")
int BPF_PROG(block_grow, struct mm_struct *mm, long pages)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct writer *writer = bpf_task_storage_get(&writers, me, NULL, 0);

	if (!writer || !writer->inode || !is_locked_by(writer->inode, me))
		return 0;
	return refuse_blocks(writer->slot, pages);
}

char LICENSE[] SEC("license") = "GPL";
