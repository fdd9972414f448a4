// SPDX-License-Identifier: GPL-2.0-only
/* Units of beancounters/ and of lib/: rows, who pays, and who logs in (fixture.bpf.h). */
#include "fixture.bpf.h"
#include "beancounters/charge_row.bpf.h"
#include "beancounters/netlink.bpf.h"
#include "beancounters/socket_record.bpf.h"

const struct bill no_bill = {};

static __always_inline struct row *counted(__u32 slot, __s64 barrier)
{
	struct bill *bill = bpf_map_lookup_elem(&bills, &slot);
	struct row *row;

	bpf_map_update_elem(&bills, &slot, &no_bill, BPF_ANY);
	if (!bill)
		return NULL;
	bill->state = BILL_MADE;
	row = &bill->rows[BILL_NUMFILE];
	row->counted = 1;
	row->barrier = row->limit = barrier;
	return row;
}

#define OBJECT 0x2000ULL	/* objects are known by addresses; nothing is read there */

SEC("syscall") int a_row_is_charged_up_to_its_barrier(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 2);

	EXPECT(row);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, false) == 1);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 64, 1, false) == 1);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 128, 1, false) == 0);
	EXPECT(row->held == 2 && row->maxheld == 2 && row->failcnt == 1);
	uncharge(OBJECT, BILL_NUMFILE);
	uncharge(OBJECT + 64, BILL_NUMFILE);
	EXPECT(row->held == 0);
	return 0;
}

SEC("syscall") int an_observed_row_is_charged_beyond_its_barrier(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 1);

	EXPECT(row);
	row->observed = 1;
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, false) == 1);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 64, 1, false) == 1);
	EXPECT(has_left(SLOT, BILL_NUMFILE, 1, true));
	EXPECT(row->held == 2 && row->maxheld == 2 && !row->failcnt && row->untold);
	uncharge(OBJECT, BILL_NUMFILE);
	uncharge(OBJECT + 64, BILL_NUMFILE);
	EXPECT(row->held == 0);
	return 0;
}

SEC("syscall") int a_login_has_its_reserve_of_memory_once(void *ctx)
{
	BEGIN(it);
	struct login login = {};

	EXPECT(!take_login_reserve(NULL, 1, 100));
	EXPECT(take_login_reserve(&login, 60, 100));
	EXPECT(!take_login_reserve(&login, 41, 100));
	EXPECT(take_login_reserve(&login, 40, 100));
	EXPECT(!take_login_reserve(&login, 1, 100) && login.pages == 100);
	return 0;
}

SEC("syscall") int each_login_has_room_beyond_what_it_found(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 10);
	struct login first = {}, second = {};

	EXPECT(row);
	row->held = 10;
	EXPECT(top_of_login(&first, row, BILL_NUMPROC) == 18);
	row->held = 18; /* it has taken all of it, and gets no more */
	EXPECT(top_of_login(&first, row, BILL_NUMPROC) == 18);
	EXPECT(top_of_login(&second, row, BILL_NUMPROC) == 26);
	EXPECT(top_of_login(&second, row, BILL_NUMFILE) == 18 + LOGIN_FILES_EACH);
	row->held = 100;
	second.held[0] = 0;
	EXPECT(top_of_login(&second, row, BILL_NUMPROC) == 10 + 4 * LOGIN_PROCESSES_EACH);
	return 0;
}

SEC("syscall") int what_is_there_already_is_charged_beyond_the_barrier(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 0);

	EXPECT(row);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, true) == 1);
	EXPECT(row->held == 1 && !row->failcnt);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, true) == 1); /* once */
	EXPECT(row->held == 1);
	uncharge(OBJECT, BILL_NUMFILE);
	return 0;
}

SEC("syscall") int a_charge_is_given_back_once(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 5);

	EXPECT(row);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 3, false) == 1);
	EXPECT(uncharge(OBJECT, BILL_NUMFILE) == 1);
	EXPECT(uncharge(OBJECT, BILL_NUMFILE) == 0);
	EXPECT(row->held == 0);
	return 0;
}

SEC("syscall") int an_object_at_an_old_ones_address_replaces_its_charge(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 5);

	EXPECT(row);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 5, false) == 1);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 2, false) == 1); /* its end was missed */
	EXPECT(row->held == 2);
	uncharge(OBJECT, BILL_NUMFILE);
	return 0;
}

