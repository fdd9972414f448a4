/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ledger: every change of an address space's resident set is charged to the account that pays
 * for it, and the change that crosses the limit kills (S1 3.2's fast trigger, moved to where S1's
 * "trivial" killer sits).
 *
 * Context: the one that changes the set: a page fault with the page-table lock held, fork, exec, exit, reclaim. No
 *          sleeping.
 * Cost:    away from a limit a handful of loads and compares; the books are opened when the shared
 *          part of a counter moves (every `batch` pages of a CPU, lib/percpu_counter.c).
 * Absent:  bursard falls back to the timer alone, or to the trace and poll triggers.
 */
#ifndef BURSAR_CHARGE_BPF_H
#define BURSAR_CHARGE_BPF_H

#include "delegate.bpf.h"
#include "stock.bpf.h"

/* Whether who paid so far still does: a process may change its uid without exec. */
static __always_inline bool still_pays(const struct mm_record *record, struct mm_struct *mm)
{
	struct task_struct *owner = mm->owner;
	const struct cred *cred;

	if (!owner)
		return true;
	cred = owner->real_cred;
	if (cred && (__u64)cred->user_ns == record->user_ns &&
	    (cred->uid.val == record->uid ||
	     payer_in(cred->user_ns, cred->uid.val) == record->uid))
		return true;
	return is_entered(record->user_ns);
}

/* What an address space had before an event. */
struct former {
	__s64 pages;
	__s64 shmem;
	__s64 member;	/* that the event tells of */
};

static __always_inline struct former former_of(const struct mm_record *record, __u32 member)
{
	return (struct former){.pages = recorded_pages(record), .shmem = record->pages[MEMBER_SHMEM],
			       .member = record->pages[member]};
}

/* Pages that the running process's fault has read back from swap. `before`: in swap. */
static __always_inline __s64 read_back_of(const struct mm_record *record, __u32 member, __s64 before)
{
	__s64 pages = before - record->pages[MEMBER_SWAP];
	struct faulting *faulting;

	if (rss_is_atomic() || member != MEMBER_SWAP || pages <= 0 || record->state == MM_DYING)
		return 0;
	faulting = faulting_here();
	if (!faulting || faulting->reader != bpf_get_current_task() || own_mm() != record->mm || is_in_system_call())
		return 0;
	return pages;
}

/*
 * Books what an event has changed. Reclaim swaps a page out in two steps, an event each (mm/rmap.c try_to_unmap_one()): one
 * private page fewer, then one more in swap. Where several share it nothing is given up by the first, and nothing grows by
 * the second. So the first is booked with the second. What is followed by none, because nobody wanted the page any more
 * (MADV_FREE), is booked with the next event; bursard, who has such pages taken, is told at once.
 *
 * A page is read back in two steps, too, the other way round (mm/memory.c do_swap_page()): the second says that the first
 * was no growth. Where the fault writes, the page may have been copied: then it is. Before 6.2 events tell of many at once.
 *
 * `before`: what the member had. Global, so that the verifier goes through it once.
 */
__noinline __s64 book_event(struct mm_record *record, __u32 slot, __u32 member, __s64 before)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	bool may_follow;
	__s64 anon, held;

	if (!record || !state || !account)
		return 0;
	anon = record->pages[MEMBER_ANON];
	may_follow = member == MEMBER_ANON && anon < before && (bpf_get_current_task_btf()->flags & PF_MEMALLOC) &&
		     !(own_mm() && own_mm() == state->answering_mm);
	if (may_follow)
		record->pages[MEMBER_ANON] = before;
	held = book_as(record, account, slot, read_back_of(record, member, before));
	if (may_follow)
		record->pages[MEMBER_ANON] = anon;
	return held;
}

/* What the running process has to do with an event of this address space. The dead do not grow: what goes on filling
 * one that is dying is another process, and no kill but its own ends that. */
static __always_inline __u32 running_at(const struct mm_record *record, const struct account *account,
					struct mm_struct *mm, struct former before)
{
	if (recorded_pages(record) <= before.pages)
		return RUNNING_OWN;
	if (own_mm() == (__u64)mm)
		return record->pages[MEMBER_SHMEM] > before.shmem && are_files_too_many(account) ? RUNNING_FILLER :
												   RUNNING_GREW;
	return means_dying(record->state) ? RUNNING_WRITER : RUNNING_OWN;
}

