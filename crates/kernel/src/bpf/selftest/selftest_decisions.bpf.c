// SPDX-License-Identifier: GPL-2.0-only
/* Units of ledger/, gate/: what follows from a level, and who pays (fixture.bpf.h). */
#include "fixture.bpf.h"
#include "ledger/react.bpf.h"
#include "gate/reservation.bpf.h"

/* The near zone */

SEC("syscall") int the_near_zone_begins_before_the_limit(void *ctx)
{
	BEGIN(it);
	it->account->limit_pages = 1 << 20;
	place_near(it->state, it->account);
	EXPECT(it->account->near_pages <= (1 << 20) - NEAR_PAGES);
	EXPECT(it->account->near_pages > 0);
	return 0;
}

SEC("syscall") int the_notice_is_the_nearer_bound_until_it_is_given(void *ctx)
{
	BEGIN(it);
	__s64 until_given;

	it->account->limit_pages = 1 << 20;
	it->account->notice_pages = 1 << 19;
	place_near(it->state, it->account);
	until_given = it->account->near_pages;
	EXPECT(until_given < 1 << 19);
	it->account->noticed = 1;
	place_near(it->state, it->account);
	EXPECT(it->account->near_pages == until_given + (1 << 19));
	return 0;
}

SEC("syscall") int without_a_bound_nothing_is_near(void *ctx)
{
	BEGIN(it);
	it->account->limit_pages = NO_BOUND_PAGES;
	place_near(it->state, it->account);
	EXPECT(it->account->near_pages == NO_BOUND_PAGES);
	count_cpus(it->account, 1);
	EXPECT(it->account->near_pages == NO_BOUND_PAGES);
	return 0;
}

SEC("syscall") int who_is_far_again_is_told_to_all_processors(void *ctx)
{
	BEGIN(it);
	__u64 generation = it->state->generation;

	it->account->limit_pages = 1 << 20;
	it->account->near = NEAR;
	it->account->held_pages = 10;
	place_near(it->state, it->account);
	EXPECT(!it->account->near);
	EXPECT(it->state->generation == generation + 1);
	return 0;
}

SEC("syscall") int who_has_come_near_is_read_before_its_records_decide(void *ctx)
{
	BEGIN(it);
	__u64 generation = it->state->generation;

	EXPECT(come_near(it->state, it->account));
	EXPECT(!has_all_read(it->account));
	/* It was far again, or another was, while its records were read. */
	note_all_read(it->state, it->account, generation);
	EXPECT(!has_all_read(it->account));
	note_all_read(it->state, it->account, it->state->generation);
	EXPECT(it->account->near == NEAR_AND_READ);
	EXPECT(has_all_read(it->account) == !rss_is_atomic());
	EXPECT(!come_near(it->state, it->account));
	EXPECT(it->account->near == NEAR_AND_READ);
	it->account->held_pages = 10;
	place_near(it->state, it->account);
	EXPECT(!has_all_read(it->account));
	note_all_read(it->state, it->account, it->state->generation);
	EXPECT(!has_all_read(it->account));
	return 0;
}

/* Decisions */

SEC("syscall") int who_waits_for_a_decision_waits_until_it_is_over_and_not_for_long(void *ctx)
{
	BEGIN(it);
	struct waiting waiting = {.slot = SLOT, .until_ns = ~0ULL};
	__u64 began = bpf_ktime_get_ns();

	it->account->settling_ns = began;
	wait_for_decision(SLOT);
	EXPECT(bpf_ktime_get_ns() - began >= DECISION_WAIT_NS);
	EXPECT(!has_been_decided(0, &waiting));
	it->account->settling_ns = 0;
	EXPECT(has_been_decided(0, &waiting));
	return 0;
}

