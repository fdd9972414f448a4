/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The record of one address space: found, opened, synced, booked, closed.
 *
 * Nothing here adds deltas it was told. A sync writes down what the address space holds now, and a
 * booking replaces the record's part of the account's sum by xchg, so whatever order CPUs come in,
 * held is the sum of all booked_pages; an event that was skipped is made good by the next one.
 */
#ifndef BURSAR_RECORD_BPF_H
#define BURSAR_RECORD_BPF_H

#include "payer.bpf.h"

static __always_inline __s64 recorded_pages(const struct mm_record *record)
{
	__s64 sum = record->pages[MEMBER_ANON] + record->pages[MEMBER_SWAP] +
		    record->pages[MEMBER_SHMEM] + record->pages[MEMBER_PGTABLES];

	if (count_file)
		sum += record->pages[MEMBER_FILE];
	return sum > 0 ? sum : 0;
}

/* Makes the account's sums agree with the record. Returns what is held now by the living. */
static __always_inline __s64 book(struct mm_record *record, struct account *account)
{
	__s64 pages = recorded_pages(record), living, dying, was;
	bool is_dying = record->state == MM_DYING;

	living = is_dying ? 0 : pages;
	dying = is_dying ? pages : 0;
	if (dying != *(volatile __s64 *)&record->booked_dying_pages) {
		was = __sync_lock_test_and_set(&record->booked_dying_pages, dying);
		__sync_fetch_and_add(&account->dying_pages, dying - was);
	}
	was = __sync_lock_test_and_set(&record->booked_pages, living);
	return __sync_fetch_and_add(&account->held_pages, living - was) + living - was;
}

/* maxheld only ever rises; two CPUs may race, so try until ours is not the larger one. */
static __always_inline void raise_maxheld(struct account *account, __s64 held)
{
	int i;

	for (i = 0; i < 4; i++) {
		__s64 max = *(volatile __s64 *)&account->history.maxheld_pages;

		if (held <= max ||
		    __sync_val_compare_and_swap(&account->history.maxheld_pages, max, held) == max)
			return;
	}
}

/* Exact, from an address: for walks, and whenever more than one member may have moved. */
static __always_inline void sync_far(struct ledger_state *state, struct mm_record *record, __u64 mm)
{
	record->pages[MEMBER_ANON] = far_member(state, mm, MEMBER_ANON);
	record->pages[MEMBER_SWAP] = far_member(state, mm, MEMBER_SWAP);
	record->pages[MEMBER_SHMEM] = far_member(state, mm, MEMBER_SHMEM);
	if (count_file)
		record->pages[MEMBER_FILE] = far_member(state, mm, MEMBER_FILE);
	record->pages[MEMBER_PGTABLES] =
		FAR_READ(mm, struct mm_struct, pgtables_bytes.counter) >> page_shift;
}

/*
 * Records given back lie on a stack, so that those in use stay dense. A map of type queue would do the
 * same, but programs that may sleep cannot use one before 6.2. A lost race is tried again; who loses
 * every time takes a fresh record (pop) or leaves one unused (push), counted in records_leaked.
 */
enum { STACK_TRIES = 32 };

static __noinline __u32 pop_record(struct ledger_state *state)
{
	int i;

	for (i = 0; i < STACK_TRIES; i++) {
		__u64 top = *(volatile __u64 *)&state->free_records, next;
		struct mm_record *record;

		if (!(__u32)top)
			return NOBODY;
		record = record_at((__u32)top - 1);
		if (!record)
			return NOBODY;
		next = ((top >> 32) + 1) << 32 | record->account;
		if (__sync_val_compare_and_swap(&state->free_records, top, next) == top)
			return (__u32)top - 1;
	}
	return NOBODY;
}

static __noinline int push_record(struct ledger_state *state, __u32 index)
{
	struct mm_record *record = record_at(index);
	int i;

	if (!record)
		return 0;
	for (i = 0; i < STACK_TRIES; i++) {
		__u64 top = *(volatile __u64 *)&state->free_records, next;

		record->account = (__u32)top;
		next = ((top >> 32) + 1) << 32 | (index + 1);
		if (__sync_val_compare_and_swap(&state->free_records, top, next) == top)
			return 0;
	}
	__sync_fetch_and_add(&state->records_leaked, 1);
	return 0;
}

