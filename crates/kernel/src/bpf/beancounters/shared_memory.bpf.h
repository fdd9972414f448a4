/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * shmpages and lockedpages: what the call under way asks for, and what the account's address spaces have locked.
 */
#ifndef BURSAR_SHARED_MEMORY_BPF_H
#define BURSAR_SHARED_MEMORY_BPF_H

#include "charge_row.bpf.h"
#include "page_size.bpf.h"

enum {
	MAP_SHARED = 1,
	MAP_ANONYMOUS = 0x20,
	MAP_LOCKED = 0x2000,
	MAP_HUGETLB = 0x40000,
	SHM_HUGETLB = 04000,
};

enum shared_call { SHARED_OTHER, SHARED_GET, SHARED_MAP };

/* The size of System V segments and of shared anonymous mappings stands in the call that makes them
 * (compat.bpf.h); it counts in full when made, as S5's. */
static __noinline enum shared_call shared_call(__u64 *bytes)
{
	struct call call;
#if defined(__TARGET_ARCH_x86)
	enum { TS_COMPAT = 2, X32_BIT = 0x40000000, IPC_SHMGET = 23 };
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u32 number = (__u32)regs->orig_ax;

	if (task->thread_info.status & TS_COMPAT) {
		if (number == 117 && (regs->bx & 0xffff) == IPC_SHMGET) {
			*bytes = (__u32)regs->dx;
			return regs->si & SHM_HUGETLB ? SHARED_OTHER : SHARED_GET;
		}
		if (number == 395) {
			*bytes = (__u32)regs->cx;
			return regs->dx & SHM_HUGETLB ? SHARED_OTHER : SHARED_GET;
		}
	} else if ((number & ~X32_BIT) == 29) {
		*bytes = regs->si;
		return regs->dx & SHM_HUGETLB ? SHARED_OTHER : SHARED_GET;
	}
#elif defined(__TARGET_ARCH_arm64)
	struct pt_regs *regs = registers();
	bool is_compat = regs->pstate & PSR_MODE32;

	if (regs->syscallno == (is_compat ? 307 : 194)) {
		*bytes = is_compat ? (__u32)regs->regs[1] : regs->regs[1];
		return regs->regs[2] & SHM_HUGETLB ? SHARED_OTHER : SHARED_GET;
	}
#endif
	read_call(&call);
	if (call.number == CALL_MMAP && (call.argument[3] & MAP_SHARED) &&
	    (call.argument[3] & MAP_ANONYMOUS) && !(call.argument[3] & MAP_HUGETLB)) {
		*bytes = call.argument[1];
		return SHARED_MAP;
	}
	return SHARED_OTHER;
}

/* System V segments and shared anonymous mappings have a file of their own, which lives as long as they do. */
static __noinline int may_make_shared(__u32 slot, __u64 file)
{
	__u64 bytes = 0;

	return shared_call(&bytes) == SHARED_OTHER || charge(slot, BILL_SHMPAGES, file, pages_of(bytes), false);
}

/* --- lockedpages ---------------------------------------------------------------------------- */

struct locked_sum {
	__u32 slot;
	__u32 met;	/* our own address space was among them */
	__u64 own;
	__s64 pages;
};

static __always_inline long add_locked(__u32 index, struct locked_sum *sum)
{
	struct mm_record *record = record_at(index);
	__u64 mm;

	if (!record || record->account != sum->slot)
		return 0;
	mm = record->mm;
	if (mm == sum->own)
		sum->met = 1;
	if (mm && probe_ctx_id(mm) == record->ctx_id)
		sum->pages += PROBE_READ(mm, struct mm_struct, locked_vm);
	return 0;
}
LOOP_BODY(add_locked, struct locked_sum *, records_made())

/* Locked by all address spaces of the account, `own` among them although the ledger may not have met it. */
static __noinline __s64 count_locked(__u32 slot, __u64 own)
{
	struct ledger_state *state = ledger_state();
	struct locked_sum sum = { .slot = slot, .own = own };

	if (!state)
		return 0;
	LOOP(add_locked, &sum);
	if (own && !sum.met)
		sum.pages += PROBE_READ(own, struct mm_struct, locked_vm);
	return sum.pages;
}

static __noinline int may_lock(__u32 slot, __s64 pages)
{
	struct row *row = counted_row(slot, BILL_LOCKEDPAGES);
	__s64 held;

	if (!row)
		return 1;
	held = count_locked(slot, (__u64)bpf_get_current_task_btf()->mm);
	if (held + pages > row->barrier) {
		row->held = held;
		tell_bill(slot, BILL_LOCKEDPAGES, pages, true);
		if (!row->observed)
			return 0;
	}
	row->held = held + pages;
	raise_to(&row->maxheld, held + pages);
	return 1;
}

/* --- mappings ------------------------------------------------------------------------------- */

static __noinline int may_map_shared(void)
{
	__u64 bytes = 0;

	return shared_call(&bytes) != SHARED_MAP ||
	       has_left(slot_of_task(bpf_get_current_task_btf()), BILL_SHMPAGES, pages_of(bytes), true);
}

static __noinline int may_map_locked(void)
{
	struct call call;

	read_call(&call);
	return call.number != CALL_MMAP ||
	       may_lock(slot_of_task(bpf_get_current_task_btf()), pages_of(call.argument[1]));
}

#endif /* BURSAR_SHARED_MEMORY_BPF_H */
