/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Everything in which kernels differ, each difference with one accessor for the callers. No version
 * numbers are asked for at run time: fields, types and kfuncs are.
 *
 * Two families of accessors: mm_*() take a BTF pointer the verifier knows (the event's argument) and
 * compile to plain loads; probe_*() and PROBE_READ() take an address remembered earlier, which may be
 * stale: what they read is checked (mm_ctx_id) or harmless.
 */
#ifndef BURSAR_COMPAT_BPF_H
#define BURSAR_COMPAT_BPF_H

#include "vmlinux.h"
#include "vmlinux_files.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "probe_read.bpf.h"

/* include/linux/sched.h, sched/signal.h, uapi signal.h, oom.h: macros, so not in BTF */
enum {
	PF_EXITING = 0x00000004,
	PF_MEMALLOC = 0x00000800,	/* frees memory for somebody */
	PF_KTHREAD = 0x00200000,
	SIGNAL_GROUP_EXIT = 0x00000004,
	SIGNAL_GROUP_COREDUMP = 0x00000008,	/* before 5.16: 2f824d4d197e "signal: Remove SIGNAL_GROUP_COREDUMP" */
	SIGKILL = 9,
	OOM_SCORE_ADJ_MIN = -1000,
};

const volatile __u32 possible_cpus = 1;	/* CPUs that may ever be; bounds exact reads */
const volatile __u32 counter_batch = 32; /* lib/percpu_counter.c: max(32, 2 × CPUs) */
const volatile __u32 page_shift = 12;	/* log2 of the page size in bytes */
const volatile bool count_file = false;	/* S1's literal RSS: file pages count too */

/* --- kfuncs: absent means an ability less, never a program less ---------------------------- */

/* 6.2: 3f0e6f2b41d3 "bpf: Add bpf_task_from_pid() kfunc" */
struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
void bpf_task_release(struct task_struct *p) __ksym __weak;
/* 6.13: 6280cf718db0 "bpf: Implement bpf_send_signal_task() kfunc" */
int bpf_send_signal_task(struct task_struct *task, int sig, enum pid_type type, __u64 value)
	__ksym __weak;
/* 6.7: c68a78ffe2cb "bpf: Introduce task open coded iterator kfuncs" */
int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task, unsigned int flags)
	__ksym __weak;
struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym __weak;
void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym __weak;
/* 6.2: 9bb00b2895cb "bpf: Add kfunc bpf_rcu_read_lock/unlock()" */
void bpf_rcu_read_lock(void) __ksym __weak;
void bpf_rcu_read_unlock(void) __ksym __weak;

/* 6.10: fc7566ad0a82 "bpf: Introduce bpf_preempt_[disable,enable] kfuncs" */
void bpf_preempt_disable(void) __ksym __weak;
void bpf_preempt_enable(void) __ksym __weak;

/* From 7.0 on, with PREEMPT_RT: a tracepoint's program may be preempted, and what it has noted for its CPU be written
 * over by another one. */
const volatile bool events_are_preempted = false;

static __always_inline void hold_cpu(void)
{
	if (events_are_preempted && bpf_ksym_exists(bpf_preempt_disable))
		bpf_preempt_disable();
}

static __always_inline void release_cpu(void)
{
	if (events_are_preempted && bpf_ksym_exists(bpf_preempt_enable))
		bpf_preempt_enable();
}

static __always_inline bool can_signal_others(void)
{
	return bpf_ksym_exists(bpf_send_signal_task) && bpf_ksym_exists(bpf_task_from_pid);
}

/* --- RSS counters ------------------------------------------------------------------------- */

/* Before 6.2 (f1a7941243c1 "mm: convert mm's rss stats into percpu_counter"): one atomic a member,
 * and up to 64 events kept back in each thread (SPLIT_RSS_COUNTING). */
struct mm_rss_stat___atomic {
	atomic_long_t count[4];
} __attribute__((preserve_access_index));

struct mm_struct___atomic {
	struct mm_rss_stat___atomic rss_stat;
} __attribute__((preserve_access_index));

struct task_rss_stat___atomic {
	int count[4];
} __attribute__((preserve_access_index));

struct task_struct___atomic {
	struct task_rss_stat___atomic rss_stat;
} __attribute__((preserve_access_index));

