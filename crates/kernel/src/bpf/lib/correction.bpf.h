/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pages that are counted more than once. Held is a sum of resident sets: a page that k processes of an
 * account map is in it k times. How many there are too many only a look at the page tables says (PSS
 * against RSS, by the user half: a PSS scan). What it finds is the account's correction, and what decides
 * is the level: held less the correction.
 *
 * A correction ages, always towards held:
 *  - a mapping that a process gives up (unmaps, ends, takes along to another account) may have been one
 *    of those counted too often: the correction sinks by as much as the process's sum does, until all
 *    that the PSS scan found shared in this process is gone;
 *  - a write to a page that is present and not writable may copy it: the sum stays, the memory grows,
 *    the correction sinks by a page (copy_on_write.bpf.c);
 *  - it is not renewed: after its lifetime it is nothing.
 * Each mapping given up undoes at most one duplicate, so between two PSS scans the level is never below
 * the truth but for what docs/design/7-shared-pages.md lists.
 */
#ifndef BURSAR_CORRECTION_BPF_H
#define BURSAR_CORRECTION_BPF_H

#include "pages.bpf.h"
#include "observed.bpf.h"

#define ALL_PAGES (1LL << 60)	/* whatever it gives up counts */

/* A PSS scan begins so soon after it was asked for; it takes so long at most: who began it is gone. */
#define PSS_SCAN_ASKED_NS 2000000000ULL
#define PSS_SCAN_STALE_NS 10000000000ULL

static __always_inline bool is_scanned_now(const struct account *account)
{
	return *(volatile __u64 *)&account->scanning_ns != 0;
}

/* An answer is on its way. A question that nobody answered is none. */
static __always_inline bool is_asking(const struct account *account, __u64 now)
{
	__u64 asked = *(volatile __u64 *)&account->asked_ns;
	__u64 begun = *(volatile __u64 *)&account->scanning_ns;

	return (asked && ns_since(asked, now) < PSS_SCAN_ASKED_NS) ||
	       (begun && ns_since(begun, now) < PSS_SCAN_STALE_NS);
}

#define CORRECTED_UNTIL_ASKED (~0ULL)	/* nobody is there to look again */

/* In force for its lifetime. */
static __always_inline bool is_corrected(const struct account *account, __u64 now)
{
	return now < *(volatile __u64 *)&account->correction_until_ns;
}

/* So much fewer of an account's pages are counted twice since forks. */
static __always_inline void take_off_forked(struct account *account, __s64 pages)
{
	__s64 forked = *(volatile __s64 *)&account->forked_pages, before;

	if (forked <= 0)
		return;
	if (pages > forked)
		pages = forked;
	before = __sync_fetch_and_add(&account->forked_pages, -pages);
	/* Another CPU has taken the same ones. */
	if (before < pages)
		__sync_fetch_and_add(&account->forked_pages, before > 0 ? pages - before : pages);
}

/* What an account holds more than when it was last within its limit. Forks take off what booking adds (note_fork()). */
static __always_inline void note_growth(struct account *account, __s64 pages)
{
	__sync_fetch_and_add(&account->grown_pages, pages);
}

/* Each mapping that goes, and each copy, undoes one double at most: that of a fork, where the correction has not sunk by
 * it; and then it may be the other user's of a page in doubt that is gone. */
static __always_inline void end_doubles(struct account *account, __s64 pages)
{
	if (account->over_ns)
		__sync_fetch_and_add(&account->unmapped_in_doubt_pages, pages);
	take_off_forked(account, pages);
}

/* The correction sinks by so much at most. Returns what of it told: one that is not in force, or none any more, tells
 * nothing. */
static __always_inline __s64 sink(struct account *account, __s64 pages)
{
	__s64 left = __sync_fetch_and_add(&account->correction_pages, -pages);

	if (left <= 0 || !is_corrected(account, bpf_ktime_get_ns()))
		return 0;
	return left < pages ? left : pages;
}

