/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types as far as the count of files reads them; as in vmlinux.h, and apart from it because
 * other objects that use that one have their own idea of some of these.
 */
#ifndef BURSAR_VMLINUX_FILES_H
#define BURSAR_VMLINUX_FILES_H

#include "vmlinux.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_node {
	struct hlist_node *next;
	struct hlist_node **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

struct file_system_type {
	const char *name;
	struct file_system_type *next;
	struct hlist_head fs_supers;
};

struct super_block {
	struct file_system_type *s_type;
	struct hlist_node s_instances;
	struct user_namespace *s_user_ns;
	struct list_head s_inodes;
	unsigned int s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
};

struct address_space {
	struct inode *host;
	unsigned long nrpages;
};

struct file_lock_context;

struct inode {
	kuid_t i_uid;
	unsigned int i_flags;
	unsigned long i_ino;
	unsigned int i_generation;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned int i_nlink;
	struct list_head i_sb_list;
	struct hlist_head i_dentry;
	unsigned short i_mode;
	unsigned int i_rdev;
	long long i_size;
	struct rw_semaphore i_rwsem;
	struct file_lock_context *i_flctx;	/* CONFIG_FILE_LOCKING */
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
	struct inode *d_inode;
	union {
		struct hlist_node d_alias;
	} d_u;
};

struct shmem_inode_info {
	unsigned long swapped;
	struct inode vfs_inode;
};

struct file {
	struct inode *f_inode;
	const struct cred *f_cred;
	void *private_data;
	long long f_pos;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	atomic_t count;
	struct fdtable *fdt;
};

#pragma clang attribute pop

#endif /* BURSAR_VMLINUX_FILES_H */
