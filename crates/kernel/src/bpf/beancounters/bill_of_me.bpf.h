/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The bill of the running task, where it has one with certain rows. Every file that is opened on the machine asks, and
 * nearly all who ask have none: so the way to that answer is short, and calls nothing.
 */
#ifndef BURSAR_BILL_OF_ME_BPF_H
#define BURSAR_BILL_OF_ME_BPF_H

#include "row.bpf.h"

enum { KNOWN_SLOTS = 4096 };

/* Index: the uid's low bits. Written and read here. Bound: KNOWN_SLOTS. Of two uids with one index the later is known. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KNOWN_SLOTS);
	__type(key, __u32);
	__type(value, struct known_slot);
} known_slots SEC(".maps");

/* Whatever makes another account pay for a uid, or gives an account rows, raises one of both. */
static __always_inline __u32 generation_of_slots(struct ledger_state *state, struct bill_facts *known)
{
	return (__u32)(*(volatile __u64 *)&state->payers_generation + *(volatile __u64 *)&known->generation);
}

static __always_inline __u32 check_of(__u32 uid, __u32 generation)
{
	return (uid ^ 0x5bd1e995) * 0x9e3779b1 + generation;
}

static __always_inline struct bill *bill_at(__u32 slot)
{
	return slot == NOBODY ? NULL : bpf_map_lookup_elem(&bills, &slot);
}

/* The rows counted on an account's bill. */
static __always_inline __u32 rows_counted(struct bill *bill, __u32 slot)
{
	if (!bill || (bill->state != BILL_MADE && !adopt_template(slot)))
		return 0;
	return bill->counted_rows;
}

static __noinline __u32 find_slot(__u32 uid, __u32 generation)
{
	__u32 index = uid % KNOWN_SLOTS, slot;
	struct bill *bill;
	__u64 known;
	__u32 rows;
	struct known_slot *found = bpf_map_lookup_elem(&known_slots, &index);
	struct ledger_state *state = ledger_state();

	if (!state || !found)
		return NOBODY;
	slot = account_of(state, uid);
	bill = bill_at(slot);
	rows = rows_counted(bill, slot);
	if (bill && bill->state == BILL_BEGUN)	/* it is taking after the template just now: who asks next knows more */
		return slot;
	if (bill && bill->state == BILL_MADE)
		rows = bill->counted_rows;
	*(volatile __u64 *)&found->slot_and_check = (__u64)check_of(uid, generation) << 32 | slot;
	/* Inverted: this uid has no row. */
	known = (__u64)uid << 32 | generation;
	*(volatile __u64 *)&found->uid_and_generation = rows ? known : ~known;
	return slot;
}

/* account_of(), of a uid that was asked about before; NOBODY also where its account has no rows. */
static __always_inline __u32 slot_of_uid(struct ledger_state *state, struct bill_facts *facts, __u32 uid)
{
	__u32 index = uid % KNOWN_SLOTS, generation = generation_of_slots(state, facts);
	struct known_slot *found = bpf_map_lookup_elem(&known_slots, &index);
	__u64 slot, known = (__u64)uid << 32 | generation, was;

	if (!found)
		return NOBODY;
	was = *(volatile __u64 *)&found->uid_and_generation;
	if (was == ~known)
		return NOBODY;
	if (was == known) {
		slot = *(volatile __u64 *)&found->slot_and_check;
		if (slot >> 32 == check_of(uid, generation))
			return slot;
	}
	return find_slot(uid, generation);
}

static __noinline __u32 slot_of_me(void)
{
	return slot_of_task(bpf_get_current_task_btf());
}

static __always_inline struct bill *bill_of_anybody(__u32 rows, __u32 *slot)
{
	struct bill *bill;

	*slot = slot_of_me();
	bill = bill_at(*slot);
	return rows_counted(bill, *slot) & rows ? bill : NULL;
}

/* Whether the task's user pays, unless it has entered an account or is in an exempt control group. */
static __always_inline bool is_plain_user(struct ledger_state *state, struct task_struct *task,
					  const struct cred *cred)
{
	__u32 tgid = task->tgid;

	return !(task->flags & PF_KTHREAD) && tgid != 1 && tgid != state->bursard_tgid && cred->user_ns &&
	       cred->user_ns->level <= 0;
}

/* The bill that pays for what the running task makes, or NULL where none of these rows is counted for it. `rows`: a bit
 * for each. */
static __always_inline struct bill *bill_of_me(struct bill_facts *known, __u32 rows, __u32 *slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ledger_state *state = ledger_state();
	const struct cred *cred = task->real_cred;
	struct bill *bill = NULL;
	__u32 uid;

	if (!state)
		return NULL;
	if (!is_plain_user(state, task, cred))
		return bill_of_anybody(rows, slot);
	uid = cred->uid.val;
	if (uid) {
		*slot = slot_of_uid(state, known, uid);
		bill = bill_at(*slot);
	}
	if (rows_counted(bill, *slot) & rows)
		return state->entered || state->exempts_cgroups ? bill_of_anybody(rows, slot) : bill;
	return state->entered && (known->entered_rows & rows) ? bill_of_anybody(rows, slot) : NULL;
}

#endif /* BURSAR_BILL_OF_ME_BPF_H */
