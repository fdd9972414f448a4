/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decision: is this account really over its limit, and if so, who dies. One walk over the records
 * (weigh.bpf.h) answers both.
 */
#ifndef BURSAR_VICTIM_BPF_H
#define BURSAR_VICTIM_BPF_H

#include "kill.bpf.h"
#include "machine_shmem.bpf.h"
#include "weigh.bpf.h"

/* S1's fast triggers: the event itself decides, or has the user half run the killer. Neither: it only counts. */
const volatile bool event_decides = true;
const volatile bool event_asks = false;

enum {
	DECISION_STALE_NS = 1000000000,	/* a decision cannot take this long: its mark is a leftover */
	KEPT_DESCRIPTORS = 16384,	/* looked at in one decision */
	LEAST_TABLE = 64,		/* descriptors of a process for which there is room: NR_OPEN_DEFAULT */
	NO_VICTIM_PAUSE_NS = 50000000,	/* nobody to kill: look again after this */
	SIGNAL_GRACE_NS = 20000000,	/* a marked victim has this long before another way is tried,
					 * unless its siblings outrun it (SHORT_GRACE_SHIFT), … */
	LONGEST_GRACE_NS = 200000000,	/* … or this long while its account hardly grows */
};

enum {
	GRACE_SHIFT = 4,	/* hardly: by less than a sixteenth of its limit */
	SHORT_GRACE_SHIFT = 1,	/* outrun: by a half, which several processes reach in milliseconds */
	PSS_SCAN_LOOK_NS = 1000000, /* meanwhile it is looked at as often as this */
};

/*
 * Whether a marked victim's signal may still be on its way. Elapsed time alone does not say: while a virtual machine was
 * not given its processors, neither bursard nor the growing process ran.
 */
static __always_inline bool has_grace(struct account *account, const struct decision *decision, __u64 now)
{
	__u64 waited = ns_since(decision->marked_ns, now);
	__s64 limit = decision->event.limit_pages;
	__s64 over = level_now(account) - kill_above(account) - account->marked_over_pages;

	return (waited < SIGNAL_GRACE_NS && over < limit >> SHORT_GRACE_SHIFT) ||
	       (waited < LONGEST_GRACE_NS && over < limit >> GRACE_SHIFT);
}

/* Of one process so much is there in any case. Of its shared memory it may have mapped more than once what its account
 * maps in all beyond its files, as they were last counted, and what the machine's shared memory has grown by since. Less
 * than an eighth of the bound may as well be other users' files, and what CPUs keep back of the machine's count. */
static __always_inline __s64 mapped_once_at_least(const struct account *account, const struct decision *decision)
{
	struct ledger_state *state = ledger_state();
	__s64 least = decision->largest_private, again = decision->shmem - account->files_pages, grown;

	if (!state || again <= 0 || least == decision->largest)
		return decision->largest;
	grown = machine_shmem() - state->files_shmem_pages;
	if (grown > 0)
		again -= grown;
	if (again <= decision->doubt.bound_pages >> PATIENCE_SHIFT)
		return decision->largest;
	return decision->largest - again > least ? decision->largest - again : least;
}

/*
 * Whether an account that seems to be over its limit, or notice, may hold less than is counted. Then bursard is asked
 * for a PSS scan, and nothing is done until it has answered. There is no wait where even the most that could
 * be shared changes nothing, or too little: for one process without shared memory, or several that have inherited little.
 * Shared memory may be counted more than once of one process too, which has mapped it more than once (Java's ZGC).
 *
 * While the answer is awaited, only growth that cannot be shared counts: what the account's processes have faulted in,
 * copies among it, and what they have unmapped, which may have been the other user of a page in doubt. When it exceeds
 * a quarter of the limit and what was certainly free of the limit when that was crossed, and so much has really been
 * booked or copied since, the next process that grows is killed: the end of the largest might free nothing. So the
 * account is within a quarter above its limit at all times, however long it waits. Growth without page faults (another
 * process writes into one that is in no PSS scan yet) is bounded by time: where no scan begins in time, one process is
 * killed by the plain sum, and the next one after another question.
 */