SEC("syscall") int who_has_no_bound_on_a_row_is_not_charged(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 0);

	EXPECT(row);
	row->counted = 0;
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 9, false) == 1);
	EXPECT(row->held == 0);
	EXPECT(charge(NOBODY, BILL_NUMFILE, OBJECT, 9, false) == 1);
	return 0;
}

SEC("syscall") int an_account_of_default_takes_rows_from_the_template(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(0, 1);
	__u32 slot = SLOT;

	EXPECT(row);
	bpf_map_update_elem(&bills, &slot, &no_bill, BPF_ANY);
	it->account->flags = ACCOUNT_USED | ACCOUNT_DEFAULT;
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, false) == 1);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 64, 1, false) == 0);
	EXPECT(row->held == 0); /* the template's own is nobody's */
	uncharge(OBJECT, BILL_NUMFILE);
	return 0;
}

SEC("syscall") int what_is_asked_for_beforehand_is_answered_by_the_barrier(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 10);

	EXPECT(row);
	row->held = 7;
	EXPECT(has_left(SLOT, BILL_NUMFILE, 3, false) == 1);
	EXPECT(has_left(SLOT, BILL_NUMFILE, 4, false) == 0);
	EXPECT(row->held == 7 && row->failcnt == 1);
	return 0;
}

/* More than there is room for together: with one group all have the same (charge_groups is 0 here). */
SEC("syscall") int objects_beyond_their_groups_room_are_charged_too(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 10);
	__u64 i;

	EXPECT(row);
	for (i = 0; i < CHARGES_TOGETHER + 2; i++)
		EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 64 * i, 1, false) == 1);
	EXPECT(row->held == CHARGES_TOGETHER + 2);
	EXPECT(slot_charged(OBJECT, BILL_NUMFILE) == SLOT);
	EXPECT(slot_charged(OBJECT + 64 * (CHARGES_TOGETHER + 1), BILL_NUMFILE) == SLOT);
	EXPECT(slot_charged(OBJECT + 64 * (CHARGES_TOGETHER + 2), BILL_NUMFILE) == NOBODY);
	/* One that is elsewhere is not charged again once there is room. */
	uncharge_file(OBJECT);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 64 * CHARGES_TOGETHER, 1, true) == 1);
	EXPECT(row->held == CHARGES_TOGETHER + 1);
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, true) == 1);
	for (i = 0; i < CHARGES_TOGETHER + 2; i++) {
		uncharge_file(OBJECT + 64 * i);
		EXPECT(row->held == (__s64)(CHARGES_TOGETHER + 1 - i));
	}
	return 0;
}

SEC("syscall") int all_rows_of_a_file_are_given_back(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 10), *pages;

	EXPECT(row);
	pages = row_of(SLOT, BILL_SHMPAGES);
	EXPECT(pages);
	pages->counted = 1;
	pages->barrier = 1LL << 40;
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT, 1, false) == 1);
	EXPECT(charge(SLOT, BILL_SHMPAGES, OBJECT, 1LL << 36, false) == 1); /* more than a packed one has */
	EXPECT(charge(SLOT, BILL_NUMFILE, OBJECT + 64, 1, false) == 1);
	EXPECT(row->held == 2 && pages->held == 1LL << 36);
	uncharge_file(OBJECT);
	EXPECT(row->held == 1 && !pages->held);
	uncharge_file(OBJECT + 64);
	return 0;
}

/* An element of a map may be another socket's by the time that somebody books what the former one holds. */
SEC("syscall") int a_record_that_has_become_another_accounts_is_not_booked(void *ctx)
{
	BEGIN(it);
	struct row *row = counted(SLOT, 100), *others = counted(OTHER, 100);
	__u64 booked = booked_of(SLOT, 0);

	EXPECT(row && others);
	book_on_row(row, SLOT, &booked, 60);
	EXPECT(row->held == 60 && amount_at(&booked) == 60);
	EXPECT(!book_within(row, SLOT, &booked, 101, 100) && row->held == 60);
	EXPECT(book_within(row, SLOT, &booked, 90, 100) && row->held == 90);
	refund_booked(BILL_NUMFILE, &booked);
	EXPECT(row->held == 0);
	refund_booked(BILL_NUMFILE, &booked);
	book_on_row(row, SLOT, &booked, 70);
	EXPECT(book_within(row, SLOT, &booked, 70, 100) && row->held == 0 && booked == BOOKED_GONE);
	booked = booked_of(OTHER, 0);
	book_on_row(row, SLOT, &booked, 70);
	EXPECT(book_within(row, SLOT, &booked, 70, 100) && row->held == 0);
	book_on_row(others, OTHER, &booked, 40);
	EXPECT(others->held == 40);
	forget_booked(SLOT, &booked);
	EXPECT(amount_at(&booked) == 40);
	refund_booked(BILL_NUMFILE, &booked); /* whoever asks: to who has paid */
	EXPECT(row->held == 0 && others->held == 0);
	return 0;
}

