// SPDX-License-Identifier: GPL-2.0-only
/* Units of ledger/, gate/: what follows from a level (fixture.bpf.h). */
#include "fixture.bpf.h"
#include "ledger/react.bpf.h"
#include "ledger/stock.bpf.h"
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

SEC("syscall") int what_is_reserved_brings_the_near_zone_nearer(void *ctx)
{
	BEGIN(it);
	__s64 before;

	it->account->limit_pages = 1 << 20;
	place_near(it->state, it->account);
	before = it->account->near_pages;
	it->account->reserved_pages = 1000;
	it->account->promised_pages = 500;
	place_near(it->state, it->account);
	EXPECT(it->account->near_pages == before - 1000);
	it->state->answering_mm = 1;
	place_near(it->state, it->account);
	EXPECT(it->account->near_pages == before - 1500);
	it->account->promised_pages = 1 << 20;
	place_near(it->state, it->account);
	EXPECT(it->account->near_pages == before - 1000 - (1 << 20));
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
	__u64 generation;

	it->account->limit_pages = 1 << 20;
	place_near(it->state, it->account);
	EXPECT(come_near(it->state, it->account));
	note_all_read(it->state, it->account, it->state->generation);
	EXPECT(it->account->near == NEAR_AND_READ && has_stocks(it->account));
	generation = it->state->generation;
	EXPECT(come_to_exactness(it->state, it->account, 1 << 20));
	EXPECT(!has_all_read(it->account));
	/* It was far again, or another was, while its records were read. */
	note_all_read(it->state, it->account, generation);
	EXPECT(!has_all_read(it->account));
	note_all_read(it->state, it->account, it->state->generation);
	EXPECT(it->account->near == EXACT_AND_READ);
	EXPECT(has_all_read(it->account) == !rss_is_atomic());
	EXPECT(!come_near(it->state, it->account));
	EXPECT(it->account->near == EXACT_AND_READ);
	it->account->held_pages = 10;
	place_near(it->state, it->account);
	EXPECT(!has_all_read(it->account));
	note_all_read(it->state, it->account, it->state->generation);
	EXPECT(!has_all_read(it->account));
	return 0;
}

/* Stocks of events that are not booked */

SEC("syscall") int stocks_end_before_they_could_hide_the_way_to_a_bound(void *ctx)
{
	BEGIN(it);
	__u64 generation;
	__s64 from;

	it->account->limit_pages = 1 << 20;
	it->account->cpus = 1;
	place_near(it->state, it->account);
	from = exact_from(it->account);
	EXPECT(from > it->account->near_pages);
	EXPECT(from + most_in_stocks(it->account) == (1 << 20) - EXACT_PAGES);
	EXPECT(come_near(it->state, it->account));
	generation = it->state->generation;
	EXPECT(!come_to_exactness(it->state, it->account, from - 1));
	EXPECT(come_to_exactness(it->state, it->account, from));
	EXPECT(it->account->near == EXACT && it->state->generation == generation + 1);
	EXPECT(!come_to_exactness(it->state, it->account, from));
	/* A page less is no reason to begin again. */
	come_down(it->state, it->account, from - 1);
	EXPECT(it->account->near == EXACT);
	come_down(it->state, it->account, from - (1 << 14) - 1);
	EXPECT(it->account->near == NEAR_AND_READ && it->state->generation == generation + 1);
	return 0;
}

SEC("syscall") int stocks_are_void_once(void *ctx)
{
	BEGIN(it);
	__u64 generation = it->state->generation;

	EXPECT(!void_stocks(it->state, it->account));
	it->account->near = NEAR_AND_READ;
	EXPECT(void_stocks(it->state, it->account));
	EXPECT(it->account->near == EXACT && it->state->generation == generation + 1);
	EXPECT(!void_stocks(it->state, it->account));
	return 0;
}

SEC("syscall") int a_promise_is_given_on_no_stock(void *ctx)
{
	BEGIN(it);
	__s64 level;

	it->account->cpus = 1;
	it->account->held_pages = 100;
	level = promised_level(it->state, it->account);
	it->account->near = NEAR;
	EXPECT(promised_level(it->state, it->account) == level + most_in_stocks(it->account));
	it->account->near = EXACT;
	EXPECT(promised_level(it->state, it->account) == level);
	return 0;
}