/*
 * A process that was born during a PSS scan, or could not be looked at, makes up at most half of what was found of the
 * others. Of a page that n processes looked at and b others map, the scan finds n (n + b - 1) / (n + b) duplicates: that is
 * b / (n + b) more than without these b. The other half is in what forks have doubled.
 */
static __always_inline __s64 lose_of_born(struct mm_record *record, struct account *account, __s64 pages)
{
	__s64 half = (pages + 1) >> 1;

	if (!(record->flags & RECORD_BORN) || !is_scanned_now(account))
		return sink(account, half);
	__sync_fetch_and_add(&account->born_lost_pages, half);
	__sync_fetch_and_add(&account->born_forked_pages, -pages);
	return 0;
}

/* What an address space gave up is taken off what the PSS scan found shared in it. Returns what of it told. */
static __always_inline __s64 lose(struct mm_record *record, struct account *account, __s64 pages)
{
	__s64 shared = *(volatile __s64 *)&record->shared_pages, was;

	if (!shared && !is_scanned_now(account))
		return 0;
	/* One that the PSS scan under way has listed, whatever the one before knew of it. */
	if (shared != ALL_PAGES || (is_scanned_now(account) && !(record->flags & RECORD_BORN)))
		__sync_fetch_and_add(&record->given_up_pages, pages);
	if (shared == ALL_PAGES)
		return lose_of_born(record, account, pages);
	if (!shared)
		return 0;
	was = __sync_fetch_and_add(&record->lost_pages, pages);
	if (was >= shared)
		return 0;
	if (was + pages > shared)
		pages = shared - was;
	return sink(account, pages);
}

/* `pages` of this address space's mappings are gone, or copied. */
static __always_inline void give_up(struct mm_record *record, struct account *account, __s64 pages)
{
	pages -= lose(record, account, pages);
	if (pages)
		end_doubles(account, pages);
}

/* What others may map as well, however it came to be in this one: shared memory, and the pool of huge pages. */
static __always_inline __s64 mapped_by_many(const struct mm_record *record)
{
	return record->pages[MEMBER_SHMEM] + record->pages[MEMBER_HUGETLB];
}

/* Of a process that leaves and has forked nobody so much may be another's too: what it was forked with, or what a PSS scan
 * found. All else goes with it. */
static __always_inline __s64 shared_at_most(const struct mm_record *record)
{
	if (record->flags & (RECORD_FORKED | RECORD_FORKS))
		return ALL_PAGES;
	/* A PSS scan met it and the next one could not look: what others share with it was found of them. */
	if (!(record->flags & RECORD_BORN) && *(volatile __s64 *)&record->shared_pages == ALL_PAGES)
		return ALL_PAGES;
	if (record->flags & RECORD_SCANNED)
		return record->shared_pages;
	return record->flags & RECORD_GREW ? record->inherited_pages + mapped_by_many(record) : ALL_PAGES;
}

/* It dies, ends, or goes to another account. Its own doubt goes with it: of who has forked nobody no page in doubt is
 * somebody else's. What it takes off the correction is the most that it could have shared. Of many that end it may be
 * far less: that is in doubt until the next PSS scan ends. */
static __always_inline void leave(struct mm_record *record, struct account *account, __s64 pages)
{
	__s64 most = shared_at_most(record), told;

	if (pages > most)
		pages = most;
	told = lose(record, account, pages);
	if (told)
		__sync_fetch_and_add(&account->ended_pages, told);
	pages -= told;
	if (record->flags & RECORD_FORKED)
		end_doubles(account, pages);
	else if (pages > 0 && !(record->flags & RECORD_SCANNED))
		take_off_forked(account, pages);
}

/* `pages` of an account's shared ones may have been copied, nobody knows whose. */
static __always_inline void wear(struct account *account, __s64 pages)
{
	__sync_fetch_and_add(&account->worn_pages, pages);
	note_growth(account, pages);
	end_doubles(account, pages - sink(account, pages));
	if (is_scanned_now(account))
		__sync_fetch_and_add(&account->born_lost_pages, pages);
}

