/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an account's new level asks for: to be counted more exactly, a notice, a decision.
 */
#ifndef BURSAR_REACT_BPF_H
#define BURSAR_REACT_BPF_H

#include "level_watch.bpf.h"
#include "event.bpf.h"
#include "deferred.bpf.h"

enum {
	RUN_KILLER_PAUSE_NS = 1000000	/* unless the killer has begun since: it looks at all accounts */
};

/* S1 3.2: who is told of the change decides whether the killer is run, and no more than that. */
__noinline int ask_for_killer(__u32 slot)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if (!state || !account || (now < account->no_decision_before_ns && !has_waited_enough(account)) ||
	    !may_tell(&state->killer_asked_ns, RUN_KILLER_PAUSE_NS, now))
		return 0;
	event = begin_event(EVENT_RUN_KILLER, TRIGGER_EVENT, now);
	if (!event)
		return 0;
	event->account = slot;
	emit(state, event);
	return 0;
}

/* A decision is wanted: by who comes to it, or by who is asked. */
static __always_inline void want_decision(__u32 slot, __u32 trigger, __u32 running)
{
	if (trigger != TRIGGER_EVENT || event_decides)
		decide(slot, trigger, running);
	else if (event_asks)
		ask_for_killer(slot);
}

enum {
	DECISION_WAIT_NS = 100000,
	DECISION_LOOKS = 16384	/* more than fit into that */
};

struct waiting {
	__u64 until_ns;
	__u32 slot;
};

static __always_inline long has_been_decided(__u32 look, struct waiting *waiting)
{
	struct account *account = account_at(waiting->slot);

	return !account || !*(volatile __u64 *)&account->deciding_ns || bpf_ktime_get_ns() >= waiting->until_ns;
}
LOOP_BODY(has_been_decided, struct waiting *, DECISION_LOOKS)

/*
 * A CPU that has made an account grow beyond its limit while another CPU decides about it waits for the decision: else
 * the account grows by what all its CPUs fault in meanwhile. So it grows by one event for each CPU, and by another one
 * for each DECISION_WAIT_NS of a longer decision. No other CPU waits. The deciding CPU needs nothing that a waiting one
 * may hold: it reads counters and takes signal locks. Not on PREEMPT_RT, where a real-time thread would wait too.
 */
__noinline int wait_for_decision(__u32 slot)
{
	struct waiting waiting = {.slot = slot, .until_ns = bpf_ktime_get_ns() + DECISION_WAIT_NS};

	LOOP(has_been_decided, &waiting);
	return 0;
}

enum { NOTICE_PAUSE_NS = 1000000000 };	/* one account, one notice a second: no flood */

/* Whether an account's notice is to be given at this level. Global, for the verifier's sake, as is react(). */
__noinline int is_notice_due(__u32 slot, __s64 held)
{
	struct account *account = account_at(slot);

	return account && held >= account->notice_pages && !account->noticed &&
	       (!account->noticed_ns || ns_since(account->noticed_ns, bpf_ktime_get_ns()) >= NOTICE_PAUSE_NS);
}

__noinline int give_notice(__u32 slot, __s64 held, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if (!state || !account || (account->flags & ACCOUNT_PAUSED) || !is_notice_due(slot, held) ||
	    __sync_val_compare_and_swap(&account->noticed, 0, 1) != 0)
		return 0;
	account->noticed_ns = now;
	if (!is_observed(account))
		__sync_fetch_and_add(&account->history.notices, 1);
	event = begin_event(EVENT_NOTICE, trigger, now);
	if (!event)
		return 0;
	event->account = slot;
	event->uid = account->number;
	tell_levels(event, account, held);
	/* Where there is no room it is told after the pause. */
	if (!emit(state, event))
		account->noticed = 0;
	return 0;
}

/*
 * From where on an account is near: early enough that what all CPUs keep back of all its processes cannot hide
 * the way from there to the next bound. The notice is one until it has
 * been given, a level that somebody waits for until that has been told; the barrier is nobody's concern here.
 * What is reserved counts as if it were held: who promises goes by what the account holds, and that is exact only here.
 */
/* By the gate's prctl, and by the user half: with its end that is void. */
static __always_inline __s64 reserved_of(const struct ledger_state *state, const struct account *account)
{
	__s64 reserved = *(volatile const __s64 *)&account->reserved_pages;

	if (state->answering_mm)
		reserved += *(volatile const __s64 *)&account->promised_pages;
	return reserved;
}

static __always_inline void place_near(struct ledger_state *state, struct account *account)
{
	__s64 bound = account->limit_pages, forgone = *(volatile __s64 *)&account->forgone_pages;

	if (forgone)
		bound += forgone + forgone_slack(account);
	if (bound != NO_BOUND_PAGES)
		bound -= reserved_of(state, account);
	if (account->notice_pages < bound && !account->noticed)
		bound = account->notice_pages;
	if (account->watched && account->watch_above_pages < bound)
		bound = account->watch_above_pages;
	if (bound == NO_BOUND_PAGES) {
		account->near_pages = NO_BOUND_PAGES;
	} else {
		account->near_pages = bound - NEAR_PAGES - kept_back_by(*(volatile __s32 *)&account->cpus);
	}
	come_down(state, account, account->held_pages + beyond_records(account));
}

