// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who waits for memory, how long, and whose demand it was that woke kswapd (S4's table counts stalls;
 * this is their time). kswapd, kcompactd and khugepaged are no victims: PSI counts their own work as
 * stall, which is why PSI is only a second opinion.
 *
 * Hooks:   vmscan:mm_vmscan_direct_reclaim_begin/end, compaction:mm_compaction_begin/end,
 *          vmscan:mm_vmscan_wakeup_kswapd, vmscan:mm_vmscan_kswapd_wake. Slow paths all of them.
 * Context: process context, preemptible; begin and end nest correctly within a task.
 * Cost:    two hash operations a stall of at least tens of microseconds.
 * Absent:  a kernel without one of the events loses this object only; counts from /proc/vmstat remain.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "userns.bpf.h"
#include "stall.h"

enum {
	PF_KTHREAD = 0x00200000, /* include/linux/sched.h, a macro */
};

#define SPAN_NS 10000000000ULL

enum wait {
	WAIT_RECLAIM,
	WAIT_COMPACTION,
};

struct wait_key {
	__u32 pid;
	__u32 wait;
};

/* When a task began to wait. Full: that stall is not timed, tasks_full grows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_TASKS);
	__type(key, struct wait_key);
	__type(value, __u64);
} waits SEC(".maps");

/* uid → its row. Read by the user half. Full: booked on STALL_OTHERS, users_full grows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_USERS);
	__type(key, __u32);
	__type(value, struct stall_row);
} users SEC(".maps");

/* All of them together. Read by the user half, through mmap. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stall_total);
} totals SEC(".maps");

/* When a node's kswapd was woken; 0 when it has come since. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STALL_NODES);
	__type(key, __u32);
	__type(value, __u64);
} woken SEC(".maps");

/* Not 0: the user half sleeps and wants to be woken by the next event; then 0 again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} listening SEC(".maps");

/* What wakes it: the time. Full: it has not come for the last one yet, nothing is lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);	/* (set) to a page, bytes */
} wakeups SEC(".maps");

static __always_inline void wake_listener(__u64 now)
{
	__u32 zero = 0, *on = bpf_map_lookup_elem(&listening, &zero);

	if (!on || !*on)
		return;
	*on = 0;
	bpf_ringbuf_output(&wakeups, &now, sizeof(now), 0);
}

static __always_inline struct stall_total *total(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline bool is_kernel_thread(void)
{
	struct task_struct *me = bpf_get_current_task_btf();

	return me->flags & PF_KTHREAD;
}

/* Whom the running task belongs to: its real uid, inside user namespaces who answers. Who pays knows
 * limits.toml, too (payer_in()); no account is needed here. */
static __always_inline __u32 current_payer(void)
{
	struct task_struct *me = bpf_get_current_task_btf();
	const struct cred *cred = me->real_cred;
	struct userns_owner owner = {};

	if (!cred)
		return STALL_OTHERS;
	owner.uid = cred->uid.val;
	owner.ns = (__u64)cred->user_ns;
	if (!owner.ns || !cred->user_ns->level)
		return owner.uid;
	find_userns_owner(&owner);
	return owner.is_shifted ? 0 : owner.uid;
}

static __always_inline struct stall_row *row_of(struct stall_total *sum, __u32 uid)
{
	struct stall_row *row = bpf_map_lookup_elem(&users, &uid);
	struct stall_row fresh = {};
	__u32 others = STALL_OTHERS;

	if (row)
		return row;
	/* another CPU may have been first: then its row is found below */
	bpf_map_update_elem(&users, &uid, &fresh, BPF_NOEXIST);
	row = bpf_map_lookup_elem(&users, &uid);
	if (row)
		return row;
	__sync_fetch_and_add(&sum->users_full, 1);
	return bpf_map_lookup_elem(&users, &others);
}

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u64 us = ns / 1000;
	__u32 bucket = 0;
	int i;

	for (i = 0; i < STALL_BUCKETS - 1 && us; i++) {
		us >>= 1;
		bucket++;
	}
	return bucket & (STALL_BUCKETS - 1);
}

