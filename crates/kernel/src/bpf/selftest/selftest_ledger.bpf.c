// SPDX-License-Identifier: GPL-2.0-only
/* Units of lib/: records, bookings, corrections, the level (fixture.bpf.h). */
#include "fixture.bpf.h"

/* Numbers */

SEC("syscall") int pages_that_a_record_keeps_fit_into_32_bits(void *ctx)
{
	BEGIN(it);
	EXPECT(small(-1) == 0);
	EXPECT(small(5) == 5);
	EXPECT(small(1LL << 40) == (__u32)-1);
	return 0;
}

SEC("syscall") int what_a_record_has_is_never_negative(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 3;
	it->record->pages[MEMBER_SWAP] = 4;
	EXPECT(recorded_pages(it->record) == 7);
	it->record->pages[MEMBER_SHMEM] = -9; /* a part of the counter that was read before another */
	EXPECT(recorded_pages(it->record) == 0);
	return 0;
}

SEC("syscall") int a_maximum_only_rises(void *ctx)
{
	BEGIN(it);
	raise_maxheld(it->account, 10);
	raise_maxheld(it->account, 4);
	EXPECT(it->account->history.maxheld_pages == 10);
	raise_maxheld(it->account, 11);
	EXPECT(it->account->history.maxheld_pages == 11);
	return 0;
}

SEC("syscall") int bits_are_counted_and_found(void *ctx)
{
	EXPECT(bits_in(0) == 0 && bits_in(~0ULL) == 64);
	EXPECT(bits_in(0x8000000000000001ULL) == 2);
	EXPECT(lowest_bit(1) == 0 && lowest_bit(0x8000000000000000ULL) == 63);
	EXPECT(lowest_bit(0x500) == 8);
	return 0;
}

SEC("syscall") int a_cpu_is_in_a_set_once(void *ctx)
{
	BEGIN(it);
	struct cpu_set *cpus = &it->record->cpus;

	EXPECT(!put_cpu(cpus, 70));
	EXPECT(put_cpu(cpus, 70));
	EXPECT(has_cpu(cpus, 70) && !has_cpu(cpus, 6));
	EXPECT(cpus_in(cpus) == 1);
	EXPECT(!put_cpu(cpus, 70 + CPU_BITS - 64)); /* another bit: 6 of the next round */
	EXPECT(cpus_in(cpus) == 2);
	EXPECT(remove_cpu(cpus, 70));
	EXPECT(!remove_cpu(cpus, 70));
	EXPECT(cpus_in(cpus) == 1);
	return 0;
}

/* Records */

SEC("syscall") int records_given_back_come_again_last_first(void *ctx)
{
	BEGIN(it);
	push_record(1);
	push_record(2);
	EXPECT(pop_record() == 2);
	EXPECT(pop_record() == 1);
	EXPECT(pop_record() == NOBODY);
	return 0;
}

SEC("syscall") int the_stack_tells_an_old_top_from_the_same_one_come_back(void *ctx)
{
	BEGIN(it);
	__u64 first;

	push_record(1);
	first = it->state->free_records;
	EXPECT(pop_record() == 1);
	push_record(1);
	EXPECT((__u32)it->state->free_records == (__u32)first);
	EXPECT(it->state->free_records != first);
	return 0;
}

SEC("syscall") int an_opened_record_is_found_and_counts_as_a_process(void *ctx)
{
	BEGIN(it);
	__u32 index = open_record(it->state, MM, CTX, SLOT);

	EXPECT(index != NOBODY);
	EXPECT(find_record(MM) == index);
	EXPECT(it->account->processes == 1);
	return 0;
}

SEC("syscall") int a_record_is_opened_once_for_one_address_space(void *ctx)
{
	BEGIN(it);
	__u32 index = open_record(it->state, MM, CTX, SLOT);

	EXPECT(open_record(it->state, MM, CTX, SLOT) == index);
	EXPECT(it->account->processes == 1);
	return 0;
}

SEC("syscall") int an_index_that_leads_to_another_tenants_record_finds_nothing(void *ctx)
{
	BEGIN(it);
	__u32 index = open_record(it->state, MM, CTX, SLOT);
	struct mm_record *record = record_at(index);

	EXPECT(record);
	record->mm = MM + 64;
	EXPECT(find_record(MM) == NOBODY);
	return 0;
}

SEC("syscall") int where_there_is_no_room_it_is_counted(void *ctx)
{
	BEGIN(it);
	__u64 before = it->state->records_full;

	it->state->mm_high_water = max_records;
	EXPECT(open_record(it->state, MM, CTX, SLOT) == NOBODY);
	EXPECT(it->state->records_full == before + 1);
	EXPECT(it->state->mm_high_water == max_records);
	return 0;
}