struct batch {
	struct nlmsghdr first;
	__u32 body[3];
	struct nlmsghdr second;
	struct nlmsghdr third;
};

SEC("syscall") int messages_that_make_something_are_told_apart(void *ctx)
{
	BEGIN(it);
	struct batch batch = {
		.first = { .nlmsg_len = 16 + 9, .nlmsg_type = 24 },	/* RTM_NEWROUTE; three bytes to fill up */
		.second = { .nlmsg_len = 16, .nlmsg_type = 25 },	/* RTM_DELROUTE */
		.third = { .nlmsg_len = 16, .nlmsg_type = 20 },		/* RTM_NEWADDR */
	};
	__u64 at = number_of(&batch);

	EXPECT(making_bytes(at, sizeof(batch), NETLINK_ROUTE) == 25 + 16);
	EXPECT(making_bytes(at, 28, NETLINK_ROUTE) == 25);
	EXPECT(making_bytes(at, 15, NETLINK_ROUTE) == 0);
	batch.second.nlmsg_len = 0;	/* the kernel stops there as well */
	EXPECT(making_bytes(at, sizeof(batch), NETLINK_ROUTE) == 25);
	EXPECT(!makes_something(NETLINK_ROUTE, 26, 0) && !makes_something(NETLINK_ROUTE, 3, 0));
	/* A batch begins; a rule; the same looked at and taken away; a set of ipset; a connection. */
	EXPECT(!makes_something(NETLINK_NETFILTER, 16, 0));
	EXPECT(makes_something(NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES << 8 | 6, 0));
	EXPECT(!makes_something(NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES << 8 | 7, 0));
	EXPECT(!makes_something(NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES << 8 | 8, 0));
	EXPECT(makes_something(NETLINK_NETFILTER, NFNL_SUBSYS_IPSET << 8 | 2, 0));
	EXPECT(makes_something(NETLINK_NETFILTER, 1 << 8, 0));
	EXPECT(!makes_something(NETLINK_NETFILTER, 1 << 8 | 1, 0));
	EXPECT(makes_something(NETLINK_XFRM, 0x10, 0) && !makes_something(NETLINK_XFRM, 0x11, 0));
	/* What generic netlink's own family says; a family's command; a list; half of a list's flags. */
	EXPECT(!makes_something(NETLINK_GENERIC, 0x10, 1) && makes_something(NETLINK_GENERIC, 0x20, 1));
	EXPECT(!makes_something(NETLINK_GENERIC, 0x20, 0x301) && makes_something(NETLINK_GENERIC, 0x20, 0x101));
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
		range.owner = 1000 + index;
	}
	bpf_map_update_elem(&subordinates, &index, &range, BPF_ANY);
	return 0;
}
LOOP_BODY(fill_range, void *, SUBORDINATES)

SEC("syscall") int a_subordinate_uid_is_its_ranges_owners(void *ctx)
{
	BEGIN(it);
	it->state->subordinates = 0;
	LOOP(fill_range, NULL);
	EXPECT(owner_of_subuid(99999) == NOBODY);
	EXPECT(owner_of_subuid(100000) == 1000);
	EXPECT(owner_of_subuid(165535) == 1000);
	EXPECT(owner_of_subuid(165536) == NOBODY);
	EXPECT(owner_of_subuid(231072) == 1001);
	EXPECT(owner_of_subuid(362144 + 65535) == 1002);
	EXPECT(owner_of_subuid(0) == NOBODY);
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

char LICENSE[] SEC("license") = "GPL";
