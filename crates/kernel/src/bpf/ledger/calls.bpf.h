/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What root's calls through bpf(2) do (ledger.bpf.c), in the caller's context: S1 4.1's three, of which one reads the
 * accounts map itself, mapped read-only; and the ledger's own preparation.
 */
#ifndef BURSAR_CALLS_BPF_H
#define BURSAR_CALLS_BPF_H

#include <asm-generic/errno.h>

#include "resum.bpf.h"
#include "shortage.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} probe SEC(".maps");

__u64 as_number;	/* pointers become numbers by going through memory */

/* Never read here: through these the constants of abi.h reach BTF, and so Rust. */
enum abi_constant abi_constant;
enum account_flag abi_account_flag;
enum account_kind abi_account_kind;
enum member abi_member;
enum measure abi_measure;
enum request abi_request;
enum gate_prctl abi_gate_prctl;
struct subordinate abi_subordinate;

/* How far learn_cpu_offsets() is. */
struct learning {
	__u64 base;
	__u32 cpus;
	__u32 has_failed;
};

static __always_inline long learn_cpu_offset(__u32 cpu, struct learning *learning)
{
	struct cpu_offsets *offsets = cpu_offsets_of();
	__u32 zero = 0;
	void *copy = bpf_map_lookup_percpu_elem(&probe, &zero, cpu);

	if (!copy || !offsets) {
		learning->has_failed = 1;
		return 1;
	}
	*(volatile __u64 *)&as_number = (__u64)copy;
	offsets->of[cpu % MOST_CPUS] = *(volatile __u64 *)&as_number - learning->base;
	return 0;
}
LOOP_BODY(learn_cpu_offset, struct learning *, what->cpus)

/* Learns where each CPU keeps its copy of a per-CPU allocation, from an allocation of our own: no
 * kallsyms needed. */
static __always_inline int learn_cpu_offsets(void)
{
	struct ledger_state *state = ledger_state();
	const struct cpu_offsets *offsets = cpu_offsets_of();
	__u32 cpus = possible_cpus < MOST_CPUS ? possible_cpus : MOST_CPUS;
	struct learning learning = { .cpus = cpus };
	__u64 map;

	if (!state || !offsets || !cpus)
		return -EINVAL;
	state->signals_others = can_signal_others();
	learn_where_pages_are_counted(state);
	if (rss_is_atomic())	/* nothing is by CPU, and before 5.19 no helper would tell where */
		return 0;
	*(volatile __u64 *)&as_number = (__u64)&probe;
	map = *(volatile __u64 *)&as_number;
	bpf_probe_read_kernel(&learning.base, sizeof(learning.base),
			      (void *)(map + bpf_core_field_offset(struct bpf_array, pptrs)));
	if (!learning.base)
		return -EFAULT;
	LOOP(learn_cpu_offset, &learning);
	return learning.has_failed ? -34 : 0;
}

static __always_inline void lift_bounds(struct account *account)
{
	account->limit_pages = NO_BOUND_PAGES;
	account->barrier_pages = NO_BOUND_PAGES;
	account->notice_pages = NO_BOUND_PAGES;
	account->near_pages = NO_BOUND_PAGES;
	account->private_barrier_pages = NO_BOUND_PAGES;
	account->watched = 0;
}

/* The account of a uid, opened if it has none; without bounds until set_limit. A shared account has
 * no uid: its members are let pay into it by the user half. */