SEC("syscall") int a_closed_record_leaves_nothing_in_the_sums(void *ctx)
{
	BEGIN(it);
	__u32 index = open_record(it->state, MM, CTX, SLOT);
	struct mm_record *record = record_at(index);

	EXPECT(record);
	record->pages[MEMBER_ANON] = 50;
	book(record, it->account, SLOT);
	record->reserved_pages = it->account->reserved_pages = 5;
	record->committed_pages = it->account->committed_pages = 6;
	EXPECT(it->account->held_pages == 50);
	EXPECT(close_record(index) == MM_LIVING);
	EXPECT(!it->account->held_pages && !it->account->reserved_pages && !it->account->committed_pages);
	EXPECT(!it->account->processes);
	EXPECT(close_record(index) == MM_FREE);
	return 0;
}

SEC("syscall") int a_marked_victim_that_is_closed_is_waited_for_no_more(void *ctx)
{
	BEGIN(it);
	__u32 index = open_record(it->state, MM, CTX, SLOT);
	struct mm_record *record = record_at(index);

	EXPECT(record);
	record->state = MM_MARKED;
	it->state->kills_wanted = 1;
	EXPECT(close_record(index) == MM_MARKED);
	EXPECT(!it->state->kills_wanted);
	return 0;
}

SEC("syscall") int what_is_forked_runs_its_parents_program(void *ctx)
{
	BEGIN(it);
	struct mm_record *parent = record_at(1), *child = record_at(2);

	EXPECT(parent && child);
	parent->program.inode = 17;
	parent->program.device = 3;
	parent->program.generation = 5;
	learn_program(child, parent, MM);
	EXPECT(child->program.inode == 17 && child->program.device == 3 && child->program.generation == 5);
	/* Of nobody's memory nothing is known, and what was there before is not left. */
	learn_program(child, NULL, MM);
	EXPECT(!child->program.inode);
	return 0;
}

SEC("syscall") int who_changes_its_account_takes_its_reservation_along(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 20;
	book(it->record, it->account, SLOT);
	it->record->reserved_pages = it->account->reserved_pages = 5;
	EXPECT(!move_record(it->record, it->record->mm, OTHER));
	EXPECT(!it->account->held_pages && !it->account->reserved_pages);
	EXPECT(it->other->reserved_pages == 5);
	book(it->record, it->other, OTHER);
	EXPECT(it->other->held_pages == 20);
	return 0;
}

SEC("syscall") int what_is_booked_late_is_taken_from_whom_it_was_booked_on(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 20;
	book(it->record, it->account, SLOT);
	EXPECT(!move_record(it->record, it->record->mm, OTHER));
	/* Another thread has read before whose it was. */
	book(it->record, it->account, SLOT);
	EXPECT(it->account->held_pages == 20);
	EXPECT(!is_booked(it->record, OTHER));
	book(it->record, it->other, OTHER);
	EXPECT(!it->account->held_pages && it->other->held_pages == 20);
	return 0;
}

SEC("syscall") int what_is_dying_is_taken_from_whom_it_was_booked_on(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 100;
	begin_credit(&it->record->dying, 100, 0, now_ms());
	it->record->state = MM_DYING;
	book(it->record, it->account, SLOT);
	EXPECT(it->account->dying_pages == 100);
	book(it->record, it->other, OTHER);
	EXPECT(!it->account->dying_pages && it->other->dying_pages == 100);
	return 0;
}

SEC("syscall") int who_comes_late_changes_nothing_of_a_record_that_became_anothers(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 20;
	book(it->record, it->account, SLOT);
	book_at(it->record, OTHER, it->record->mm);	/* of another account */
	book_at(it->record, SLOT, it->record->mm + 1);	/* of another process */
	sync_at(it->record, it->record->mm + 1);
	EXPECT(it->record->pages[MEMBER_ANON] == 20);
	EXPECT(it->account->held_pages == 20 && !it->other->held_pages);
	return 0;
}

SEC("syscall") int a_record_that_became_anothers_is_not_moved(void *ctx)
{
	BEGIN(it);
	EXPECT(move_record(it->record, it->record->mm + 1, OTHER));
	EXPECT(it->record->account == SLOT);
	return 0;
}

SEC("syscall") int a_free_records_link_is_no_account(void *ctx)
{
	BEGIN(it);
	it->state->free_records = SLOT;	/* the link of the next to be given back is a slot's number */
	push_record(RECORD);
	EXPECT(!account_at(it->record->account));
	EXPECT(move_record(it->record, it->record->mm, OTHER));
	EXPECT((it->record->account & ~FREE_LINK) == SLOT);
	return 0;
}

