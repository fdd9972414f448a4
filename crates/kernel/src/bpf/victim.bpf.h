/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decision: is this account really over its limit, and if so, who dies. One walk over the records
 * (weigh.bpf.h) answers both.
 */
#ifndef BURSAR_VICTIM_BPF_H
#define BURSAR_VICTIM_BPF_H

#include "kill.bpf.h"
#include "weigh.bpf.h"

enum {
	SETTLE_STALE_NS = 1000000000,	/* a decision cannot take this long: its mark is a leftover */
	KEPT_DESCRIPTORS = 16384,	/* looked at in one decision */
	NO_VICTIM_PAUSE_NS = 50000000,	/* nobody to kill: look again after this */
	SIGNAL_GRACE_NS = 20000000,	/* a marked victim has this long before another way is tried,
					 * unless its siblings outrun it (SHORT_GRACE_SHIFT), … */
	LONGEST_GRACE_NS = 200000000,	/* … or this long while its account hardly grows */
};

enum {
	GRACE_SHIFT = 4,	/* hardly: by less than a sixteenth of its limit */
	SHORT_GRACE_SHIFT = 1,	/* outrun: by a half, which several processes reach in milliseconds */
	DOUBT_SHIFT = 5,	/* shared pages matter from a thirty-second of the limit on */
	SURVEY_SHIFT = 2,	/* while a survey is waited for: at most a quarter of the limit more, … */
	HARD_SURVEY_SHIFT = 3,	/* … and an eighth, with what comes between two looks, where
				 * most of the doubt is about what was given up */
	SURVEY_GRACE_NS = 100000000, /* for its beginning, and twice what the account's last one took … */
	LONGEST_SURVEY_GRACE_NS = 500000000, /* … but not more */
	SURVEY_LOOK_NS = 1000000, /* meanwhile it is looked at as often as this */
};

#define NO_SURVEY_PAUSE_NS 10000000000ULL /* the user half did not answer: without it for so long */
/* An account is over its limit for what is in doubt this long at most, however often it is surveyed:
 * children who come and go faster than surveys are never in one. */
#define LONGEST_DOUBT_NS 2000000000ULL

/*
 * Whether a marked victim's signal may still be on its way. Time alone does not say: a virtual machine
 * that was not given its processors has slept through it, user half and grower alike.
 */
static __always_inline bool has_grace(struct account *account, const struct walk *walk, __u64 now)
{
	__u64 waited = now - walk->marked_ns;
	__s64 limit = walk->event.limit_pages;
	__s64 over = level_now(account) - kill_above(account) - account->marked_over_pages;

	return (waited < SIGNAL_GRACE_NS && over < limit >> SHORT_GRACE_SHIFT) ||
	       (waited < LONGEST_GRACE_NS && over < limit >> GRACE_SHIFT);
}

/* So long after a question somebody may answer yet: bursard that has begun to look is alive, however
 * long locks and other people's work keep it. */
static __always_inline __u64 survey_grace(const struct account *account, __u64 now)
{
	__u64 since = *(volatile __u64 *)&account->surveying_ns;
	__u64 grace = SURVEY_GRACE_NS + 2 * account->survey_ns;

	if (since && now - since < SURVEYING_GRACE_NS)
		return SURVEYING_GRACE_NS;
	return grace < LONGEST_SURVEY_GRACE_NS ? grace : LONGEST_SURVEY_GRACE_NS;
}

/*
 * Whether an account that seems to be over its limit, or notice, may hold less than is counted: then
 * the user half is asked to look at how much of it is shared, and for a while nothing is done. The while
 * is short, ends at once when the account grows by what cannot be shared, and does not begin where even
 * the most that could be shared changes nothing, or too little to care: so for one process, or several
 * that have inherited little, there is none.
 */
__noinline int awaits_survey(struct walk *walk, __s64 level, __u64 now)
{
	struct ledger_state *state = ledger_state();
	struct account *account = walk ? account_at(walk->slot) : NULL;
	__s64 limit, bound, doubt, gauge, at_most, most;

	if (!state || !account)
		return false;
	limit = bound = account->limit_pages;
	if (!state->answering_mm) /* bursard is dead, or not there yet */
		return false;
	if (level <= limit && account->notice_pages < limit)
		bound = account->notice_pages;
	if (level <= bound && walk->is_corrected) /* the user half renews it by itself */
		return false;
	if (walk->is_corrected)
		walk->soft_doubt += account->ended_pages;
	doubt = walk->soft_doubt + walk->hard_doubt;
	at_most = account->held_pages - walk->largest;
	if (doubt > at_most)
		doubt = at_most;
	if ((walk->living < 2 && !walk->merged) || doubt <= bound >> DOUBT_SHIFT || level - doubt > bound ||
	    now < account->no_survey_before_ns)
		return false;
	gauge = level - walk->soft_doubt;
	most = walk->hard_doubt > walk->soft_doubt ?
		       (limit >> HARD_SURVEY_SHIFT) - (limit >> DOUBT_SHIFT) :
		       limit >> SURVEY_SHIFT;
	if (level > limit) {
		if (!account->over_ns)
			account->over_ns = now;
		else if (now - account->over_ns > LONGEST_DOUBT_NS)
			return false;
	}
	account->doubt_pages = doubt;
	account->doubted_pages = account->held_pages;
	if (!account->asked_ns || now - account->asked_ns > NO_SURVEY_PAUSE_NS) {
		/* What is in doubt may be part of the correction too: what the largest process has of
		 * its own was there in any case. And what is over the limit already is growth. */
		account->asked_pages = gauge > walk->largest ? gauge : walk->largest;
		if (account->asked_pages > limit)
			account->asked_pages = limit;
		account->asked_ns = now;
		walk->event.kind = EVENT_SURVEY;
		emit(state, &walk->event);
	} else if (now - account->asked_ns > survey_grace(account, now)) {
		account->asked_ns = 0;
		account->no_survey_before_ns = now + NO_SURVEY_PAUSE_NS;
		return false;
	} else if (gauge - account->asked_pages > most) {
		return false;
	}
	account->wait_at_most_pages = level + account->asked_pages + most - gauge;
	account->no_settle_before_ns = now + SURVEY_LOOK_NS;
	return true;
}

