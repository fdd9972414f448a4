/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Charging a row of an account for an object, and giving the charge back (S5 2.2).
 */
#ifndef BURSAR_CHARGE_ROW_BPF_H
#define BURSAR_CHARGE_ROW_BPF_H

#include "row.bpf.h"

/* Index: group_of(). Written and read here, by whoever has an entry's key at KEY_BEING_WRITTEN. Bound: groups for
 * ledger.max_objects, two objects each. A group is full: further_charges. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* (set) */
	__type(key, __u32);
	__type(value, struct charge_group);
} charges SEC(".maps");

/* Key: key_of(). Those that found no room in their group. Bound: a quarter of ledger.max_objects. Full: the object is
 * granted and not counted, and bill_facts.unrecorded grows: who has filled it has at most his own barriers, and is no
 * reason to refuse others. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct charge);
} further_charges SEC(".maps");

const volatile __u32 charge_groups;	/* entries of charges */

/* Key: struct file *, through which locks were taken. As charges, and apart from them because these are
 * counted anew. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct charge);
} locked_files SEC(".maps");

enum {
	KEY_BEING_WRITTEN = 1,	/* by one program, which nobody waits for */
	ROW_BITS = 4,
	AMOUNT_BITS = 28,	/* who has more is in further_charges */
};

#define SPREAD 0x9e3779b97f4a7c15ULL	/* 2^64 divided by the golden ratio */

/* What was charged goes back to who paid, once. To be called before its record is deleted: a delete may
 * fail where it interrupts another (gate.bpf.c end_birth()). */
static __always_inline void refund(struct charge *charge)
{
	__s64 amount = __sync_lock_test_and_set(&charge->amount, 0);
	struct row *row = row_of(charge->slot, charge->row);

	if (row && amount)
		__sync_fetch_and_add(&row->held, -amount);
}

/* An object is charged for at most once a row: its number, and the row in the bits that the alignment of what the
 * kernel allocates leaves. A socket is one or the other of two rows, and is looked for once. */
static __always_inline __u64 key_of(__u64 object, __u32 which)
{
	return object + (which == BILL_NUMOTHERSOCK ? BILL_NUMTCPSOCK : which);
}

/* Rows whose objects have records here. */
enum { RECORDED_ROWS = 1U << BILL_NUMPROC | 1U << BILL_NUMFILE | 1U << BILL_NUMTCPSOCK | 1U << BILL_NUMOTHERSOCK |
		       1U << BILL_SHMPAGES };

_Static_assert(RECORDED_ROWS < 1U << 8, "rows with records fit into the bits of key_of()");

static __always_inline bool is_of(__u64 key, __u64 object)
{
	return key - object < 8;
}

static __always_inline __u64 packed_charge(__u32 slot, __u32 which, __s64 amount)
{
	return (__u64)slot << 32 | (__u64)which << AMOUNT_BITS | amount;
}

static __always_inline struct charge unpacked_charge(__u64 packed)
{
	return (struct charge){
		.slot = packed >> 32,
		.row = packed >> AMOUNT_BITS & ((1 << ROW_BITS) - 1),
		.amount = packed & ((1 << AMOUNT_BITS) - 1),
	};
}

static __always_inline struct charge_group *group_of(__u64 object)
{
	__u32 index = (object * SPREAD >> 32) * charge_groups >> 32;

	return bpf_map_lookup_elem(&charges, &index);
}

static __always_inline __u64 key_at(struct charge_group *group, int i)
{
	return *(volatile __u64 *)&group->keys[i];
}

/* Nearly always, where few have a limit. */
static __always_inline bool is_empty(struct charge_group *group)
{
	__u64 any = group->elsewhere;
	int i;

	for (i = 0; i < CHARGES_TOGETHER; i++)
		any |= key_at(group, i);
	return !any;
}

/* Of several who end one charge one gives it back. */
static __always_inline int give_back(struct charge_group *group, int i, __u64 key)
{
	struct charge charge;

	if (__sync_val_compare_and_swap(&group->keys[i], key, KEY_BEING_WRITTEN) != key)
		return 0;
	charge = unpacked_charge(group->charges[i]);
	refund(&charge);
	*(volatile __u64 *)&group->keys[i] = 0;
	return 1;
}