SEC("syscall") int candidates_are_kept_largest_first(void *ctx)
{
	BEGIN(it);
	struct walk *walk = notes_of(TRIGGER_EVENT);

	EXPECT(walk);
	__builtin_memset(&walk->event.candidates, 0, sizeof(walk->event.candidates));
	walk->event.candidates_met = walk->event.candidates_kept = 0;
	walk->owner = (__u64)bpf_get_current_task();
	keep_candidate(walk, 1, UID, 10, 0);
	keep_candidate(walk, 2, UID, 30, 0);
	keep_candidate(walk, 3, UID, 20, 0);
	EXPECT(walk->event.candidates[0].pid == 2);
	EXPECT(walk->event.candidates[1].pid == 3);
	EXPECT(walk->event.candidates[2].pid == 1);
	EXPECT(walk->event.candidates_kept == 3);
	return 0;
}

SEC("syscall") int of_many_candidates_the_smallest_is_forgotten_and_all_are_counted(void *ctx)
{
	BEGIN(it);
	struct walk *walk = notes_of(TRIGGER_EVENT);
	int i;

	EXPECT(walk);
	__builtin_memset(&walk->event.candidates, 0, sizeof(walk->event.candidates));
	walk->event.candidates_met = walk->event.candidates_kept = 0;
	walk->owner = (__u64)bpf_get_current_task();
	for (i = 1; i <= CANDIDATES + 1; i++)
		keep_candidate(walk, i, UID, i, 0);
	EXPECT(walk->event.candidates[0].pid == CANDIDATES + 1);
	EXPECT(walk->event.candidates[CANDIDATES - 1].pid == 2);
	EXPECT(walk->event.candidates_kept == CANDIDATES);
	EXPECT(walk->event.candidates_met == CANDIDATES + 1);
	return 0;
}

SEC("syscall") int a_question_is_waited_for_up_to_a_level(void *ctx)
{
	BEGIN(it);
	it->account->held_pages = 1100;
	EXPECT(!has_waited_enough(it->account)); /* none waits */
	it->account->wait_at_most_pages = 1100;
	EXPECT(!has_waited_enough(it->account));
	it->account->held_pages = 1101;
	EXPECT(has_waited_enough(it->account));
	return 0;
}

SEC("syscall") int a_marked_victim_has_less_time_where_its_account_grows(void *ctx)
{
	BEGIN(it);
	struct walk *walk = notes_of(TRIGGER_EVENT);
	__u64 now = bpf_ktime_get_ns();

	EXPECT(walk);
	walk->event.limit_pages = 1024;
	walk->marked_ns = now - SIGNAL_GRACE_NS / 2;
	it->account->held_pages = 1024 + 511;
	EXPECT(has_grace(it->account, walk, now));
	it->account->held_pages = 1024 + 512;
	EXPECT(!has_grace(it->account, walk, now));
	walk->marked_ns = now - 2 * SIGNAL_GRACE_NS;
	it->account->held_pages = 1024 + 63;
	EXPECT(has_grace(it->account, walk, now));
	it->account->held_pages = 1024 + 64;
	EXPECT(!has_grace(it->account, walk, now));
	walk->marked_ns = now - LONGEST_GRACE_NS;
	it->account->held_pages = 1024;
	EXPECT(!has_grace(it->account, walk, now));
	return 0;
}

/* Accounts that are only observed */

SEC("syscall") int who_was_forgone_is_on_top_of_the_limit(void *ctx)
{
	BEGIN(it);
	it->account->limit_pages = 1 << 20;
	EXPECT(decide_above(it->account) == 1 << 20);
	it->account->forgone_pages = 1 << 19;
	EXPECT(kill_above(it->account) == 1 << 20);
	EXPECT(decide_above(it->account) == (1 << 20) + (1 << 19) + (1 << 16));
	/* Between the two nothing is decided: there an event costs what it costs far from a limit. */
	it->account->near = NEAR;
	it->account->held_pages = (1 << 20) + (1 << 19);
	place_near(it->state, it->account);
	EXPECT(!it->account->near && it->account->near_pages > it->account->held_pages);
	return 0;
}

