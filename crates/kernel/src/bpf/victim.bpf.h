/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decision: is this account really over its limit, and if so, who dies.
 *
 * One walk over the records does both. It re-reads every address space of the account exactly, so a
 * kill is never decided on drift, on what CPUs keep back, or on memory of processes already dying;
 * and it finds the largest one that may be killed. Cost: a few nanoseconds for each record of the
 * machine, ~100 ns for each of the account.
 */
#ifndef BURSAR_VICTIM_BPF_H
#define BURSAR_VICTIM_BPF_H

#include "record.bpf.h"
#include "tmpfs.bpf.h"

enum {
	SETTLE_STALE_NS = 1000000000,	/* a decision cannot take this long: its mark is a leftover */
	NO_VICTIM_PAUSE_NS = 50000000,	/* nobody to kill: look again after this */
	SIGNAL_GRACE_NS = 20000000,	/* a marked victim has this long before another way is tried,
					 * unless its siblings outrun it (SHORT_GRACE_SHIFT), … */
	LONGEST_GRACE_NS = 200000000,	/* … or this long while its account hardly grows */
	/* What is stuck raises what is held at most to a quarter beyond the limit: it is no way to hold ever
	 * more. */
	LINGERING_SHIFT = 2,
};

enum {
	FILES_GRACE_NS = 1000000000,	/* a file's pages go that long after who kept it was killed */
	KEPT_DESCRIPTORS = 16384,	/* looked at in one decision */
	/* Where what no kill would free leaves less than a sixteenth of the limit (8 MiB at least),
	 * processes may hold that all the same: somebody has to remove the files, or to find out what the
	 * dying wait for. */
	FILES_RESERVE_SHIFT = 4,
	FILES_RESERVE_BYTES_SHIFT = 23,
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

/* Who may be chosen. His record alone does not say who he is: he may end while the others are weighed, and it be
 * somebody else's then. */
struct chosen {
	__u32 record;		/* NOBODY: nobody */
	__u32 pad;
	__u64 mm;
	__u64 ctx_id;
	__s64 pages;
	__s64 kept_pages;	/* files he alone may keep */
};

/* One walk's notes. Too large for the stack; one for each kind of context, so that a timer tick that
 * interrupts an event's walk on this CPU does not write over it. */
struct walk {
	__u32 slot;
	__u32 marked;		/* a victim is marked and alive */
	__u32 living;		/* address spaces of the account */
	__u32 is_corrected;	/* what a survey found is in force */
	struct chosen victim;
	struct chosen own;	/* the running process */
	__s64 soft_doubt;	/* see correction.bpf.h */
	__s64 hard_doubt;
	__s64 lingering;	/* of the dying, what is stuck */
	__s64 merged;		/* by KSM: part of the soft doubt */
	__s64 largest;		/* of one address space: so much is there whatever is shared */
	__s64 shmem;		/* RssShmem of all address spaces, the dying included */
	__u64 marked_ns;
	__u64 own_mm;
	__u32 counts_files;	/* it is files that are too many: who keeps them? */
	__u32 descriptors;	/* that may still be looked at */
	struct event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);	/* enum trigger */
	__type(key, __u32);
	__type(value, struct walk);
} walks SEC(".maps");

/* The notes of this kind of context. */
static __always_inline struct walk *notes_of(__u32 trigger)
{
	if (trigger > TRIGGER_SURVEY)
		trigger = TRIGGER_SURVEY;
	return bpf_map_lookup_elem(&walks, &trigger);
}

/* An event begun in them, that tells of `kind` now. */
static __always_inline struct event *begin_event(__u32 kind, __u32 trigger, __u64 now)
{
	struct walk *walk = notes_of(trigger);
	struct event *event;

	if (!walk)
		return NULL;
	event = &walk->event;
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->trigger = trigger;
	event->time_ns = now;
	return event;
}

static __always_inline __s64 files_reserve(const struct account *account)
{
	__s64 share = account->limit_pages >> FILES_RESERVE_SHIFT;
	__s64 least = 1LL << (FILES_RESERVE_BYTES_SHIFT - page_shift);

	share = share > least ? share : least;
	return share < account->limit_pages ? share : account->limit_pages;
}