/* Another child begins: what its parent has copied so far is taken off for good, for it may copy the same pages again. */
static __always_inline void begin_fork(struct mm_record *parent, struct account *account, __u64 owner)
{
	__s64 copied = copied_pages(parent, is_corrected(account, bpf_ktime_get_ns()), owner);

	end_doubles(account, copied);
	note_growth(account, copied);
	parent->inherited_pages -= copied < parent->inherited_pages ? copied : parent->inherited_pages;
	parent->fault_base = small(faults_of(owner));
	parent->grown_events = 0;
	__sync_fetch_and_or(&parent->flags, RECORD_FORKED | RECORD_FORKS);
}

/* The running process forks: the child that it makes has its number still. What a process has pinned is copied at
 * once: then the doubles are fewer until the next PSS scan. */
static __noinline int note_fork(struct mm_record *record, struct mm_struct *mm, struct account *account)
{
	struct task_struct *me = bpf_get_current_task_btf(), *owner = mm->owner;
	struct mm_record *parent;
	__u64 mm_of_me;
	__s64 pages;
	__u32 index;

	mm_of_me = own_mm();
	if (!record || !account || !owner || owner == me || owner->pid != me->pid || !mm_of_me)
		return 0;
	index = find_record(mm_of_me);
	parent = index != NOBODY ? record_at(index) : NULL;
	if (!parent || parent->account != record->account)
		return 0;
	/* Or a re-sum has booked the child first. */
	if ((record->flags & RECORD_NEW) || !(parent->flags & RECORD_FORKS))
		begin_fork(parent, account, (__u64)PROBE_READ(mm_of_me, struct mm_struct, owner));
	pages = small(private_pages(record));
	if (pages > record->inherited_pages) {
		__sync_fetch_and_add(&account->forked_pages, pages - record->inherited_pages);
		note_growth(account, record->inherited_pages - pages);
		if (record->flags & RECORD_BORN)
			__sync_fetch_and_add(&account->born_forked_pages, pages - record->inherited_pages);
	}
	record->inherited_pages = pages;
	return 0;
}

#define KHUGEPAGED 0x676170656775686bULL	/* "khugepag", in the order of a little-endian machine */

/* The kernel thread of this name: no user names one. */
static __always_inline bool is_khugepaged(struct task_struct *task)
{
	__u64 name = 0;

	if (!(task->flags & PF_KTHREAD))
		return false;
	bpf_probe_read_kernel(&name, sizeof(name), task->comm);
	return name == KHUGEPAGED;
}

/* khugepaged makes a huge page of small ones and of holes between them. Only what grows: what shrinks at its event may be
 * what the process itself has given back, far from its bounds, and nobody has booked. */
static __always_inline void note_collapse(struct mm_record *record, struct account *account, __s64 pages)
{
	if (pages <= 0 || means_dying(record->state) || !is_khugepaged(bpf_get_current_task_btf()))
		return;
	__sync_fetch_and_add(&record->collapsed_pages, pages);
	__sync_fetch_and_add(&account->collapsed_pages, pages);
}

/* Whose doing it is that an address space has changed. `before`: what it had. `is_growth`: the event itself has added
 * pages. */
static __always_inline void note_change(struct mm_record *record, struct account *account, struct mm_struct *mm,
					__s64 before, bool is_growth)
{
	__s64 pages = recorded_pages(record) - before;

	/* See growth_of(). */
	if (pages > 0 && record->state == MM_DYING)
		note_growth(account, pages);
	if (own_mm() == (__u64)mm) {
		note_inherited(record);
		if (is_growth)
			record->grown_events++;
		return;
	}
	note_collapse(record, account, pages);
	if (pages > 0 && !(record->flags & RECORD_GREW))
		note_fork(record, mm, account);
}

/* The record of an address space that somebody pays for, opened if need be; NOBODY: there is none, and this CPU
 * remembers so where it may. A frame of its own, which is gone before a decision needs the stack. */
