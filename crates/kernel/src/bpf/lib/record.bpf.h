/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The record of one address space: found, opened, synced, booked, closed.
 *
 * Nothing here adds deltas it was told. A sync writes down what the address space holds now, and a
 * booking replaces the record's part of the account's sum by xchg, so whatever order CPUs come in,
 * held is the sum of all that is booked; an event that was skipped is made good by the next one.
 */
#ifndef BURSAR_RECORD_BPF_H
#define BURSAR_RECORD_BPF_H

#include "payer.bpf.h"
#include "dying.bpf.h"
#include "near.bpf.h"
#include "program.bpf.h"
#include "record_stack.bpf.h"

/* The first booking of a record. Where there was no room for it so far the last walk over all tasks has counted
 * it, and may until the next one: then others would die for what is in both. Of who has just begun this takes
 * off what nobody has counted; it is little, and until the next walk. */
static __always_inline void count_late(struct mm_record *record, struct account *account, __s64 pages)
{
	__sync_fetch_and_and(&record->flags, ~RECORD_NEW);
	if (pages > 0 && (*(volatile __s64 *)&account->walked_pages ||
			  *(volatile __s64 *)&account->sum_unrecorded_pages))
		__sync_fetch_and_add(&account->late_pages, pages);
}

/* Takes from an account's sum what was booked on it. Global, as are the next one and close_record(): the verifier goes
 * through it once, and not for each state of its callers. */
__noinline int take_booked(__u64 booked, bool is_dying)
{
	struct account *account = account_at(slot_booked(booked));

	if (account)
		__sync_fetch_and_add(is_dying ? &account->dying_pages : &account->held_pages, -pages_booked(booked));
	return 0;
}

/* Returns how much was on `slot`, whose sum is left to the caller. */
static __always_inline __s64 take_from_others(__u64 booked, __u32 slot, bool is_dying)
{
	if (!booked || slot_booked(booked) == slot)
		return pages_booked(booked);
	take_booked(booked, is_dying);
	return 0;
}

/* Whether it is being taken apart: its last user has ended, or has executed something else. No event says so before. */
static __always_inline bool is_taken_apart(const struct mm_record *record)
{
	__u64 mm = record->mm;

	return !PROBE_READ(mm, struct mm_struct, mm_users.counter) && probe_ctx_id(mm) == record->ctx_id;
}

/* So much more is booked. What the dying grow by note_change() tells, while they are credited: after that what the living
 * share with them is booked, too, and is no growth. */
static __always_inline __s64 growth_of(const struct mm_record *record, __s64 more, __s64 credit)
{
	if (record->state != MM_DYING)
		return more;
	if (credit || more < record->dying.shared_pages)
		return 0;
	return more - record->dying.shared_pages;
}

/* Of an address space so many pages more are booked, or fewer. `credit`: what of it is credited. `read_back`: so many fewer
 * in swap are more in memory, which has been booked as growth. */
__noinline int note_booked(struct mm_record *record, __u32 slot, __s64 more, __s64 credit, __s64 read_back)
{
	struct account *account = account_at(slot);

	if (!record || !account)
		return 0;
	if (read_back) {
		note_growth(account, -read_back);
		more += read_back;
	}
	if (more > 0)
		note_growth(account, growth_of(record, more, credit));
	else if (means_dying(record->state) || is_taken_apart(record))
		leave(record, account, -more);
	else
		give_up(record, account, -more);
	return 0;
}

/* Makes the account's sums agree with the record. Returns what is held now by the living. `slot`: the account's. */
static __always_inline __s64 book_as(struct mm_record *record, struct account *account, __u32 slot,
				     __s64 read_back)
{
	__s64 living = recorded_pages(record), dying = 0, was;

	if (record->state == MM_DYING)
		living = split_dying(&record->dying, living, account->patience.credit_from_ms, page_shift, now_ms(),
				     &dying);
	if (booked_on(slot, dying) != *(volatile __u64 *)&record->booked_dying) {
		was = take_from_others(__sync_lock_test_and_set(&record->booked_dying, booked_on(slot, dying)), slot,
				       true);
		__sync_fetch_and_add(&account->dying_pages, dying - was);
	}
	if (record->flags & RECORD_NEW)
		count_late(record, account, living);
	was = take_from_others(__sync_lock_test_and_set(&record->booked, booked_on(slot, living)), slot, false);
	if (living != was)
		note_booked(record, slot, living - was, dying, read_back);
	return __sync_fetch_and_add(&account->held_pages, living - was) + living - was;
}

