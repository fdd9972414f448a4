/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rows of an account: which are charged, adding to one, telling of a refusal. Nobody is charged who has no limit on a
 * row: then nothing is looked up beyond his account.
 */
#ifndef BURSAR_ROW_BPF_H
#define BURSAR_ROW_BPF_H

#include "event.bpf.h"
#include "beancounters.h"
#include "login.bpf.h"

/* Index: slot of the account. Written by set_bill and here; read by the user half through mmap. Slot 0:
 * the template of `default`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u32);
	__type(value, struct bill);
} bills SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bill_facts);
} bill_facts SEC(".maps");

static __always_inline struct row *row_of(__u32 slot, __u32 which)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);

	if (!bill || bill->state != BILL_MADE)
		return NULL;
	barrier_var(which);	/* what is compared is what is used: verifiers before 6.18 */
	if (which >= BILL_ROWS)
		return NULL;
	return &bill->rows[which];
}

/* Whether the bill is now the caller's to write. */
static __always_inline bool begin_bill(struct bill *bill)
{
	return __sync_val_compare_and_swap(&bill->state, BILL_NONE, BILL_BEGUN) == BILL_NONE;
}

static __always_inline struct bill_facts *facts(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bill_facts, &zero);
}

/* An object's address as a number: its distance from something that stays where it is. That is all that verifiers let
 * be computed with an address; number_of() is a call of a helper, and ten times as slow. */
static __always_inline __u64 number_beside(const void *object, const struct bill_facts *known)
{
	__u64 number = (__u64)object;

	asm volatile("%0 -= %1" : "+r"(number) : "r"(known));
	return number;
}

static __always_inline void count_unrecorded(void)
{
	struct bill_facts *known = facts();

	if (known)
		__sync_fetch_and_add(&known->unrecorded, 1);
}

/* An account of `default` takes after the template when it is first charged. Who comes while another copies
 * goes uncharged, as an object does that there was before: the next look finds it. */
static __noinline int adopt_template(__u32 slot)
{
	struct account *account = account_at(slot);
	__u32 zero = 0;
	struct bill *template, *own;
	int i;

	if (!account || !(account->flags & ACCOUNT_DEFAULT))
		return 0;
	template = bpf_map_lookup_elem(&bills, &zero);
	own = bpf_map_lookup_elem(&bills, &slot);
	if (!template || template->state != BILL_MADE || !own || !begin_bill(own))
		return 0;
	for (i = 0; i < BILL_ROWS; i++)
		own->rows[i] = template->rows[i];
	own->counted_rows = template->counted_rows;
	own->scanned_bytes = 0;
	own->account_id = account->id;
	/* A full barrier: who finds it made finds its rows. */
	__sync_lock_test_and_set(&own->state, BILL_MADE);
	return 1;
}

/* The account's row, if it is charged at all. */
static __always_inline bool counts(const struct bill *bill, __u32 which)
{
	return bill->counted_rows & (1U << which);
}

static __always_inline struct row *counted_row(__u32 slot, __u32 which)
{
	struct row *row;

	if (slot == NOBODY)
		return NULL;
	row = row_of(slot, which);
	if (!row && adopt_template(slot))
		row = row_of(slot, which);
	return row && row->counted ? row : NULL;
}

static __always_inline bool is_forgotten_now(const struct row *row)
{
	return !*(volatile const __u32 *)&row->counted;
}

/* Before the records of a row are looked for to be forgotten, or of all rows (BILL_ROWS): whoever makes one from now on
 * finds its row not counted, and takes it back. A full barrier: either it finds that, or the walk finds the record. */
static __always_inline void stop_counting(__u32 slot, __u32 which)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);
	__u32 i;

	if (!bill)
		return;
	for (i = 0; i < BILL_ROWS; i++) {
		if (which != BILL_ROWS && which != i)
			continue;
		__sync_lock_test_and_set(&bill->rows[i].counted, 0);
		__sync_fetch_and_and(&bill->counted_rows, ~(1U << i));
	}
}

/* The account of a task: the one it has entered, else its user's. NOBODY: root, bursard, kernel threads and tasks without
 * an account, which are never refused anything. NOBODY as well while its membership is not known (membership.bpf.h):
 * then nothing is charged, and the next lookup asks again. */
static __always_inline __u32 slot_of_task(struct task_struct *task)
{
	struct ledger_state *state = ledger_state();
	struct payer payer = {};

	if (!state || !task || is_beyond_refusal(state, task) ||
	    payer_of_owner(state, task, &payer) != OWNER_FOUND || (!payer.entered && !payer.uid))
		return NOBODY;
	return account_of_payer(state, &payer);
}

/* `asks`: the running task does; where a packet does nobody is named. */
static __noinline int tell_bill(__u32 slot, __u32 which, __s64 amount, bool asks)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	struct row *row = row_of(slot, which);
	struct event *event;

	if (!row || !account || !state)
		return 0;
	if (!row->observed)
		__sync_fetch_and_add(&row->failcnt, 1);
	event = begin_row_refusal(state, account, slot, which, &row->told_ns, &row->untold);
	if (!event)
		return 0;
	event->observed = row->observed;
	if (asks)
		name_asker(event, account);
	event->held_pages = row->held;
	event->limit_pages = row->limit;
	event->barrier_pages = row->barrier;
	event->request_pages = amount;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Adds to held if the sum stays within the barrier. Add first, look then, take back if need be: the
 * barrier is never passed, at worst two who race at its edge are both refused. What does not fit beforehand
 * is not added: others would be refused for what is asked in vain. */
static __always_inline bool add_within(struct row *row, __s64 amount, __s64 top)
{
	__s64 held;

	if (*(volatile __s64 *)&row->held + amount > top)
		return false;
	held = __sync_fetch_and_add(&row->held, amount) + amount;
	if (held > top) {
		__sync_fetch_and_add(&row->held, -amount);
		return false;
	}
	raise_to(&row->maxheld, held);
	return true;
}

/* Whatever the barrier is. */
static __always_inline void add_beyond(struct row *row, __s64 amount)
{
	raise_to(&row->maxheld, __sync_fetch_and_add(&row->held, amount) + amount);
}

#endif /* BURSAR_ROW_BPF_H */