/* Its end, or its way to another account. The end of a PSS scan does not meet it any more: what it has
 * given up since the beginning, and now, counts like that of those born meanwhile. */
static __always_inline void give_up_all(struct mm_record *record, struct account *account)
{
	__s64 pages = pages_booked(*(volatile __u64 *)&record->booked), most = shared_at_most(record);

	if (pages > most)
		pages = most;
	if (is_scanned_now(account) && !(record->flags & RECORD_BORN))
		__sync_fetch_and_add(&account->born_lost_pages,
				     *(volatile __s64 *)&record->given_up_pages +
					     (pages > 0 ? pages : 0));
	if (pages > 0)
		leave(record, account, pages);
	record->shared_pages = 0;
}

/* Page faults that its threads have taken, of those that live its owner's only: at most so many of the pages that it
 * was forked with are copies by now. Who has run for long has taken more than that says. */
static __always_inline __s64 faults_of(__u64 owner)
{
	__u64 signal = owner ? (__u64)PROBE_READ(owner, struct task_struct, signal) : 0;

	if (!signal)
		return 0;
	/* One that had to be tried again counts as a major one (mm/memory.c mm_account_fault()). */
	return (__s64)PROBE_READ(signal, struct signal_struct, min_flt) +
	       (__s64)PROBE_READ(signal, struct signal_struct, maj_flt) +
	       (__s64)PROBE_READ(owner, struct task_struct, min_flt) +
	       (__s64)PROBE_READ(owner, struct task_struct, maj_flt);
}

/* A record that begins. What is born during a PSS scan may be counted in what the PSS scan finds of its
 * parent, and is not looked at itself. What a process had before somebody counted may be shared, however many page faults
 * it has taken. */
static __always_inline void begin_sharing(struct mm_record *record, __u64 mm)
{
	record->inherited_pages = 0;
	record->lost_pages = 0;
	record->given_up_pages = 0;
	record->duplicate_pages = 0;
	record->known_by_many_pages = 0;
	record->flags = 0;
	record->fault_base = small(faults_of((__u64)PROBE_READ(mm, struct mm_struct, owner)));
	record->grown_events = 0;
	record->shared_pages = 0;
}

/* To be called when a walk can meet it: then either the PSS scan that begins lists it, or it is seen here
 * that one has begun. */
static __always_inline void note_birth(struct mm_record *record, struct account *account)
{
	if (!is_scanned_now(account))
		return;
	record->shared_pages = ALL_PAGES;
	__sync_fetch_and_or(&record->flags, RECORD_BORN);
}

/* So much may be counted twice, as far as a question under way says: nobody is refused for it. What was
 * given up since it was asked counts as one of those, for good: what grows later is in no doubt. Who races
 * with us takes off too much. */
static __always_inline __s64 doubt_of(struct account *account)
{
	__s64 held = *(volatile __s64 *)&account->held_pages, pages = account->doubt_pages;

	if (!is_asking(account, bpf_ktime_get_ns()))
		return 0;
	if (held < account->doubted_pages) {
		pages -= account->doubted_pages - held;
		account->doubt_pages = pages;
		account->doubted_pages = held;
	}
	return pages > 0 ? pages : 0;
}

static __always_inline __s64 correction_of(const struct account *account)
{
	__s64 pages = *(volatile __s64 *)&account->correction_pages;

	if (pages <= 0 || !is_corrected(account, bpf_ktime_get_ns()))
		return 0;
	return pages;
}

/* Of processes for which there was no room, as far as they have not found some since. */
static __always_inline __s64 unrecorded_pages(const struct account *account)
{
	__s64 pages = *(volatile __s64 *)&account->walked_pages -
		      *(volatile __s64 *)&account->late_pages;

	return pages > 0 ? pages : 0;
}

