// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who takes page faults, where, and how long they take.
 *
 * Hooks:   tp_btf/page_fault_user and _kernel: the exception handler's first lines (x86), interrupts
 *          off; arm64, which has no such events: fentry/do_mem_abort. perf_event on the software events
 *          page-faults-min and -maj: where the kernel itself counts (mm/memory.c mm_account_fault()),
 *          after the page is there; the first only while faults are timed. tp_btf/sched_process_fork, _exec and sched_switch. On x86 none of them needs
 *          a trampoline.
 * Counts:  never of our own. The kernel keeps min_flt and maj_flt in each thread; by how much they have
 *          grown is booked when the thread leaves its CPU for the last time, and until then whoever
 *          reads adds it. So sums are getrusage()'s, whatever we miss. All of that growth is booked as
 *          MAPPING_BY_KERNEL at first: faults without an address (get_user_pages: populate, mlock,
 *          ptrace). A fault in a mapping moves one from there to the mapping: where it ends, if it is
 *          timed, else where it begins. Only its end shows that it counts: a fault that ends in SIGSEGV
 *          does not. Moves add up to nothing.
 * Ours:    recording a stack reads the program's memory, which may fault in its turn. The kernel does not
 *          count faults of a context that must not sleep (pagefault_disable()), so neither do we.
 * Storms:  the user half takes the first two hooks away for a part of the time. What counters grow by
 *          meanwhile is booked as MAPPING_UNSEEN instead: it settles all threads on both edges.
 * Seen:    each CPU remembers the mapping of its last fault while one thread runs there, and counts
 *          the faults that begin in it. Another one costs two comparisons and no call: on a processor
 *          with return thunks (SRSO) each call is some 10 ns of the 1,700 that a fault takes.
 * Latency: from the first hook to the second. Not in it: the processor's way in and out, and what is
 *          done after the counting (signals, rescheduling). A fault that has to be tried again is timed
 *          from its last try's entry into the kernel, which is its first: retries stay inside.
 * Cost:    see docs/design/measured-faults.md.
 * Absent:  neither x86 nor arm64, or no BTF: the watch falls back to /proc/PID/stat.
 */
#include "booking.bpf.h"
#include "latency.bpf.h"

/* --- where a fault begins --- */

static __always_inline bool is_seen(struct seen *seen, __u64 address)
{
	return address - seen->start < seen->size &&
	       seen->generation == mappings_generation(seen->mm);
}

/* A fault elsewhere than this CPU's last, or one that is timed. */
static __noinline int begin_elsewhere(struct seen *seen, __u64 address, __u64 error_code)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);
	struct mm_struct *mm = task->mm;

	if (!seen || !mm)
		return 0;
	if (!thread && has_targets)
		thread = new_thread();
	if (!thread) {
		/* With targets a change of uid can make this thread one: it is asked each time. Without, threads
		 * are watched from birth only: nothing to count as long as this one runs. */
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
	thread->begin_ns = 0;
	if (!switches.is_timing) {
		seen->entries++;
		return 0;
	}
	thread->window = switches.window;
	thread->is_protected = (error_code & FAULT_TYPE) == FAULT_PROTECTION;
	thread->begin_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int begin(__u64 address, __u64 error_code)
{
	struct seen *seen = seen_here();

	/* The kernel's own half: never in a mapping. */
	if (!seen || (__s64)address < 0)
		return 0;
	/* The way of a storm: nothing but this. */
	if (!switches.is_timing && is_seen(seen, address)) {
		seen->entries++;
		return 0;
	}
	return begin_elsewhere(seen, address, error_code);
}

/* --- where it ends --- */

static __always_inline int end(struct bpf_perf_event_data *ctx, bool is_major)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);
	__u64 now, latency;
	__u32 slot;
	/* What a thread knows of another window is of a fault that was never served, or whose end nobody saw. */
	bool is_timed;

	if (!thread)
		return 0;
	is_timed = thread->begin_ns && thread->window == switches.window;
	if (!is_timed && !is_major)
		return 0;
	now = bpf_ktime_get_ns();
	latency = now - thread->begin_ns;
	slot = find_mapping(thread, ctx->addr);
	if (is_major) {
		/* Booked as a minor one where it began, unless it is timed or nobody looked. */
		__u64 is_booked = is_timed || switches.is_away ? 0 : 1;

		book(slot, -is_booked, 1);
		book(slot_of_rest(thread), is_booked, -1);
	} else {
		book(slot, 1, 0);
		book(thread->kernel_slot, -1, 0);
	}
	thread->begin_ns = 0;
	if (!is_timed)
		return 0;
	time_it(latency, is_major);
	note_cause(slot, thread->is_protected);
	note_site(slot, ctx->regs.ip);
	if (switches.is_recording)
		record(ctx, task, slot, now, latency, is_major);
	return 0;
}

/* --- hooks --- */

static __always_inline int begin_in_kernel(__u64 address, __u64 error_code)
{
	/* Such a fault is never served, so never counted: by BPF helpers, perf and others that look. */
	if (is_pagefault_disabled(bpf_get_current_task_btf()))
		return 0;
	return begin(address, error_code);
}

#if defined(__TARGET_ARCH_arm64)
SEC("fentry/do_mem_abort")
int BPF_PROG(on_user_fault, unsigned long address, unsigned long esr, struct pt_regs *regs)
{
	return is_kernels(regs) ? 0 : begin(address, esr);
}

SEC("fentry/do_mem_abort")
int BPF_PROG(on_kernel_fault, unsigned long address, unsigned long esr, struct pt_regs *regs)
{
	return is_kernels(regs) ? begin_in_kernel(address, esr) : 0;
}
#else
SEC("tp_btf/page_fault_user")
int BPF_PROG(on_user_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return begin(address, error_code);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_kernel_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return begin_in_kernel(address, error_code);
}
#endif

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
	start_counting(thread, child);
	identify(thread, child);
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
		identify(thread, task);
	settle(thread, task);
	if (__sync_lock_test_and_set(&thread->counting, COUNTING_NOT) != COUNTING_NOT)
		__sync_fetch_and_sub(&state.threads_alive, 1);
	return 0;
}

/* Counts the faults of threads that are there when the watch begins. */
SEC("iter/task")
int find_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *thread;

	if (!task || !is_target(task) || bpf_task_storage_get(&threads, task, NULL, 0))
		return 0;
	thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		__sync_fetch_and_add(&state.threads_lost, 1);
	else
		start_counting(thread, task);
	return 0;
}

/* A thread's state, if its faults are counted. */
static __always_inline struct thread_state *counted(struct task_struct *task)
{
	struct thread_state *thread = bpf_task_storage_get(&threads, task, NULL, 0);

	if (!thread || thread->counting != COUNTING)
		return NULL;
	if (!thread->process)
		identify(thread, task);
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