static __noinline int give_back_further(struct charge_group *group, __u64 key)
{
	struct charge *charge = bpf_map_lookup_elem(&further_charges, &key);

	if (!charge)
		return 0;
	refund(charge);
	if (!bpf_map_delete_elem(&further_charges, &key) && group)
		__sync_fetch_and_add(&group->elsewhere, -1);
	return 1;
}

/* Returns 1 where something was given back. */
static __always_inline int uncharge_now(__u64 object, __u32 which)
{
	struct charge_group *group = group_of(object);
	__u64 key = key_of(object, which);
	int i;

	if (!group || is_empty(group))
		return 0;
	for (i = 0; i < CHARGES_TOGETHER; i++)
		if (key_at(group, i) == key)
			return give_back(group, i, key);
	return group->elsewhere ? give_back_further(group, key) : 0;
}

static __noinline int uncharge(__u64 object, __u32 which)
{
	return uncharge_now(object, which);
}

/* The file's charges of all rows. */
static __always_inline void uncharge_file(__u64 file)
{
	struct charge_group *group = group_of(file);
	__u64 key;
	int i;

	if (!group || is_empty(group))
		return;
	for (i = 0; i < CHARGES_TOGETHER; i++) {
		key = key_at(group, i);
		if (is_of(key, file))
			give_back(group, i, key);
	}
	if (group->elsewhere) {
		give_back_further(group, key_of(file, BILL_NUMFILE));
		give_back_further(group, key_of(file, BILL_SHMPAGES));
	}
}

/* Who pays for an object on that row, or NOBODY. */
static __noinline __u32 slot_charged(__u64 object, __u32 which)
{
	struct charge_group *group = group_of(object);
	__u64 key = key_of(object, which);
	struct charge charge = {}, *further;
	int i;

	if (!group)
		return NOBODY;
	for (i = 0; i < CHARGES_TOGETHER; i++)
		if (key_at(group, i) == key) {
			charge = unpacked_charge(group->charges[i]);
			return charge.row == which ? charge.slot : NOBODY;
		}
	further = group->elsewhere ? bpf_map_lookup_elem(&further_charges, &key) : NULL;
	return further && further->row == which ? further->slot : NOBODY;
}

/* Each login has so much beyond what it found: room for sshd, a shell and a few commands. All together have no more
 * than LOGINS_AT_ONCE do. */
enum { LOGIN_PROCESSES_EACH = 8, LOGIN_FILES_EACH = 64 };

static __always_inline __s64 top_of_login(struct login *login, const struct row *row, __u32 which)
{
	__s64 each = which == BILL_NUMPROC ? LOGIN_PROCESSES_EACH : LOGIN_FILES_EACH, top, most;
	__s64 *held = &login->held[which == BILL_NUMPROC ? 0 : 1];

	most = row->barrier + each * LOGINS_AT_ONCE;
	if (!*held)
		*held = *(volatile __s64 *)&row->held;
	top = (*held > row->barrier ? *held : row->barrier) + each;
	return top < most ? top : most;
}

/* Who may have none has none. */
static __noinline bool add_for_login(struct row *row, __u32 which, __s64 amount)
{
	struct login *login;

	if (!row || !row->barrier || (which != BILL_NUMPROC && which != BILL_NUMFILE))
		return false;
	login = login_of_me();
	return login && add_within(row, amount, top_of_login(login, row, which));
}

/* Two who charge for what is there already may have recorded it both: one record stays. */
static __noinline int drop_second(__u64 object, __u32 which)
{
	struct charge_group *group = group_of(object);
	__u64 key = key_of(object, which);
	bool is_there = false;
	int i;

	if (!group)
		return 0;
	for (i = 0; i < CHARGES_TOGETHER; i++) {
		if (key_at(group, i) != key)
			continue;
		if (is_there)
			give_back(group, i, key);
		is_there = true;
	}
	if (is_there && group->elsewhere)
		give_back_further(group, key);
	return 0;
}

