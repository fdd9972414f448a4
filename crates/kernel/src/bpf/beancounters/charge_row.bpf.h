/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Charging a row of an account for an object, and giving the charge back (S5 2.2).
 */
#ifndef BURSAR_CHARGE_ROW_BPF_H
#define BURSAR_CHARGE_ROW_BPF_H

#include "row.bpf.h"

/* Key: key_of(). Written and read here. Bound: ledger.max_objects. Full: the object is granted and not
 * counted, and bill_facts.unrecorded grows: who has filled it has at most his own barriers, and is no
 * reason to refuse others. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct charge);
} charges SEC(".maps");

/* Key: struct file *, through which locks were taken. As charges, and apart from them because these are
 * counted anew. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct charge);
} locked_files SEC(".maps");

/* What was charged goes back to who paid, once. To be called before its record is deleted: a delete may
 * fail where it interrupts another (gate.bpf.c end_birth()). */
static __always_inline void refund(struct charge *charge)
{
	__s64 amount = __sync_lock_test_and_set(&charge->amount, 0);
	struct row *row = row_of(charge->slot, charge->row);

	if (row && amount)
		__sync_fetch_and_add(&row->held, -amount);
}

/* An object is charged for at most once a row: its address, and the row in the bits that the alignment of
 * what the kernel allocates leaves; added, for verifiers let nothing else be done to an address. A socket
 * is one or the other of two rows, and is looked for once. */
static __always_inline __u64 key_of(__u64 object, __u32 which)
{
	return object + (which == BILL_NUMOTHERSOCK ? BILL_NUMTCPSOCK : which);
}

_Static_assert((BILL_NUMPROC | BILL_NUMFILE | BILL_NUMTCPSOCK | BILL_NUMPTY | BILL_SHMPAGES) < 8,
	       "rows with records fit into the bits of key_of()");

/* One more or fewer of what few objects have. */
static __always_inline void note_record(__u32 which, __s64 more)
{
	bool is_counted = which == BILL_NUMPTY || which == BILL_SHMPAGES;
	struct bill_facts *known = is_counted ? facts() : NULL;

	if (known)
		__sync_fetch_and_add(which == BILL_NUMPTY ? &known->terminals : &known->segments,
				     more);
}

/* Returns 1 where something was given back. */
static __noinline int uncharge(__u64 object, __u32 which)
{
	__u64 key = key_of(object, which);
	struct charge *charge = bpf_map_lookup_elem(&charges, &key);

	if (!charge)
		return 0;
	refund(charge);
	if (!bpf_map_delete_elem(&charges, &key))
		note_record(which, -1);
	return 1;
}

/* Each login has so much beyond what it found: room for sshd, a shell and a few commands. All together have no more
 * than four do. */
enum { LOGIN_PROCESSES_EACH = 8, LOGIN_FILES_EACH = 64, LOGINS_AT_ONCE = 4 };

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

/* Remembers who pays for an object; 0 where there is a record already, or no room. */
static __always_inline int record_charge(__u64 *key, struct charge *charge)
{
	if (bpf_map_update_elem(&charges, key, charge, BPF_NOEXIST))
		return 0;
	note_record(charge->row, 1);
	return 1;
}

/* Returns 1 where the object is granted. `forced`: it is there already. */
static __noinline int charge(__u32 slot, __u32 which, __u64 object, __s64 amount, bool forced)
{
	__u64 key = key_of(object, which);
	struct charge charge = { .amount = amount, .slot = slot, .row = which };
	struct row *row = counted_row(slot, which);

	if (!row || amount <= 0)
		return 1;
	if (forced) {
		if (record_charge(&key, &charge))
			add_beyond(row, amount);
		return 1;
	}
	/* An earlier object at this address may have left its record: then that is given back first. */
	if (!add_within(row, amount, row->barrier) &&
	    !(uncharge(object, which) && add_within(row, amount, row->barrier)) &&
	    !add_for_login(row, which, amount)) {
		tell_bill(slot, which, amount, true);
		if (!row->observed)
			return 0;
		add_beyond(row, amount);
	}
	if (record_charge(&key, &charge) || (uncharge(object, which) && record_charge(&key, &charge)))
		return 1;
	__sync_fetch_and_add(&row->held, -amount);
	count_unrecorded();
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