/* While a question waits, growth is no reason to wait for the next look. */
static __always_inline bool has_waited_enough(struct account *account)
{
	__s64 most = *(volatile __s64 *)&account->wait_at_most_pages;

	return most && level_now(account) > most;
}

/* What follows from a walk. Returns the number of victims, 0 or 1. */
__noinline int judge(struct walk *walk)
{
	struct ledger_state *state = ledger_state();
	struct account *account = walk ? account_at(walk->slot) : NULL;
	struct event *event;
	__s64 unmapped;

	if (!state || !account)
		return 0;
	event = &walk->event;
	account->unkillable_pages = walk->unkillable;
	/* What has been mapped since the last re-sum is in both. */
	unmapped = unmapped_pages(account, walk->shmem);
	if (unmapped < account->unmapped_pages)
		set_unmapped(account, unmapped, account->sure_pages);

	tell_levels(event, account, level_now(account));
	account->wait_at_most_pages = 0;
	if (!walk->marked && awaits_survey(walk, event->held_pages, event->time_ns))
		return 0;
	if (event->held_pages <= account->limit_pages) { /* drift, now repaired, or it shrank again */
		doubt_ends(account);
		return 0;
	}
	raise_maxheld(account, event->held_pages);
	if (event->held_pages <= kill_above(account))
		return 0;
	if (walk->marked) {
		/* One breach, one victim. But where nobody can be signalled from here and the user
		 * half does not answer, the limit holds all the same: whoever grows next dies. */
		if (can_signal_others() || walk->own.record == NOBODY ||
		    has_grace(account, walk, event->time_ns))
			return 0;
		walk->victim = walk->own;
	}
	/* Who fills what nobody owns any more pays for it. */
	if (walk->is_writer && walk->own.record != NOBODY)
		walk->victim = walk->own;
	/* Whoever kept files has been killed, and no count has begun since: it may be that they are gone. */
	if (walk->counts_files && !walk->victim.kept_pages &&
	    *(volatile __u64 *)&account->files_seen <= account->files_kill_ticket)
		return 0;
	if (walk->victim.record == NOBODY) {
		account->no_settle_before_ns = event->time_ns + NO_VICTIM_PAUSE_NS;
		event->kind = EVENT_NO_VICTIM;
		event->latency_ns = bpf_ktime_get_ns() - event->time_ns;
		__sync_fetch_and_add(&account->history.failcnt, 1);
		emit(state, event);
		return 0;
	}
	return kill_victim(walk);
}

/*
 * Decides for one account. At most one CPU at a time decides for it; the others go on, their growth
 * is part of the next decision. Returns the number of victims, 0 or 1. A global function: verified once, not at each of its callers,
 * which 7.x could not finish; and so are its parts.
 */
__noinline int settle(__u32 slot, __u32 trigger, __u32 running)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__u64 now = bpf_ktime_get_ns(), since, spent;
	struct walk *walk;
	int victims = 0;

	if (!state || !account || (account->flags & ACCOUNT_PAUSED) ||
	    (now < account->no_settle_before_ns && !has_waited_enough(account)))
		return 0;
	since = *(volatile __u64 *)&account->settling_ns;
	if (since && now - since < SETTLE_STALE_NS)
		return 0;
	if (__sync_val_compare_and_swap(&account->settling_ns, since, now) != since)
		return 0;
	walk = notes_of(trigger);
	if (!walk)
		goto out;
	__builtin_memset(walk, 0, sizeof(*walk));
	walk->slot = slot;
	walk->victim.record = NOBODY;
	walk->own.record = NOBODY;
	walk->own_mm = running != RUNNING_OTHER ? far_own_mm() : 0;
	walk->is_writer = running == RUNNING_WRITER;
	walk->event.time_ns = now;
	walk->event.trigger = trigger;
	walk->event.account = slot;
	walk->is_corrected = is_corrected(account, now);
	walk->descriptors = KEPT_DESCRIPTORS;
	walk->counts_files = account->sure_pages > account->stuck_pages &&
			     account->held_pages + unrecorded_pages(account) - correction_of(account) <=
				     account->limit_pages;
	bpf_loop(state->mm_high_water, weigh, &walk, 0);
	victims = judge(walk);
	spent = bpf_ktime_get_ns() - now;
	state->settles++;
	if (spent > state->settle_max_ns)
		state->settle_max_ns = spent;
out:
	account->settling_ns = 0;
	return victims;
}

#endif /* BURSAR_VICTIM_BPF_H */