SEC("syscall") int a_kill_is_forgone_once(void *ctx)
{
	BEGIN(it);
	struct walk *walk = notes_of(TRIGGER_EVENT);

	EXPECT(walk);
	walk->slot = SLOT;
	walk->victim.pages = 100;
	walk->victim.mm = MM;
	walk->victim.ctx_id = CTX;
	it->account->flags |= ACCOUNT_OBSERVED;
	forgo_kill(walk, it->record);
	EXPECT(walk->event.kind == EVENT_WOULD_KILL);
	EXPECT(is_forgone(it->account, it->record));
	EXPECT(it->record->state == MM_LIVING);
	forgo_kill(walk, it->record);
	EXPECT(it->account->forgone_pages == 100);
	EXPECT(!it->account->history.kills && !it->account->history.failcnt);
	/* Nor is it somebody else whose record that has become. */
	it->record->flags = 0;
	it->record->ctx_id = CTX + 1;
	forgo_kill(walk, it->record);
	EXPECT(!it->record->flags && it->account->forgone_pages == 100);
	it->record->flags = RECORD_FORGONE;
	/* Enforced again it is a candidate again. */
	it->account->flags &= ~ACCOUNT_OBSERVED;
	EXPECT(!is_forgone(it->account, it->record));
	return 0;
}

SEC("syscall") int an_observed_account_is_given_no_notice_that_counts(void *ctx)
{
	BEGIN(it);
	it->account->flags |= ACCOUNT_OBSERVED;
	give_notice(SLOT, 1000, TRIGGER_EVENT);
	EXPECT(it->account->noticed && !it->account->history.notices);
	return 0;
}

SEC("syscall") int an_observed_account_reserves_beyond_its_limit(void *ctx)
{
	BEGIN(it);
	it->account->flags |= ACCOUNT_OBSERVED;
	it->account->held_pages = 1000;
	EXPECT(!change_reservation(it->state, it->account, SLOT, it->record, 25));
	EXPECT(it->account->reserved_pages == 25 && it->record->reserved_pages == 25);
	EXPECT(!it->account->history.failcnt);
	return 0;
}

/* The gate */

SEC("syscall") int a_reservation_may_reach_the_limit(void *ctx)
{
	BEGIN(it);
	it->account->held_pages = 1000;
	EXPECT(!change_reservation(it->state, it->account, SLOT, it->record, 24));
	EXPECT(it->account->reserved_pages == 24 && it->record->reserved_pages == 24);
	return 0;
}

SEC("syscall") int a_reservation_beyond_the_limit_is_refused_and_leaves_nothing(void *ctx)
{
	BEGIN(it);
	it->account->held_pages = 1000;
	EXPECT(change_reservation(it->state, it->account, SLOT, it->record, 25) == -ENOMEM);
	EXPECT(!it->account->reserved_pages && !it->record->reserved_pages);
	EXPECT(it->account->history.failcnt == 1);
	return 0;
}

SEC("syscall") int nonsense_is_no_reservation(void *ctx)
{
	BEGIN(it);
	EXPECT(change_reservation(it->state, it->account, SLOT, it->record, 0) == -EINVAL);
	EXPECT(change_reservation(it->state, it->account, SLOT, it->record, MOST_PAGES + 1) == -EINVAL);
	EXPECT(change_reservation(it->state, it->account, SLOT, it->record, -MOST_PAGES - 1) == -EINVAL);
	return 0;
}

SEC("syscall") int nobody_gives_back_what_is_not_reserved(void *ctx)
{
	BEGIN(it);
	EXPECT(!change_reservation(it->state, it->account, SLOT, it->record, 8));
	EXPECT(change_reservation(it->state, it->account, SLOT, it->record, -9) == -EINVAL);
	EXPECT(it->account->reserved_pages == 8 && it->record->reserved_pages == 8);
	EXPECT(!change_reservation(it->state, it->account, SLOT, it->record, -8));
	EXPECT(!it->account->reserved_pages);
	return 0;
}