SEC("syscall") int a_stock_is_for_pages_that_the_process_adds_one_by_one(void *ctx)
{
	BEGIN(it);
	struct seen seen = {.mm = own_mm(), .index = RECORD, .verdict = VERDICT_NEAR};

	if (rss_is_atomic())
		return 0;
	it->account->near = NEAR;
	remember_member(&seen, MEMBER_SWAP, 7);
	EXPECT(seen.stock.left == STOCK_PAGES);
	EXPECT(!may_stay_unbooked(&seen, MEMBER_SWAP, 7)); /* its part has not changed */
	seen.stock.part--;
	EXPECT(!may_stay_unbooked(&seen, MEMBER_SHMEM, 7) && !may_stay_unbooked(&seen, MEMBER_SWAP, 8));
	EXPECT(may_stay_unbooked(&seen, MEMBER_SWAP, 7));
	EXPECT(seen.stock.taken == 1 && seen.stock.left == STOCK_PAGES - 1 && it->record->grown_events == 1);
	EXPECT(!has_stock_grown(&seen, MEMBER_SWAP, 7) && has_stock_grown(&seen, MEMBER_SWAP, 8));
	EXPECT(is_other_in_stock(&seen, MEMBER_ANON) && !is_other_in_stock(&seen, MEMBER_SWAP));
	seen.stock.part--;
	EXPECT(has_stock_grown(&seen, MEMBER_SWAP, 7));
	seen.stock.left = 0;
	EXPECT(!may_stay_unbooked(&seen, MEMBER_SWAP, 7));
	seen.mm = MM;
	seen.stock.left = 1;
	seen.stock.is_given = 0;
	EXPECT(!may_stay_unbooked(&seen, MEMBER_SWAP, 7)); /* another process's */
	seen.stock.is_given = 1;
	EXPECT(may_stay_unbooked(&seen, MEMBER_SWAP, 7)); /* nobody has it: it is being taken apart */
	it->account->near = EXACT;
	seen.mm = own_mm();
	remember_member(&seen, MEMBER_SWAP, 7);
	EXPECT(!seen.stock.left);
	it->account->near = NEAR;
	it->record->state = MM_DYING;
	remember_member(&seen, MEMBER_SWAP, 7);
	EXPECT(!seen.stock.left);
	return 0;
}

/* Decisions */

SEC("syscall") int who_waits_for_a_decision_waits_until_it_is_over_and_not_for_long(void *ctx)
{
	BEGIN(it);
	struct waiting waiting = {.slot = SLOT, .until_ns = ~0ULL};
	__u64 began = bpf_ktime_get_ns();

	it->account->deciding_ns = began;
	wait_for_decision(SLOT);
	EXPECT(bpf_ktime_get_ns() - began >= DECISION_WAIT_NS);
	EXPECT(!has_been_decided(0, &waiting));
	it->account->deciding_ns = 0;
	EXPECT(has_been_decided(0, &waiting));
	return 0;
}

SEC("syscall") int who_was_overtaken_while_he_decided_kills_nobody(void *ctx)
{
	BEGIN(it);
	struct decision *decision = decision_of(TRIGGER_EVENT);

	EXPECT(decision);
	decision->slot = SLOT;
	decision->event.time_ns = 5;
	decision->victim = (struct chosen){ .record = RECORD, .mm = MM, .ctx_id = CTX };
	it->account->deciding_ns = 6;
	EXPECT(!kill_victim(decision));
	EXPECT(it->record->state == MM_LIVING && !it->record->marked_ns);
	it->account->deciding_ns = 5;
	EXPECT(kill_victim(decision) == 1 && it->record->state == MM_MARKED);
	return 0;
}