static __always_inline int open_for(struct open_account_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account;
	__u32 slot = args->slot, *found = NULL;
	__u64 id = args->id;
	bool shared = args->flags & ACCOUNT_SHARED, leaves = false;

	args->opened = 0;
	if (!state)
		return -EINVAL;
	if (!shared)
		found = bpf_map_lookup_elem(&payers, &id);
	if (found) {
		slot = *found;
		account = account_at(slot);
		if (!account)
			return -ENOENT;
		if (!(account->flags & ACCOUNT_SHARED)) {
			/* How it is held comes with its bounds. */
			account->flags = args->flags | ACCOUNT_USED | (account->flags & ACCOUNT_OBSERVED);
			args->slot = slot;
			return 0;
		}
		/* A user leaves a shared account for one of their own, and is never without. */
		leaves = true;
		slot = args->slot;
	}
	account = slot ? account_at(slot) : NULL;
	if (!account || !(account->flags & ACCOUNT_CLOSED)) {
		slot = take_slot(state);
		account = slot != NOBODY ? account_at(slot) : NULL;
		if (!account)
			return -ENOSPC;
	}
	account->history = args->history;
	account->id = id;
	account->number = (__u32)id;
	lift_bounds(account);
	account->noticed = 0;
	account->measure = MEASURE_RESIDENT;
	account->refused_told_ns = 0;	/* a former tenant's */
	account->refused_untold = 0;
	account->private_maxheld_pages = 0;
	account->private_failcnt = 0;
	account->private_told_ns = 0;
	account->private_untold = 0;
	account->walked_pages = 0;
	account->sum_unrecorded_pages = 0;
	account->late_pages = 0;
	account->late_before_pages = 0;
	account->unrecorded_processes = 0;
	account->exempt_pages = 0;
	account->unkillable_pages = 0;
	account->forgone_pages = 0;
	account->no_victim_told_ns = 0;
	__builtin_memset(&account->patience, 0, sizeof(account->patience));
	account->files_credit_ms = 0;
	account->files_credit_pages = 0;
	account->files_kill_ticket = 0;
	account->staying_pages = 0;
	account->shmem_pages = 0;
	account->files_told_ns = 0;
	account->files_pages = 0;
	account->unmapped_pages = 0;
	account->sure_pages = 0;
	account->stuck_pages = 0;
	account->counted_pages = 0;
	account->promised_pages = 0;
	account->correction_pages = 0;
	account->correction_shmem_pages = 0;
	account->correction_until_ns = 0;
	account->corrected_ns = 0;
	account->asked_ns = 0;
	account->asked_pages = 0;
	account->unmapped_in_doubt_pages = 0;
	account->grown_pages = 0;
	account->forked_pages = 0;
	account->doubt_pages = 0;
	account->doubted_pages = 0;
	account->over_ns = 0;
	account->scan_ns = 0;
	account->worn_pages = 0;
	account->lazyfree_pages = *(volatile __u64 *)&state->lazyfree_pages;
	account->scanning_ns = 0;
	account->flags = args->flags | ACCOUNT_USED;
	if (leaves)
		bpf_map_update_elem(&payers, &id, &slot, BPF_ANY);
	else if (!shared)
		slot = let_pay(id, slot, account);
	args->slot = slot;
	args->opened = 1;
	__sync_fetch_and_add(&state->payers_generation, 1);
	__sync_fetch_and_add(&state->generation, 1);
	return 0;
}

/* Nobody pays into it any more. What its processes hold is let go, or charged elsewhere, at their
 * next event or re-sum. The user half takes the payers away first. */
static __always_inline int let_nobody_pay(struct open_account_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(args->slot);

	if (!state || !account || !args->slot)
		return -ENOENT;
	lift_bounds(account);
	account->near = NOT_NEAR;
	account->flags = ACCOUNT_CLOSED;
	__sync_fetch_and_add(&state->payers_generation, 1);
	__sync_fetch_and_add(&state->generation, 1);
	return 0;
}

static __always_inline long unforgo(__u32 index, __u32 *slot)
{
	struct mm_record *record = record_at(index);

	if (record && record->account == *slot && (record->flags & RECORD_FORGONE))
		__sync_fetch_and_and(&record->flags, ~RECORD_FORGONE);
	return 0;
}
LOOP_BODY(unforgo, __u32 *, records_made())