__noinline int awaits_scan(struct decision *decision, __s64 level, __u64 now)
{
	struct ledger_state *state = ledger_state();
	struct account *account = decision ? account_at(decision->slot) : NULL;
	struct doubt *doubt = decision ? &decision->doubt : NULL; /* too large for the stack */
	__s64 lazyfree, grown;
	int wait;

	if (!state || !account || !doubt)
		return WAIT_NOT;
	doubt->level_pages = level;
	doubt->limit_pages = doubt->bound_pages = account->limit_pages;
	if (!state->answering_mm) /* bursard is dead, or not there yet */
		return WAIT_NOT;
	if (level <= doubt->limit_pages && account->notice_pages < doubt->limit_pages)
		doubt->bound_pages = account->notice_pages;
	if (level <= doubt->bound_pages && account->watched && account->watch_above_pages < doubt->bound_pages)
		doubt->bound_pages = account->watch_above_pages;
	if (level <= doubt->bound_pages && decision->is_corrected) /* the user half renews it by itself */
		return WAIT_NOT;
	doubt->soft_pages = decision->soft_doubt;
	doubt->hard_pages = decision->hard_doubt;
	if (decision->is_corrected) {
		/* Not longer, however often it is scanned: who ends children all the time has this doubt after each. */
		if (!account->over_ns || ns_since(account->over_ns, now) <= PSS_SCAN_ASKED_NS)
			doubt->ended_pages = *(volatile __s64 *)&account->ended_pages;
		doubt->hard_pages += *(volatile __s64 *)&account->worn_pages;
	}
	/* Of what was given back with MADV_FREE meanwhile all may be its own. */
	lazyfree = *(volatile __u64 *)&state->lazyfree_pages - account->lazyfree_pages;
	doubt->given_pages = lazyfree < decision->private ? lazyfree : decision->private;
	doubt->sure_pages = decision->soft_doubt - decision->copied - *(volatile __s64 *)&account->unmapped_in_doubt_pages -
			   *(volatile __s64 *)&account->worn_pages;
	doubt->forked_pages = *(volatile __s64 *)&account->forked_pages - decision->copied;
	doubt->held_pages = account->held_pages - decision->forgone;
	doubt->largest_pages = decision->largest;
	doubt->sure_of_one_pages = mapped_once_at_least(account, decision);
	doubt->asked_pages = account->asked_pages;
	/* Below zero where it was reset between a fork's being taken off and its being booked. */
	grown = *(volatile __s64 *)&account->grown_pages;
	doubt->grown_pages = (grown > 0 ? grown : 0) + decision->copied + unrecorded_pages(account);
	wait = wait_for_scan(doubt);
	if (wait == WAIT_NOT)
		return WAIT_NOT;
	account->asked_pages = doubt->asked_pages;
	account->doubt_pages = in_doubt(doubt) + doubt->given_pages;
	account->doubted_pages = account->held_pages;
	if (level > doubt->limit_pages && !account->over_ns)
		account->over_ns = now;
	if (!is_asking(account, now)) {
		bool is_late = account->asked_ns && account->over_ns &&
			       ns_since(account->over_ns, now) > PSS_SCAN_ASKED_NS;

		account->asked_ns = now;
		decision->event.kind = EVENT_PSS_SCAN;
		emit(state, &decision->event);
		if (is_late)
			return WAIT_NOT;
	}
	/* Where growers may not wait it is below the level already, so that their events go on deciding. */
	account->wait_at_most_pages = doubt->wait_at_most_pages + decision->forgone;
	if (wait == WAIT_BUT_GROWERS)
		return WAIT_BUT_GROWERS;
	account->no_decision_before_ns = now + PSS_SCAN_LOOK_NS;
	return WAIT_FOR_PSS_SCAN;
}

/* While a question waits, growth is no reason to wait for the next look. */
static __always_inline bool has_waited_enough(struct account *account)
{
	__s64 most = *(volatile __s64 *)&account->wait_at_most_pages;

	return most && level_now(account) > most;
}

#define NO_VICTIM_TOLD_PAUSE_NS 60000000000ULL /* one account, one such event a minute */

