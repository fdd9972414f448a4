/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a tmpfs file holds, whose it is, and whether it would go with its user's processes. Read from
 * inodes at remembered addresses: nothing here is locked, everything is a load that may fail.
 */
#ifndef BURSAR_TMPFS_FILE_BPF_H
#define BURSAR_TMPFS_FILE_BPF_H

#include "payer.bpf.h"

enum { S_PRIVATE = 1 << 9 };	/* include/linux/fs.h: made by the kernel itself */

/* 7.x hangs types on a hash list's nodes; before, each points to the next. */
struct file_system_type___listed {
	struct hlist_node list;
} __attribute__((preserve_access_index));

static __always_inline __u64 probe_next_type(__u64 type)
{
	__u64 node = 0;

	if (bpf_core_field_exists(((struct file_system_type *)0)->next))
		return (__u64)PROBE_READ(type, struct file_system_type, next);
	if (!bpf_core_field_exists(((struct file_system_type___listed *)0)->list))
		return 0;
	bpf_probe_read_kernel(&node, sizeof(node),
			      (void *)(type + bpf_core_field_offset(struct file_system_type___listed,
								    list)));
	return node ? node - bpf_core_field_offset(struct file_system_type___listed, list) : 0;
}

static __always_inline __u64 probe_shmem_info(__u64 inode)
{
	return inode - bpf_core_field_offset(struct shmem_inode_info, vfs_inode);
}

/* In memory or swapped out: nobody's MM_SWAPENTS has the latter. Files without pages are most. ramfs,
 * which any user may mount in a namespace of his own, is never swapped. */
static __always_inline __s64 probe_file_pages(__u64 inode, bool is_ramfs)
{
	__s64 pages = PROBE_READ(PROBE_READ(inode, struct inode, i_mapping), struct address_space, nrpages);

	if (!is_ramfs)
		pages += PROBE_READ(probe_shmem_info(inode), struct shmem_inode_info, swapped);
	return pages;
}

/* System V segments outlive their processes without a name anywhere; ipc/shm.c newseg() calls them
 * "SYSV" and their key. Everything else the kernel makes here (MAP_SHARED|MAP_ANONYMOUS, "dev/zero")
 * goes with the last mapping. */
static __always_inline bool is_sysv(__u64 inode)
{
	__u64 alias, dentry;
	char name[4] = {};

	if (!(PROBE_READ(inode, struct inode, i_flags) & S_PRIVATE))
		return false;
	alias = (__u64)PROBE_READ(inode, struct inode, i_dentry.first);
	if (!alias)
		return false;
	dentry = alias - probe_alias_offset();
	bpf_probe_read_kernel(name, sizeof(name), PROBE_READ(dentry, struct dentry, d_name.name));
	return name[0] == 'S' && name[1] == 'Y' && name[2] == 'S' && name[3] == 'V';
}

/* Would it be there after all of its user's processes? In a file system of a user namespace of his nothing
 * is: the namespace's last process takes it along. */
static __always_inline bool outlives_processes(__u64 inode, bool in_own_ns)
{
	if (in_own_ns)
		return false;
	return PROBE_READ(inode, struct inode, i_nlink) || is_sysv(inode);
}

/* What only its descriptors keep, of files its own user pays for: memfd, unlinked. Bounded by the
 * decision, not the process. */
struct kept_files {
	__u64 fds;		/* struct file ** */
	__u64 tmpfs_type;
	__u64 ramfs_type;
	__u32 uid;		/* the process's */
	__u32 payer;		/* for what that owns */
	__u32 count;		/* of descriptors */
	__u32 pad;
	__s64 pages;
};

/* Who pays for what a uid owns, as account_of_owner() has it. */
static __always_inline __u32 payer_of_owned(__u32 uid)
{
	__u32 owner = open_account_of(uid) == NOBODY ? owner_of_subuid(uid) : NOBODY;

	return owner == NOBODY ? uid : owner;
}

static __always_inline bool is_paid_by(__u32 uid, const struct kept_files *kept)
{
	return uid == kept->uid || payer_of_owned(uid) == kept->payer;
}

static __always_inline long weigh_descriptor(__u32 index, struct kept_files **of)
{
	struct kept_files *kept = *of;
	__u64 file = 0, inode, sb, type;

	bpf_probe_read_kernel(&file, sizeof(file), (void *)(kept->fds + index * sizeof(file)));
	if (!file)
		return 0;
	inode = (__u64)PROBE_READ(file, struct file, f_inode);
	sb = (__u64)PROBE_READ(inode, struct inode, i_sb);
	type = (__u64)PROBE_READ(sb, struct super_block, s_type);
	if (!type || (type != kept->tmpfs_type && type != kept->ramfs_type) ||
	    PROBE_READ(inode, struct inode, i_nlink) ||
	    !is_paid_by(PROBE_READ(inode, struct inode, i_uid.val), kept))
		return 0;
	kept->pages += probe_file_pages(inode, type != kept->tmpfs_type);
	return 0;
}
LOOP_BODY(weigh_descriptor, struct kept_files **, (*what)->count)

/* Pages of files that would go with the process's descriptors. Takes from *budget what it looked at; `kept` is
 * its notes. */
static __always_inline __s64 kept_by(struct ledger_state *state, __u64 task, __u32 uid, __u32 *budget,
				     struct kept_files *kept)
{
	__u64 table;
	__u32 count;

	table = (__u64)PROBE_READ(PROBE_READ(task, struct task_struct, files), struct files_struct, fdt);
	if (!table)
		return 0;
	kept->tmpfs_type = state->tmpfs_type;
	kept->ramfs_type = state->ramfs_type;
	kept->uid = uid;
	kept->payer = payer_of_owned(uid);
	kept->pages = 0;
	kept->fds = (__u64)PROBE_READ(table, struct fdtable, fd);
	count = PROBE_READ(table, struct fdtable, max_fds);
	if (!kept->fds)
		return 0;
	if (count > *budget)
		count = *budget;
	*budget -= count;
	kept->count = count;
	LOOP(weigh_descriptor, &kept);
	return kept->pages;
}

#endif /* BURSAR_TMPFS_FILE_BPF_H */