static __noinline __u32 record_to_charge(struct ledger_state *state, struct seen *seen, struct mm_struct *mm,
					 __u64 ctx_id)
{
	__u64 generation = *(volatile __u64 *)&state->generation;
	struct mm_record *record;
	struct payer payer = {};
	__u32 index, slot = NOBODY;
	enum ownership owned = payer_of_owner(state, mm->owner, &payer);
	bool opened;

	if (owned == OWNER_FOUND) {
		index = record_for((__u64)mm, ctx_id, &payer, &slot, &opened);
	} else {
		/* Torn down, its owner gone: whoever paid so far gets it back. Without a record it
		 * was never charged. */
		index = find_record((__u64)mm);
	}
	record = index != NOBODY ? record_at(index) : NULL;
	if (record && record->ctx_id == ctx_id) {
		note_cpu(record);
		return index;
	}
	if (owned == OWNER_UNKNOWN) {
		seen->mm = 0;
	} else if (slot == NOBODY) {
		seen->mm = 0;
		seen->tick = bpf_jiffies64();
		seen->cred = payer.uid ? 0 : running_cred();
		remember(seen, mm, ctx_id, generation, 0, VERDICT_NOBODY);
	} else if (!state->timer_walks_tasks) {
		ask_for_a_walk(state, TRIGGER_EVENT);
	}
	return NOBODY;
}

/* The whole of it: find who pays, write down what the address space holds, act on it. */
static __noinline int charge_in_full(struct ledger_state *state, struct seen *seen,
					  struct mm_struct *mm, __u32 member, __u64 ctx_id)
{
	__u64 generation = *(volatile __u64 *)&state->generation;
	struct mm_record *record;
	struct account *account;
	struct former before;
	__u32 index, slot;

	book_what_was_taken(seen, number_of(mm));
	index = record_to_charge(state, seen, mm, ctx_id);
	record = index != NOBODY ? record_at(index) : NULL;
	if (!record)
		return 0;
	die_as_mm_sharer(record, mm);
	if (record->state == MM_MARKED)		/* by somebody who could not reach it: here it is */
		retry_kills(TRIGGER_EVENT, RUNNING_OWN);
	slot = slot_of(record, (__u64)mm);
	account = slot != NOBODY ? account_at(slot) : NULL;
	if (!account)
		return 0;
	seen->mm = 0;
	seen->coarse[MEMBER_FILE] = mm_coarse(mm, MEMBER_FILE);
	seen->coarse[MEMBER_ANON] = mm_coarse(mm, MEMBER_ANON);
	seen->coarse[MEMBER_SWAP] = mm_coarse(mm, MEMBER_SWAP);
	seen->coarse[MEMBER_SHMEM] = mm_coarse(mm, MEMBER_SHMEM);
	before = former_of(record, member);
	sync_at(record, number_of(mm));
	record->pages[member] += kept_back_by_current(mm, member);
	if (means_dying(record->state))
		refresh_state(record, number_of(mm));
	note_change(record, account, mm, before.pages, record->pages[member] > before.member);
	react(slot, book_event(record, slot, member, before.member), TRIGGER_EVENT,
	      running_at(record, account, mm, before));
	if (account->near)
		seen->stock = (struct stock){.is_given = has_stocks(account)};
	remember(seen, mm, ctx_id, generation, index, account->near ? VERDICT_NEAR : VERDICT_FAR);
	note_cpu(record);
	return 0;
}

/* Same address space as last time: one member moved, so one member is written down. */
static __noinline int charge_one_member(struct ledger_state *state, struct seen *seen,
					     struct mm_struct *mm, __u32 member, __s64 coarse)
{
	struct mm_record *record = record_at(seen->index);
	__u32 slot = record ? slot_of(record, (__u64)mm) : NOBODY;
	struct account *account;
	struct former before;

	if (!record || slot == NOBODY || record->ctx_id != seen->ctx_id || record->state == MM_MARKED ||
	    is_other_in_stock(seen, member) || !still_pays(record, mm))
		return -1;
	account = account_at(slot);
	if (!account)
		return -1;
	die_as_mm_sharer(record, mm);
	before = former_of(record, member);
	record->pages[member] =
		probe_member(record->mm, &record->cpus, member) + kept_back_by_current(mm, member);
	record->pages[MEMBER_PGTABLES] = mm->pgtables_bytes.counter >> page_shift;
	if (means_dying(record->state))
		refresh_state(record, number_of(mm));
	note_change(record, account, mm, before.pages,
		    record->pages[member] > before.member && has_stock_grown(seen, member, coarse));
	react(slot, book_event(record, slot, member, before.member), TRIGGER_EVENT,
	      running_at(record, account, mm, before));
	return remember_member(seen, member, coarse);
}