static __always_inline __u32 find_record(__u64 mm)
{
	__u32 *index = bpf_map_lookup_elem(&mm_index, &mm);

	return index ? *index : NOBODY;
}

/* Takes the record out of the books. The caller knows that the address space is gone or reused. */
static __always_inline void close_record(struct ledger_state *state, __u32 index,
					 struct mm_record *record)
{
	struct account *account = account_at(record->account);
	__u64 mm = record->mm;
	__s64 was;

	/* Only one closer: exit_mmap and a re-sum may both find it gone. */
	if (!mm || __sync_val_compare_and_swap(&record->mm, mm, 0) != mm)
		return;
	bpf_map_delete_elem(&mm_index, &mm);
	record->state = MM_FREE;
	was = __sync_lock_test_and_set(&record->booked_pages, 0);
	if (account && was)
		__sync_fetch_and_add(&account->held_pages, -was);
	was = __sync_lock_test_and_set(&record->booked_dying_pages, 0);
	if (account && was)
		__sync_fetch_and_add(&account->dying_pages, -was);
	push_record(state, index);
}

/* Opens a record; NOBODY when there is no room. Every field is set before the index shows it. */
static __noinline __u32 open_record(struct ledger_state *state, __u64 mm, __u64 ctx_id, __u32 slot)
{
	struct mm_record *record;
	__u32 index, *found;

	index = pop_record(state);
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
	record->booked_pages = 0;
	record->booked_dying_pages = 0;
	record->ticket = state->ticket;
	record->marked_ns = 0;
	record->marked_pages = 0;
	record->mm = mm;
	if (!bpf_map_update_elem(&mm_index, &mm, &index, BPF_NOEXIST))
		return index;
	/* Another CPU opened it meanwhile (threads of one process), or there is no room. */
	record->mm = 0;
	record->state = MM_FREE;
	push_record(state, index);
	found = bpf_map_lookup_elem(&mm_index, &mm);
	if (found)
		return *found;
	__sync_fetch_and_add(&state->records_full, 1);
	return NOBODY;
}

/* A process changed its uid: its whole charge moves to who pays from now on. */
static __noinline int move_record(struct mm_record *record, __u32 slot)
{
	struct account *old = account_at(record->account), *new = account_at(slot);
	__s64 was;

	if (!old || !new)
		return -1;
	record->account = slot;
	was = __sync_lock_test_and_set(&record->booked_pages, 0);
	if (was)
		__sync_fetch_and_add(&old->held_pages, -was);
	was = __sync_lock_test_and_set(&record->booked_dying_pages, 0);
	if (was)
		__sync_fetch_and_add(&old->dying_pages, -was);
	return 0;
}

/*
 * The record of an address space that `payer` pays for, opened if need be; *missed tells that it had
 * none. NOBODY: nobody pays, or no room (then *slot is still the account).
 */
static __always_inline __u32 record_for(struct ledger_state *state, __u64 mm, __u64 ctx_id,
					const struct payer *payer, __u32 *slot, bool *missed)
{
	__u32 index = find_record(mm);
	struct mm_record *record = index != NOBODY ? record_at(index) : NULL;
	__u64 payers_generation;

	*missed = false;
	if (record && record->ctx_id != ctx_id) { /* the address has a new tenant */
		close_record(state, index, record);
		record = NULL;
	}
	payers_generation = *(volatile __u64 *)&state->payers_generation;
	if (record && record->uid == payer->uid && record->user_ns == payer->user_ns &&
	    record->payers_generation == payers_generation) {
		*slot = record->account;
		return index;
	}
	*slot = account_of(state, payer->uid);
	if (*slot == NOBODY) {
		if (record)
			close_record(state, index, record);
		return NOBODY;
	}
	if (!record) {
		index = open_record(state, mm, ctx_id, *slot);
		record = index != NOBODY ? record_at(index) : NULL;
		if (!record)
			return NOBODY;
		*missed = true;
	} else if (record->account != *slot) {
		move_record(record, *slot);
	}
	record->uid = payer->uid;
	record->user_ns = payer->user_ns;
	record->payers_generation = payers_generation;
	return index;
}

#endif /* BURSAR_RECORD_BPF_H */