SEC("syscall") int a_record_in_use_is_not_taken_from_the_free_ones(void *ctx)
{
	BEGIN(it);
	/* Whoever reads the top of the stack may lose the processor before it reads the link. */
	it->state->free_records = RECORD + 1;
	EXPECT(pop_record() == NOBODY);
	it->record->mm = 0;
	it->record->account = FREE_LINK;
	EXPECT(pop_record() == RECORD);
	return 0;
}

SEC("syscall") int who_comes_to_an_account_that_is_near_is_read_and_remembered_as_far_by_nobody(void *ctx)
{
	BEGIN(it);
	__u64 generation = it->state->generation;

	EXPECT(!move_record(it->record, it->record->mm, OTHER));
	EXPECT(it->state->generation == generation);
	it->account->near = EXACT_AND_READ;
	EXPECT(!move_record(it->record, it->record->mm, SLOT));
	EXPECT(it->state->generation == generation + 1);
	EXPECT(it->account->near == EXACT);
	return 0;
}

/* Booking */

SEC("syscall") int booking_twice_adds_once(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 20;
	EXPECT(book(it->record, it->account, SLOT) == 20);
	EXPECT(book(it->record, it->account, SLOT) == 20);
	it->record->pages[MEMBER_ANON] = 12;
	EXPECT(book(it->record, it->account, SLOT) == 12);
	EXPECT(it->account->held_pages == 12);
	return 0;
}

SEC("syscall") int what_is_dying_is_credited(void *ctx)
{
	BEGIN(it);
	it->record->pages[MEMBER_ANON] = 100;
	book(it->record, it->account, SLOT);
	begin_credit(&it->record->dying, 100, 0, now_ms());
	it->record->state = MM_DYING;
	book(it->record, it->account, SLOT);
	EXPECT(it->account->held_pages == 0);
	EXPECT(it->account->dying_pages == 100);
	return 0;
}

SEC("syscall") int what_was_there_before_a_limit_dies_without_a_bound(void *ctx)
{
	BEGIN(it);
	it->account->limit_pages = 100;
	it->account->held_pages = 40;
	it->account->dying_pages = 250;
	it->account->unbounded_until_ms = 0;
	EXPECT(level_now(it->account) == 190);
	it->account->unbounded_until_ms = unbounded_until(290, 100, page_shift, now_ms());
	EXPECT(level_now(it->account) == 40);
	it->account->unbounded_until_ms = now_ms() - 1;
	EXPECT(level_now(it->account) == 190);
	return 0;
}

SEC("syscall") int what_grows_while_it_dies_is_held(void *ctx)
{
	BEGIN(it);
	begin_credit(&it->record->dying, 100, 0, now_ms());
	it->record->state = MM_DYING;
	it->record->pages[MEMBER_ANON] = 100 + DYING_GROWTH_PAGES + 30;
	book(it->record, it->account, SLOT);
	EXPECT(it->account->held_pages == 30);
	EXPECT(it->account->dying_pages == 100 + DYING_GROWTH_PAGES);
	return 0;
}

SEC("syscall") int who_finds_room_late_is_taken_off_what_the_walk_has_counted(void *ctx)
{
	BEGIN(it);
	it->account->walked_pages = 40;
	it->record->flags = RECORD_NEW;
	it->record->pages[MEMBER_ANON] = 40;
	book(it->record, it->account, SLOT);
	EXPECT(unrecorded_pages(it->account) == 0);
	EXPECT(!(it->record->flags & RECORD_NEW));
	return 0;
}

/* Corrections */

SEC("syscall") int a_correction_ends_with_its_lifetime(void *ctx)
{
	BEGIN(it);
	it->account->correction_pages = 30;
	it->account->correction_until_ns = bpf_ktime_get_ns() - 1;
	EXPECT(correction_of(it->account) == 0);
	correct(it->account, 30);
	EXPECT(correction_of(it->account) == 30);
	return 0;
}

SEC("syscall") int what_is_read_back_from_swap_is_neither_growth_nor_given_up(void *ctx)
{
	BEGIN(it);
	correct(it->account, 30);
	it->record->shared_pages = 30;
	note_booked(it->record, SLOT, 4, 0, 0);
	note_booked(it->record, SLOT, -6, 0, 4);	/* and two that somebody else has unmapped */
	EXPECT(it->account->grown_pages == 0);
	EXPECT(correction_of(it->account) == 28);
	note_booked(it->record, SLOT, -2, 0, 0);
	EXPECT(correction_of(it->account) == 26);
	return 0;
}