static __always_inline bool rss_is_atomic(void)
{
	return bpf_core_field_exists(struct mm_rss_stat___atomic, count);
}

static __always_inline __u64 probe_counter(__u64 mm, __u32 member)
{
	if (rss_is_atomic())
		return mm + bpf_core_field_offset(struct mm_struct___atomic, rss_stat.count) +
		       member * sizeof(long);
	return mm + bpf_core_field_offset(struct mm_struct, rss_stat) +
	       member * bpf_core_type_size(struct percpu_counter);
}

/* The part of a member that all CPUs share: one load; short of the truth by what CPUs keep back.
 * Compared, never booked. */
static __always_inline __s64 mm_coarse(struct mm_struct *mm, __u32 member)
{
	__s64 count = 0;

	if (rss_is_atomic()) {
		bpf_probe_read_kernel(&count, sizeof(count), (void *)probe_counter((__u64)mm, member));
		return count;
	}
	/* offsets into a BTF pointer must be constants */
	switch (member) {
	case MEMBER_ANON:
		return mm->rss_stat[MEMBER_ANON].count;
	case MEMBER_SWAP:
		return mm->rss_stat[MEMBER_SWAP].count;
	case MEMBER_SHMEM:
		return mm->rss_stat[MEMBER_SHMEM].count;
	default:
		return mm->rss_stat[MEMBER_FILE].count;
	}
}

/* Pages of hugetlbfs that are mapped; CONFIG_HUGETLB_PAGE. What a process maps by another's page table is not added where
 * it is touched, and is taken off where it is unmapped (mm/hugetlb.c): below zero it would hide other pages. */
static __always_inline __s64 probe_hugetlb(__u64 mm)
{
	__s64 pages;

	if (!bpf_core_field_exists(((struct mm_struct *)0)->hugetlb_usage))
		return 0;
	pages = PROBE_READ(mm, struct mm_struct, hugetlb_usage.counter);
	return pages > 0 ? pages : 0;
}

/* What the running thread has not yet added to its mm (kernels with atomic counters only). */
static __always_inline __s64 kept_back_by_current(struct mm_struct *mm, __u32 member)
{
	struct task_struct *me;
	int kept = 0;

	if (!rss_is_atomic() || !bpf_core_field_exists(struct task_struct___atomic, rss_stat) ||
	    member >= MEMBER_PGTABLES)
		return 0;
	me = bpf_get_current_task_btf();
	if (me->mm != mm)
		return 0;
	bpf_probe_read_kernel(&kept, sizeof(kept),
			      (void *)((__u64)me +
				       bpf_core_field_offset(struct task_struct___atomic, rss_stat.count) +
				       member * sizeof(int)));
	return kept;
}

/* --- names of inodes ----------------------------------------------------------------------- */

/* 7.0 and later may have d_alias outside the union. */
struct dentry___flat {
	struct hlist_node d_alias;
} __attribute__((preserve_access_index));

static __always_inline __u64 probe_alias_offset(void)
{
	if (bpf_core_field_exists(((struct dentry___flat *)0)->d_alias))
		return bpf_core_field_offset(struct dentry___flat, d_alias);
	return bpf_core_field_offset(struct dentry, d_u.d_alias);
}

/* --- identity of an address space ----------------------------------------------------------- */

/* x86's mm->context.ctx_id is never given twice; elsewhere the address alone must do, and the end
 * of an address space (tp_btf/exit_mmap) frees it for the next. */
static __always_inline __u64 mm_ctx_id(struct mm_struct *mm)
{
	if (bpf_core_field_exists(mm->context.ctx_id))
		return mm->context.ctx_id;
	return 0;
}

static __always_inline __u64 probe_ctx_id(__u64 mm)
{
	if (bpf_core_field_exists(((struct mm_struct *)0)->context.ctx_id))
		return PROBE_READ(mm, struct mm_struct, context.ctx_id);
	return 0;
}

/* --- locks ---------------------------------------------------------------------------------- */

/* CONFIG_PREEMPT_RT: include/linux/rwbase_rt.h. Who writes owns the rtmutex, and has set the readers to one number. */
struct rt_mutex_base {
	struct task_struct *owner;	/* and flags */
} __attribute__((preserve_access_index));