static __always_inline void tell_no_victim(struct ledger_state *state, struct account *account, struct event *event)
{
	if (account->no_victim_told_ns && ns_since(account->no_victim_told_ns, event->time_ns) < NO_VICTIM_TOLD_PAUSE_NS)
		return;
	account->no_victim_told_ns = event->time_ns;
	event->kind = EVENT_NO_VICTIM;
	event->latency_ns = bpf_ktime_get_ns() - event->time_ns;
	count_failure(account);
	emit(state, event);
}

/* Whether the account is over its limit only by one that has just ended: another CPU takes it off the correction first, and
 * off the sum when its record is gone. */
static __always_inline bool is_over_by_the_ended(const struct account *account, const struct decision *decision)
{
	__s64 held = account->held_pages, ended;

	ended = (held < decision->held_before ? held : decision->held_before) - decision->booked;
	return ended > account->limit_pages >> DOUBT_SHIFT &&
	       decision->event.held_pages - ended <= account->limit_pages;
}

/* Whether one decision may be unable to look at all descriptors of an account's. */
static __always_inline bool has_many_tables(const struct account *account)
{
	return account->processes > KEPT_DESCRIPTORS / LEAST_TABLE;
}

/* Whether nobody is to die yet for files of which no process is known to keep any: who kept them was killed, and they have
 * not been counted since; or not all descriptors could be looked at, and the next decision looks at others. */
static __always_inline bool is_keeper_awaited(const struct account *account, const struct decision *decision)
{
	if (decision->running == RUNNING_FILLER)
		return false;
	return *(volatile __u64 *)&account->files_seen <= account->files_kill_ticket ||
	       ((has_many_tables(account) || !decision->descriptors) && !account->patience.is_out);
}

/* What follows from what was found. Returns the number of victims, 0 or 1. */
__noinline int judge(struct decision *decision)
{
	struct ledger_state *state = ledger_state();
	struct account *account = decision ? account_at(decision->slot) : NULL;
	struct event *event;
	__s64 unmapped;

	if (!state || !account)
		return 0;
	event = &decision->event;
	account->exempt_pages = decision->exempt;
	account->unkillable_pages = decision->unkillable;
	account->forgone_pages = decision->forgone;
	/* What has been mapped since the last re-sum is in both. */
	unmapped = unmapped_pages(account, decision->shmem);
	if (unmapped < account->unmapped_pages)
		set_unmapped(account, unmapped, account->sure_pages);

	tell_levels(event, account, level_now(account) - decision->forgone);
	account->wait_at_most_pages = 0;
	if (!decision->marked) {
		switch (awaits_scan(decision, event->held_pages, event->time_ns)) {
		case WAIT_FOR_PSS_SCAN:
			return 0;
		case WAIT_BUT_GROWERS:
			if (decision->running < RUNNING_GREW || decision->own.record == NOBODY)
				return 0;
			/* Where a spared program grows another one ends, which may free less: so somebody ends all
			 * the same, and it is that program's turn when nobody else is left. */
			if (!decision->own.goes_last || !is_before_last(decision->victim.rank))
				decision->victim = decision->own;
			/* What is told, and stays as the most ever held, is without what forks have doubled. */
			if (decision->doubt.at_most_pages > account->limit_pages)
				event->held_pages = decision->doubt.at_most_pages;
		}
	}
	if (event->held_pages <= account->limit_pages) { /* drift, now repaired, or it shrank again */
		doubt_ends(account);
		return 0;
	}
	if (is_over_by_the_ended(account, decision))
		return 0;
	raise_maxheld(account, event->held_pages + decision->forgone);
	if (event->held_pages <= kill_above(account) &&
	    (decision->running != RUNNING_FILLER || decision->own.record == NOBODY)) {
		if (decision->exempt)
			tell_no_victim(state, account, event);
		return 0;
	}
	if (decision->marked) {
		/* A victim is marked already: no second one, unless it cannot be signalled from here (nobody else can
		 * before 6.13; later nobody whose first thread is ending) and bursard has not done so in time. Then the
		 * process that grows now is killed; without events, whichever runs when the timer comes. */
		if (decision->own.record == NOBODY || (event_decides && decision->running < RUNNING_GREW) ||
		    has_grace(account, decision, event->time_ns))
			return 0;
		decision->victim = decision->own;
	}
	/* It writes into the memory of other processes: killing those would not stop it. */
	if (decision->running >= RUNNING_WRITER && decision->own.record != NOBODY)
		decision->victim = decision->own;
	if (decision->counts_files && !decision->victim.kept_pages && is_keeper_awaited(account, decision))
		return 0;
	if (decision->victim.record == NOBODY) {
		account->no_decision_before_ns = event->time_ns + NO_VICTIM_PAUSE_NS;
		if (!decision->is_dying)
			tell_no_victim(state, account, event);
		return 0;
	}
	return kill_victim(decision);
}