SEC("syscall") int what_was_written_after_the_clock_was_read_is_no_time_ago(void *ctx)
{
	BEGIN(it);
	struct decision *decision = decision_of(TRIGGER_EVENT);
	__u64 now = bpf_ktime_get_ns(), later = now + 1000000000000ULL;

	EXPECT(decision);
	/* Another CPU decides. */
	it->account->deciding_ns = later;
	EXPECT(!decide(SLOT, TRIGGER_EVENT, RUNNING_OWN));
	EXPECT(it->account->deciding_ns == later);
	it->account->deciding_ns = 0;
	it->account->asked_ns = later;
	EXPECT(is_asking(it->account, now));
	it->account->asked_ns = 0;
	decision->marked_ns = later;
	decision->event.limit_pages = it->account->limit_pages;
	it->account->held_pages = 0;
	it->account->marked_over_pages = 0;
	EXPECT(has_grace(it->account, decision, now));
	return 0;
}

SEC("syscall") int nobody_dies_for_who_has_just_ended(void *ctx)
{
	BEGIN(it);
	struct decision *decision = decision_of(TRIGGER_EVENT);

	EXPECT(decision);
	it->account->limit_pages = 1000;
	it->account->held_pages = 1200;
	decision->event.held_pages = 1200;
	decision->held_before = 1200;
	decision->booked = 600; /* its child had 600, and is not there any more */
	EXPECT(is_over_by_the_ended(it->account, decision));
	decision->booked = 1200;
	EXPECT(!is_over_by_the_ended(it->account, decision));
	decision->booked = 1190; /* others have grown meanwhile */
	EXPECT(!is_over_by_the_ended(it->account, decision));
	decision->booked = 600; /* its growth came after it was met */
	decision->held_before = 600;
	EXPECT(!is_over_by_the_ended(it->account, decision));
	return 0;
}

SEC("syscall") int a_request_to_kill_is_over_once_a_second(void *ctx)
{
	BEGIN(it);
	struct decision *decision = decision_of(TRIGGER_EVENT);
	__u64 marked = 5ULL * ASK_AGAIN_NS / 2;

	EXPECT(decision);
	decision->tried_before_ns = 0;
	decision->tried_ns = marked - 1;
	EXPECT(!is_request_over(decision, marked));
	decision->tried_ns = marked + ASK_AGAIN_NS - 1;
	EXPECT(!is_request_over(decision, marked));
	decision->tried_before_ns = decision->tried_ns++;
	EXPECT(is_request_over(decision, marked));
	decision->tried_before_ns = decision->tried_ns++;
	EXPECT(!is_request_over(decision, marked));
	decision->tried_ns += 2ULL * ASK_AGAIN_NS;
	EXPECT(is_request_over(decision, marked));
	return 0;
}

SEC("syscall") int who_was_marked_for_files_is_not_let_go_for_their_credit(void *ctx)
{
	BEGIN(it);

	it->account->held_pages = 1025;
	EXPECT(is_kill_due(it->account));
	it->account->files_credit_pages = 100;
	it->account->files_credit_ms = now_ms() + 2; /* by a CPU that is ahead */
	EXPECT(level_now(it->account) < 1024 && is_kill_due(it->account));
	it->account->held_pages = 1024;
	EXPECT(!is_kill_due(it->account));
	return 0;
}

SEC("syscall") int candidates_are_kept_largest_first(void *ctx)
{
	BEGIN(it);
	struct decision *decision = decision_of(TRIGGER_EVENT);

	EXPECT(decision);
	__builtin_memset(&decision->event.candidates, 0, sizeof(decision->event.candidates));
	decision->event.candidates_met = decision->event.candidates_kept = 0;
	decision->owner = (__u64)bpf_get_current_task();
	keep_candidate(decision, 1, UID, 10, 0);
	keep_candidate(decision, 2, UID, 30, 0);
	keep_candidate(decision, 3, UID, 20, 0);
	EXPECT(decision->event.candidates[0].pid == 2);
	EXPECT(decision->event.candidates[1].pid == 3);
	EXPECT(decision->event.candidates[2].pid == 1);
	EXPECT(decision->event.candidates_kept == 3);
	return 0;
}