struct rwbase_rt {
	atomic_t readers;
	struct rt_mutex_base rtmutex;
} __attribute__((preserve_access_index));

struct rw_semaphore___rt {
	struct rwbase_rt rwbase;
} __attribute__((preserve_access_index));

enum {
	RWSEM_WRITER_LOCKED = 1,	/* kernel/locking/rwsem.c */
	RWSEM_OWNER_FLAGS = 7,
	RT_MUTEX_OWNER_FLAGS = 1,	/* kernel/locking/rtmutex_common.h */
	WRITER_BIAS = 1 << 30,		/* include/linux/rwbase_rt.h */
};

static __always_inline bool probe_has_writer(__u64 lock)
{
	if (bpf_core_field_exists(((struct rw_semaphore___rt *)0)->rwbase))
		return PROBE_READ(lock, struct rw_semaphore___rt, rwbase.readers.counter) == WRITER_BIAS;
	return PROBE_READ(lock, struct rw_semaphore, count.counter) & RWSEM_WRITER_LOCKED;
}

/* The task that has it for writing, as far as anybody knows. */
static __always_inline __u64 probe_writer(__u64 lock)
{
	if (bpf_core_field_exists(((struct rw_semaphore___rt *)0)->rwbase))
		return number_of(PROBE_READ(lock, struct rw_semaphore___rt, rwbase.rtmutex.owner)) &
		       ~(__u64)RT_MUTEX_OWNER_FLAGS;
	return PROBE_READ(lock, struct rw_semaphore, owner.counter) & ~(__u64)RWSEM_OWNER_FLAGS;
}

/* --- mounts ---------------------------------------------------------------------------------- */

/* Before 6.8 (2eea9ce4310d "mounts: keep list of mounts in an rbtree") */
struct mnt_namespace___list {
	unsigned int mounts;
} __attribute__((preserve_access_index));

/* In the namespace that a task is in; 0: it has ended. */
static __always_inline __u32 mounts_around(__u64 task)
{
	__u64 proxy = (__u64)PROBE_READ(task, struct task_struct, nsproxy);
	__u64 ns = proxy ? (__u64)PROBE_READ(proxy, struct nsproxy, mnt_ns) : 0;

	if (!ns)
		return 0;
	if (bpf_core_field_exists(((struct mnt_namespace *)0)->nr_mounts))
		return PROBE_READ(ns, struct mnt_namespace, nr_mounts);
	return PROBE_READ(ns, struct mnt_namespace___list, mounts);
}

/* --- the system call under way ------------------------------------------------------------- */

enum system_call { CALL_OTHER, CALL_MMAP, CALL_BRK, CALL_MREMAP, CALL_MPROTECT };

struct call {
	enum system_call number;
	__u64 argument[4];
};

#if defined(__TARGET_ARCH_arm64)
/* arch/arm64/include/uapi/asm/ptrace.h PSR_MODE32_BIT: a 32-bit program, whose numbers are arm's */
enum { PSR_MODE32 = 0x10 };