/* Held by no address space that has a record: files, and processes for which there was no room. */
static __always_inline __s64 beyond_records(const struct account *account)
{
	return unrecorded_pages(account) + account->sure_pages;
}

/* Of files that go with who was killed for them. */
static __always_inline __s64 files_credit_of(const struct account *account)
{
	if (!account->files_credit_ms ||
	    !has_files_credit(account->files_credit_ms, account->patience.is_out, now_ms()))
		return 0;
	return account->files_credit_pages;
}

/* What is credited beyond one limit counts. Not where nobody is killed: who dies there may be far larger than enforcing
 * would have let it become. */
static __always_inline __s64 excess_credit(const struct account *account, __s64 files_credit)
{
	__s64 excess;

	if (is_observed(account))
		return 0;
	excess = excess_of_credit(*(volatile __s64 *)&account->dying_pages + files_credit, account->limit_pages);
	return excess && is_unbounded(account->unbounded_until_ms, now_ms()) ? 0 : excess;
}

/* What khugepaged has added by making huge pages of small ones: nobody dies for that, up to an eighth of the limit. */
static __always_inline __s64 collapsed_by_others(const struct account *account)
{
	__s64 pages = *(volatile __s64 *)&account->collapsed_pages, most = account->limit_pages >> PATIENCE_SHIFT;

	return pages < most ? pages : most;
}

/* All that is charged to the account, whatever its state. */
static __always_inline __s64 total_pages(const struct account *account)
{
	return *(volatile __s64 *)&account->held_pages + beyond_records(account) - correction_of(account) +
	       *(volatile __s64 *)&account->dying_pages;
}

/* What decides, of a sum of resident sets. Global: it is asked for in so many places that their frames did not
 * fit into the 512 bytes of 6.1. */
__noinline __s64 level_from(struct account *account, __s64 held)
{
	__s64 files_credit;

	if (!account)
		return 0;
	files_credit = files_credit_of(account);
	return held + beyond_records(account) - correction_of(account) - collapsed_by_others(account) -
	       files_credit + excess_credit(account, files_credit);
}

static __always_inline __s64 level_now(struct account *account)
{
	return level_from(account, *(volatile __s64 *)&account->held_pages);
}

/* How the account stands. `held`: what decides. */
static __always_inline void tell_levels(struct event *event, const struct account *account, __s64 held)
{
	event->account_id = account->id;
	event->observed = is_observed(account);
	event->held_pages = held;
	event->dying_pages = account->dying_pages;
	event->limit_pages = account->limit_pages;
	event->notice_pages = account->notice_pages;
}

/* What its files hold beyond what its processes map of such, a page at most as often as the level has
 * it: what a correction takes off must not stand for another file's pages. `shmem`: their RssShmem. */
static __always_inline __s64 unmapped_pages(const struct account *account, __s64 shmem)
{
	__s64 correction = correction_of(account), twice = account->correction_shmem_pages, pages;

	pages = account->files_pages - shmem + (twice < correction ? twice : correction);
	return pages > 0 ? pages : 0;
}

/* Global: an event has it to do seldom, and the verifier goes through it once. */
__noinline int end_doubt(struct account *account)
{
	if (!account)
		return 0;
	/* What is credited of files is there still if somebody keeps them. */
	account->grown_pages = files_credit_of(account);
	if (account->over_ns) {
		account->over_ns = 0;
		account->unmapped_in_doubt_pages = 0;
		account->asked_pages = 0;
	}
	return 0;
}

/* It is within its limit, whatever is counted twice: nothing over it has to be doubted any more. */
static __always_inline void doubt_ends(struct account *account)
{
	if (account->grown_pages || account->over_ns || account->files_credit_ms)
		end_doubt(account);
}

/* An event caused by the process itself, whose pages are not written down anew yet: whatever it has
 * so far was there before. */
static __always_inline void note_inherited(struct mm_record *record)
{
	if (record->flags & RECORD_GREW)
		return;
	record->inherited_pages = small(private_pages(record));
	__sync_fetch_and_or(&record->flags, RECORD_GREW);
}

