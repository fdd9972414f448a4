// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shared pages that are copied: a write to a page that is present and not writable. The copy changes no
 * counter of the kernel's, so no event of the ledger tells of it; each one lowers the correction.
 *
 * Hooks:   tp_btf/page_fault_user, tp_btf/page_fault_kernel (the kernel writes to user memory), at the
 *          beginning of the fault; arm64, which has no such events: fentry/do_mem_abort. Attached by bursard
 *          while a correction is in force, and pinned: when bursard has ended they go on, and so do the
 *          corrections.
 *          tp_btf/mm_page_alloc, for the page that such a fault gets, where its level is acted on; and for
 *          copies that the kernel makes in a system call without such a fault: MADV_POPULATE_WRITE,
 *          MADV_COLLAPSE, mlock, O_DIRECT, and what one process writes into another (process_vm_writev, ptrace,
 *          /proc/PID/mem). Pages that are new there, and not copies, count too: the next PSS scan says so.
 *          tp_btf/mm_collapse_huge_page, for those that khugepaged makes.
 *          fentry/copy_vma, for shared pages that are moved while a PSS scan looks for them; always attached.
 * Cost:    while attached a compare for each fault of the machine; a look-up for each write to a page that is present, and
 *          for each page of a user who has an account.
 * Absent:  other machines than x86 and arm64; and what a process of another account copies: the next PSS scan finds it.
 */
#include "react.bpf.h"
#include "seen.bpf.h"
#include "descriptor.bpf.h"
#include "magic.h"

#if defined(__TARGET_ARCH_arm64)
/* arch/arm64/include/asm/esr.h: a write (ESR_ELx_WNR) that is no upkeep of a cache (ESR_ELx_CM), refused for the page's
 * permissions at whatever level (ESR_ELx_FSC_PERM) */
enum { COPIES = 0x4c, COPIES_OF = 0x17c, FAULT_WRITES = 0x40 };
#else
/* arch/x86/include/asm/trap_pf.h: X86_PF_PROT, X86_PF_WRITE */
enum { COPIES = 1 | 2, COPIES_OF = COPIES, FAULT_WRITES = 2 };
#endif

/* include/linux/gfp_types.h; the same in 6.1 … 7.2 */
enum { USER_PAGE = 0x08 | 0x02, CACHE_PAGE = 0x1000 | 0x10000 };

enum { PF_IO_WORKER = 0x10 };	/* include/linux/sched.h: a thread of io_uring's */

/* Whose memory a page is for that the kernel allocates in a system call. */
enum writes {
	WRITES_OWN,	/* the caller's */
	WRITES_OTHERS,	/* another process's: written by /proc/PID/mem, process_vm_writev or ptrace */
	WRITES_PERHAPS,	/* io_uring's, or by a descriptor that may be of another file by now */
	WRITES_FILE,	/* a file's in memory, which is counted as that */
};

/* By a descriptor of the running process. Who shares its table may have put another file there since the call began. */
static __noinline int writes_by_descriptor(__u32 fd)
{
	__u64 file = probe_own_file(fd), inode, files, magic;

	inode = file ? (__u64)PROBE_READ(file, struct file, f_inode) : 0;
	if (!inode)
		return WRITES_PERHAPS;
	magic = PROBE_READ(PROBE_READ(inode, struct inode, i_sb), struct super_block, s_magic);
	if (magic == PROC_SUPER_MAGIC)
		return WRITES_OTHERS;
	files = (__u64)PROBE_READ((__u64)bpf_get_current_task(), struct task_struct, files);
	if ((magic == TMPFS_MAGIC || magic == RAMFS_MAGIC) && PROBE_READ(files, struct files_struct, count.counter) == 1)
		return WRITES_FILE;
	return WRITES_PERHAPS;
}

#if defined(__TARGET_ARCH_x86)
static __always_inline enum writes compat_call(const struct pt_regs *regs)
{
	switch ((__u32)regs->orig_ax) {
	case 4:		/* write */
	case 146:	/* writev */
	case 181:	/* pwrite64 */
	case 334:	/* pwritev */
	case 379:	/* pwritev2 */
		return writes_by_descriptor(regs->bx);
	case 26:	/* ptrace */
	case 348:	/* process_vm_writev */
		return WRITES_OTHERS;
	case 426:	/* io_uring_enter */
		return WRITES_PERHAPS;
	}
	return WRITES_OWN;
}

