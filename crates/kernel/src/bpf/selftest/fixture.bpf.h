/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Units of the kernel half's logic, run by themselves on maps of their own: a program for each check. It
 * returns 0, or the line of the expectation that does not hold, negated.
 *
 * Never part of a kernel half: crates/kernel/src/bpf_selftest.rs loads them, for tests.
 */
#ifndef BURSAR_SELFTEST_FIXTURE_BPF_H
#define BURSAR_SELFTEST_FIXTURE_BPF_H

#include "record.bpf.h"

enum {
	SLOT = 1,		/* the account that is tried */
	OTHER = 2,		/* and a second one */
	RECORD = 0,
	UID = 60001,
};

#define MM 0x1000ULL		/* no address space's: it is a key here, and nothing is read there */
#define CTX 7ULL

const struct account no_account = {};
const struct mm_record no_record = {};

struct fixture {
	struct ledger_state *state;
	struct account *account, *other;
	struct mm_record *record;
};

static __always_inline void clear_account(__u32 slot)
{
	bpf_map_update_elem(&accounts, &slot, &no_account, BPF_ANY);
}

static __always_inline void clear_record(__u32 index)
{
	bpf_map_update_elem(&mms, &index, &no_record, BPF_ANY);
}

/* Everything as at the beginning, with a limit of 1,024 pages. Not the sums of bad days, which only grow. */
static __noinline int clear(void)
{
	__u64 mm = MM, id = UID;

	clear_account(0);
	clear_account(SLOT);
	clear_account(OTHER);
	clear_record(0);
	clear_record(1);
	clear_record(2);
	bpf_map_delete_elem(&mm_index, &mm);
	bpf_map_delete_elem(&payers, &id);
	return 0;
}

static __always_inline bool begin(struct fixture *it)
{
	clear();
	it->state = ledger_state();
	it->account = account_at(SLOT);
	it->other = account_at(OTHER);
	it->record = record_at(RECORD);
	if (!it->state || !it->account || !it->other || !it->record)
		return false;
	it->state->free_records = 0;
	it->state->mm_high_water = 0;
	it->state->account_high_water = 3;
	it->state->kills_wanted = 0;
	it->state->answering_mm = 0;
	it->account->id = UID;
	it->account->flags = ACCOUNT_USED;
	it->account->limit_pages = 1024;
	it->account->barrier_pages = 1000;
	it->account->notice_pages = NO_BOUND_PAGES;
	it->account->near_pages = NO_BOUND_PAGES;
	it->account->private_barrier_pages = NO_BOUND_PAGES;
	it->record->mm = MM;
	it->record->ctx_id = CTX;
	it->record->account = SLOT;
	it->record->state = MM_LIVING;
	return true;
}

/* What a check begins with: a fixture of this name. */
#define BEGIN(it)                                                                                            \
	struct fixture fixture = {}, *it = &fixture;                                                        \
	if (!begin(it))                                                                                     \
		return -__LINE__

#define EXPECT(holds)                                                                                       \
	do {                                                                                                \
		if (!(holds))                                                                               \
			return -__LINE__;                                                                   \
	} while (0)

static __always_inline void correct(struct account *account, __s64 pages)
{
	account->correction_pages = pages;
	account->correction_until_ns = CORRECTED_UNTIL_ASKED;
}

#endif /* BURSAR_SELFTEST_FIXTURE_BPF_H */
