// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who takes page faults, where, and how long they take.
 *
 * Hooks:   tp_btf/page_fault_user and _kernel: the exception handler's first lines (x86), interrupts
 *          off. perf_event on the software events page-faults-min and -maj: where the kernel itself
 *          counts (mm/memory.c mm_account_fault()), after the page is there; the first only while
 *          faults are timed. tp_btf/sched_process_fork, _exec and sched_switch. None of them needs a
 *          trampoline.
 * Counts:  never of our own. The kernel keeps min_flt and maj_flt in each thread; by how much they have
 *          grown is booked when the thread leaves its CPU for the last time, and until then whoever
 *          reads adds it. So sums are getrusage()'s, whatever we miss. All of that growth is booked as
 *          MAPPING_BY_KERNEL at first: faults without an address (get_user_pages: populate, mlock,
 *          ptrace). A fault that began in a mapping moves one from there to the mapping, a major one's
 *          end moves it to the mapping's major ones. Moves add up to nothing.
 * Storms:  the user half takes the first two hooks away for a part of the time. What counters grow by
 *          meanwhile is booked as MAPPING_UNSEEN instead: it settles all threads on both edges.
 * Seen:    each CPU remembers the mapping of its last fault while one thread runs there, and counts
 *          the faults that begin in it. Another one costs two comparisons and no call: on a processor
 *          with return thunks (SRSO) each call is some 10 ns of the 1,700 that a fault takes.
 * Latency: from the first hook to the second. Not in it: the processor's way in and out, and what is
 *          done after the counting (signals, rescheduling). A fault that has to be tried again is timed
 *          from its last try's entry into the kernel, which is its first: retries stay inside.
 * Cost:    see docs/FAULTS.md.
 * Absent:  not x86, or no BTF: the watch falls back to /proc/PID/stat.
 */
#include "types.bpf.h"

const volatile __u32 has_targets = 0;	/* look for tasks of `targets` */
const volatile __u32 follow_children = 0; /* children of watched processes are watched too */
const volatile __u64 max_records = 0;	/* faults recorded whole; 0: none */
const volatile __u32 own_tgid = 0;	/* who watches is not watched */

/* index 0 of both stands for those that found no room */
struct watch_state state = { .processes = 1, .slots = 1 };
struct switches switches SEC(".data.switches"); /* apart, because it is written as a whole */
struct slot slots[MAX_SLOTS];
struct process processes[MAX_PROCESSES];
/* BTF has types only that something uses */
struct fault_record dummy_record;
struct unbooked dummy_unbooked;

/* thread → what we know of it. Written by itself, and by the user half once. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} threads SEC(".maps");

/*
 * CPU → what it has seen; written in faults and when threads change, which nothing interrupts there. Not a
 * per-CPU map, whose values begin anywhere in a cache line and are found through another: a storm that
 * clears pages leaves none of them near.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* for its alignment */
	__uint(max_entries, 1); /* the user half says how many CPUs there may be */
	__type(key, __u32);
	__type(value, struct seen);
} seen_on SEC(".maps");

/* Which processes and users; written by the user half before anything is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, struct target);
	__type(value, __u32);
} targets SEC(".maps");

/* process → index into `processes`; when full its faults are booked to index 0 and counted lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, struct process_key);
	__type(value, __u32);
} process_index SEC(".maps");

/* mapping → index into `slots` and `slot_counts`; when full: slot 0 (MAPPING_OVERFLOW). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SLOTS);
	__type(key, struct slot_key);
	__type(value, __u32);
} slot_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct counts);
} slot_counts SEC(".maps");

/* where in the program; only of the faults that the second hook sees (one in so many). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SITES);
	__type(key, struct site_key);
	__type(value, __u64);
} sites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct histograms);
} latencies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

/* --- identities ------------------------------------------------------------------------------ */

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

static __always_inline void meet(struct thread_state *thread, struct task_struct *task)
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

/* --- the address's mapping --------------------------------------------------------------------- */

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
		meet(thread, task);
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