static __always_inline enum writes writes_of_call(void)
{
	enum { TS_COMPAT = 2 };
	struct task_struct *me = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(me);

	if (me->flags & PF_IO_WORKER)
		return WRITES_PERHAPS;
	if (me->thread_info.status & TS_COMPAT)
		return compat_call(regs);
	switch ((__u32)regs->orig_ax & ~0x40000000U) {	/* the second number: x32's */
	case 1:			/* write */
	case 18:		/* pwrite64 */
	case 20: case 516:	/* writev */
	case 296: case 535:	/* pwritev */
	case 328: case 547:	/* pwritev2 */
		return writes_by_descriptor(regs->di);
	case 101: case 521:	/* ptrace */
	case 311: case 540:	/* process_vm_writev */
		return WRITES_OTHERS;
	case 426:		/* io_uring_enter */
		return WRITES_PERHAPS;
	}
	return WRITES_OWN;
}
#elif defined(__TARGET_ARCH_arm64)
static __always_inline enum writes compat_call(const struct pt_regs *regs)
{
	switch (regs->syscallno) {
	case 4:		/* write */
	case 146:	/* writev */
	case 181:	/* pwrite64 */
	case 362:	/* pwritev */
	case 393:	/* pwritev2 */
		return writes_by_descriptor(regs->regs[0]);
	case 26:	/* ptrace */
	case 377:	/* process_vm_writev */
		return WRITES_OTHERS;
	case 426:	/* io_uring_enter */
		return WRITES_PERHAPS;
	}
	return WRITES_OWN;
}

static __always_inline enum writes writes_of_call(void)
{
	struct pt_regs *regs = registers();

	if (bpf_get_current_task_btf()->flags & PF_IO_WORKER)
		return WRITES_PERHAPS;
	if (regs->pstate & PSR_MODE32)
		return compat_call(regs);
	switch (regs->syscallno) {
	case 64:	/* write */
	case 66:	/* writev */
	case 68:	/* pwrite64 */
	case 70:	/* pwritev */
	case 287:	/* pwritev2 */
		return writes_by_descriptor(regs->regs[0]);
	case 117:	/* ptrace */
	case 271:	/* process_vm_writev */
		return WRITES_OTHERS;
	case 426:	/* io_uring_enter */
		return WRITES_PERHAPS;
	}
	return WRITES_OWN;
}
#else
static __always_inline enum writes writes_of_call(void)
{
	return WRITES_OWN;
}
#endif

/* The record of an address space, and its account; NULL: it has none. */
static __always_inline struct account *account_of_space(__u64 mm, struct mm_record **record)
{
	__u32 index = mm ? find_record(mm) : NOBODY;

	*record = index != NOBODY ? record_at(index) : NULL;
	return *record ? account_at((*record)->account) : NULL;
}

/* Whether copies of its pages matter. */
static __always_inline bool may_copy(const struct mm_record *record, const struct account *account)
{
	return record->shared_pages || is_scanned_now(account);
}

/* Whether pages that its processes write into others matter. */
static __always_inline bool takes_others_writes(const struct account *account)
{
	return account->over_ns || is_scanned_now(account) || correction_of(account);
}

/* Pages that the running process copies, or writes into another. Returns whether they matter to its account. */
static __always_inline bool count_copies(struct mm_record *record, struct account *account, __s64 pages,
					 enum writes writes)
{
	__u64 owner;

	if (writes != WRITES_OWN) {
		if (!takes_others_writes(account))
			return false;
		wear(account, pages);
		return true;
	}
	if (!may_copy(record, account))
		return false;
	owner = (__u64)PROBE_READ(own_mm(), struct mm_struct, owner);
	/* More than one page: no fault of its own. */
	note_copies(record, account, pages, pages == 1 && owner == bpf_get_current_task());
	return true;
}

static __always_inline bool take_counted_copy(void)
{
	struct faulting *faulting = faulting_here();
	bool is_own = faulting && faulting->counted == bpf_get_current_task();

	if (is_own)
		faulting->counted = 0;
	return is_own;
}

/*
 * A page that the kernel gives to the running task: the copy that its fault has counted, or one that it makes in a system
 * call. The account's new level is acted on here, so that only one program has all that this takes: also where another
 * thread has ended the wait in which the fault was counted.
 */
static __always_inline void see_page(unsigned int order)
{
	struct seen *seen = seen_by(bpf_get_smp_processor_id());
	enum writes writes = WRITES_OWN;
	__u64 mm = own_mm();
	struct mm_record *record;
	struct account *account;
	bool is_counted;

	if (!seen || is_nobodys(seen, mm))
		return;
	is_counted = take_counted_copy() && !order;
	account = account_of_space(mm, &record);
	if (!account || !record || (!may_copy(record, account) && !takes_others_writes(account)))
		return;
	if (is_in_system_call())
		writes = writes_of_call();
	else
		is_counted = true;	/* if it is a copy */
	if (writes == WRITES_FILE)
		return;
	if (is_counted && writes == WRITES_OWN ? !may_copy(record, account) :
						 !count_copies(record, account, 1LL << order, writes))
		return;
	/* Who surely writes into others ends first when that is too much: their end would not stop it. */
	react(record->account, account->held_pages, TRIGGER_EVENT,
	      writes == WRITES_OTHERS ? RUNNING_WRITER : RUNNING_GREW);
}