static __always_inline __s64 book(struct mm_record *record, struct account *account, __u32 slot)
{
	return book_as(record, account, slot, 0);
}

/* Whether book() would change nothing. */
static __always_inline bool is_booked(const struct mm_record *record, __u32 slot)
{
	return record->state != MM_DYING && !(record->flags & RECORD_NEW) && !record->booked_dying &&
	       booked_on(slot, recorded_pages(record)) == *(volatile __u64 *)&record->booked;
}

static __always_inline void raise_maxheld(struct account *account, __s64 held)
{
	raise_to(&account->history.maxheld_pages, held);
}

static __always_inline __u32 find_record(__u64 mm)
{
	__u32 *index = bpf_map_lookup_elem(&mm_index, &mm);
	struct mm_record *record = index ? record_at(*index) : NULL;

	/* A delete may have failed (EBUSY) where it interrupted another: the record is somebody else's. */
	return record && record->mm == mm ? *index : NOBODY;
}

/* Whose it is, for who has found it by an address space; NOBODY: it is not that one's any more. Another CPU may close a
 * record at any time; a free one has a link where it had its account. */
static __always_inline __u32 slot_of(const struct mm_record *record, __u64 mm)
{
	__u32 slot = *(volatile __u32 *)&record->account;

	return *(volatile __u64 *)&record->mm == mm ? slot : NOBODY;
}

/* Leaves nothing, and says how much it was; most are nothing already. */
static __always_inline __s64 take_all(__s64 *part)
{
	return *(volatile __s64 *)part ? __sync_lock_test_and_set(part, 0) : 0;
}

/* Takes a record's part out of an account's sum. */
static __always_inline void unbook(__s64 *part, __s64 *sum)
{
	__s64 was = take_all(part);

	if (was)
		__sync_fetch_and_add(sum, -was);
}

/* The same of what says whose it is. */
static __always_inline void unbook_both(struct mm_record *record)
{
	take_booked(take_all((__s64 *)&record->booked), false);
	take_booked(take_all((__s64 *)&record->booked_dying), true);
}

static __always_inline void withdraw(struct mm_record *record, struct account *account)
{
	unbook_both(record);
	unbook(&record->committed_pages, &account->committed_pages);
	unbook(&record->reserved_pages, &account->reserved_pages);
	unbook(&record->collapsed_pages, &account->collapsed_pages);
}

/* It is nobody's from now on. Returns what it was; whoever was marked is not waited for any more. */
static __always_inline enum mm_state free_state(struct ledger_state *state, struct mm_record *record)
{
	enum mm_state was = __sync_lock_test_and_set(&record->state, MM_FREE);

	if (was == MM_MARKED)
		__sync_fetch_and_add(&state->kills_wanted, -1);
	return was;
}

static __always_inline void take_mark_back(struct ledger_state *state, struct mm_record *record)
{
	if (__sync_val_compare_and_swap(&record->state, MM_MARKED, MM_LIVING) == MM_MARKED)
		__sync_fetch_and_add(&state->kills_wanted, -1);
}

/* So many CPUs more, or less, that may keep something back of what an account has. Its near zone moves by what that is;
 * the re-sum says exactly where it is. */
static __always_inline void count_cpus(struct account *account, __s64 by)
{
	if (!by || !account)
		return;
	__sync_fetch_and_add(&account->cpus, (__s32)by);
	if (account->near_pages != NO_BOUND_PAGES)
		__sync_fetch_and_add(&account->near_pages, -kept_back_by(by));
}

/* Takes the record out of the books. The caller knows that the address space is gone or reused. Returns what it
 * was; MM_FREE: somebody else has done it. */
__noinline __u32 close_record(__u32 index)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct account *account;
	enum mm_state was;
	__u64 mm;

	if (!state || !record)
		return MM_FREE;
	account = account_at(record->account);
	mm = record->mm;
	/* Only one closer: exit_mmap and a re-sum may both find it gone. */
	if (!mm || __sync_val_compare_and_swap(&record->mm, mm, 0) != mm)
		return MM_FREE;
	bpf_map_delete_elem(&mm_index, &mm);
	was = free_state(state, record);
	/* The dying were left out by the last re-sum. */
	if (was != MM_DYING && account && account->processes) {
		__sync_fetch_and_add(&account->processes, -1);
		count_cpus(account, -cpus_in(&record->cpus));
	}
	if (account) {
		give_up_all(record, account);
		withdraw(record, account);
	}
	push_record(index);
	return was;
}