static __always_inline struct pt_regs *registers(void)
{
	return (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

static __always_inline enum system_call call_of_arm64(int number)
{
	switch (number) {
	case 222:
		return CALL_MMAP;
	case 214:
		return CALL_BRK;
	case 216:
		return CALL_MREMAP;
	case 226:
	case 288:
		return CALL_MPROTECT;
	}
	return CALL_OTHER;
}

static __always_inline enum system_call call_of_arm(int number)
{
	switch (number) {
	case 192:
		return CALL_MMAP;
	case 45:
		return CALL_BRK;
	case 163:
		return CALL_MREMAP;
	case 125:
	case 394:
		return CALL_MPROTECT;
	}
	return CALL_OTHER;
}
#endif

/* arch/x86/entry/syscalls: the numbers, and where the arguments are. TS_COMPAT: int 0x80 and 32-bit
 * programs. x32 has bit 30 set. arm64: include/uapi/asm-generic/unistd.h, and for 32-bit programs
 * arch/arm/tools/syscall.tbl. Other machines: nobody has written it yet, the gate's self-test finds
 * that nothing is refused. */
static __always_inline void read_call(struct call *call)
{
	call->number = CALL_OTHER;
#if defined(__TARGET_ARCH_x86)
	enum { TS_COMPAT = 2, X32_BIT = 0x40000000 };
	struct task_struct *me = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(me);
	__u64 number = regs->orig_ax;

	if (me->thread_info.status & TS_COMPAT) {
		call->argument[0] = (__u32)regs->bx;
		call->argument[1] = (__u32)regs->cx;
		call->argument[2] = (__u32)regs->dx;
		call->argument[3] = (__u32)regs->si;
		switch ((__u32)number) {
		case 90: { /* old_mmap: the arguments lie in memory, which may not be touched here */
			__u32 lying[4] = {};

			if (bpf_probe_read_user(lying, sizeof(lying),
						(void *)call->argument[0]))
				return;
			call->argument[0] = lying[0];
			call->argument[1] = lying[1];
			call->argument[2] = lying[2];
			call->argument[3] = lying[3];
			call->number = CALL_MMAP;
			return;
		}
		case 192:
			call->number = CALL_MMAP;
			return;
		case 45:
			call->number = CALL_BRK;
			return;
		case 163:
			call->number = CALL_MREMAP;
			return;
		case 125:
		case 380:
			call->number = CALL_MPROTECT;
			return;
		}
		return;
	}
	call->argument[0] = regs->di;
	call->argument[1] = regs->si;
	call->argument[2] = regs->dx;
	call->argument[3] = regs->r10;
	switch ((__u32)number & ~X32_BIT) {
	case 9:
		call->number = CALL_MMAP;
		return;
	case 12:
		call->number = CALL_BRK;
		return;
	case 453: /* map_shadow_stack(address, size, flags): private, and written to */
		call->argument[2] = 2; /* PROT_WRITE */
		call->argument[3] = 0;
		call->number = CALL_MMAP;
		return;
	case 25:
		call->number = CALL_MREMAP;
		return;
	case 10:
	case 329:
		call->number = CALL_MPROTECT;
		return;
	}
#elif defined(__TARGET_ARCH_arm64)
	struct pt_regs *regs = registers();
	bool is_compat = regs->pstate & PSR_MODE32;
	__u64 width = is_compat ? ~0U : ~0ULL;

	call->number = is_compat ? call_of_arm(regs->syscallno) : call_of_arm64(regs->syscallno);
	call->argument[0] = regs->regs[0] & width;
	call->argument[1] = regs->regs[1] & width;
	call->argument[2] = regs->regs[2] & width;
	call->argument[3] = regs->regs[3] & width;
#endif
}

/* 6.9: cb12fd8e0dab "pidfd: add pidfs". Each struct pid has a number that is not given twice, its pidfd's
 * inode's. */
struct pid___numbered {
	__u64 ino;
} __attribute__((preserve_access_index));

struct task_struct___numbered {
	struct pid___numbered *thread_pid;
} __attribute__((preserve_access_index));

static __always_inline __u64 pidfs_number(__u64 task)
{
	if (!bpf_core_field_exists(((struct pid___numbered *)0)->ino))
		return 0;
	return PROBE_READ(PROBE_READ(task, struct task_struct___numbered, thread_pid), struct pid___numbered,
			ino);
}

/* 4.19 and later: numbers[] is the struct's last, an entry for each level of PID namespaces. */
struct upid {
	int nr;
	void *ns;
} __attribute__((preserve_access_index));

struct pid___leveled {
	unsigned int level;
	struct upid numbers[1];
} __attribute__((preserve_access_index));

struct task_struct___leveled {
	struct pid___leveled *thread_pid;
} __attribute__((preserve_access_index));

enum { PID_NS_LEVELS = 32 };	/* include/linux/pid_namespace.h MAX_PID_NS_LEVEL */

/* The number that a task has for those in its own PID namespace; 0 where that is the first one. */
static __always_inline __u32 namespace_pid(__u64 task)
{
	__u64 pid = (__u64)PROBE_READ(task, struct task_struct___leveled, thread_pid);
	__u32 level = pid ? PROBE_READ(pid, struct pid___leveled, level) : 0;

	if (!level || level > PID_NS_LEVELS)
		return 0;
	pid += bpf_core_field_offset(struct pid___leveled, numbers) + level * bpf_core_type_size(struct upid);
	return PROBE_READ(pid, struct upid, nr);
}

#endif /* BURSAR_COMPAT_BPF_H */