/* Whether the running CPU keeps nothing back: then it is the one that has just added its part to what is shared. Not
 * inlined, for the stack of who charges. */
static __noinline bool has_folded(struct mm_struct *mm, __u32 member)
{
	const struct cpu_offsets *offsets = cpu_offsets_of();

	return rss_is_atomic() || !offsets ||
	       !part_of(offsets, parts_of(number_of(mm), member), bpf_get_smp_processor_id());
}

static __always_inline int charge_rss(struct mm_struct *mm, __u32 member)
{
	struct seen *seen = seen_by(bpf_get_smp_processor_id());
	struct ledger_state *state;
	__u64 ctx_id;

	if (!seen || is_nobodys(seen, (__u64)mm))
		return 0;
	state = ledger_state();
	if (member >= MEMBER_PGTABLES || (member == MEMBER_FILE && !count_file) || !state)
		return 0;
	ctx_id = mm_ctx_id(mm);
	if (seen->mm == (__u64)mm && seen->verdict != VERDICT_NOBODY && seen->ctx_id == ctx_id &&
	    seen->generation == *(volatile __u64 *)&state->generation) {
		__s64 coarse = mm_coarse(mm, member);

		/* Far away whoever moves the shared part reads all of them, and the other CPUs go on. */
		if (seen->verdict == VERDICT_FAR &&
		    (seen->coarse[member] == coarse || !has_folded(mm, member))) {
			seen->coarse[member] = coarse;
			return 0;
		}
		if (may_stay_unbooked(seen, member, coarse))
			return 0;
		if (!charge_one_member(state, seen, mm, member, coarse))
			return 0;
	}
	if (state->kills_wanted && can_signal_others() &&
	    ns_since(state->last_retry_ns, bpf_ktime_get_ns()) > RETRY_PAUSE_NS)
		retry_kills(TRIGGER_EVENT, RUNNING_OWN);
	return charge_in_full(state, seen, mm, member, ctx_id);
}

static __always_inline void end_record(__u32 index, struct account *account)
{
	struct task_struct *me = bpf_get_current_task_btf();

	/* The user half killed it, and it ended before anybody looked again. */
	if (close_record(index) == MM_MARKED && account && is_dying((__u64)me->signal))
		__sync_fetch_and_add(&account->history.kills, 1);
}

static __always_inline int end_address_space(struct mm_struct *mm)
{
	struct ledger_state *state = ledger_state();
	__u32 index = find_record((__u64)mm);
	struct mm_record *record = index != NOBODY ? record_at(index) : NULL;
	struct account *account;
	struct event *event;

	if (!state || !record || record->ctx_id != mm_ctx_id(mm))
		return 0;
	account = account_at(record->account);
	event = record->marked_ns && account ?
			reserve_event(state, EVENT_FREED, TRIGGER_EVENT, bpf_ktime_get_ns()) :
			NULL;
	if (event) {
		event->account = record->account;
		event->account_id = account->id;
		event->pid = record->pid;
		event->uid = record->uid;
		event->victim_pages = record->marked_pages;
		event->latency_ns = event->time_ns - record->marked_ns;
		end_record(index, account);
		event->held_pages = level_now(account);
		event->dying_pages = account->dying_pages;
		event->limit_pages = account->limit_pages;
		bpf_ringbuf_submit(event, 0);
		return 0;
	}
	end_record(index, account);
	return 0;
}

/* Who would look again has ended: what is in force now stays, for copies are counted, and it ages as it should. */
static __always_inline long keep_correction(__u32 slot, void *unused)
{
	struct account *account = account_at(slot);

	if (account && is_corrected(account, bpf_ktime_get_ns()))
		account->correction_until_ns = CORRECTED_UNTIL_ASKED;
	return 0;
}
LOOP_BODY(keep_correction, void *, accounts_made())

static __always_inline void forget_who_answers(const struct mm_struct *mm)
{
	struct ledger_state *state = ledger_state();

	/* Its own: who looks at a process that ends may be the one who has to take its memory apart. */
	if (!state || (__u64)mm != state->answering_mm)
		return;
	state->answering_mm = 0;
	if (state->watching)
		LOOP(keep_correction, NULL);
}

#endif /* BURSAR_CHARGE_BPF_H */
