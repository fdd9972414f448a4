/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a request for a part of a file makes two locks of one: an unlock in its middle does, and so does a lock of the
 * other kind there (fs/locks.c posix_lock_inode(), "left == right"). The hook gets no range: it is read where the caller
 * has it, as the kernel did just before. Who changes it in between, from another thread, splits unseen; the next reading
 * of the lists finds that.
 */
#ifndef BURSAR_LOCK_SPLIT_BPF_H
#define BURSAR_LOCK_SPLIT_BPF_H

#include "locks.bpf.h"

/* uapi/asm-generic/fcntl.h, uapi/linux/fs.h */
enum {
	F_SETLK = 6,
	F_SETLKW = 7,
	F_SETLK64 = 13,	/* of 32-bit programs */
	F_SETLKW64 = 14,
	F_OFD_SETLK = 37,
	F_OFD_SETLKW = 38,
	SEEK_CUR = 1,
	SEEK_END = 2,
};

#define OFFSET_MAX (~0ULL >> 1)

struct lock_range {
	__u64 owner;
	__u64 start;
	__u64 end;
	__u32 type;
};

static __always_inline bool is_range_command(__u32 command)
{
	return command == F_SETLK || command == F_SETLKW || command == F_SETLK64 || command == F_SETLKW64 ||
	       command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

/* As in memory: struct flock, and of 32-bit programs struct compat_flock and compat_flock64, which x86 packs. */
struct asked_range {
	__s16 type;
	__s16 whence;
	__s64 start;
	__s64 length;
};

static __always_inline bool read_compat_range(__u64 at, bool is_wide, struct asked_range *asked)
{
#if defined(__TARGET_ARCH_x86)
	enum { WIDE_START = 1, WIDE_LENGTH = 3 };
#else
	enum { WIDE_START = 2, WIDE_LENGTH = 4 };
#endif
	__s32 words[WIDE_LENGTH + 2] = {};

	if (is_wide) {
		if (bpf_probe_read_user(words, sizeof(words), (void *)at))
			return false;
		asked->start = (__u32)words[WIDE_START] | (__s64)words[WIDE_START + 1] << 32;
		asked->length = (__u32)words[WIDE_LENGTH] | (__s64)words[WIDE_LENGTH + 1] << 32;
	} else {
		if (bpf_probe_read_user(words, 3 * sizeof(words[0]), (void *)at))
			return false;
		asked->start = words[1];
		asked->length = words[2];
	}
	asked->type = words[0] & 0xffff;
	asked->whence = words[0] >> 16;
	return true;
}

/* The fcntl(2) under way; false where it is another call. */
static __always_inline bool read_asked_range(struct asked_range *asked, __u32 *command)
{
#if defined(__TARGET_ARCH_x86)
	enum { TS_COMPAT = 2, X32_BIT = 0x40000000 };
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u32 number = (__u32)regs->orig_ax;

	if (task->thread_info.status & TS_COMPAT) {	/* fcntl, fcntl64 */
		*command = (__u32)regs->cx;
		return (number == 55 || number == 221) && is_range_command(*command) &&
		       read_compat_range((__u32)regs->dx, *command > F_SETLKW, asked);
	}
	*command = (__u32)regs->si;
	return (number & ~X32_BIT) == 72 && is_range_command(*command) &&
	       !bpf_probe_read_user(asked, sizeof(*asked), (void *)regs->dx);
#elif defined(__TARGET_ARCH_arm64)
	struct pt_regs *regs = registers();
	int number = regs->syscallno;

	*command = (__u32)regs->regs[1];
	if (regs->pstate & PSR_MODE32)	/* fcntl, fcntl64 */
		return (number == 55 || number == 221) && is_range_command(*command) &&
		       read_compat_range((__u32)regs->regs[2], *command > F_SETLKW, asked);
	return number == 25 && is_range_command(*command) &&
	       !bpf_probe_read_user(asked, sizeof(*asked), (void *)regs->regs[2]);
#else
	return false;
#endif
}

static __always_inline __s64 offset_from(__u64 file, __s16 whence)
{
	__u64 inode;

	if (whence == SEEK_CUR)
		return PROBE_READ(file, struct file, f_pos);
	inode = whence == SEEK_END ? (__u64)PROBE_READ(file, struct file, f_inode) : 0;
	return inode ? PROBE_READ(inode, struct inode, i_size) : 0;
}

/* fs/locks.c flock64_to_posix_lock(); false also where the whole file is meant, which splits nothing. */
static __noinline bool read_range(__u64 file, struct lock_range *range)
{
	struct asked_range asked = {};
	__u32 command = 0;
	__s64 start;

	if (!range || !read_asked_range(&asked, &command))
		return false;
	start = offset_from(file, asked.whence) + asked.start;
	range->end = asked.length > 0 ? start + asked.length - 1 : asked.length < 0 ? start - 1 : OFFSET_MAX;
	if (asked.length < 0)
		start += asked.length;
	range->start = start;
	range->type = asked.type;
	range->owner = command == F_OFD_SETLK || command == F_OFD_SETLKW ?
			       file :
			       (__u64)bpf_get_current_task_btf()->files;
	return start > 0 && range->end < OFFSET_MAX;
}

static __always_inline void read_lock(__u64 list, struct lock_range *lock)
{
	unsigned char type = 0;

	if (locks_are_split()) {
		struct file_lock *at = (void *)(list - bpf_core_field_offset(struct file_lock, c) -
						bpf_core_field_offset(struct file_lock_core, flc_list));

		bpf_core_read(&lock->owner, sizeof(lock->owner), &at->c.flc_owner);
		bpf_core_read(&lock->start, sizeof(lock->start), &at->fl_start);
		bpf_core_read(&lock->end, sizeof(lock->end), &at->fl_end);
		bpf_core_read(&type, sizeof(type), &at->c.flc_type);
	} else {
		struct file_lock___whole *at =
			(void *)(list - bpf_core_field_offset(struct file_lock___whole, fl_list));

		bpf_core_read(&lock->owner, sizeof(lock->owner), &at->fl_owner);
		bpf_core_read(&lock->start, sizeof(lock->start), &at->fl_start);
		bpf_core_read(&lock->end, sizeof(lock->end), &at->fl_end);
		bpf_core_read(&type, sizeof(type), &at->fl_type);
	}
	lock->type = type;
}

struct split_walk {
	__u64 at;	/* a struct list_head * */
	__u64 head;
	struct lock_range asked;
	__u32 is_split;
};

static __always_inline long meet_lock(__u32 index, struct split_walk *walk)
{
	struct lock_range lock = {};
	__u64 next = 0;

	if (!walk->at || walk->at == walk->head)
		return 1;
	read_lock(walk->at, &lock);
	if (lock.owner == walk->asked.owner && lock.type != walk->asked.type &&
	    lock.start < walk->asked.start && lock.end > walk->asked.end) {
		walk->is_split = 1;
		return 1;
	}
	bpf_probe_read_kernel(&next, sizeof(next), (void *)walk->at);
	walk->at = next;
	return 0;
}
LOOP_BODY(meet_lock, struct split_walk *, LOCKS_LOOKED_AT)

/* `context`: the inode's struct file_lock_context, or 0. */
static __noinline int splits_a_lock(__u64 file, __u64 context)
{
	struct split_walk walk = {};
	int is_split = 0;

	if (!context || !read_range(file, &walk.asked))
		return 0;
	walk.head = context + bpf_core_field_offset(struct file_lock_context, flc_posix);
	bpf_probe_read_kernel(&walk.at, sizeof(walk.at), (void *)walk.head);
	LOOP(meet_lock, &walk);
	/* A number the verifier knows nothing of (count_list()). */
	bpf_probe_read_kernel(&is_split, sizeof(is_split), &walk.is_split);
	return is_split;
}

#endif /* BURSAR_LOCK_SPLIT_BPF_H */
