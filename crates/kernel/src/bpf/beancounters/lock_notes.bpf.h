/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The locks of all open files, for who meets them one after the other. One file may be open ten thousand
 * times and have ten thousand locks: whoever walks its lists for each descriptor is kept busy for as long as
 * its owner likes. So the lists of each inode are walked once, when the first descriptor of it is met, and the
 * locks of all its files are noted.
 *
 * One walk over open files at a time: its reader sees to that.
 */
#ifndef BURSAR_LOCK_NOTES_BPF_H
#define BURSAR_LOCK_NOTES_BPF_H

#include "locks.bpf.h"

enum {
	LOCKS_A_WALK = 1048576,		/* of all inodes: some 0.2 s */
	FILES_WITH_LOCKS = 65536,	/* and inodes with locks */
	LOCKS_NUMBER = (1U << 30) - 1,
	LOCKS_BEYOND = 1U << 31,	/* there may be more than the number says */
};

/* Key: struct file *, with its locks; and struct file_lock_context *, once its lists were walked: 0, or
 * LOCKS_BEYOND if not to their end. Written and read here. Full: what finds no room is not counted, and
 * LOCKS_BEYOND says so. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FILES_WITH_LOCKS);
	__type(key, __u64);
	__type(value, __u32);
} lock_notes SEC(".maps");

/* Not on the stack: what lies there the verifier knows, and it follows a number that is compared through
 * every turn of a loop (6.12 on: "sequence of 8193 jumps is too complex"). Nor static: clang takes those
 * apart, and their BTF is refused. */
struct noting {
	__u64 session;		/* of the iterator that the notes are of */
	__u64 at, head;		/* struct list_head * */
	__u32 met;		/* elements of lists so far */
	__u32 lost;		/* those of this inode that found no room */
};

struct noting noting;

static __always_inline long note_lock(__u32 index, void *nothing)
{
	__u32 one = 1, *count;
	__u64 file, next = 0;

	if (!noting.at || noting.at == noting.head)
		return 1;
	if (noting.met >= LOCKS_A_WALK) {
		noting.lost = 1;
		return 1;
	}
	noting.met++;
	file = file_of_lock(noting.at);
	count = bpf_map_lookup_elem(&lock_notes, &file);
	if (count)
		*count += 1;
	else if (bpf_map_update_elem(&lock_notes, &file, &one, BPF_NOEXIST))
		noting.lost = 1;
	bpf_probe_read_kernel(&next, sizeof(next), (void *)noting.at);
	noting.at = next;
	return 0;
}
LOOP_BODY(note_lock, void *, LOCKS_LOOKED_AT)

static __noinline int note_list(__u64 head)
{
	__u64 first = 0;

	bpf_probe_read_kernel(&first, sizeof(first), (void *)head);
	noting.head = head;
	noting.at = first;
	LOOP(note_lock, NULL);
	if (noting.at && noting.at != noting.head)
		noting.lost = 1;
	return 0;
}

/* Returns LOCKS_BEYOND where the lists could not be walked to their end. */
static __noinline __u32 note_lists(__u64 context)
{
	__u32 beyond = 0, *walked = bpf_map_lookup_elem(&lock_notes, &context);

	if (walked)
		return *walked;
	noting.lost = 0;
	note_list(context + bpf_core_field_offset(struct file_lock_context, flc_flock));
	note_list(context + bpf_core_field_offset(struct file_lock_context, flc_posix));
	note_list(context + bpf_core_field_offset(struct file_lock_context, flc_lease));
	if (noting.lost)
		beyond = LOCKS_BEYOND;
	bpf_map_update_elem(&lock_notes, &context, &beyond, BPF_ANY);
	return beyond;
}

static long forget_note(struct bpf_map *map, __u64 *key, __u32 *count, void *nothing)
{
	bpf_map_delete_elem(map, key);
	return 0;
}

/* `context`: the inode's struct file_lock_context; `session`: of the iterator that has met the file. */
static __noinline __u32 noted_locks(__u64 context, __u64 file, __u64 session)
{
	__u32 beyond, *count;

	if (!context)
		return 0;
	if (noting.session != session) {
		bpf_for_each_map_elem(&lock_notes, forget_note, NULL, 0);
		noting.session = session;
		noting.met = 0;
	}
	beyond = note_lists(context);
	count = bpf_map_lookup_elem(&lock_notes, &file);
	return (count ? *count & LOCKS_NUMBER : 0) | beyond;
}

#endif /* BURSAR_LOCK_NOTES_BPF_H */