/* Whether the records say what there is. Where events are not charged, or not each of them, they do not; nor before 6.2,
 * where a record has what the thread of the last event has kept back, and a grant has not reckoned with that. */
static __always_inline bool has_all_read(const struct account *account)
{
	return account->near == EXACT_AND_READ && (event_decides || event_asks) && !events_are_preempted &&
	       !rss_is_atomic();
}

/* All its records have been read: from now on events tell of changes, where each is booked, and was meanwhile. */
static __always_inline void note_all_read(const struct ledger_state *state, struct account *account, __u64 generation)
{
	if (*(volatile __u64 *)&state->generation != generation)
		return;
	__sync_val_compare_and_swap(&account->near, NEAR, NEAR_AND_READ);
	__sync_val_compare_and_swap(&account->near, EXACT, EXACT_AND_READ);
}

/*
 * Decides for one account. At most one CPU at a time decides for it; the others go on, and their growth is part of the
 * next decision. Returns the number of victims, 0 or 1. A global function, as its parts are, so that the verifier checks
 * it once and not at each call, which is too much for that of 7.x.
 */
__noinline int decide(__u32 slot, __u32 trigger, __u32 running)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__u64 now = bpf_ktime_get_ns(), since, spent, generation;
	struct decision *decision;
	int victims = 0;

	if (!state || !account || (account->flags & ACCOUNT_PAUSED) ||
	    (now < account->no_decision_before_ns && !has_waited_enough(account)))
		return 0;
	since = *(volatile __u64 *)&account->deciding_ns;
	/* It may have been taken since `now` was read, and that is no time ago. */
	if (since && ns_since(since, now) < DECISION_STALE_NS)
		return 0;
	if (__sync_val_compare_and_swap(&account->deciding_ns, since, now) != since)
		return 0;
	decision = decision_of(trigger);
	if (!decision)
		goto out;
	__builtin_memset(decision, 0, sizeof(*decision));
	decision->slot = slot;
	decision->victim.record = NOBODY;
	decision->own.record = NOBODY;
	decision->own_mm = running != RUNNING_OTHER ? probe_own_mm() : 0;
	decision->running = running;
	decision->reads_anew = !has_all_read(account);
	decision->event.time_ns = now;
	decision->event.trigger = trigger;
	decision->event.account = slot;
	decision->is_corrected = is_corrected(account, now);
	decision->descriptors = KEPT_DESCRIPTORS;
	/* One decision after another at the next ones; nobody knows at whom exactly. */
	if (has_many_tables(account))
		decision->first_keeper = (state->decisions * (KEPT_DESCRIPTORS / LEAST_TABLE) +
					  bpf_get_prandom_u32() % LEAST_TABLE) % account->processes;
	decision->counts_files = account->sure_pages > account->stuck_pages &&
			     account->held_pages + unrecorded_pages(account) - correction_of(account) -
					     account->forgone_pages <=
				     account->limit_pages;
	decision->held_before = *(volatile __s64 *)&account->held_pages;
	generation = *(volatile __u64 *)&state->generation;
	LOOP(weigh, &decision);
	note_all_read(state, account, generation);
	victims = judge(decision);
	if (decision->has_mm_sharers)
		kill_mm_sharers(decision->victim.record, trigger);
	spent = bpf_ktime_get_ns() - now;
	state->decisions++;
	if (spent > state->longest_decision_ns)
		state->longest_decision_ns = spent;
out:
	__sync_val_compare_and_swap(&account->deciding_ns, now, 0);
	return victims;
}

#endif /* BURSAR_VICTIM_BPF_H */
