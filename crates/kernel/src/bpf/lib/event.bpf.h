/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Events that are made where they are told, in the ring buffer itself. (A decision makes its own in
 * its notes: decision.bpf.h begin_event().)
 */
#ifndef BURSAR_EVENT_BPF_H
#define BURSAR_EVENT_BPF_H

#include "clock.bpf.h"
#include "payer.bpf.h"

/* Nothing but these in it from now on. */
static __always_inline void make_event(struct event *event, __u32 kind, __u32 trigger, __u64 now)
{
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->trigger = trigger;
	event->time_ns = now;
}

/* An event with nothing but these in it, to be submitted; NULL, and counted, where there is no room. */
static __always_inline struct event *reserve_event(struct ledger_state *state, __u32 kind,
						   __u32 trigger, __u64 now)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&state->events_lost, 1);
		return NULL;
	}
	make_event(event, kind, trigger, now);
	return event;
}

/* Which process the event is about, with what tells it from a later one of the same number. */
static __always_inline void describe_victim(struct event *event, __u64 task)
{
	__u64 leader = (__u64)PROBE_READ(task, struct task_struct, group_leader);

	event->pid = PROBE_READ(task, struct task_struct, tgid);
	event->start_boottime_ns = PROBE_READ(leader, struct task_struct, start_boottime);
	event->pidfs_number = pidfs_number(leader);
	event->namespace_pid = namespace_pid(leader);
	bpf_probe_read_kernel(&event->comm, COMM_LEN, &((struct task_struct *)task)->comm);
}

/* It was the running task that asked, if the account is its user's. Of another one (who connects to the account's socket,
 * or writes to its file) nothing is told: neither is the account's user to read his programs' names, nor he what is held. */
static __always_inline void name_asker(struct event *event, const struct account *account)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct payer payer = {};

	payer_of_task(me, &payer);
	if (!(account->flags & ACCOUNT_SHARED) && payer.uid != account->number)
		return;
	event->pid = me->tgid;
	event->uid = payer.uid;
	bpf_probe_read_kernel(&event->comm, COMM_LEN, &me->comm);
	event->start_boottime_ns = me->group_leader->start_boottime;
}

/* Whether `pause` has gone by since *told; if so it is now, and ours to tell. */
static __always_inline bool may_tell(__u64 *told, __u64 pause, __u64 now)
{
	__u64 was = *(volatile __u64 *)told;

	return (!was || ns_since(was, now) >= pause) && __sync_val_compare_and_swap(told, was, now) == was;
}

enum { ROW_REFUSAL_PAUSE_NS = 1000000000 };	/* one row, one event a second: no flood */

/* A refusal by a row of an account's bill. NULL: it is told with a later one. What was held, asked for and bounded is
 * the caller's to fill in; then it is submitted. */
static __always_inline struct event *begin_row_refusal(struct ledger_state *state, const struct account *account,
						       __u32 slot, __u32 which, __u64 *told, __u64 *untold)
{
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	__sync_fetch_and_add(untold, 1);
	if (!may_tell(told, ROW_REFUSAL_PAUSE_NS, now))
		return NULL;
	event = reserve_event(state, EVENT_ROW_REFUSED, TRIGGER_EVENT, now);
	if (!event)
		return NULL;
	event->account = slot;
	event->account_id = account->id;
	event->request = which;
	event->refusals = __sync_lock_test_and_set(untold, 0);
	return event;
}

#endif /* BURSAR_EVENT_BPF_H */
