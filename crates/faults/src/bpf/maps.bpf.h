/* SPDX-License-Identifier: GPL-2.0-only */
/* What the watch's programs know: knobs of its start, switches while it goes on, counts. */
#ifndef BURSAR_FAULTS_MAPS_BPF_H
#define BURSAR_FAULTS_MAPS_BPF_H

#include "types.bpf.h"

const volatile __u32 has_targets = 0;	/* look for tasks of `targets` */
const volatile __u32 follow_children = 0; /* children of watched processes are watched too */
const volatile __u64 max_records = 0;	/* faults recorded whole; 0: none */
const volatile __u32 own_tgid = 0;	/* who watches is not watched */

/* index 0 of both stands for those that found no room */
struct watch_state state = { .processes = 1, .slots = 1 };
struct switches switches SEC(".data.switches"); /* apart, because it is written as a whole */
struct slot slots[MAX_SLOTS];
struct process processes[MAX_PROCESSES];
/* BTF has types only that something uses */
struct fault_record dummy_record;
struct unbooked dummy_unbooked;

/* thread → what we know of it. Written by itself, and by the user half once. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} threads SEC(".maps");

/*
 * CPU → what it has seen; written in faults and when threads change, which nothing interrupts there. Not a
 * per-CPU map, whose values begin anywhere in a cache line and are found through another: a storm that
 * clears pages leaves none of them near.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* for its alignment */
	__uint(max_entries, 1); /* the user half says how many CPUs there may be */
	__type(key, __u32);
	__type(value, struct seen);
} seen_on SEC(".maps");

/* Which processes and users; written by the user half before anything is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, struct target);
	__type(value, __u32);
} targets SEC(".maps");

/* process → index into `processes`; when full its faults are booked to index 0 and counted lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, struct process_key);
	__type(value, __u32);
} process_index SEC(".maps");

/* mapping → index into `slots` and `slot_counts`; when full: slot 0 (MAPPING_OVERFLOW). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SLOTS);
	__type(key, struct slot_key);
	__type(value, __u32);
} slot_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct counts);
} slot_counts SEC(".maps");

/* where in the program; only of the faults that the second hook sees (one in so many). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SITES);
	__type(key, struct site_key);
	__type(value, __u64);
} sites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct histograms);
} latencies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

#endif /* BURSAR_FAULTS_MAPS_BPF_H */