/* Above this somebody is killed: the limit, unless what no kill would free fills it. */
static __always_inline __s64 kill_above(const struct account *account)
{
	__s64 stuck = account->stuck_pages, lingering = account->lingering_pages;
	__s64 limit = account->limit_pages, reserve, most;

	if ((!stuck && !lingering) || limit == NO_BOUND_PAGES)
		return limit;
	reserve = files_reserve(account);
	most = limit + (limit >> LINGERING_SHIFT) - reserve;
	stuck += (lingering < most ? lingering : most) + reserve;
	return stuck > limit ? stuck : limit;
}

/* What is held for certain: files are believed when counted twice. */
static __always_inline __s64 surely_held(const struct account *account)
{
	return account->held_pages + account->walked_pages + account->sure_pages - correction_of(account);
}

static __always_inline void set_unmapped(struct account *account, __s64 unmapped, __s64 sure)
{
	account->sure_pages = sure < unmapped ? sure : unmapped;
	account->stuck_pages =
		account->staying_pages < account->sure_pages ? account->staying_pages : account->sure_pages;
	account->unmapped_pages = unmapped;
	account->unrecorded_pages = account->walked_pages + unmapped;
}

static __always_inline __u64 own_mm(void)
{
	struct task_struct *me = bpf_get_current_task_btf();

	return (__u64)me->mm;
}

/* The same as a number, for what is verified without its callers. */
static __always_inline __u64 far_own_mm(void)
{
	return (__u64)FAR_READ((__u64)bpf_get_current_task(), struct task_struct, mm);
}

static __always_inline void emit(struct ledger_state *state, struct event *event)
{
	if (bpf_ringbuf_output(&events, event, sizeof(*event), 0))
		__sync_fetch_and_add(&state->events_lost, 1);
}

/*
 * A kill's place in the ring is taken before its signal: the victim may be gone, and tell so from
 * another CPU, before we have written down that it was killed. Readers wait for a place's writer.
 */
static __always_inline void tell_kill(struct ledger_state *state, struct event *place,
				      const struct event *event)
{
	if (!place) {
		__sync_fetch_and_add(&state->events_lost, 1);
		return;
	}
	__builtin_memcpy(place, event, sizeof(*place));
	bpf_ringbuf_submit(place, 0);
}

static __always_inline void keep_candidate(struct event *event, __u64 owner, __u32 pid, __u32 uid,
					   __s64 pages)
{
	int i, place = CANDIDATES;

	event->candidates_met++;
	for (i = CANDIDATES - 1; i >= 0; i--) {
		if (event->candidates[i].pid && event->candidates[i].pages >= pages)
			break;
		if (i < CANDIDATES - 1)
			event->candidates[i + 1] = event->candidates[i];
		place = i;
	}
	if (place >= CANDIDATES)
		return;
	/* written out: the verifier of 6.1 does not follow a variable index into a map value here */
	for (i = 0; i < CANDIDATES; i++) {
		if (i != place)
			continue;
		event->candidates[i].pid = pid;
		event->candidates[i].uid = uid;
		event->candidates[i].pages = pages;
		bpf_probe_read_kernel(&event->candidates[i].comm, COMM_LEN,
				      &((struct task_struct *)owner)->comm);
	}
	if (event->candidates_kept < CANDIDATES)
		event->candidates_kept++;
}

/* Whether the running process goes on: the owner of the memory that it has may be another, who is dying. */
static __always_inline bool survives(void)
{
	return !is_dying((__u64)FAR_READ((__u64)bpf_get_current_task(), struct task_struct, signal));
}

static __always_inline void choose(struct chosen *chosen, __u32 record, __u64 mm, __u64 ctx_id, __s64 pages,
				   __s64 kept)
{
	chosen->record = record;
	chosen->mm = mm;
	chosen->ctx_id = ctx_id;
	chosen->pages = pages;
	chosen->kept_pages = kept;
}

