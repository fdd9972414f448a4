// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shared pages that are copied: a write to a page that is present and not writable. The copy changes no
 * counter of the kernel's, so no event of the ledger tells of it; each one lowers the correction.
 *
 * Hooks:   tp_btf/page_fault_user, tp_btf/page_fault_kernel (the kernel writes to user memory), at the
 *          beginning of the fault. Attached by bursard while a correction is in force, and by nothing
 *          else: it goes with bursard, and corrections end soon after.
 * Cost:    a compare for each fault of the machine while attached; a look-up for each write to a page
 *          that is present.
 *          tp_btf/mm_page_alloc, for copies that the kernel makes in a system call without such a fault:
 *          MADV_POPULATE_WRITE, MADV_COLLAPSE, mlock, O_DIRECT. Pages that are new there, and not copies,
 *          count too: the next survey says so.
 * Absent:  other machines than x86; and what one process writes into another (process_vm_writev, ptrace)
 *          or khugepaged copies: the next survey finds it.
 */
#include "react.bpf.h"

/* arch/x86/include/asm/trap_pf.h: X86_PF_PROT, X86_PF_WRITE */
enum { COPIES = 1 | 2 };

/* include/linux/gfp_types.h; the same in 6.1 … 7.2 */
enum { USER_PAGE = 0x08 | 0x02, CACHE_PAGE = 0x1000 | 0x10000 };

static __always_inline int count_copies(__s64 pages)
{
	struct mm_record *record;
	struct ledger_state *state;
	struct account *account;
	__u32 index;
	__u64 mm;

	mm = own_mm();
	state = ledger_state();
	if (!mm || !state)
		return 0;
	index = find_record(mm);
	record = index != NOBODY ? record_at(index) : NULL;
	account = record ? account_at(record->account) : NULL;
	if (!account || (!record->shared_pages && !is_surveyed_now(account)))
		return 0;
	give_up(record, account, pages);
	react(record->account, account->held_pages, TRIGGER_EVENT, RUNNING_OWN);
	return 0;
}

/* Whether the running task is in a system call: an exception leaves -1 where its number would be. */
static __always_inline bool is_in_system_call(void)
{
#if defined(__TARGET_ARCH_x86)
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return (long)regs->orig_ax >= 0;
#else
	return false;
#endif
}

SEC("tp_btf/mm_page_alloc")
int BPF_PROG(on_page_alloc, struct page *page, unsigned int order, unsigned int flags)
{
	/* __GFP_HIGHMEM and __GFP_MOVABLE: for user space; __GFP_WRITE or __GFP_NORETRY: of a file */
	if ((flags & USER_PAGE) != USER_PAGE || (flags & CACHE_PAGE) || order > 10 ||
	    !is_in_system_call())
		return 0;
	return count_copies(1LL << order);
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(on_user_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return (error_code & COPIES) == COPIES ? count_copies(1) : 0;
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_kernel_fault, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	return (error_code & COPIES) == COPIES ? count_copies(1) : 0;
}

char LICENSE[] SEC("license") = "GPL";