/* --- booking ----------------------------------------------------------------------------------- */

static __always_inline void book(__u32 slot, __u64 minor, __u64 major)
{
	struct counts *counts = bpf_map_lookup_elem(&slot_counts, &slot);

	if (!counts)
		return;
	/* Locked although it is this CPU's own: a task's end may interrupt a fault's. */
	if (minor)
		__sync_fetch_and_add(&counts->minor, minor);
	if (major)
		__sync_fetch_and_add(&counts->major, major);
}

/* Where a fault belongs that nobody saw begin. */
static __always_inline __u32 slot_of_rest(const struct thread_state *thread)
{
	return switches.is_away ? thread->unseen_slot : thread->kernel_slot;
}

/* Books by how much the thread's own counters have grown since we last did, once and for all. */
static __always_inline void settle(struct thread_state *thread, struct task_struct *task)
{
	__u64 minor = minor_faults(task), major = major_faults(task);

	minor -= __sync_lock_test_and_set(&thread->minor, minor);
	major -= __sync_lock_test_and_set(&thread->major, major);
	book(slot_of_rest(thread), minor, major);
}

/* The same from outside. The thread itself may settle at that moment, for the last time: then it has. */
static __always_inline void settle_other(struct thread_state *thread, struct task_struct *task)
{
	__u64 minor_then = thread->minor, major_then = thread->major;
	__u64 minor = minor_faults(task), major = major_faults(task);

	if (__sync_val_compare_and_swap(&thread->minor, minor_then, minor) == minor_then)
		book(slot_of_rest(thread), minor - minor_then, 0);
	if (__sync_val_compare_and_swap(&thread->major, major_then, major) == major_then)
		book(slot_of_rest(thread), 0, major - major_then);
}

/* Moves the faults that began in a mapping to it, and forgets it. */
static __always_inline void flush(struct seen *seen)
{
	__u64 entries = seen->entries;

	seen->entries = 0;
	seen->size = 0;
	if (!entries || seen->slot == seen->kernel_slot)
		return;
	book(seen->slot, entries, 0);
	book(seen->kernel_slot, -entries, 0);
}

static __always_inline bool is_target(struct task_struct *task)
{
	struct target target = { .kind = TARGET_PROCESS, .id = task->tgid };

	if (!has_targets || task->tgid == (int)own_tgid || !task->mm)
		return false;
	if (bpf_map_lookup_elem(&targets, &target))
		return true;
	target.kind = TARGET_USER;
	target.id = task->real_cred->uid.val;
	return bpf_map_lookup_elem(&targets, &target) != NULL;
}

/* The walk and the thread's own first fault may both come here; one of them counts. */
static __always_inline void from_now_on(struct thread_state *thread, struct task_struct *task)
{
	if (__sync_val_compare_and_swap(&thread->counting, COUNTING_NOT, COUNTING_SOON) != COUNTING_NOT)
		return;
	__sync_fetch_and_add(&state.threads_alive, 1);
	thread->minor = minor_faults(task);
	thread->major = major_faults(task);
	barrier();
	thread->counting = COUNTING;
}

/* A thread that becomes one to watch now, if it does. */
static __noinline struct thread_state *new_thread(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread;

	if (!is_target(task))
		return NULL;
	thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		__sync_fetch_and_add(&state.threads_lost, 1);
	else
		from_now_on(thread, task);
	return thread;
}

static __always_inline struct seen *seen_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&seen_on, &cpu);
}

static __always_inline bool is_seen(struct seen *seen, __u64 address)
{
	return address - seen->start < seen->size &&
	       seen->generation == mappings_generation(seen->mm);
}

