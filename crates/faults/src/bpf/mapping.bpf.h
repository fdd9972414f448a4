/* SPDX-License-Identifier: GPL-2.0-only */
/* Which process and mapping an address belongs to, as indexes into `processes` and `slots`. */
#ifndef BURSAR_FAULTS_MAPPING_BPF_H
#define BURSAR_FAULTS_MAPPING_BPF_H

#include "maps.bpf.h"

static __always_inline __u32 new_index(__u32 *used, __u32 bound, __u64 *lost)
{
	__u32 index = __sync_fetch_and_add(used, 1);

	if (index < bound)
		return index;
	__sync_fetch_and_sub(used, 1);
	__sync_fetch_and_add(lost, 1);
	return 0;
}

static __noinline __u32 process_of(struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	struct process_key key = { .start_boottime_ns = leader->start_boottime, .tgid = task->tgid };
	__u32 *known = bpf_map_lookup_elem(&process_index, &key);
	__u32 index;

	if (known)
		return *known;
	index = new_index(&state.processes, MAX_PROCESSES, &state.processes_lost);
	barrier_var(index);
	if (index > 0 && index < MAX_PROCESSES) {
		processes[index].start_boottime_ns = key.start_boottime_ns;
		processes[index].tgid = key.tgid;
		processes[index].uid = task->real_cred->uid.val;
		bpf_probe_read_kernel(processes[index].comm, TASK_NAME_LEN, leader->comm);
	}
	bpf_map_update_elem(&process_index, &key, &index, BPF_ANY);
	return index;
}

static __noinline __u32 slot_of(struct slot_key *key, struct slot *like)
{
	__u32 *known = bpf_map_lookup_elem(&slot_index, key);
	__u32 index;

	if (known)
		return *known;
	index = new_index(&state.slots, MAX_SLOTS, &state.slots_lost);
	barrier_var(index);
	if (index > 0 && index < MAX_SLOTS) {
		like->process = key->process;
		like->kind = key->kind;
		slots[index] = *like;
	}
	bpf_map_update_elem(&slot_index, key, &index, BPF_ANY);
	return index;
}

static __always_inline void identify(struct thread_state *thread, struct task_struct *task)
{
	struct slot_key key = {};
	struct slot like = {};

	key.process = process_of(task);
	key.kind = MAPPING_BY_KERNEL;
	thread->kernel_slot = slot_of(&key, &like);
	key.kind = MAPPING_UNSEEN;
	thread->unseen_slot = slot_of(&key, &like);
	thread->process = key.process + 1;
}

struct lookup {
	struct slot_key key;
	struct slot like;
};

static long describe(struct task_struct *task, struct vm_area_struct *vma, struct lookup *lookup)
{
	struct mm_struct___faults *mm = (void *)task->mm;
	struct file *file = vma->vm_file;
	struct slot *like = &lookup->like;
	struct slot_key *key = &lookup->key;
	unsigned long flags = vma->vm_flags;

	like->start = vma->vm_start;
	like->end = vma->vm_end;
	like->flags = flags & (VM_READ | VM_WRITE | VM_EXEC | VM_SHARED);
	if (file) {
		struct inode *inode = file->f_inode;

		like->inode = BPF_CORE_READ(inode, i_ino);
		like->is_written_back =
			BPF_CORE_READ(inode, i_sb, s_bdi, capabilities) & BDI_CAP_WRITEBACK;
		like->device = BPF_CORE_READ(inode, i_sb, s_dev);
		bpf_probe_read_kernel_str(like->name, NAME_LEN,
					  BPF_CORE_READ(file, f_path.dentry, d_name.name));
		key->kind = MAPPING_FILE;
		key->id1 = like->inode;
		key->id2 = (__u64)like->device << 32 | like->flags;
	} else if (flags & VM_GROWSDOWN) {
		key->kind = MAPPING_STACK;
	} else if (mm && like->start <= BPF_CORE_READ(mm, brk) &&
		   like->end >= BPF_CORE_READ(mm, start_brk)) {
		key->kind = MAPPING_HEAP;
	} else {
		key->kind = MAPPING_ANON;
		key->id1 = like->start;
		key->id2 = like->flags;
	}
	return 0;
}

/*
 * Finds the mapping of an address of the running thread, unless its last one is it; returns its slot. (That
 * callers use what these return is what keeps it defined: 6.1 refuses a stack address left in R0.)
 */
static __noinline __u32 find_mapping(struct thread_state *thread, __u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct mm_struct *mm = task->mm;
	struct lookup lookup = {};
	__u64 generation;

	if (!thread || !mm)
		return 0;
	if (!thread->process)
		identify(thread, task);
	generation = mappings_generation((__u64)mm);
	if (thread->space == space_of(mm) && thread->generation == generation &&
	    address - thread->start < thread->size)
		return thread->slot;
	thread->space = space_of(mm);
	thread->generation = generation;
	lookup.key.kind = MAPPING_UNKNOWN;
	lookup.key.process = thread->process - 1;
	if (bpf_find_vma(task, address, describe, &lookup, 0) != 0)
		__sync_fetch_and_add(&state.lookups_failed, 1);
	thread->slot = slot_of(&lookup.key, &lookup.like);
	thread->start = lookup.like.start;
	/* Not found: of no size, so that the next fault asks again. */
	thread->size = lookup.like.end - lookup.like.start;
	return thread->slot;
}

#endif /* BURSAR_FAULTS_MAPPING_BPF_H */
