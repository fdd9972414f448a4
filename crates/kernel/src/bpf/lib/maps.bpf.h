/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps that several of our objects share. The ledger object makes and pins them; the others
 * reuse them by file descriptor. Sizes marked (set) are chosen by the loader.
 */
#ifndef BURSAR_MAPS_BPF_H
#define BURSAR_MAPS_BPF_H

#include "compat.bpf.h"
#include "loop.bpf.h"

/* Slot 0 is the template of `default` accounts. Written by: the ledger and the re-sum (sums,
 * decisions), calls (limits), the user half (failcnt). Read by: all, the user half through mmap.
 * Full: a new uid under `default` stays uncounted, accounts_full grows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

/* id → slot of the account that pays for it. Written by the user half and, for `default`, by the
 * ledger. Full: as for accounts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, __u32);
} payers SEC(".maps");

/* mm address → index of its record. Written by the ledger and the re-sum. Full: with mms. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, __u32);
} mm_index SEC(".maps");

/* The records themselves, dense from 0 to state.mm_high_water so that a walk costs what lives and
 * not what could. Full: the re-sum counts the process in walked_pages, records_full grows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u32);
	__type(value, struct mm_record);
} mms SEC(".maps");

/* What happened, for the user half. Full: the event is dropped and events_lost grows; the decision
 * it tells of stands. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);	/* (set), bytes */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ledger_state);
} state_map SEC(".maps");

/* The PSS scans under way, one behind the other. Written by begin_pss_scan and the user half, read by end_pss_scan.
 * Bound: SHARERS each. Full: the rest is not looked at and counts in full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SHARERS * PSS_SCANS);
	__type(key, __u32);
	__type(value, struct sharer);
} sharers SEC(".maps");

/* Ranges of subordinate uids in two halves: one is in force, the other is written by the user half, which
 * then has set_subordinates exchange them. Each is full, sorted and disjoint: what is left over begins after
 * all uids. Read where a uid, a file's or a process's, has no account. Bound: SUBORDINATES a half. Full: the
 * user half leaves ranges out and says so. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u32);
	__type(value, struct subordinate);
} subordinates SEC(".maps");

/* The kernel's number of a control group → four bits of exempt.bpf.h for each hierarchy, as each numbers by itself: whose
 * processes are nobody's. Written by the user half, which follows groups that come and go. Bound: EXEMPT_CGROUPS. Full: the user half leaves groups out and says so. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EXEMPT_CGROUPS);
	__type(key, __u64);
	__type(value, __u32);
} exempt_cgroups SEC(".maps");

/* A program that is spared → a number made of its path. Written by the user half. Bound: SPARED_PROGRAMS. Full: the
 * user half takes away files that were replaced. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPARED_PROGRAMS);
	__type(key, struct program);
	__type(value, __u64);
} spared_programs SEC(".maps");

/* By CPU: the distance from a per-CPU address to its copy. */
struct cpu_offsets {
	__u64 of[MOST_CPUS];
};

/* Written once, by prepare. Read wherever counters are. Bound: MOST_CPUS; of further CPUs nothing is read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_offsets);
} cpu_offsets SEC(".maps");

static __always_inline struct cpu_offsets *cpu_offsets_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpu_offsets, &zero);
}

static __always_inline struct ledger_state *ledger_state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&state_map, &zero);
}

/* Records and accounts that there have ever been, at most: how far a loop over them goes. */
static __always_inline __u32 records_made(void)
{
	struct ledger_state *state = ledger_state();

	return state ? state->mm_high_water : 0;
}

static __always_inline __u32 accounts_made(void)
{
	struct ledger_state *state = ledger_state();

	return state ? state->account_high_water : 0;
}

static __always_inline struct account *account_at(__u32 slot)
{
	return bpf_map_lookup_elem(&accounts, &slot);
}

static __always_inline struct mm_record *record_at(__u32 index)
{
	return bpf_map_lookup_elem(&mms, &index);
}

/* A maximum only ever rises; two CPUs may race, so try until ours is not the larger one. */
static __always_inline void raise_to(__s64 *most, __s64 held)
{
	__s64 was;
	int i;

	for (i = 0; i < 4; i++) {
		was = *(volatile __s64 *)most;
		if (held <= was || __sync_val_compare_and_swap(most, was, held) == was)
			return;
	}
}

const volatile __u32 max_records = 0;	/* entries of mms */
const volatile __u32 max_accounts = 0;	/* entries of accounts */

#endif /* BURSAR_MAPS_BPF_H */