/* A fault elsewhere than this CPU's last, or one that is timed. */
static __noinline int turn(struct seen *seen, __u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);
	struct mm_struct *mm = task->mm;

	if (!seen || !mm)
		return 0;
	if (!thread && has_targets)
		thread = new_thread();
	if (!thread) {
		/* Who is named may become a target by a change of uid, so he is asked each time. Nobody else
		 * comes to be watched but by birth: nothing to count as long as this thread runs. */
		flush(seen);
		seen->mm = (__u64)mm;
		seen->generation = mappings_generation(seen->mm);
		seen->start = 0;
		seen->size = has_targets ? 0 : ~0ULL;
		seen->slot = seen->kernel_slot = 0;
		return 0;
	}
	if (find_mapping(thread, address) != seen->slot || !is_seen(seen, address)) {
		flush(seen);
		seen->mm = (__u64)mm;
		seen->generation = thread->generation;
		seen->start = thread->start;
		seen->size = thread->size;
		seen->slot = thread->slot;
		seen->kernel_slot = thread->kernel_slot;
	}
	seen->entries++;
	thread->window = switches.window;
	thread->begin_ns = switches.window ? bpf_ktime_get_ns() : 0;
	return 0;
}

static __always_inline int begin(__u64 address)
{
	struct seen *seen = seen_here();

	if (!seen)
		return 0;
	/* The way of a storm: nothing but this. */
	if (!switches.window && is_seen(seen, address)) {
		seen->entries++;
		return 0;
	}
	return turn(seen, address);
}

/* --- the end of a fault ------------------------------------------------------------------------- */

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 log = 0;
	__u64 rest = ns;

	if (ns < 4)
		return ns;
	if (rest >> 32) { log += 32; rest >>= 32; }
	if (rest >> 16) { log += 16; rest >>= 16; }
	if (rest >> 8) { log += 8; rest >>= 8; }
	if (rest >> 4) { log += 4; rest >>= 4; }
	if (rest >> 2) { log += 2; rest >>= 2; }
	if (rest >> 1)
		log += 1;
	/* 4 for each power of two: the two bits below the highest choose */
	return (log << 2 | ((ns >> (log - 2)) & 3)) & (BUCKETS - 1);
}

static __always_inline void time_it(__u64 ns, bool is_major)
{
	__u32 zero = 0, bucket = bucket_of(ns);
	struct histograms *all = bpf_map_lookup_elem(&latencies, &zero);

	if (!all || bucket >= BUCKETS)
		return;
	if (is_major) {
		all->major[bucket]++;
		all->major_ns += ns;
		if (ns > all->major_max_ns)
			all->major_max_ns = ns;
	} else {
		all->minor[bucket]++;
		all->minor_ns += ns;
		if (ns > all->minor_max_ns)
			all->minor_max_ns = ns;
	}
}

static __always_inline void record(struct bpf_perf_event_data *ctx, struct task_struct *task,
				   __u32 slot, __u64 now, __u64 latency, bool is_major)
{
	struct fault_record *record;

	if (__sync_fetch_and_add(&state.records, 1) >= max_records)
		return;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		__sync_fetch_and_add(&state.records_lost, 1);
		return;
	}
	record->time_ns = now;
	record->latency_ns = latency;
	record->address = ctx->addr;
	record->instruction = ctx->regs.ip;
	record->slot = slot;
	record->tgid = task->tgid;
	record->tid = task->pid;
	record->is_major = is_major;
	record->is_kernel = (ctx->regs.cs & 3) == 0;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	record->stack_bytes = bpf_get_stack(ctx, record->stack, sizeof(record->stack),
					    BPF_F_USER_STACK);
	bpf_ringbuf_submit(record, 0);
}

static __always_inline int end(struct bpf_perf_event_data *ctx, bool is_major)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);
	struct site_key key = {};
	__u64 now, latency, one = 1, *count;

	if (!thread)
		return 0;
	if (is_major) {
		/* Where it began may have been another CPU, which alone knows that. */
		__u64 has_begun = switches.is_away ? 0 : 1;

		book(find_mapping(thread, ctx->addr), -has_begun, 1);
		book(slot_of_rest(thread), has_begun, -1);
	}
	/* Of another window: a fault that was never served, or the beginning of this one was not timed. */
	if (!switches.window || thread->window != switches.window || !thread->begin_ns)
		return 0;
	now = bpf_ktime_get_ns();
	latency = now - thread->begin_ns;
	thread->begin_ns = 0;
	time_it(latency, is_major);
	key.instruction = ctx->regs.ip;
	key.slot = thread->slot;
	count = bpf_map_lookup_elem(&sites, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&sites, &key, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&state.sites_lost, 1);
	if (switches.is_recording)
		record(ctx, task, key.slot, now, latency, is_major);
	return 0;
}