/* Of its pages so many may be counted elsewhere too although no PSS scan says so: what it inherited, and
 * what others may map. `soft`: came without memory growing, or cannot be told from it. */
static __always_inline __s64 soft_doubt(const struct mm_record *record, bool in_force)
{
	__s64 many = mapped_by_many(record);

	if (in_force && (record->flags & RECORD_SCANNED)) {
		many -= record->known_by_many_pages;
		return many > 0 ? many : 0;
	}
	if (!(record->flags & RECORD_GREW))
		return private_pages(record) + many;
	return record->inherited_pages + many;
}

/* Whether copies are told by its faults. Where a PSS scan has looked they are told by what the correction sinks by. */
static __always_inline bool faults_tell(const struct mm_record *record, bool in_force)
{
	return (record->flags & RECORD_FORKED) || !(record->flags & RECORD_GREW) ||
	       !(in_force && (record->flags & RECORD_SCANNED));
}

/* Pages that it may have copied: of those it was forked with, or those that others were forked with from it. A fault
 * copies a page where it does not add one. */
static __always_inline __s64 copied_pages(const struct mm_record *record, bool in_force, __u64 owner)
{
	__s64 most, copied;

	if (!faults_tell(record, in_force))
		return 0;
	if ((record->flags & RECORD_FORKED) || !(record->flags & RECORD_GREW))
		most = private_pages(record);
	else
		most = record->inherited_pages;
	if (most <= 0)
		return 0;
	copied = faults_of(owner) - record->fault_base - record->grown_events;
	if (copied < 0)
		copied = 0;
	if (!(record->flags & RECORD_FORKED))
		copied += *(volatile __s64 *)&record->given_up_pages;
	return copied < most ? copied : most;
}

/* The running process copies a page of its own. What its faults tell is not told again: of one copy nobody may be
 * refused or killed as for two. `by_owner`: by a thread whose faults faults_of() has while it lives. */
static __always_inline void note_copies(struct mm_record *record, struct account *account, __s64 pages, bool by_owner)
{
	__s64 before = *(volatile __s64 *)&record->given_up_pages, told = lose(record, account, pages);

	if (!by_owner || !faults_tell(record, is_corrected(account, bpf_ktime_get_ns()))) {
		note_growth(account, pages);
		if (pages > told)
			end_doubles(account, pages - told);
	} else if (!(record->flags & RECORD_FORKED) && record->given_up_pages > before) {
		record->fault_base += pages;
	}
}

/* So many of its pages the kernel has merged with equal ones (KSM), its own or others'. A correction says
 * how often they count too often; without one they are in doubt like what it inherited. */
static __always_inline __s64 merged_pages(const struct mm_record *record, __u64 mm, bool in_force)
{
	if (!bpf_core_field_exists(struct mm_struct, ksm_merging_pages) ||
	    (in_force && (record->flags & RECORD_SCANNED)))
		return 0;
	return PROBE_READ(mm, struct mm_struct, ksm_merging_pages);
}

/* And so many because they may have ceased to be shared since the PSS scan, and may as well not have. */
static __always_inline __s64 hard_doubt(const struct mm_record *record, bool in_force)
{
	__s64 lost = *(volatile __s64 *)&record->lost_pages;

	if (!in_force || !(record->flags & RECORD_SCANNED))
		return 0;
	return lost < record->shared_pages ? lost : record->shared_pages;
}

/* What would come back if it alone ended. */
static __always_inline __s64 own_pages(const struct mm_record *record, __s64 pages, bool in_force)
{
	__s64 duplicate = (__s64)record->duplicate_pages - record->lost_pages;

	if (!in_force || !(record->flags & RECORD_SCANNED) || duplicate <= 0)
		return pages;
	return pages > duplicate ? pages - duplicate : 0;
}

#endif /* BURSAR_CORRECTION_BPF_H */