static long weigh(__u32 index, struct walk **of)
{
	struct walk *walk = *of;
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct account *account;
	__u64 mm, ctx_id, owner, signal;
	bool is_gone;
	__s64 pages, merged, kept;
	__u32 pid;

	if (!record || !state)
		return 0;
	mm = *(volatile __u64 *)&record->mm;
	ctx_id = record->ctx_id;
	if (!mm || record->account != walk->slot)
		return 0;
	account = account_at(walk->slot);
	if (!account)
		return 1;
	if (far_ctx_id(mm) != ctx_id)	/* its end was missed: the re-sum closes it */
		return 0;
	owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
	sync_far(state, record, mm);
	is_gone = refresh_state(state, record, owner);
	book_far(record, account, mm);
	walk->shmem += record->pages[MEMBER_SHMEM];
	if (record->state == MM_STUCK)
		walk->lingering += recorded_pages(record);
	if (is_gone && (!owner || mm != walk->own_mm || !survives()))
		return 0;

	signal = (__u64)FAR_READ(owner, struct task_struct, signal);
	pid = FAR_READ(owner, struct task_struct, tgid);
	pages = recorded_pages(record);
	walk->living++;
	merged = merged_pages(record, mm, walk->is_corrected);
	walk->merged += merged;
	walk->soft_doubt += soft_doubt(record, walk->is_corrected) + merged;
	walk->hard_doubt += hard_doubt(record, walk->is_corrected);
	if (pages - merged > walk->largest)
		walk->largest = pages - merged;
	pages = own_pages(record, pages, walk->is_corrected);
	kept = walk->counts_files ? kept_by(state, owner, record->uid, &walk->descriptors) : 0;
	pages += kept;
	keep_candidate(&walk->event, owner, pid, record->uid, pages);
	if (record->state == MM_MARKED) {
		walk->marked++;
		if (record->marked_ns > walk->marked_ns)
			walk->marked_ns = record->marked_ns;
		return 0;
	}
	if (pid == 1 || pid == state->guardian_tgid ||
	    (FAR_READ(owner, struct task_struct, flags) & PF_KTHREAD) ||
	    FAR_READ(signal, struct signal_struct, oom_score_adj) <= OOM_SCORE_ADJ_MIN)
		return 0;
	if (mm == walk->own_mm)
		choose(&walk->own, index, mm, ctx_id, pages, kept);
	if (pages > walk->victim.pages)
		choose(&walk->victim, index, mm, ctx_id, pages, kept);
	return 0;
}

/* 0: the signal is on its way; otherwise why not. */
static __always_inline int signal_victim(__u64 mm, __u64 ctx_id, __u64 own_mm)
{
	struct task_struct *task;
	int pid, err = -11; /* EAGAIN: not from here */

	if (!mm)
		return -3; /* ESRCH */
	if (mm == own_mm)
		return bpf_send_signal(SIGKILL);
	if (!can_signal_others())
		return err;
	/* The thread, not its group's leader: a dead leader has no address space any more. */
	pid = FAR_READ(FAR_READ(mm, struct mm_struct, owner), struct task_struct, pid);
	task = bpf_task_from_pid(pid);
	if (!task)
		return -3; /* ESRCH */
	/* Between the walk and here the pid may have changed hands, and the address: only who has this mm dies. */
	if ((__u64)task->mm == mm && far_ctx_id(mm) == ctx_id)
		err = bpf_send_signal_task(task, SIGKILL, PIDTYPE_TGID, 0);
	bpf_task_release(task);
	return err;
}

/*
 * Whether a marked victim's signal may still be on its way. Time alone does not say: a virtual machine
 * that was not given its processors has slept through it, user half and grower alike.
 */
