/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types as far as the fault watcher reads them and the kernel half's vmlinux.h does not
 * have them. A struct that has some fields there gets the others as a flavour (___faults), which CO-RE
 * relocates to the same struct.
 */
#ifndef BURSAR_FAULTS_TYPES_BPF_H
#define BURSAR_FAULTS_TYPES_BPF_H

/* The ledger's share of these two structures is another one; a flavour of the same type to CO-RE. */
#define pt_regs pt_regs___ledger
#define vm_area_struct vm_area_struct___ledger
#include "vmlinux.h"
#undef pt_regs
#undef vm_area_struct
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "faults.h"
#include "probe_read.bpf.h"

enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { BPF_F_USER_STACK = 1U << 8 };

/* include/linux/sched.h */
enum { TASK_DEAD = 0x80 };

/* include/linux/mm.h */
enum { VM_READ = 1, VM_WRITE = 2, VM_EXEC = 4, VM_SHARED = 8, VM_GROWSDOWN = 0x100 };

/* include/linux/backing-dev.h */
enum { BDI_CAP_WRITEBACK = 1 };

#if defined(__TARGET_ARCH_arm64)
/* arch/arm64/include/asm/esr.h ESR_ELx_FSC_TYPE, ESR_ELx_FSC_PERM: the page is there, the access is not allowed */
enum { FAULT_TYPE = 0x3c, FAULT_PROTECTION = 0x0c };

enum { PSR_MODE = 0xf };	/* arch/arm64/include/uapi/asm/ptrace.h PSR_MODE_MASK; 0: a program */

/* arch/arm64/include/uapi/asm/ptrace.h struct user_pt_regs; the layout is ABI, and that of pt_regs' beginning */
struct pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 ip;	/* pc */
	__u64 pstate;
};

#define is_kernels(regs) (((regs)->pstate & PSR_MODE) != 0)
#else
/* arch/x86/include/asm/trap_pf.h: the page is there, the access is not allowed */
enum { FAULT_TYPE = 1, FAULT_PROTECTION = 1 };

/* arch/x86/include/uapi/asm/ptrace.h; the layout is ABI */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

#define is_kernels(regs) (((regs)->cs & 3) == 0)
#endif

/* include/uapi/linux/bpf_perf_event.h; the layout is ABI */
struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct backing_dev_info {
	unsigned int capabilities;
};

struct super_block {
	u32 s_dev;
	struct backing_dev_info *s_bdi;
};

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	struct file *vm_file;
};

/* 6.14: eb449bd96954 "mm: convert mm_lock_seq to a proper seqcount" */
typedef struct {
	unsigned sequence;
} seqcount_t;

struct mm_struct___seqcount {
	seqcount_t mm_lock_seq;
};

/* 6.4: 5e31275cc997 "mm: add per-VMA lock and helper functions to control it" */
struct mm_struct___seq {
	int mm_lock_seq;
};

struct mm_struct___faults {
	unsigned long total_vm;
	unsigned long start_brk, brk;
	int map_count;
};

struct task_struct___faults {
	unsigned long min_flt, maj_flt;
	int pagefault_disabled;
};

#pragma clang attribute pop

/* The kernel's own counters of a thread: what getrusage() and /proc/PID/stat add up. */
static __always_inline __u64 minor_faults(struct task_struct *task)
{
	return ((struct task_struct___faults *)task)->min_flt;
}

static __always_inline __u64 major_faults(struct task_struct *task)
{
	return ((struct task_struct___faults *)task)->maj_flt;
}

/* Whether a fault of this task's would be refused instead of served (include/linux/uaccess.h). */
static __always_inline bool is_pagefault_disabled(struct task_struct *task)
{
	return ((struct task_struct___faults *)task)->pagefault_disabled;
}

/*
 * Something that differs once the mappings of the address space at `mm` have changed. Before 6.4 there
 * is no counter of changes; the number and the size of mappings must do: an exchange that leaves both
 * as they were goes unnoticed there until the thread faults elsewhere.
 */
static __always_inline __u64 mappings_generation(__u64 mm)
{
	if (bpf_core_field_exists(struct mm_struct___seqcount, mm_lock_seq.sequence))
		return PROBE_READ(mm, struct mm_struct___seqcount, mm_lock_seq.sequence);
	if (bpf_core_field_exists(struct mm_struct___seq, mm_lock_seq))
		return PROBE_READ(mm, struct mm_struct___seq, mm_lock_seq);
	return PROBE_READ(mm, struct mm_struct___faults, total_vm) * 65536 +
	       PROBE_READ(mm, struct mm_struct___faults, map_count);
}

/* x86's number of an address space, which is never given twice (arch/x86/include/asm/mmu.h). Elsewhere where it is,
 * which another one may have later. */
static __always_inline __u64 space_of(struct mm_struct *mm)
{
#if defined(__TARGET_ARCH_x86)
	return mm->context.ctx_id;
#else
	return (__u64)mm;
#endif
}

#endif /* BURSAR_FAULTS_TYPES_BPF_H */