static __always_inline void book(struct stall_row *row, __u32 wait, __u64 ns)
{
	if (wait == WAIT_RECLAIM) {
		__sync_fetch_and_add(&row->reclaims, 1);
		__sync_fetch_and_add(&row->reclaim_ns, ns);
	} else {
		__sync_fetch_and_add(&row->compactions, 1);
		__sync_fetch_and_add(&row->compaction_ns, ns);
	}
	/* two at once may lose the longer one; it is a hint */
	if (ns > row->longest_ns)
		row->longest_ns = ns;
}

static __always_inline void begin_wait(__u32 wait)
{
	struct wait_key key = { .pid = (__u32)bpf_get_current_pid_tgid(), .wait = wait };
	__u64 now = bpf_ktime_get_ns();
	struct stall_total *sum = total();

	if (is_kernel_thread() || !sum)
		return;
	if (bpf_map_update_elem(&waits, &key, &now, BPF_ANY))
		__sync_fetch_and_add(&sum->tasks_full, 1);
	wake_listener(now);
}

static __always_inline void end_wait(__u32 wait)
{
	struct wait_key key = { .pid = (__u32)bpf_get_current_pid_tgid(), .wait = wait };
	__u64 *began = bpf_map_lookup_elem(&waits, &key);
	struct stall_total *sum = total();
	struct stall_row *row;
	__u64 ns;

	if (!began || !sum)
		return;
	ns = bpf_ktime_get_ns() - *began;
	bpf_map_delete_elem(&waits, &key);
	book(&sum->all, wait, ns);
	if (wait == WAIT_RECLAIM)
		__sync_fetch_and_add(&sum->reclaim_log2_us[bucket_of(ns)], 1);
	row = row_of(sum, current_payer());
	if (row)
		book(row, wait, ns);
}

/* Fires only while kswapd sleeps: who is counted here is who emptied the zone. */
static __always_inline void wake_kswapd(__u32 node)
{
	__u64 *asked = bpf_map_lookup_elem(&woken, &node), now = bpf_ktime_get_ns();
	struct stall_total *sum = total();
	struct stall_row *row;

	if (!sum)
		return;
	if (asked && !*asked)
		*asked = now;
	wake_listener(now);
	__sync_fetch_and_add(&sum->all.wakeups, 1);
	if (is_kernel_thread())
		return;
	row = row_of(sum, current_payer());
	if (row)
		__sync_fetch_and_add(&row->wakeups, 1);
}

static __always_inline void kswapd_comes(__u32 node)
{
	__u64 *asked = bpf_map_lookup_elem(&woken, &node), now = bpf_ktime_get_ns(), ns, span;
	struct stall_total *sum = total();
	__u32 slot;

	if (!asked || !*asked || !sum)
		return;
	ns = now - *asked;
	*asked = 0;
	__sync_fetch_and_add(&sum->reactions, 1);
	__sync_fetch_and_add(&sum->reaction_log2_us[bucket_of(ns)], 1);
	span = now / SPAN_NS;
	slot = span & (STALL_SPANS - 1);
	if (sum->span[slot] != span) {
		sum->span[slot] = span;
		sum->slowest_ns[slot] = 0;
	}
	if (ns > sum->slowest_ns[slot])
		sum->slowest_ns[slot] = ns;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(on_reclaim_begin)
{
	begin_wait(WAIT_RECLAIM);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(on_reclaim_end)
{
	end_wait(WAIT_RECLAIM);
	return 0;
}

SEC("tp_btf/mm_compaction_begin")
int BPF_PROG(on_compaction_begin)
{
	begin_wait(WAIT_COMPACTION);
	return 0;
}

SEC("tp_btf/mm_compaction_end")
int BPF_PROG(on_compaction_end)
{
	end_wait(WAIT_COMPACTION);
	return 0;
}

SEC("tp_btf/mm_vmscan_wakeup_kswapd")
int BPF_PROG(on_wakeup_kswapd, int node)
{
	wake_kswapd(node);
	return 0;
}

SEC("tp_btf/mm_vmscan_kswapd_wake")
int BPF_PROG(on_kswapd_wake, int node)
{
	kswapd_comes(node);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