SEC("syscall") int a_request_is_granted_up_to_its_bound(void *ctx)
{
	BEGIN(it);
	struct tops tops = { 1000, NO_BOUND_PAGES };

	it->account->measure = MEASURE_COMMITTED;
	it->account->committed_pages = 900;
	EXPECT(!try_charge(it->account, 101, 0, 0, &tops));
	EXPECT(it->account->committed_pages == 900);
	EXPECT(try_charge(it->account, 100, 0, 0, &tops));
	EXPECT(it->account->committed_pages == 1000);
	return 0;
}

SEC("syscall") int what_is_committed_has_a_bound_of_its_own(void *ctx)
{
	BEGIN(it);
	struct tops tops = { NO_BOUND_PAGES, 500 };

	it->account->held_pages = 4000;
	it->account->committed_pages = 400;
	EXPECT(!counts_commitment(it->account));
	it->account->private_barrier_pages = 500;
	EXPECT(counts_commitment(it->account));
	EXPECT(!try_charge(it->account, 101, 101, 0, &tops));
	EXPECT(it->account->committed_pages == 400);
	EXPECT(try_charge(it->account, 100, 100, 0, &tops));
	EXPECT(it->account->committed_pages == 500 && it->account->private_maxheld_pages == 500);
	return 0;
}

SEC("syscall") int what_is_measured_as_committed_is_the_larger_of_the_two(void *ctx)
{
	BEGIN(it);
	it->account->held_pages = 40;
	it->account->committed_pages = 90;
	EXPECT(level_of(it->account, 0, 0, 0, true) == 40);
	it->account->measure = MEASURE_COMMITTED;
	EXPECT(level_of(it->account, 0, 0, 0, true) == 90);
	it->account->reserved_pages = 7;
	EXPECT(level_of(it->account, 0, 0, 3, true) == 94);
	return 0;
}

/* Who pays */

static __always_inline long fill_range(__u32 index, void *unused)
{
	struct subordinate range = { .first = (__u32)-2, .last = 0 };

	/* Three ranges; what is left over begins after all uids, as the user half writes them. */
	if (index < 3) {
		range.first = 100000 + index * 65536 * 2;
		range.last = range.first + 65535;
		range.superior = 1000 + index;
	}
	bpf_map_update_elem(&subordinates, &index, &range, BPF_ANY);
	return 0;
}
LOOP_BODY(fill_range, void *, SUBORDINATES)

SEC("syscall") int a_subordinate_uid_is_its_ranges_superiors(void *ctx)
{
	BEGIN(it);
	it->state->subordinates = 0;
	LOOP(fill_range, NULL);
	EXPECT(superior_of(99999) == NOBODY);
	EXPECT(superior_of(100000) == 1000);
	EXPECT(superior_of(165535) == 1000);
	EXPECT(superior_of(165536) == NOBODY);
	EXPECT(superior_of(231072) == 1001);
	EXPECT(superior_of(362144 + 65535) == 1002);
	EXPECT(superior_of(0) == NOBODY);
	return 0;
}

/* As if `default` covered uids from 1,000 on but 60,500 to 60,600. */
static __always_inline void cover(struct fixture *it)
{
	struct account *template = account_at(0);

	it->state->uid_min = 1000;
	it->state->exempt[0].first = 60500;
	it->state->exempt[0].last = 60600;
	it->state->account_high_water = OTHER;
	if (!template)
		return;
	template->flags = ACCOUNT_USED;
	template->limit_pages = 77;
}

SEC("syscall") int a_uid_that_default_covers_gets_an_account(void *ctx)
{
	BEGIN(it);
	cover(it);
	EXPECT(account_of(it->state, UID) == OTHER);
	EXPECT(it->other->limit_pages == 77 && it->other->id == UID);
	EXPECT(it->other->flags & ACCOUNT_DEFAULT);
	EXPECT(account_of(it->state, UID) == OTHER);
	return 0;
}