SEC("syscall") int a_correction_tells_no_more_than_is_left_of_it(void *ctx)
{
	BEGIN(it);
	correct(it->account, 10);
	EXPECT(sink(it->account, 4) == 4);
	EXPECT(sink(it->account, 40) == 6);
	EXPECT(sink(it->account, 1) == 0);
	EXPECT(correction_of(it->account) == 0);
	return 0;
}

SEC("syscall") int shared_pages_given_up_lower_the_correction(void *ctx)
{
	BEGIN(it);
	correct(it->account, 100);
	it->record->flags = RECORD_SCANNED | RECORD_GREW;
	it->record->shared_pages = 30;
	give_up(it->record, it->account, 20);
	EXPECT(correction_of(it->account) == 80);
	give_up(it->record, it->account, 20); /* of which ten were nobody else's */
	EXPECT(correction_of(it->account) == 70);
	return 0;
}

SEC("syscall") int pages_copied_by_nobody_knows_whom_lower_the_correction(void *ctx)
{
	BEGIN(it);
	correct(it->account, 100);
	wear(it->account, 25);
	EXPECT(correction_of(it->account) == 75);
	EXPECT(it->account->worn_pages == 25);
	return 0;
}

SEC("syscall") int a_copy_that_a_fault_tells_of_is_not_told_again(void *ctx)
{
	BEGIN(it);
	it->account->over_ns = 1;
	it->account->scanning_ns = bpf_ktime_get_ns();
	it->account->forked_pages = 10;
	it->record->flags = RECORD_GREW;
	it->record->shared_pages = 0;
	it->record->given_up_pages = 0;
	it->record->fault_base = 7;
	note_copies(it->record, it->account, 1, true);
	EXPECT(it->record->given_up_pages == 1); /* for the PSS scan under way */
	EXPECT(it->record->fault_base == 8);
	EXPECT(it->account->unmapped_in_doubt_pages == 0);
	note_copies(it->record, it->account, 1, false); /* a thread's, whose faults are not known while it lives */
	EXPECT(it->account->unmapped_in_doubt_pages == 1);
	EXPECT(it->account->forked_pages == 9);
	return 0;
}

SEC("syscall") int doubles_of_forks_are_never_fewer_than_none(void *ctx)
{
	BEGIN(it);
	it->account->forked_pages = 10;
	take_off_forked(it->account, 4);
	EXPECT(it->account->forked_pages == 6);
	take_off_forked(it->account, 40);
	EXPECT(it->account->forked_pages == 0);
	return 0;
}

SEC("syscall") int a_doubt_shrinks_with_what_is_held(void *ctx)
{
	BEGIN(it);
	it->account->asked_ns = bpf_ktime_get_ns();
	it->account->doubt_pages = 50;
	it->account->doubted_pages = it->account->held_pages = 200;
	EXPECT(doubt_of(it->account) == 50);
	it->account->held_pages = 180;
	EXPECT(doubt_of(it->account) == 30);
	it->account->held_pages = 200; /* what grows later is in no doubt */
	EXPECT(doubt_of(it->account) == 30);
	return 0;
}

SEC("syscall") int a_question_that_nobody_asked_is_no_doubt(void *ctx)
{
	BEGIN(it);
	it->account->doubt_pages = 50;
	it->account->doubted_pages = it->account->held_pages = 200;
	EXPECT(doubt_of(it->account) == 0);
	return 0;
}

/* The level */

SEC("syscall") int files_and_processes_without_a_record_count(void *ctx)
{
	BEGIN(it);
	it->account->held_pages = 100;
	it->account->sure_pages = 20;
	it->account->walked_pages = 9;
	it->account->late_pages = 2;
	EXPECT(level_now(it->account) == 127);
	return 0;
}

SEC("syscall") int what_khugepaged_adds_is_excused_up_to_an_eighth(void *ctx)
{
	BEGIN(it);
	it->account->held_pages = 1000;
	it->account->collapsed_pages = 100;
	EXPECT(level_now(it->account) == 900);
	it->account->collapsed_pages = 600;
	EXPECT(level_now(it->account) == 1000 - 128);
	return 0;
}

SEC("syscall") int credit_beyond_one_limit_counts(void *ctx)
{
	BEGIN(it);
	it->account->dying_pages = 1024;
	EXPECT(level_now(it->account) == 0);
	it->account->dying_pages = 1030;
	EXPECT(level_now(it->account) == 6);
	return 0;
}

SEC("syscall") int files_that_are_mapped_count_once(void *ctx)
{
	BEGIN(it);
	it->account->files_pages = 100;
	EXPECT(unmapped_pages(it->account, 30) == 70);
	EXPECT(unmapped_pages(it->account, 130) == 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
