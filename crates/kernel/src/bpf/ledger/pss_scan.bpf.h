/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A PSS scan: how many pages an account's processes share, looked up by the user half between the two
 * programs here, and handed over as a correction.
 *
 * In bursard's context. One PSS scan of an account at a time, several
 *          accounts' at once.
 * Cost:    a walk over the records each.
 * Absent:  held counts shared pages in each process.
 */
#ifndef BURSAR_PSS_SCAN_BPF_H
#define BURSAR_PSS_SCAN_BPF_H

#include <asm-generic/errno.h>

#include "react.bpf.h"

struct listing {
	__u32 slot;
	__u32 first;
	__u32 count;
	__u32 pad;
	__s64 dying_shared_pages;
};

/* Global: what is in `listing` is no matter of the loop's, whose iterations would all be looked at. */
__noinline int list_record(__u32 index, struct listing *listing)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct account *account;
	struct sharer *sharer;
	__s64 most, pages;
	__u64 mm, owner;
	__u32 place;

	if (!listing)
		return 1;
	account = account_at(listing->slot);
	place = listing->first + listing->count;
	if (!record || !state || !account || record->account != listing->slot)
		return 0;
	mm = *(volatile __u64 *)&record->mm;
	if (means_dying(record->state)) {
		if (mm) { /* as if it left: what is credited of it is only what was found twice */
			most = shared_at_most(record);
			pages = recorded_pages(record);
			listing->dying_shared_pages += most < pages ? most : pages;
		}
		return 0;
	}
	if (!mm || probe_ctx_id(mm) != record->ctx_id)
		return 0;
	owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	if (!owner)
		return 0;
	sharer = listing->count < SHARERS ? bpf_map_lookup_elem(&sharers, &place) : NULL;
	if (!sharer)
		return 1; /* full: the rest is counted as it stands */
	sync_at(record, mm);
	book_at(record, listing->slot, mm);
	sharer->mm = mm;
	sharer->ctx_id = record->ctx_id;
	sharer->record = index;
	/* a thread of it: the leader may be dead */
	sharer->tid = PROBE_READ(owner, struct task_struct, pid);
	__sync_fetch_and_and(&record->flags, ~(RECORD_BORN | RECORD_FORKS));
	__sync_lock_test_and_set(&record->given_up_pages, 0);
	sharer->shared_pages = -1;
	sharer->duplicate_pages = 0;
	sharer->duplicate_shmem_pages = 0;
	sharer->shmem_pages = small(record->pages[MEMBER_SHMEM]);
	sharer->hugetlb_pages = small(record->pages[MEMBER_HUGETLB]);
	sharer->once_pages = 0;
	listing->count++;
	return 0;
}

static __always_inline long list_one(__u32 index, struct listing *listing)
{
	int is_full = list_record(index, listing);

	/* It is 0 or 1, which the compiler knows and the verifier does not. */
	barrier_var(is_full);
	return is_full & 1;
}
LOOP_BODY(list_one, struct listing *, records_made())

/* Lists the processes. From here on whatever they give up is written down, looked at yet or not. For
 * slot 0, nobody's account, it only says that bursard is there to be asked, until it ends. */
static __always_inline int list_sharers(struct begin_pss_scan_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(args->slot);
	struct listing listing = { .slot = args->slot, .first = args->place * SHARERS };
	__u64 now = bpf_ktime_get_ns(), since;

	if (state && !args->slot)
		state->answering_mm = (__u64)bpf_get_current_task_btf()->mm;
	if (!state || !account || !args->slot || !(account->flags & ACCOUNT_USED))
		return -ENOENT;
	since = *(volatile __u64 *)&account->scanning_ns;
	if ((since && now - since < PSS_SCAN_STALE_NS) ||
	    __sync_val_compare_and_swap(&account->scanning_ns, since, now) != since)
		return -EBUSY;
	__sync_lock_test_and_set(&account->born_lost_pages, 0);
	__sync_lock_test_and_set(&account->born_forked_pages, 0);
	__sync_lock_test_and_set(&account->worn_pages, 0);
	account->lazyfree_begun_pages = *(volatile __u64 *)&state->lazyfree_pages;
	LOOP(list_one, &listing);
	/* Of a page that one of the dying has, too, the living seem to have at most half a page too little each time
	 * it is looked at: that is in doubt until the next PSS scan. */
	__sync_fetch_and_add(&account->born_lost_pages, listing.dying_shared_pages >> 1);
	args->count = listing.count;
	args->began_ns = now;
	return 0;
}

struct reckoning {
	__u32 slot;
	__u32 first;
	__u32 count;
	__u32 is_corrected;	/* what the last PSS scan found is in force */
	__s64 copied_pages;
	__s64 duplicate_pages;
	__s64 duplicate_shmem_pages;
	__s64 lost_pages;
	__s64 ended_pages;	/* of these, of processes on their way out */
};

