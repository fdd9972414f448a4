/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The count of files: what all tmpfs and ramfs files of each account hold, into account.files_pages.
 *
 * Races: the lists are walked without their locks. An inode that is taken off while we stand on it
 * points to itself, or is no longer of this superblock: the count begins anew, and after MOST_TRIES uses
 * what it has where that is more than was known.
 */
#ifndef BURSAR_TMPFS_COUNT_BPF_H
#define BURSAR_TMPFS_COUNT_BPF_H

#include "clock.bpf.h"
#include "machine_shmem.bpf.h"
#include "tmpfs_file.bpf.h"

enum {
	FEW_FILES = 8192,	/* inodes and superblocks that may be met where others wait meanwhile */
	MOST_TRIES = 4,
};

#define FILES_STALE_NS 10000000000ULL	/* no count takes this long: its mark is a leftover */
/* Nor one of few files. A writer that counts may be preempted for as long as it likes (PREEMPT, SCHED_IDLE). */
#define WRITERS_STALE_NS 100000000ULL

struct count {
	__u64 sb;
	__u64 at;		/* list_head of the inode we stand on */
	__u64 node;		/* of the next superblock, in its type's list */
	__u64 ticket;
	__u64 sb_ns;
	__u64 start;		/* of it, as in files_counting_ns */
	__s64 shmem;		/* machine_shmem() then */
	__u32 sb_level;		/* of that namespace */
	__u32 sb_uid;		/* who pays for all of it; NOBODY: each file's owner */
	__u32 uid;		/* of the last file, and the account of that */
	__u32 slot;
	__u32 met;
	__u32 most;
	__u32 pad;
	__u32 tries;
	__u32 is_partial;
	__u32 is_ramfs;		/* tmpfs is through, it is ramfs' turn */
};

static __always_inline __u64 first_superblock(__u64 type)
{
	return type ? (__u64)PROBE_READ(type, struct file_system_type, fs_supers.first) : 0;
}

/* A global function, so that the verifier looks at it once and not in every way in which a count can
 * have come here: a sixth of the instructions. */
__noinline int enter_superblock(struct count *count)
{
	struct ledger_state *state = ledger_state();
	__u64 ns, node;

	if (!state || !count)
		return 0;
	node = count->node;
	count->sb = 0;
	if (!node && !count->is_ramfs) {
		count->is_ramfs = 1;
		node = first_superblock(state->ramfs_type);
	}
	if (!node)
		return 0;
	count->sb = node - bpf_core_field_offset(struct super_block, s_instances);
	count->at = (__u64)PROBE_READ(count->sb, struct super_block, s_inodes.next);
	ns = (__u64)PROBE_READ(count->sb, struct super_block, s_user_ns);
	count->sb_level = ns ? PROBE_READ(ns, struct user_namespace, level) : 0;
	count->sb_uid = probe_payer_in(ns, count->sb_level, NOBODY);
	count->sb_ns = ns;
	count->uid = NOBODY;
	return 0;
}

static __always_inline void begin_count(struct ledger_state *state, struct count *count)
{
	count->ticket = __sync_fetch_and_add(&state->files_ticket, 1) + 1;
	count->met = 0;
	count->uid = NOBODY;
	count->slot = NOBODY;
	count->is_ramfs = 0;
	count->node = first_superblock(state->tmpfs_type);
	enter_superblock(count);
}

/* The list was changed under us. */
static __always_inline long begin_anew(struct ledger_state *state, struct count *count)
{
	/* Who has taken over has the newest ticket. */
	if (++count->tries >= MOST_TRIES || *(volatile __u64 *)&state->files_counting_ns != count->start) {
		count->is_partial = 1;
		return 1;
	}
	begin_count(state, count);
	return 0;
}

static __always_inline void add_file(struct count *count, __u64 inode)
{
	__s64 pages = probe_file_pages(inode, count->is_ramfs);
	struct account *account;
	__u64 ticket, seen;
	__u32 uid;
	int i;

	if (pages <= 0)
		return;
	uid = count->sb_uid != NOBODY ? count->sb_uid : PROBE_READ(inode, struct inode, i_uid.val);
	if (uid != count->uid) {
		count->uid = uid;
		count->slot = account_of_file(count->sb_ns, count->sb_level, uid);
	}
	account = count->slot != NOBODY ? account_at(count->slot) : NULL;
	if (!account)
		return;
	/* Another one counts anew: this one has been overtaken. */
	ticket = *(volatile __u64 *)&account->files_ticket;
	for (i = 0; i < 2 && ticket < count->ticket; i++) {
		seen = __sync_val_compare_and_swap(&account->files_ticket, ticket, count->ticket);
		if (seen == ticket) {
			account->sum_files_pages = 0;
			account->sum_staying_pages = 0;
			seen = count->ticket;
		}
		ticket = seen;
	}
	if (ticket != count->ticket)
		return;
	account->sum_files_pages += pages;
	if (outlives_processes(inode, count->sb_uid != NOBODY))
		account->sum_staying_pages += pages;
}