/* Other bounds: who would have been killed for those before is one of the others again. */
static __always_inline void begin_anew(struct ledger_state *state, struct account *account, __u32 slot)
{
	account->noticed = 0;
	account->no_decision_before_ns = 0;
	if (!account->forgone_pages)
		return;
	LOOP(unforgo, &slot);
	account->forgone_pages = 0;
}

/* An account that is over new bounds was never within them: it may have grown by all that it holds. */
static __always_inline void begin_bounds(struct account *account)
{
	__s64 total = total_pages(account);

	account->unbounded_until_ms = unbounded_until(total, account->limit_pages, page_shift, now_ms());
	if (total > account->limit_pages)
		account->grown_pages = ALL_PAGES;
}

/* S1's set_mm_limit. The bounds of an open account. The order in which they are stored matters to nobody: each event
 * compares them one by one. */
static __always_inline int store_bounds(struct set_limit_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(args->slot);
	bool observes = args->flags & ACCOUNT_OBSERVED;

	if (!state || !account)
		return -ENOENT;
	if (!args->slot)
		account->flags = args->flags;
	/* The same again, for another account's sake: who has been told is not told twice. */
	if (is_observed(account) == observes && account->notice_pages == args->notice_pages &&
	    account->barrier_pages == args->barrier_pages &&
	    account->limit_pages == args->limit_pages && account->measure == args->measure &&
	    account->private_barrier_pages == args->private_barrier_pages &&
	    account->private_observed == args->private_observed)
		return args->slot ? CALL_CHANGED_LEVEL : 0; /* who stored it may have ended before that was acted on */
	/* Bounds to be observed are so before they are there; those before are, until others are there. */
	if (observes)
		__sync_fetch_and_or(&account->flags, ACCOUNT_OBSERVED);
	account->measure = args->measure;
	account->private_observed = args->private_observed;
	account->private_barrier_pages = args->private_barrier_pages;
	account->notice_pages = args->notice_pages;
	account->barrier_pages = args->barrier_pages;
	account->limit_pages = args->limit_pages;
	begin_bounds(account);
	if (!observes)
		__sync_fetch_and_and(&account->flags, ~ACCOUNT_OBSERVED);
	begin_anew(state, account, args->slot);
	place_near(state, account);
	__sync_fetch_and_add(&state->generation, 1);
	return args->slot ? CALL_CHANGED_LEVEL : 0;
}

static __always_inline long take_charge(__u32 slot, void *unused)
{
	struct account *account = account_at(slot);

	if (!account)
		return 1;
	begin_bounds(account);
	__sync_fetch_and_and(&account->flags, ~ACCOUNT_PAUSED);
	return 0;
}
LOOP_BODY(take_charge, void *, accounts_made())

/* What a bursard before has begun ended with it. */
static __always_inline long forget_bursard(__u32 slot, void *unused)
{
	struct account *account = account_at(slot);

	if (!account)
		return 1;
	account->promised_pages = 0;
	account->watched = 0;
	account->scanning_ns = 0;
	account->asked_ns = 0;
	/* There is somebody again who looks when it is needed. */
	if (account->correction_until_ns == CORRECTED_UNTIL_ASKED)
		account->correction_until_ns = bpf_ktime_get_ns() + PSS_SCAN_STALE_NS;
	return 0;
}
LOOP_BODY(forget_bursard, void *, accounts_made())

/* What can change while it runs, who pays for whom included (the user half writes the payers map
 * itself and calls this after); and, once all limits are set, that this kernel half decides. */