SEC("tp_btf/mm_page_alloc")
int BPF_PROG(on_page_alloc, struct page *page, unsigned int order, unsigned int flags)
{
	/* __GFP_HIGHMEM and __GFP_MOVABLE: for user space; __GFP_WRITE or __GFP_NORETRY: of a file */
	if ((flags & USER_PAGE) != USER_PAGE || (flags & CACHE_PAGE) || order > 10)
		return 0;
	hold_cpu();
	see_page(order);
	release_cpu();
	return 0;
}

static __always_inline int count_fault(unsigned long error_code, bool by_kernel)
{
	struct faulting *faulting = faulting_here();
	struct mm_record *record;
	struct account *account;

	if (!faulting)
		return 0;
	faulting->reader = error_code & FAULT_WRITES ? 0 : bpf_get_current_task();
	if ((error_code & COPIES_OF) != COPIES)
		return 0;
	hold_cpu();
	account = account_of_space(own_mm(), &record);
	if (account && record && count_copies(record, account, 1, WRITES_OWN) && by_kernel)
		faulting->counted = bpf_get_current_task();
	release_cpu();
	return 0;
}

#if defined(__TARGET_ARCH_arm64)
enum { PSR_MODE = 0xf };	/* arch/arm64/include/uapi/asm/ptrace.h PSR_MODE_MASK; 0: a program, of 32 bits as well */

SEC("fentry/do_mem_abort")
int BPF_PROG(on_user_fault, unsigned long address, unsigned long esr, struct pt_regs *regs)
{
	return regs->pstate & PSR_MODE ? 0 : count_fault(esr, false);
}

SEC("fentry/do_mem_abort")
int BPF_PROG(on_kernel_fault, unsigned long address, unsigned long esr, struct pt_regs *regs)
{
	return regs->pstate & PSR_MODE ? count_fault(esr, true) : 0;
}
#else
SEC("tp_btf/page_fault_user")
int BPF_PROG(on_user_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return count_fault(error_code, false);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_kernel_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return count_fault(error_code, true);
}
#endif

enum { SCAN_SUCCEED = 1 };	/* mm/khugepaged.c enum scan_result */
/* A huge page is what one page of a page table leads to, eight bytes an entry. */
enum { ENTRY_SHIFT = 3 };

/* khugepaged copies pages that others share. (Who asks for it by madvise(2) is met above.) */
SEC("tp_btf/mm_collapse_huge_page")
int BPF_PROG(on_collapse, struct mm_struct *mm, int isolated, int status)
{
	struct mm_record *record;
	struct account *account;

	if (status != SCAN_SUCCEED || !(bpf_get_current_task_btf()->flags & PF_KTHREAD))
		return 0;
	account = account_of_space((__u64)mm, &record);
	if (!account || !record || !may_copy(record, account))
		return 0;
	note_growth(account, 1LL << (page_shift - ENTRY_SHIFT));
	give_up(record, account, 1LL << (page_shift - ENTRY_SHIFT));
	return 0;
}

enum { VM_MERGEABLE = 0x80000000 };	/* include/linux/mm.h */

/* Whether processes may have pages of this mapping in common: by fork (include/linux/rmap.h: a process that neither has
 * inherited it nor forked since has an anon_vma that is its own root, and its own only child) or merged by KSM. */
static __always_inline bool may_be_shared(__u64 vma)
{
	__u64 anon_vma = (__u64)PROBE_READ(vma, struct vm_area_struct, anon_vma);

	if (PROBE_READ(vma, struct vm_area_struct, vm_flags) & VM_MERGEABLE)
		return true;
	if (!anon_vma)
		return false;
	return !bpf_core_field_exists(struct anon_vma, num_children) ||
	       (__u64)PROBE_READ(anon_vma, struct anon_vma, root) != anon_vma ||
	       PROBE_READ(anon_vma, struct anon_vma, num_children) > 1;
}

/*
 * mremap(2) moves a mapping, without an event of the ledger. A PSS scan reads a process from the lowest address to the
 * highest and lets go of its mappings in between where somebody waits to change them. What moves upwards meanwhile may be
 * read twice, and what moves downwards not at all: together that would hide private pages behind shared ones read twice.
 * So what moves is not taken off twice: it counts as given up.
 */
SEC("fentry/copy_vma")
int on_mremap(void *ctx)
{
	/* copy_vma(struct vm_area_struct **, address, length, ...): a pointer to a pointer is no argument to a verifier */
	__u64 where = 0, length = 0, vma = 0;
	struct mm_record *record;
	struct account *account = account_of_space(own_mm(), &record);
	__s64 pages, most;

	if (!account || !record || !is_scanned_now(account) || (record->flags & RECORD_BORN) ||
	    bpf_get_func_arg(ctx, 0, &where) || bpf_get_func_arg(ctx, 2, &length))
		return 0;
	bpf_probe_read_kernel(&vma, sizeof(vma), (void *)where);
	if (!may_be_shared(vma))
		return 0;
	pages = length >> page_shift;
	most = recorded_pages(record);
	__sync_fetch_and_add(&account->born_lost_pages, pages < most ? pages : most);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