static __always_inline bool has_grace(const struct account *account, const struct walk *walk, __u64 now)
{
	__u64 waited = now - walk->marked_ns;
	__s64 limit = walk->event.limit_pages;
	__s64 over = surely_held(account) - kill_above(account) - account->marked_over_pages;

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
static __noinline bool awaits_survey(struct ledger_state *state, struct account *account,
				     struct walk *walk, __s64 level, __u64 now)
{
	__s64 limit = account->limit_pages, bound = limit, doubt, gauge, at_most, most;

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
static __always_inline bool has_waited_enough(const struct account *account)
{
	__s64 most = *(volatile __s64 *)&account->wait_at_most_pages;

	return most && level_from(account, account->held_pages) > most;
}

/* 6.9: cb12fd8e0dab "pidfd: add pidfs". Each struct pid has a number that is not given twice, its pidfd's inode's. */
struct pid___numbered {
	__u64 ino;
} __attribute__((preserve_access_index));

struct task_struct___numbered {
	struct pid___numbered *thread_pid;
} __attribute__((preserve_access_index));

static __always_inline __u64 pidfs_number(__u64 task)
{
	if (!bpf_core_field_exists(((struct pid___numbered *)0)->ino))
		return 0;
	return FAR_READ(FAR_READ(task, struct task_struct___numbered, thread_pid), struct pid___numbered,
			ino);
}

static __always_inline void describe_victim(struct event *event, __u64 task)
{
	__u64 leader = (__u64)FAR_READ(task, struct task_struct, group_leader);

	event->pid = FAR_READ(task, struct task_struct, tgid);
	event->start_boottime_ns = FAR_READ(leader, struct task_struct, start_boottime);
	event->pidfs_number = pidfs_number(leader);
	bpf_probe_read_kernel(&event->comm, COMM_LEN, &((struct task_struct *)task)->comm);
}

static __always_inline bool is_his(const struct mm_record *record, const struct chosen *chosen, __u32 slot)
{
	return *(volatile __u64 *)&record->mm == chosen->mm &&
	       *(volatile __u64 *)&record->ctx_id == chosen->ctx_id &&
	       *(volatile __u32 *)&record->account == slot;
}

/* From living only. False: it is somebody else's record by now, who is left as he was. */
static __always_inline bool set_fate(struct ledger_state *state, struct mm_record *record,
				     const struct chosen *victim, __u32 slot, __u32 fate)
{
	bool is_marked = fate == MM_MARKED;

	/* First, so that nobody takes off what is not there. */
	if (is_marked)
		__sync_fetch_and_add(&state->kills_wanted, 1);
	if (__sync_val_compare_and_swap(&record->state, MM_LIVING, fate) != MM_LIVING && is_marked)
		__sync_fetch_and_add(&state->kills_wanted, -1);
	if (is_his(record, victim, slot))
		return true;
	if (__sync_val_compare_and_swap(&record->state, fate, MM_LIVING) == fate && is_marked)
		__sync_fetch_and_add(&state->kills_wanted, -1);
	record->pid = 0;
	record->marked_pages = 0;
	record->marked_ns = 0;
	return false;
}

static __noinline int kill_victim(struct ledger_state *state, struct account *account,
				  struct walk *walk)
{
	struct chosen *victim = &walk->victim;
	struct mm_record *record = record_at(victim->record);
	struct event *event = &walk->event, *place;
	__u64 task;
	bool is_there;
	int err;

	if (!record || !is_his(record, victim, walk->slot))
		return 0;
	/* Its owner; or who runs in it and goes on while that one is dying. Not so of somebody else's memory, whose
	 * owner may have been told to die since he was weighed. */
	if (victim->mm == walk->own_mm && means_dying(record->state))
		task = (__u64)bpf_get_current_task();
	else
		task = (__u64)FAR_READ(victim->mm, struct mm_struct, owner);
	place = bpf_ringbuf_reserve(&events, sizeof(*place), 0);
	event->uid = record->uid;
	event->victim_pages = recorded_pages(record) + victim->kept_pages;
	event->victim_private_pages = private_pages(record);
	describe_victim(event, task);
	record->pid = event->pid;
	record->marked_pages = event->victim_pages;
	record->marked_ns = event->time_ns;
	err = signal_victim(victim->mm, victim->ctx_id, walk->own_mm);
	is_there = set_fate(state, record, victim, walk->slot, err ? MM_MARKED : MM_DYING);
	if (err) {
		if (!is_there) {
			if (place)
				bpf_ringbuf_discard(place, 0);
			return 0;
		}
		account->marked_over_pages = surely_held(account) - kill_above(account);
		__sync_fetch_and_add(&state->generation, 1);
		event->kind = EVENT_KILL_ASKED;
	} else {
		if (is_there) {
			begin_fading(record);
			book_far(record, account, victim->mm);
		}
		event->kind = EVENT_KILL;
		__sync_fetch_and_add(&account->history.kills, 1);
	}
	if (walk->counts_files) {
		/* They are on their way out; the count would see them still. */
		account->files_kill_ns = event->time_ns;
		account->sure_pages = account->sure_pages > victim->kept_pages ?
					      account->sure_pages - victim->kept_pages :
					      0;
	}
	__sync_fetch_and_add(&account->history.failcnt, 1);
	event->latency_ns = bpf_ktime_get_ns() - event->time_ns;
	tell_kill(state, place, event);
	return 1;
}

/*
 * Decides for one account. At most one CPU at a time decides for it; the others go on, their growth
 * is part of the next decision. `is_own`: the running process is one that has grown, or may have.
 * Returns the number of victims, 0 or 1. A global function: verified once, not at each of its callers,
 * which 7.x could not finish.
 */
__noinline int settle(__u32 slot, __u32 trigger, __u32 is_own)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__u64 now = bpf_ktime_get_ns(), since, spent;
	struct walk *walk;
	struct event *event;
	__s64 unmapped;
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
	event = &walk->event;
	__builtin_memset(walk, 0, sizeof(*walk));
	walk->slot = slot;
	walk->victim.record = NOBODY;
	walk->own.record = NOBODY;
	walk->own_mm = is_own ? far_own_mm() : 0;
	event->time_ns = now;
	event->trigger = trigger;
	event->account = slot;
	walk->is_corrected = is_corrected(account, now);
	walk->descriptors = KEPT_DESCRIPTORS;
	walk->counts_files = account->sure_pages > account->stuck_pages &&
			     account->held_pages + account->walked_pages - correction_of(account) <=
				     account->limit_pages;
	bpf_loop(state->mm_high_water, weigh, &walk, 0);
	account->lingering_pages = walk->lingering;
	/* What has been mapped since the last re-sum is in both. */
	unmapped = unmapped_pages(account, walk->shmem);
	if (unmapped < account->unmapped_pages)
		set_unmapped(account, unmapped, account->sure_pages);

	tell_levels(event, account, level_from(account, account->held_pages));
	account->wait_at_most_pages = 0;
	if (!walk->marked && awaits_survey(state, account, walk, event->held_pages, now))
		goto done;
	if (event->held_pages <= account->limit_pages) { /* drift, now repaired, or it shrank again */
		doubt_ends(account);
		goto done;
	}
	raise_maxheld(account, event->held_pages);
	if (surely_held(account) <= kill_above(account))
		goto done;
	if (walk->marked) {
		/* One breach, one victim. But where nobody can be signalled from here and the user
		 * half does not answer, the limit holds all the same: whoever grows next dies. */
		if (can_signal_others() || walk->own.record == NOBODY || has_grace(account, walk, now))
			goto done;
		walk->victim = walk->own;
	}
	if (walk->victim.record == NOBODY) {
		account->no_settle_before_ns = now + NO_VICTIM_PAUSE_NS;
		event->kind = EVENT_NO_VICTIM;
		event->latency_ns = bpf_ktime_get_ns() - now;
		__sync_fetch_and_add(&account->history.failcnt, 1);
		emit(state, event);
		goto done;
	}
	victims = kill_victim(state, account, walk);
done:
	spent = bpf_ktime_get_ns() - now;
	state->settles++;
	if (spent > state->settle_max_ns)
		state->settle_max_ns = spent;
out:
	account->settling_ns = 0;
	return victims;
}

/* --- victims whose signal could not be sent where they were chosen ------------------------- */

static long retry_one(__u32 index, struct walk **of)
{
	struct walk *walk = *of;
	struct mm_record *record = record_at(index);
	struct ledger_state *state = ledger_state();
	struct account *account;
	struct event *place;
	__u64 mm, ctx_id, owner, now;

	if (!record || !state)
		return 0;
	mm = *(volatile __u64 *)&record->mm;
	ctx_id = *(volatile __u64 *)&record->ctx_id;
	if (!mm || *(volatile __u32 *)&record->state != MM_MARKED)
		return 0;
	account = account_at(record->account);
	if (!account || far_ctx_id(mm) != ctx_id)
		return 0;
	owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
	sync_far(state, record, mm);
	/* Who was asked has killed it, and tells. */
	if (refresh_state(state, record, owner))
		return 0;
	/* Not whom the mark was for: he has ended, and left his memory or his record to somebody else. */
	if ((__u32)FAR_READ(owner, struct task_struct, tgid) != record->pid) {
		if (__sync_val_compare_and_swap(&record->state, MM_MARKED, MM_LIVING) == MM_MARKED)
			__sync_fetch_and_add(&state->kills_wanted, -1);
		return 0;
	}
	place = bpf_ringbuf_reserve(&events, sizeof(*place), 0);
	if (signal_victim(mm, ctx_id, walk->own_mm) ||
	    __sync_val_compare_and_swap(&record->state, MM_MARKED, MM_DYING) != MM_MARKED) {
		if (place)
			bpf_ringbuf_discard(place, 0);
		return 0;
	}
	now = bpf_ktime_get_ns();
	__sync_fetch_and_add(&state->kills_wanted, -1);
	__sync_fetch_and_add(&state->kills_retried, 1);
	walk->event.kind = EVENT_KILL;
	walk->event.time_ns = now;
	walk->event.account = record->account;
	walk->event.uid = record->uid;
	tell_levels(&walk->event, account, level_from(account, account->held_pages));
	walk->event.victim_pages = record->marked_pages;
	walk->event.victim_private_pages = private_pages(record);
	walk->event.latency_ns = now - record->marked_ns;
	describe_victim(&walk->event, owner);
	__sync_fetch_and_add(&account->history.kills, 1);
	begin_fading(record);
	book_far(record, account, mm);
	tell_kill(state, place, &walk->event);
	return 0;
}

enum { RETRY_PAUSE_NS = 1000000 };	/* a try costs a walk */

/* Not every object that decides also has ticks or events to try again in. */
static __noinline __attribute__((unused)) int retry_kills(struct ledger_state *state, __u32 trigger,
							  __u64 own_mm)
{
	__u64 now = bpf_ktime_get_ns();
	struct walk *walk;

	state->last_retry_ns = now;
	walk = notes_of(trigger);
	if (!walk)
		return 0;
	__builtin_memset(walk, 0, sizeof(*walk));
	walk->own_mm = own_mm;
	walk->event.trigger = trigger;
	bpf_loop(state->mm_high_water, retry_one, &walk, 0);
	return 0;
}

/* --- notice -------------------------------------------------------------------------------- */

enum { NOTICE_PAUSE_NS = 1000000000 };	/* one account, one notice a second: no flood */

static __noinline int give_notice(struct ledger_state *state, struct account *account, __u32 slot,
				  __s64 held, __u32 trigger)
{
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if ((account->flags & ACCOUNT_PAUSED) ||
	    __sync_val_compare_and_swap(&account->noticed, 0, 1) != 0)
		return 0;
	if (account->noticed_ns && now - account->noticed_ns < NOTICE_PAUSE_NS)
		return 0;
	account->noticed_ns = now;
	__sync_fetch_and_add(&account->history.notices, 1);
	event = begin_event(EVENT_NOTICE, trigger, now);
	if (!event)
		return 0;
	event->account = slot;
	event->uid = account->id;
	tell_levels(event, account, held);
	emit(state, event);
	return 0;
}

/*
 * From where on each event is counted exactly: early enough that what all CPUs keep back of all the
 * account's processes cannot hide the way from there to the next bound. The notice is one until it has
 * been given; the barrier is nobody's concern here.
 */
enum { NEAR_PAGES = 256 };

static __always_inline void place_near(struct ledger_state *state, struct account *account)
{
	__s64 bound = account->limit_pages, margin;

	if (account->notice_pages < bound && !account->noticed)
		bound = account->notice_pages;
	if (bound == NO_BOUND_PAGES) {
		account->near_pages = NO_BOUND_PAGES;
	} else {
		margin = NEAR_PAGES + (__s64)account->processes * kept_back_at_most();
		account->near_pages = bound > margin ? bound - margin : 0;
	}
	if (account->near && account->held_pages + account->unrecorded_pages <
				     account->near_pages - (account->near_pages >> 6)) {
		account->near = 0;
		__sync_fetch_and_add(&state->generation, 1);
	}
}

/* What an account's new level asks for. `held` is what this very booking produced. */
static __always_inline void react(struct ledger_state *state, struct account *account, __u32 slot,
				  __s64 held, __u32 trigger, __u64 own_mm)
{
	__s64 sum = held;

	held += account->unrecorded_pages;
	if (held < account->near_pages) {
		doubt_ends(account);
		return;
	}
	/* Not in charge yet: another kernel half kills, and what it has killed is not known here. */
	if (account->flags & ACCOUNT_PAUSED)
		return;
	if (!account->near && !__sync_lock_test_and_set(&account->near, 1)) {
		/* From now on each event is counted exactly. What idle processes have kept back so
		 * far no event will tell: read them all once. */
		__sync_fetch_and_add(&state->generation, 1);
		settle(slot, trigger, own_mm != 0);
		sum = account->held_pages;
	}
	held = level_from(account, sum);
	if (held >= account->notice_pages && !account->noticed) {
		/* Told of what is held, not of what is counted twice. */
		if (account->processes > 1 && held <= account->limit_pages)
			settle(slot, trigger, own_mm != 0);
		if (!is_asking(account, bpf_ktime_get_ns())) {
			held = level_from(account, account->held_pages);
			if (held >= account->notice_pages)
				give_notice(state, account, slot, held, trigger);
			place_near(state, account);
		}
	}
	/* A decision knows better: some of it may be on its way out. */
	if (held > account->limit_pages && surely_held(account) > kill_above(account)) {
		settle(slot, trigger, own_mm != 0);
		return;
	}
	raise_maxheld(account, held);
	if (held <= account->limit_pages)
		doubt_ends(account);
}

#endif /* BURSAR_VICTIM_BPF_H */