/* What is booked on an account is taken back where the record is not that one's any more; what others have booked since
 * stays. */
static __always_inline void take_back(__u64 *booked, __u32 slot, __s64 *sum)
{
	__u64 was = *(volatile __u64 *)booked;

	if (was && slot_booked(was) == slot && __sync_val_compare_and_swap(booked, was, 0) == was)
		__sync_fetch_and_add(sum, -pages_booked(was));
}

/* By who does not own the address space: it may have ended meanwhile, and what is written down after
 * its record was closed would stay. A global function: verified once, not in each state of its callers. */
__noinline int book_at(struct mm_record *record, __u32 slot, __u64 mm)
{
	struct account *account = account_at(slot);

	if (!record || !account || slot_of(record, mm) != slot)
		return 0;
	book(record, account, slot);
	if (*(volatile __u64 *)&record->mm != mm) {
		take_back(&record->booked, slot, &account->held_pages);
		take_back(&record->booked_dying, slot, &account->dying_pages);
	}
	return 0;
}

/* Opens a record; NOBODY when there is no room. Every field is set before the index shows it. */
static __noinline __u32 open_record(struct ledger_state *state, __u64 mm, __u64 ctx_id, __u32 slot)
{
	struct account *account = account_at(slot);
	struct mm_record *record;
	__u32 index;

	index = pop_record();
	if (index == NOBODY) {
		index = __sync_fetch_and_add(&state->mm_high_water, 1);
		if (index >= max_records) {
			__sync_fetch_and_add(&state->mm_high_water, -1);
			__sync_fetch_and_add(&state->records_full, 1);
			return NOBODY;
		}
	}
	record = record_at(index);
	if (!record)
		return NOBODY;
	record->ctx_id = ctx_id;
	record->account = slot;
	record->state = MM_LIVING;
	record->pid = 0;
	__builtin_memset(record->pages, 0, sizeof(record->pages));
	unbook_both(record);	/* of who was late */
	record->committed_pages = 0;
	record->reserved_pages = 0;
	record->ticket = state->ticket;
	record->dying.since_ms = 0;
	record->collapsed_pages = 0;
	record->marked_ns = 0;
	record->marked_pages = 0;
	begin_sharing(record, mm);
	record->flags = RECORD_NEW;
	__builtin_memset(&record->cpus, 0, sizeof(record->cpus));
	record->mm = mm;
	if (bpf_map_lookup_elem(&mm_index, &mm) && find_record(mm) == NOBODY)
		bpf_map_delete_elem(&mm_index, &mm); /* a former tenant's */
	if (!bpf_map_update_elem(&mm_index, &mm, &index, BPF_NOEXIST)) {
		if (account) {
			note_birth(record, account);
			__sync_fetch_and_add(&account->processes, 1);
		}
		return index;
	}
	/* Another CPU opened it meanwhile (threads of one process), or there is no room. */
	record->mm = 0;
	free_state(state, record);
	push_record(index);
	index = find_record(mm);
	if (index != NOBODY)
		return index;
	__sync_fetch_and_add(&state->records_full, 1);
	return NOBODY;
}

/* Moves a record's part from one account's sum to another's, once: two CPUs may move it at a time. */
static __always_inline void carry(__s64 *part, __s64 *from, __s64 *to)
{
	__s64 was = take_all(part);

	if (!was)
		return;
	__sync_fetch_and_add(from, -was);
	__sync_fetch_and_add(to, was);
	__sync_fetch_and_add(part, was);
}

/* A process changed its uid: its whole charge moves to who pays from now on. -1: the record is not that address
 * space's any more. Who lost the processor on the way here may come to a free one, whose account is the next free one,
 * or to somebody else's. */