SEC("syscall") int an_account_made_from_the_template_is_watched_as_that_is(void *ctx)
{
	struct account *template = account_at(0);

	BEGIN(it);
	cover(it);
	EXPECT(template);
	template->watch_above_pages = 1;
	template->watched = 1;
	EXPECT(account_of(it->state, UID) == OTHER);
	EXPECT(it->other->watched && it->other->watch_above_pages == 1);
	return 0;
}

SEC("syscall") int services_and_exempt_uids_get_none(void *ctx)
{
	BEGIN(it);
	cover(it);
	EXPECT(!is_covered_by_default(it->state, 999));
	EXPECT(is_covered_by_default(it->state, 1000));
	EXPECT(!is_covered_by_default(it->state, 60500));
	EXPECT(!is_covered_by_default(it->state, 60600));
	EXPECT(is_covered_by_default(it->state, 60601));
	EXPECT(open_default_account(it->state, 60550) == NOBODY);
	return 0;
}

SEC("syscall") int an_account_that_finds_no_room_is_counted(void *ctx)
{
	BEGIN(it);
	__u64 before = it->state->accounts_full;

	cover(it);
	it->state->account_high_water = max_accounts;
	EXPECT(open_default_account(it->state, UID) == NOBODY);
	EXPECT(it->state->accounts_full == before + 1);
	EXPECT(it->state->account_high_water == max_accounts);
	return 0;
}

SEC("syscall") int memberships_of_former_versions_are_understood(void *ctx)
{
	struct membership group = { .number = (1U << 31) | 50 }, named = { .number = (1U << 31) | (1U << 30) | 9 },
			  now = { .number = 50, .kind = KIND_GROUP };

	EXPECT(id_of_membership(&group) == ((__u64)KIND_GROUP << KIND_SHIFT | 50));
	EXPECT(id_of_membership(&named) >> KIND_SHIFT == KIND_NAMED);
	EXPECT(id_of_membership(&now) == ((__u64)KIND_GROUP << KIND_SHIFT | 50));
	return 0;
}

/* Events */

SEC("syscall") int a_full_ring_loses_events_and_counts_them(void *ctx)
{
	BEGIN(it);
	struct event *event = begin_event(EVENT_NOTICE, TRIGGER_EVENT, 1);
	__u64 before = it->state->events_lost;
	int i;

	EXPECT(event);
	/* Nobody reads it: a page of 64 KiB holds fewer. */
	for (i = 0; i < 512 && it->state->events_lost == before; i++)
		emit(it->state, event);
	EXPECT(it->state->events_lost > before);
	before = it->state->events_lost;
	event = reserve_event(it->state, EVENT_REFUSED, TRIGGER_EVENT, 1);
	if (event) {
		bpf_ringbuf_discard(event, 0);
		return -__LINE__;
	}
	EXPECT(it->state->events_lost == before + 1);
	return 0;
}

SEC("syscall") int a_thing_is_told_once_in_a_while(void *ctx)
{
	__u64 told = 0;

	EXPECT(may_tell(&told, 100, 1000));
	EXPECT(!may_tell(&told, 100, 1099));
	EXPECT(may_tell(&told, 100, 1100));
	EXPECT(told == 1100);
	return 0;
}

SEC("syscall") int a_notice_is_given_once_a_crossing(void *ctx)
{
	BEGIN(it);
	give_notice(SLOT, 1000, TRIGGER_EVENT);
	give_notice(SLOT, 1000, TRIGGER_EVENT);
	EXPECT(it->account->history.notices == 1);
	it->account->noticed = 0;
	give_notice(SLOT, 1000, TRIGGER_EVENT); /* within a second of the last */
	EXPECT(it->account->history.notices == 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