static __always_inline long reckon_one(__u32 index, struct reckoning *reckoning)
{
	__u32 place = reckoning->first + index;
	struct sharer *sharer = bpf_map_lookup_elem(&sharers, &place);
	struct mm_record *record = sharer ? record_at(sharer->record) : NULL;
	__s64 shared, lost, duplicate, most;

	if (!record)
		return 1;
	shared = sharer->shared_pages;
	duplicate = sharer->duplicate_pages;
	if (*(volatile __u64 *)&record->mm != sharer->mm || record->ctx_id != sharer->ctx_id ||
	    record->account != reckoning->slot) {
		/* gone, and counted so: give_up_all() */
		reckoning->duplicate_pages += duplicate;
		reckoning->duplicate_shmem_pages += sharer->duplicate_shmem_pages;
		return 0;
	}
	/* What the ledger does not have cannot be taken off it: before 6.2 each thread keeps up to 64
	 * pages back. */
	most = pages_booked(*(volatile __u64 *)&record->booked) - record->pages[MEMBER_PGTABLES] -
	       sharer->once_pages;
	if (duplicate > most)
		duplicate = most > 0 ? most : 0;
	reckoning->duplicate_pages += duplicate;
	reckoning->duplicate_shmem_pages += sharer->duplicate_shmem_pages;
	lost = *(volatile __s64 *)&record->given_up_pages;
	if (shared < 0) {
		/* Nobody could look, as while it is being forked and nobody can name it. What others
		 * share with it is in their duplicates: whatever it gives up counts; and that it shares
		 * nothing is not known. */
		record->duplicate_pages = 0;
		record->lost_pages = lost;
		record->shared_pages = ALL_PAGES;
		barrier();
		__sync_fetch_and_and(&record->flags, ~RECORD_SCANNED);
		goto out;
	}
	if (lost > shared)
		lost = shared;
	record->shared_pages = 0;
	barrier();
	record->lost_pages = lost;
	record->duplicate_pages = small(duplicate);
	record->known_by_many_pages = small((__s64)sharer->shmem_pages + sharer->hugetlb_pages);
	/* Its faults tell no more of what it has copied so far. */
	if (!(record->flags & RECORD_FORKS))
		reckoning->copied_pages += copied_pages(record, reckoning->is_corrected,
							(__u64)PROBE_READ(sharer->mm, struct mm_struct, owner));
	/* what was inherited and is not shared any more will not be again */
	if (!(record->flags & RECORD_GREW) || (__s64)record->inherited_pages > shared)
		record->inherited_pages = small(shared);
	/* It may fork meanwhile: what that sets stays. */
	__sync_fetch_and_or(&record->flags, RECORD_GREW | RECORD_SCANNED);
	__sync_fetch_and_and(&record->flags, ~(RECORD_BORN | RECORD_NEW |
					       (record->flags & RECORD_FORKS ? 0 : RECORD_FORKED)));
	barrier();
	record->shared_pages = shared;
out:
	reckoning->lost_pages += lost;
	if (means_dying(record->state))
		reckoning->ended_pages += lost;
	return 0;
}
LOOP_BODY(reckon_one, struct reckoning *, what->count)

/* What was found becomes the account's correction, less what was given up since it began to be looked
 * for. What waited for it is decided next. */
static __always_inline int take_correction(struct end_pss_scan_args *args)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(args->slot);
	struct reckoning reckoning = { .slot = args->slot, .first = args->place * SHARERS, .count = args->count };
	__u64 now = bpf_ktime_get_ns();
	__s64 correction, before, ended, ended_before, taken;

	if (!state || !account)
		return -ENOENT;
	/* Not ours any more: another one has begun, or the account has another tenant. */
	if (account->scanning_ns != args->began_ns)
		return -ESTALE;
	before = *(volatile __s64 *)&account->correction_pages;
	ended_before = *(volatile __s64 *)&account->ended_pages;
	reckoning.is_corrected = is_corrected(account, now);
	LOOP(reckon_one, &reckoning);
	note_growth(account, reckoning.copied_pages);
	account->scanning_ns = 0;
	ended = *(volatile __s64 *)&account->born_lost_pages;
	correction = reckoning.duplicate_pages - reckoning.lost_pages - ended;
	/* No more was taken off than was found, however many have ended. */
	taken = reckoning.ended_pages + ended;
	if (taken > reckoning.duplicate_pages)
		taken = reckoning.duplicate_pages;
	/* Not a store, as the correction's is none: who leaves meanwhile sinks the new one. */
	__sync_fetch_and_add(&account->ended_pages, taken - ended_before);
	if (correction < 0)
		correction = 0;
	account->correction_shmem_pages = reckoning.duplicate_shmem_pages;
	/* Not a store: it sinks meanwhile by what is given up. */
	correction += __sync_fetch_and_add(&account->correction_pages, correction - before) - before;
	if (correction < 0)
		correction = 0;
	account->scan_ns = now - args->began_ns;
	account->corrected_ns = now;
	account->correction_until_ns = now + args->lifetime_ns;
	account->lazyfree_pages = account->lazyfree_begun_pages;
	account->asked_ns = 0;
	account->asked_pages = 0;
	account->unmapped_in_doubt_pages = 0;
	/* in the correction now, but for half of those of children born meanwhile (correction.bpf.h) */
	account->forked_pages = account->born_forked_pages > 0 ? account->born_forked_pages >> 1 : 0;
	account->no_decision_before_ns = 0;
	args->is_near = account->near;
	args->correction_pages = correction;
	args->held_pages = account->held_pages + beyond_records(account);
	return CALL_CHANGED_LEVEL;
}

#endif /* BURSAR_PSS_SCAN_BPF_H */