static __noinline int move_record(struct mm_record *record, __u64 mm, __u32 slot)
{
	__u32 before = *(volatile __u32 *)&record->account;
	struct account *old = account_at(before), *new = account_at(slot);
	struct ledger_state *state = ledger_state();

	if (!old || !new || !state || *(volatile __u64 *)&record->mm != mm)
		return -1;
	if (__sync_val_compare_and_swap(&record->account, before, slot) != before)
		return *(volatile __u32 *)&record->account == slot ? 0 : -1;
	count_cpus(old, -cpus_in(&record->cpus));
	count_cpus(new, cpus_in(&record->cpus));
	give_up_all(record, old);
	begin_sharing(record, mm);
	note_birth(record, new);
	/* What it was chosen for is the other's. */
	take_mark_back(state, record);
	if (record->state == MM_LIVING)
		record->marked_ns = 0;
	unbook_both(record);
	/* Nothing writes these two down anew by itself: they move, unchecked (S5). */
	carry(&record->committed_pages, &old->committed_pages, &new->committed_pages);
	carry(&record->reserved_pages, &old->reserved_pages, &new->reserved_pages);
	carry(&record->collapsed_pages, &old->collapsed_pages, &new->collapsed_pages);
	/* Its record says what it had when it was last read, and CPUs that remember it as far go on without telling. */
	if (new->near) {
		__sync_val_compare_and_swap(&new->near, NEAR_AND_READ, NEAR);
		__sync_val_compare_and_swap(&new->near, EXACT_AND_READ, EXACT);
		__sync_fetch_and_add(&state->generation, 1);
	}
	return 0;
}

/* By who has only the owner's address. A record knows whether its owner is a member, and once it is it
 * stays one. */
static __always_inline bool payer_of_record(const struct mm_record *record, __u64 owner,
					    struct payer *payer)
{
	if (!payer_of_task_at(owner, payer))
		return false;
	if (is_entered(record->user_ns))
		pay_into(payer, record->user_ns);
	return true;
}

/* Whoever it was forked from, if that is the running process and in the books. */
static __always_inline struct mm_record *parent_of(__u64 mm)
{
	__u64 own = (__u64)PROBE_READ((__u64)bpf_get_current_task(), struct task_struct, mm);
	__u32 index;

	if (!own || own == mm || !probe_executable(mm) || probe_executable(own) != probe_executable(mm))
		return NULL;
	index = find_record(own);
	return index != NOBODY ? record_at(index) : NULL;
}

/* For find_or_open(): what is looked for, and what was found. */
struct charged {
	__u64 mm, ctx_id;
	struct payer payer;
	__u32 slot;
	__u32 missed;
};

/* Global, so that the verifier goes through it once and not once for each way that leads here. */
__noinline __u32 find_or_open(struct charged *charged)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record;
	struct payer *payer;
	__u32 payers_generation;
	__u64 mm, ctx_id;
	__u32 *slot, index;

	if (!charged || !state)
		return NOBODY;
	payer = &charged->payer;
	slot = &charged->slot;
	mm = charged->mm;
	ctx_id = charged->ctx_id;
	index = find_record(mm);
	record = index != NOBODY ? record_at(index) : NULL;
	if (record && record->ctx_id != ctx_id) { /* the address has a new tenant */
		close_record(index);
		record = NULL;
	}
	payers_generation = (__u32)*(volatile __u64 *)&state->payers_generation;
	if (record && record->uid == payer->uid && record->user_ns == payer->user_ns &&
	    record->payers_generation == payers_generation) {
		*slot = record->account;
		return index;
	}
	*slot = account_of_payer(state, payer);
	if (*slot == NOBODY) {
		if (record)
			close_record(index);
		return NOBODY;
	}
	if (!record) {
		index = open_record(state, mm, ctx_id, *slot);
		record = index != NOBODY ? record_at(index) : NULL;
		if (!record)
			return NOBODY;
		charged->missed = 1;
		learn_program(record, parent_of(mm), mm);
		count_cpus(account_at(*slot), find_cpus(&record->cpus, mm));
	} else if (record->account != *slot && move_record(record, mm, *slot)) {
		*slot = NOBODY;
		return NOBODY;
	}
	record->uid = payer->uid;
	record->user_ns = payer->user_ns;
	record->payers_generation = payers_generation;
	return index;
}

/*
 * The record of an address space that `payer` pays for, opened if need be; *missed tells that it had
 * none. NOBODY: nobody pays, or no room (then *slot is still the account).
 */
static __always_inline __u32 record_for(__u64 mm, __u64 ctx_id, const struct payer *payer,
					__u32 *slot, bool *missed)
{
	struct charged charged = { .mm = mm, .ctx_id = ctx_id, .payer = *payer, .slot = *slot };
	__u32 index = find_or_open(&charged);

	*slot = charged.slot;
	*missed = charged.missed;
	return index;
}

#endif /* BURSAR_RECORD_BPF_H */