/* --- hooks -------------------------------------------------------------------------------------- */

SEC("tp_btf/page_fault_user")
int BPF_PROG(on_user_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return begin(address);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_kernel_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return begin(address);
}

SEC("perf_event")
int on_minor_end(struct bpf_perf_event_data *ctx)
{
	return end(ctx, false);
}

SEC("perf_event")
int on_major_end(struct bpf_perf_event_data *ctx)
{
	return end(ctx, true);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct thread_state *thread = bpf_task_storage_get(&threads, parent, NULL, 0);
	bool is_one = thread && (follow_children || child->tgid == parent->tgid);

	if (!is_one && !is_target(child))
		return 0;
	thread = bpf_task_storage_get(&threads, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		__sync_fetch_and_add(&state.threads_lost, 1);
		return 0;
	}
	from_now_on(thread, child);
	meet(thread, child);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);
	struct seen *seen = seen_here();
	__u32 index;

	if (seen)
		flush(seen);
	if (!thread && has_targets)
		thread = new_thread();
	if (!thread || !thread->process)
		return 0;
	/* Masked instead of compared: verifiers before 6.18 follow only that. */
	index = (thread->process - 1) & (MAX_PROCESSES - 1);
	bpf_probe_read_kernel(processes[index].comm, TASK_NAME_LEN, task->comm);
	return 0;
}

/*
 * Another thread runs here. One that leaves its CPU for the last time has its counters settled: nothing
 * can be added any more. Its task_struct is given back after a grace period only, which a preempted
 * reader of the lowest priority can hold up for many seconds.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool is_preempted, struct task_struct *task)
{
	struct seen *seen = seen_here();
	struct thread_state *thread;

	if (seen && seen->size)
		flush(seen);
	if (!(task->__state & TASK_DEAD))
		return 0;
	thread = bpf_task_storage_get(&threads, task, NULL, 0);
	if (!thread)
		return 0;
	if (!thread->process)
		meet(thread, task);
	settle(thread, task);
	if (__sync_lock_test_and_set(&thread->counting, COUNTING_NOT) != COUNTING_NOT)
		__sync_fetch_and_sub(&state.threads_alive, 1);
	return 0;
}

/* Meets the threads that are there when the watch begins. */
SEC("iter/task")
int meet_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *thread;

	if (!task || !is_target(task) || bpf_task_storage_get(&threads, task, NULL, 0))
		return 0;
	thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		__sync_fetch_and_add(&state.threads_lost, 1);
	else
		from_now_on(thread, task);
	return 0;
}

/* A thread's state, if its faults are counted. */
static __always_inline struct thread_state *counted(struct task_struct *task)
{
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);

	if (!thread || thread->counting != COUNTING)
		return NULL;
	if (!thread->process)
		meet(thread, task);
	return thread;
}

/* Books what living threads have not, before nobody looks any more and before somebody does again. */
SEC("iter/task")
int settle_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *thread = task ? counted(task) : NULL;

	if (thread)
		settle_other(thread, task);
	return 0;
}

/* What living threads have not booked yet. */
SEC("iter/task")
int peek_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *thread = task ? counted(task) : NULL;
	struct unbooked unbooked = {};

	if (!thread)
		return 0;
	unbooked.slot = slot_of_rest(thread);
	unbooked.minor = minor_faults(task) - thread->minor;
	unbooked.major = major_faults(task) - thread->major;
	bpf_seq_write(ctx->meta->seq, &unbooked, sizeof(unbooked));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