SEC("syscall") int of_many_candidates_the_smallest_is_forgotten_and_all_are_counted(void *ctx)
{
	BEGIN(it);
	struct decision *decision = decision_of(TRIGGER_EVENT);
	int i;

	EXPECT(decision);
	__builtin_memset(&decision->event.candidates, 0, sizeof(decision->event.candidates));
	decision->event.candidates_met = decision->event.candidates_kept = 0;
	decision->owner = (__u64)bpf_get_current_task();
	for (i = 1; i <= CANDIDATES + 1; i++)
		keep_candidate(decision, i, UID, i, 0);
	EXPECT(decision->event.candidates[0].pid == CANDIDATES + 1);
	EXPECT(decision->event.candidates[CANDIDATES - 1].pid == 2);
	EXPECT(decision->event.candidates_kept == CANDIDATES);
	EXPECT(decision->event.candidates_met == CANDIDATES + 1);
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
	struct decision *decision = decision_of(TRIGGER_EVENT);
	__u64 now = bpf_ktime_get_ns();

	EXPECT(decision);
	decision->event.limit_pages = 1024;
	decision->marked_ns = now - SIGNAL_GRACE_NS / 2;
	it->account->held_pages = 1024 + 511;
	EXPECT(has_grace(it->account, decision, now));
	it->account->held_pages = 1024 + 512;
	EXPECT(!has_grace(it->account, decision, now));
	decision->marked_ns = now - 2 * SIGNAL_GRACE_NS;
	it->account->held_pages = 1024 + 63;
	EXPECT(has_grace(it->account, decision, now));
	it->account->held_pages = 1024 + 64;
	EXPECT(!has_grace(it->account, decision, now));
	decision->marked_ns = now - LONGEST_GRACE_NS;
	it->account->held_pages = 1024;
	EXPECT(!has_grace(it->account, decision, now));
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
	struct decision *decision = decision_of(TRIGGER_EVENT);

	EXPECT(decision);
	decision->slot = SLOT;
	decision->victim.pages = 100;
	decision->victim.mm = MM;
	decision->victim.ctx_id = CTX;
	it->account->flags |= ACCOUNT_OBSERVED;
	forgo_kill(decision, it->record);
	EXPECT(decision->event.kind == EVENT_WOULD_KILL);
	EXPECT(is_forgone(it->account, it->record));
	EXPECT(it->record->state == MM_LIVING);
	forgo_kill(decision, it->record);
	EXPECT(it->account->forgone_pages == 100);
	EXPECT(!it->account->history.kills && !it->account->history.failcnt);
	/* Nor is it somebody else whose record that has become. */
	it->record->flags = 0;
	it->record->ctx_id = CTX + 1;
	forgo_kill(decision, it->record);
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
	it->account->notice_pages = 1000;
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
	it->account->notice_pages = 1000;
	give_notice(SLOT, 1000, TRIGGER_EVENT);
	give_notice(SLOT, 1000, TRIGGER_EVENT);
	EXPECT(it->account->history.notices == 1);
	it->account->noticed = 0;
	EXPECT(!is_notice_due(SLOT, 1000));
	give_notice(SLOT, 1000, TRIGGER_EVENT); /* within a second of the last */
	EXPECT(it->account->history.notices == 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";

SEC("syscall") int a_retried_kill_is_counted_once_and_marks_only_whom_it_was_for(void *ctx)
{
	BEGIN(it);
	it->record->state = MM_MARKED;
	it->record->marked_ns = 5;
	it->state->kills_wanted = 1;
	EXPECT(!note_retried(RECORD, 4, 6, 0)); /* marked for another reason */
	EXPECT(it->record->marked_ns == 5 && it->record->state == MM_MARKED);
	EXPECT(note_retried(RECORD, 5, 6, 0) == 1);
	EXPECT(it->record->state == MM_DYING && it->record->marked_ns == 6);
	EXPECT(note_retried(RECORD, 6, 7, 0) == 1); /* found dying meanwhile */
	EXPECT(!it->state->kills_wanted && it->account->history.kills == 1);
	it->record->state = MM_LIVING; /* an innocent's, as open_record() leaves it */
	it->record->marked_ns = 0;
	EXPECT(!note_retried(RECORD, 7, 8, 0));
	EXPECT(!it->record->marked_ns && it->record->state == MM_LIVING);
	return 0;
}