/* On PREEMPT_RT a thread of the kernel's decides. A real-time thread preempts it, as it cannot in an event; an ordinary
 * process does not, as it does bursard. */
const volatile bool defers_decisions = false;

enum {
	WEIGHED_AT_ONCE = 32,	/* processes: some 20 microseconds */
	LATEST_DECISION_NS = 20000000,
};

/* Whether the decision is left to the deferred-work thread. Not where the running process itself may have to die: while a
 * PSS scan is awaited, where it writes into the memory of others, and where a victim waits for its signal. */
__noinline int is_for_thread(__u32 slot, __u32 trigger, __u32 running)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	struct due_times *due = due_times_of();
	__u64 wanted;

	if (!state || !account || !due || trigger == TRIGGER_TIMER || account->processes <= WEIGHED_AT_ONCE ||
	    running >= RUNNING_WRITER || has_waited_enough(account))
		return false;
	if (state->kills_wanted && (!can_signal_others() || level_now(account) > kill_above(account)))
		return false;
	/* Real-time threads that never sleep may keep it from its processor. */
	wanted = *(volatile __u64 *)&due->decisions_ns;
	return !wanted || bpf_ktime_get_ns() - wanted < LATEST_DECISION_NS;
}

/* An event is not interrupted for long. Others may have been since they read the sum. */
static __always_inline void note_within_limit(struct account *account, __s64 held, __u32 trigger)
{
	if (trigger != TRIGGER_EVENT)
		held = level_now(account);
	if (held <= account->limit_pages)
		doubt_ends(account);
}

/* Whether what an account holds has to be read anew: it is near from now on, or counted exactly. Global, for the stack of
 * who reacts. */
__noinline int comes_closer(__u32 slot, __s64 level)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	bool is_new;

	if (!state || !account)
		return 0;
	is_new = come_near(state, account);
	return come_to_exactness(state, account, level) || is_new;
}

/* What the rest of react() does, as far as it takes no decision. */
__noinline int leave_to_thread(__u32 slot, __s64 sum, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	struct due_times *due = due_times_of();
	__u64 now = bpf_ktime_get_ns();
	bool is_new;
	__s64 held;

	if (!account || !state || !due)
		return 0;
	is_new = comes_closer(slot, sum + beyond_records(account));
	held = level_from(account, sum);
	if (!is_new && held <= decide_above(account) && !is_notice_due(slot, held) &&
	    !is_at_watched(account, held)) {
		raise_maxheld(account, held);
		note_within_limit(account, held, trigger);
		return 0;
	}
	if (!is_new && now < account->no_decision_before_ns)
		return 0;
	if (!due->decisions_ns)
		due->decisions_ns = now;
	/* bursard would only signal itself: the next look at the clock sees to it. */
	if (trigger == TRIGGER_EVENT)
		defer_due_work(due, now);
	return 0;
}

/* An account has come to its notice, or to a level that somebody waits for: the next bound is another one from now on. */
__noinline int tell_level(__u32 slot, __s64 held, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);

	if (!state || !account)
		return 0;
	give_notice(slot, held, trigger);
	if (is_at_watched(account, held))
		tell_watched(slot, held, trigger);
	place_near(state, account);
	return 0;
}

/* What an account's new level asks for. `held` is what this very booking produced. `running`: enum
 * running. Global, as decide() is. */
__noinline int react(__u32 slot, __s64 held, __u32 trigger, __u32 running)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__s64 sum = held;

	if (!state || !account)
		return 0;
	held += beyond_records(account) + excess_credit(account, files_credit_of(account));
	if (held < account->near_pages) {
		note_within_limit(account, held, trigger);
		return 0;
	}
	/* Not in charge yet: another kernel half kills, and what it has killed is not known here. */
	if (account->flags & ACCOUNT_PAUSED)
		return 0;
	if (defers_decisions && is_for_thread(slot, trigger, running))
		return leave_to_thread(slot, sum, trigger);
	if (comes_closer(slot, held)) {
		/* What idle processes have kept back so far no event will tell: read them all once. */
		want_decision(slot, trigger, running);
		sum = account->held_pages;
	}
	held = level_from(account, sum);
	if (is_notice_due(slot, held) || is_at_watched(account, held)) {
		/* Told of what is held, not of what is counted twice. */
		if (account->processes > 1 && held <= account->limit_pages)
			want_decision(slot, trigger, running);
		if (!is_asking(account, bpf_ktime_get_ns())) {
			held = level_now(account);
			tell_level(slot, held, trigger);
		}
	}
	/* A decision knows better: some of it may be on its way out. */
	if (held > decide_above(account) || (running == RUNNING_FILLER && held > account->limit_pages)) {
		want_decision(slot, trigger, running);
		if (trigger == TRIGGER_EVENT && running >= RUNNING_GREW && !defers_decisions &&
		    *(volatile __u64 *)&account->deciding_ns)
			wait_for_decision(slot);
		return 0;
	}
	raise_maxheld(account, held);
	note_within_limit(account, held, trigger);
	return 0;
}

#endif /* BURSAR_REACT_BPF_H */
