/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numpty: pseudo terminals, by the inode that devpts makes for each when its master is opened. No hook tells for certain
 * that the master was closed. But the inode does: it has no link from then on. So what is charged is an upper bound
 * where the program that ends a charge was skipped, and is looked at again before anybody is refused.
 *
 * The hook of the master's opening is that of every file's; an ordinary open passes none of these.
 */
#ifndef BURSAR_TERMINALS_BPF_H
#define BURSAR_TERMINALS_BPF_H

#include "charge_row.bpf.h"
#include "magic.h"
#include "objects.bpf.h"

/* Key: struct inode *. Written and read here. Bound: a sixteenth of ledger.max_objects. Full: as further_charges. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct charge);
} terminals SEC(".maps");

/* Also of an inode that is no more: its memory stays an inode's or says something else. */
static __always_inline bool is_terminal_open(__u64 inode)
{
	__u64 super = (__u64)PROBE_READ(inode, struct inode, i_sb);

	return super && PROBE_READ(super, struct super_block, s_magic) == DEVPTS_SUPER_MAGIC &&
	       PROBE_READ(inode, struct inode, i_nlink);
}

/* The inode of the pair that an open master is half of (drivers/tty/pty.c ptmx_open()), or 0. */
static __always_inline __u64 terminal_of_master(struct file *master)
{
	__u64 private = (__u64)master->private_data, tty, link, entry;

	tty = private ? (__u64)PROBE_READ(private, struct tty_file_private, tty) : 0;
	link = tty ? (__u64)PROBE_READ(tty, struct tty_struct, link) : 0;
	entry = link ? (__u64)PROBE_READ(link, struct tty_struct, driver_data) : 0;
	return entry ? (__u64)PROBE_READ(entry, struct dentry, d_inode) : 0;
}

static __noinline int give_back_terminal(__u64 inode)
{
	struct charge *charge = bpf_map_lookup_elem(&terminals, &inode);

	if (!charge)
		return 0;
	refund(charge);
	bpf_map_delete_elem(&terminals, &inode);
	return 1;
}

static long recount_terminal(struct bpf_map *map, __u64 *inode, struct charge *charge, __u32 *slot)
{
	if (charge->slot == *slot && !is_terminal_open(*inode))
		give_back_terminal(*inode);
	return 0;
}

static __noinline int recount_terminals(__u32 slot)
{
	bpf_for_each_map_elem(&terminals, recount_terminal, &slot, 0);
	return 0;
}

static __noinline int record_terminal(__u32 slot, __u64 inode)
{
	struct charge first = { .amount = 1, .slot = slot, .row = BILL_NUMPTY };

	return !bpf_map_update_elem(&terminals, &inode, &first, BPF_NOEXIST);
}

/* One that is there already. */
static __noinline int meet_terminal(__u32 slot, __u64 inode)
{
	struct row *row = counted_row(slot, BILL_NUMPTY);

	if (!row || !inode || !record_terminal(slot, inode))
		return 0;
	add_beyond(row, 1);
	if (is_forgotten_now(row))
		give_back_terminal(inode);
	return 0;
}

static __always_inline bool add_terminal(__u32 slot, struct row *row)
{
	if (add_within(row, 1, row->barrier))
		return true;
	recount_terminals(slot);
	return add_within(row, 1, row->barrier);
}

/* Returns 1 where it is granted. */
static __noinline int charge_terminal(__u32 slot, __u64 inode)
{
	struct row *row = counted_row(slot, BILL_NUMPTY);

	give_back_terminal(inode);	/* of one before at this address, whoever has paid for that */
	if (!row)
		return 1;
	if (!add_terminal(slot, row)) {
		tell_bill(slot, BILL_NUMPTY, 1, true);
		if (!row->observed)
			return 0;
		add_beyond(row, 1);
	}
	if (!record_terminal(slot, inode)) {
		__sync_fetch_and_add(&row->held, -1);
		count_unrecorded();
	}
	if (is_forgotten_now(row))
		give_back_terminal(inode);
	return 1;
}

#endif /* BURSAR_TERMINALS_BPF_H */