static __always_inline long meet_file(__u32 index, struct count **of)
{
	struct count *count = *of;
	struct ledger_state *state = ledger_state();
	__u64 sb = count->sb, at = count->at, inode, next, node;

	if (!state || !sb)
		return 1;
	if (at == sb + bpf_core_field_offset(struct super_block, s_inodes)) {
		node = sb + bpf_core_field_offset(struct super_block, s_instances);
		if (!PROBE_READ(node, struct hlist_node, pprev)) /* unmounted meanwhile */
			return begin_anew(state, count);
		count->node = (__u64)PROBE_READ(node, struct hlist_node, next);
		enter_superblock(count);
		return 0;
	}
	inode = at - bpf_core_field_offset(struct inode, i_sb_list);
	next = (__u64)PROBE_READ(at, struct list_head, next);
	if (!next || next == at || (__u64)PROBE_READ(inode, struct inode, i_sb) != sb)
		return begin_anew(state, count);
	count->met++;
	add_file(count, inode);
	count->at = next;
	return 0;
}
LOOP_BODY(meet_file, struct count **, (*what)->most)

static __always_inline long publish_account(__u32 slot, struct count **of)
{
	struct count *count = *of;
	struct account *account = account_at(slot);
	__s64 files, staying;
	__u64 ticket;

	if (!account)
		return 1;
	/* A later count has taken over meanwhile: what this one summed up is not there any more. */
	ticket = *(volatile __u64 *)&account->files_ticket;
	if (*(volatile __u64 *)&account->files_seen > count->ticket || ticket > count->ticket)
		return 0;
	files = ticket == count->ticket ? account->sum_files_pages : 0;
	staying = ticket == count->ticket ? account->sum_staying_pages : 0;
	/* Not all was seen: there may be more than this, and there was. */
	if (count->is_partial && files < account->files_pages)
		return 0;
	account->files_pages = files;
	account->staying_pages = staying;
	account->files_seen = count->ticket;
	return 0;
}
LOOP_BODY(publish_account, struct count **, accounts_made())

enum { BY_WRITER = 1 };	/* lowest bit of files_counting_ns */

/* Whether nobody else counts. A writer waits for everybody; whoever else counts does not wait for it for long, and who
 * counts all files not at all: writers could take turns. Who is overtaken has an older ticket. */
static __always_inline bool may_count(__u64 since, __u64 start, __u32 most)
{
	if (!since)
		return true;
	if (start & BY_WRITER)
		return false;
	if (since & BY_WRITER)
		return most > FEW_FILES || ns_since(since, start) >= WRITERS_STALE_NS;
	return ns_since(since, start) >= FILES_STALE_NS;
}

/* Returns whether all was met. `by_writer`: in the context of a user's process. */
static __always_inline bool count_all(struct ledger_state *state, __u32 most, bool by_writer)
{
	struct count count = {}, *it = &count;
	__u64 start = bpf_ktime_get_ns(), since, spent;

	start = by_writer ? start | BY_WRITER : start & ~(__u64)BY_WRITER;
	since = *(volatile __u64 *)&state->files_counting_ns;
	if (!may_count(since, start, most) ||
	    __sync_val_compare_and_swap(&state->files_counting_ns, since, start) != since)
		return true;
	state->files_wanted = 0;
	count.start = start;
	count.shmem = machine_shmem();
	begin_count(state, &count);
	count.most = most;
	LOOP(meet_file, &it);
	if (count.sb)
		count.is_partial = 1;
	/* Another one has begun meanwhile: what was summed up here is not there any more. */
	if (*(volatile __u64 *)&state->files_counting_ns != start)
		return true;
	LOOP(publish_account, &it);
	spent = bpf_ktime_get_ns() - start;
	/* A writer's may have been preempted: the next ones would wait for that. */
	if (!by_writer)
		state->files_ns = spent;
	if (spent > state->files_max_ns)
		state->files_max_ns = spent;
	state->files_met = count.met;
	if (count.is_partial)
		__sync_fetch_and_add(&state->files_skipped, 1);
	state->files_shmem_pages = count.shmem;
	state->files_counted = count.ticket;
	__sync_val_compare_and_swap(&state->files_counting_ns, start, 0);
	return !count.is_partial;
}

#endif /* BURSAR_TMPFS_COUNT_BPF_H */