static __always_inline int store_configuration(struct configure_args *args)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *me = bpf_get_current_task_btf();
	int i;

	if (!state)
		return -EINVAL;
	if (state->bursard_start_ns != me->group_leader->start_boottime)
		LOOP(forget_bursard, NULL);
	state->bursard_tgid = me->tgid;
	state->bursard_start_ns = me->group_leader->start_boottime;
	state->uid_min = args->uid_min;
	state->raised_adj = args->raised_adj;
	state->exempts_cgroups = args->exempts_cgroups;
	state->short_below_pages = args->short_below_pages;
	state->deaths_from_pages = args->deaths_from_pages;
	for (i = 0; i < EXEMPT_RANGES; i++) {
		state->exempt[i] = args->exempt[i];
		state->committed[i] = args->committed[i];
	}
	if (args->in_charge && !state->complete) {
		/* First what new accounts are made from: who is made meanwhile is in the loop, or sees it. */
		take_charge(0, NULL);
		LOOP(take_charge, NULL);
		state->complete = 1;
	}
	__sync_fetch_and_add(&state->payers_generation, 1);
	__sync_fetch_and_add(&state->generation, 1);
	return 0;
}

/* The ranges of subordinate uids that the user half has written are those in force, and count at once. */
static __always_inline int switch_subordinates(const struct set_subordinates_args *args)
{
	struct ledger_state *state = ledger_state();

	if (!state)
		return -EINVAL;
	/* A full barrier: the ranges are there before who reads them. */
	__sync_lock_test_and_set(&state->subordinates, args->subordinates);
	state->files_wanted = 1;
	return 0;
}

/* Who asks is read exactly, as the event would have done: what idle processes have kept back no event tells. */
static __always_inline long decide_if_over(__u32 slot, struct run_killer_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);

	if (!account || !state)
		return 1;
	if (slot && (account->flags & ACCOUNT_USED) &&
	    (slot == args->slot || level_now(account) > decide_above(account)))
		args->decisions += decide(slot, args->trigger, RUNNING_OTHER);
	return 0;
}
LOOP_BODY(decide_if_over, struct run_killer_args *, accounts_made())

/* So much of an account the user half has promised to processes that reserve over its socket. */
static __always_inline int store_promise(const struct promise_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(args->slot);

	if (!state || !account || !args->slot)
		return -ENOENT;
	/* A full barrier: who promises looks at reserved_pages next (admission.bpf.h try_charge()). */
	__sync_lock_test_and_set(&account->promised_pages, args->pages);
	/* What idle processes have kept back, or CPUs have in stock, no event tells: the next promise goes by what is read now.
	 * That it is near no more the re-sum finds: promises come and go by the thousand. */
	if (account->near >= EXACT)
		return 0;
	if (!void_stocks(state, account))
		place_near(state, account);
	return CALL_CHANGED_LEVEL;
}

/* The levels of an account that somebody waits for. One that it has come to by now is told at once. Those of the
 * template are of accounts that are made from it from now on. */
static __always_inline int store_watch(const struct watch_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(args->slot);

	if (!state || !account)
		return -ENOENT;
	account->watched = 0;
	account->watch_above_pages = args->above_pages;
	account->watch_below_pages = args->below_pages;
	/* A full barrier: who sees it watched sees the levels. */
	__sync_lock_test_and_set(&account->watched, 1);
	place_near(state, account);
	return args->slot ? CALL_CHANGED_LEVEL : 0;
}

/* What a call has changed asks for: the only one of these programs that decides, so that the others are small. */
static __always_inline int react_to_change(const struct run_killer_args *args)
{
	struct account *account = account_at(args->slot);

	if (!account || !args->slot)
		return -ENOENT;
	react(args->slot, account->held_pages, args->trigger, RUNNING_OTHER);
	return 0;
}

/* S1's run_oom_killer. */
static __always_inline int decide_whoever_is_over(struct run_killer_args *args)
{
	struct ledger_state *state = ledger_state();
	struct run_killer_args own = { .trigger = args->trigger, .slot = args->slot };

	if (!state)
		return -EINVAL;
	if (args->is_change)
		return react_to_change(args);
	/* A full barrier: who is over from now on and does not ask was seen. */
	__sync_lock_test_and_set(&state->killer_asked_ns, 0);
	LOOP(decide_if_over, &own);
	args->decisions = own.decisions;
	return 0;
}

#endif /* BURSAR_CALLS_BPF_H */