static __noinline int record_further(struct charge_group *group, __u64 key, struct charge *charge)
{
	__sync_fetch_and_add(&group->elsewhere, 1);
	if (!bpf_map_update_elem(&further_charges, &key, charge, BPF_NOEXIST))
		return 1;
	__sync_fetch_and_add(&group->elsewhere, -1);
	return 0;
}

/* Remembers who pays for an object; 0 where there is a record already, or no room. */
static __always_inline int record_charge(__u64 object, __u32 which, __u32 slot, __s64 amount)
{
	struct charge charge = { .amount = amount, .slot = slot, .row = which };
	struct charge_group *group = group_of(object);
	__u64 key = key_of(object, which);
	int i;

	if (!group)
		return 0;
	for (i = 0; i < CHARGES_TOGETHER; i++)
		if (key_at(group, i) == key)
			return 0;
	if (group->elsewhere && bpf_map_lookup_elem(&further_charges, &key))
		return 0;
	for (i = 0; i < CHARGES_TOGETHER && !(amount >> AMOUNT_BITS); i++) {
		if (key_at(group, i) ||
		    __sync_val_compare_and_swap(&group->keys[i], 0, KEY_BEING_WRITTEN))
			continue;
		group->charges[i] = packed_charge(slot, which, amount);
		__sync_lock_test_and_set(&group->keys[i], key);
		return 1;
	}
	return record_further(group, key, &charge);
}

/* An earlier object at this address may have left its record: then that is given back first. Returns 1: whether there
 * was room or not the object is granted. */
static __noinline int record_anew(struct row *row, __u32 slot, __u32 which, __u64 object, __s64 amount)
{
	if (uncharge(object, which) && record_charge(object, which, slot, amount))
		return 1;
	if (row)
		__sync_fetch_and_add(&row->held, -amount);
	count_unrecorded();
	return 1;
}

/* After a record was made: the walk that forgets the row's records may have been past this one (stop_counting()). */
static __always_inline void drop_if_forgotten(const struct row *row, __u64 object, __u32 which)
{
	if (is_forgotten_now(row))
		uncharge(object, which);
}

/* Returns 1 where the object is granted. `forced`: it is there already. */
static __noinline int charge(__u32 slot, __u32 which, __u64 object, __s64 amount, bool forced)
{
	struct row *row = counted_row(slot, which);

	if (!row || amount <= 0)
		return 1;
	if (forced) {
		if (record_charge(object, which, slot, amount)) {
			add_beyond(row, amount);
			drop_second(object, which);
			drop_if_forgotten(row, object, which);
		}
		return 1;
	}
	if (!add_within(row, amount, row->barrier) &&
	    !(uncharge(object, which) && add_within(row, amount, row->barrier)) &&
	    !add_for_login(row, which, amount)) {
		tell_bill(slot, which, amount, true);
		if (!row->observed)
			return 0;
		add_beyond(row, amount);
	}
	if (!record_charge(object, which, slot, amount))
		record_anew(row, slot, which, object, amount);
	drop_if_forgotten(row, object, which);
	return 1;
}

/* The same for one piece, where the bill is known and the row counted: what nearly always happens is inline. */
static __always_inline int charge_piece(struct bill *bill, __u32 slot, __u32 which, __u64 object)
{
	struct row *row = &bill->rows[which];

	if (!add_within(row, 1, row->barrier))
		return charge(slot, which, object, 1, false);
	if (!record_charge(object, which, slot, 1))
		record_anew(row, slot, which, object, 1);
	drop_if_forgotten(row, object, which);
	return 1;
}

/* Whether so much more would be granted; a refusal is counted. */
static __noinline int has_left(__u32 slot, __u32 which, __s64 amount, bool asks)
{
	struct row *row = counted_row(slot, which);

	if (!row || *(volatile __s64 *)&row->held + amount <= row->barrier)
		return 1;
	tell_bill(slot, which, amount, asks);
	return row->observed;
}

#endif /* BURSAR_CHARGE_ROW_BPF_H */
