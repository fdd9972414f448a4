/* SPDX-License-Identifier: GPL-2.0-only */
/* How long a fault took, and single faults recorded whole. */
#ifndef BURSAR_FAULTS_LATENCY_BPF_H
#define BURSAR_FAULTS_LATENCY_BPF_H

#include "maps.bpf.h"

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 log = 0;
	__u64 rest = ns;

	if (ns < 4)
		return ns;
	if (rest >> 32) { log += 32; rest >>= 32; }
	if (rest >> 16) { log += 16; rest >>= 16; }
	if (rest >> 8) { log += 8; rest >>= 8; }
	if (rest >> 4) { log += 4; rest >>= 4; }
	if (rest >> 2) { log += 2; rest >>= 2; }
	if (rest >> 1)
		log += 1;
	/* 4 for each power of two: the two bits below the highest choose */
	return (log << 2 | ((ns >> (log - 2)) & 3)) & (BUCKETS - 1);
}

static __always_inline void time_it(__u64 ns, bool is_major)
{
	__u32 zero = 0, bucket = bucket_of(ns);
	struct histograms *all = bpf_map_lookup_elem(&latencies, &zero);

	if (!all || bucket >= BUCKETS)
		return;
	if (is_major) {
		all->major[bucket]++;
		all->major_ns += ns;
		if (ns > all->major_max_ns)
			all->major_max_ns = ns;
	} else {
		all->minor[bucket]++;
		all->minor_ns += ns;
		if (ns > all->minor_max_ns)
			all->minor_max_ns = ns;
	}
}

/* Whether the page was there and could not be written: copy-on-write, or clean since a writeback. */
static __always_inline void note_cause(__u32 slot, bool is_protected)
{
	struct counts *counts = bpf_map_lookup_elem(&slot_counts, &slot);

	if (!counts)
		return;
	__sync_fetch_and_add(&counts->timed, 1);
	if (is_protected)
		__sync_fetch_and_add(&counts->timed_protected, 1);
}

static __always_inline void note_site(__u32 slot, __u64 instruction)
{
	struct site_key key = { .instruction = instruction, .slot = slot };
	__u64 one = 1, *count = bpf_map_lookup_elem(&sites, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&sites, &key, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&state.sites_lost, 1);
}

static __always_inline void record(struct bpf_perf_event_data *ctx, struct task_struct *task,
				   __u32 slot, __u64 now, __u64 latency, bool is_major)
{
	struct fault_record *record;

	if (__sync_fetch_and_add(&state.records, 1) >= max_records)
		return;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		__sync_fetch_and_add(&state.records_lost, 1);
		return;
	}
	record->time_ns = now;
	record->latency_ns = latency;
	record->address = ctx->addr;
	record->instruction = ctx->regs.ip;
	record->slot = slot;
	record->tgid = task->tgid;
	record->tid = task->pid;
	record->is_major = is_major;
	record->is_kernel = is_kernels(&ctx->regs);
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	record->stack_bytes = bpf_get_stack(ctx, record->stack, sizeof(record->stack),
					    BPF_F_USER_STACK);
	bpf_ringbuf_submit(record, 0);
}

#endif /* BURSAR_FAULTS_LATENCY_BPF_H */
