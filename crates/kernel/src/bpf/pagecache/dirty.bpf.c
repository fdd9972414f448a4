// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dirty page cache, charged to who dirtied it until it is clean, also when he is dead (S5 3.2.1). Who that
 * is is written down with the page when it becomes dirty; whatever cleans it later finds it there.
 *
 * Hooks:   tp_btf/writeback_dirty_folio, in the context that dirties; fentry/folio_clear_dirty_for_io (it
 *          is about to be written), fentry/folio_account_cleaned (truncated). SEC("syscall"), by bursard.
 *          Attached when somebody first asks, and from then on.
 * Cost:    a hash update for each page (folio) that becomes dirty, a delete when it is clean.
 * Absent:  without trampolines nothing tells of clean pages: only how many became dirty is known.
 *
 * Pages that the kernel itself dirties (a kernel thread runs) are nobody's. One that moves to another
 * frame while it is dirty is forgotten by the next look (forget_cleaned).
 */
#include "payer.bpf.h"

const volatile bool sees_cleaning = false;

/* include/linux/backing-dev.h; include/uapi/linux/stat.h */
enum { BDI_CAP_WRITEBACK = 1, S_IFMT = 0170000, S_IFBLK = 0060000 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct backing_dev_info {
	unsigned int capabilities;
};

struct super_block___bdi {
	struct backing_dev_info *s_bdi;
};

struct inode___cached {
	unsigned short i_mode;
	struct super_block___bdi *i_sb;
};

struct address_space___cached {
	struct inode___cached *host;
};

/* 6.15: 9b5d5d4b8e0f renames it */
struct folio___old {
	unsigned int _folio_nr_pages;
};

struct folio___new {
	unsigned int _nr_pages;
};

#pragma clang attribute pop

struct folio;

enum pageflags { PG_dirty = 4, PG_head = 6 }; /* the kernel's own numbers are asked for */

/* Key: struct folio *. Written here. Bound: max_entries. Full: the page is nobody's, folios_lost grows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, __u64);
	__type(value, struct dirty_folio);
} dirty_folios SEC(".maps");

/* Key: the id of who pays. Written here, read by the user half. Full: as
 * above, payers_lost grows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct dirty_sum);
} dirty_sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dirty_facts);
} dirty_facts SEC(".maps");

static __always_inline struct dirty_facts *facts(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&dirty_facts, &zero);
}

static __always_inline __u64 flags_of(__u64 folio)
{
	__u64 flags = 0;

	/* The first member of every struct page, whatever its type is called. */
	bpf_probe_read_kernel(&flags, sizeof(flags), (void *)folio);
	return flags;
}

static __always_inline __u32 pages_of_folio(__u64 folio)
{
	__u32 pages = 0;

	if (!(flags_of(folio) & (1ULL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(((struct folio___new *)0)->_nr_pages))
		bpf_core_read(&pages, sizeof(pages), &((struct folio___new *)folio)->_nr_pages);
	else if (bpf_core_field_exists(((struct folio___old *)0)->_folio_nr_pages))
		bpf_core_read(&pages, sizeof(pages), &((struct folio___old *)folio)->_folio_nr_pages);
	return pages ? pages : 1;
}

/* Whether it is written anywhere at all, so that the kernel counts it as dirty: tmpfs is not. */
static __always_inline bool is_written_back(struct address_space *mapping)
{
	struct inode___cached *host;
	struct super_block___bdi *super;
	struct backing_dev_info *device;
	unsigned short mode = 0;
	unsigned int abilities = 0;

	if (!mapping)
		return false;
	host = BPF_CORE_READ((struct address_space___cached *)mapping, host);
	if (!host)
		return false;
	mode = BPF_CORE_READ(host, i_mode);
	if ((mode & S_IFMT) == S_IFBLK)
		return true;
	super = BPF_CORE_READ(host, i_sb);
	device = super ? BPF_CORE_READ(super, s_bdi) : NULL;
	if (device)
		abilities = BPF_CORE_READ(device, capabilities);
	return abilities & BDI_CAP_WRITEBACK;
}

static __always_inline struct dirty_sum *sum_of(__u64 payer)
{
	struct dirty_sum *sum = bpf_map_lookup_elem(&dirty_sums, &payer), none = {};
	struct dirty_facts *bad = facts();

	if (sum)
		return sum;
	bpf_map_update_elem(&dirty_sums, &payer, &none, BPF_NOEXIST);
	sum = bpf_map_lookup_elem(&dirty_sums, &payer);
	if (!sum && bad)
		__sync_fetch_and_add(&bad->payers_lost, 1);
	return sum;
}

/* A page is clean, or is about to be. */
static __noinline int clean(__u64 folio, bool is_cancelled)
{
	struct dirty_folio *dirty = bpf_map_lookup_elem(&dirty_folios, &folio);
	struct dirty_sum *sum;
	__u64 payer;
	__u32 pages;

	if (!dirty)
		return 0;
	payer = dirty->payer;
	pages = __sync_lock_test_and_set(&dirty->pages, 0);
	sum = bpf_map_lookup_elem(&dirty_sums, &payer);
	if (sum) {
		__sync_fetch_and_add(&sum->dirty_pages, -(__s64)pages);
		__sync_fetch_and_add(is_cancelled ? &sum->cancelled_pages : &sum->written_pages,
				     pages);
	}
	bpf_map_delete_elem(&dirty_folios, &folio);
	return 0;
}

#define NOBODYS (~0ULL)

static __noinline __u64 current_payer(void)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *me = bpf_get_current_task_btf();
	struct payer payer = {};

	if (!state || (me->flags & PF_KTHREAD) || payer_of_owner(state, me, &payer) != OWNER_FOUND)
		return NOBODYS;
	return payer.entered && payer.entered != NOBODYS_ID ? payer.entered : payer.uid;
}

SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(folio_dirtied, struct folio *folio, struct address_space *mapping)
{
	struct dirty_facts *bad = facts();
	struct dirty_folio dirty = {};
	struct dirty_sum *sum;
	__u64 key = (__u64)folio;

	if (!is_written_back(mapping))
		return 0;
	dirty.payer = current_payer();
	dirty.pages = pages_of_folio(key);
	if (sees_cleaning)
		clean(key, false); /* a leftover at the same address */
	sum = sum_of(dirty.payer);
	if (!sum)
		return 0;
	__sync_fetch_and_add(&sum->dirtied_pages, dirty.pages);
	if (!sees_cleaning)
		return 0;
	__sync_fetch_and_add(&sum->dirty_pages, dirty.pages);
	if (bpf_map_update_elem(&dirty_folios, &key, &dirty, BPF_ANY)) {
		__sync_fetch_and_add(&sum->dirty_pages, -(__s64)dirty.pages);
		if (bad)
			__sync_fetch_and_add(&bad->folios_lost, 1);
	}
	return 0;
}

SEC("fentry/folio_clear_dirty_for_io")
int BPF_PROG(folio_cleaned, struct folio *folio)
{
	clean((__u64)folio, false);
	return 0;
}

SEC("fentry/folio_account_cleaned")
int BPF_PROG(folio_cancelled, struct folio *folio)
{
	clean((__u64)folio, true);
	return 0;
}

struct bpf_map;

static long forget_if_clean(struct bpf_map *map, __u64 *key, struct dirty_folio *dirty, void *unused)
{
	struct dirty_facts *bad = facts();

	if (flags_of(*key) & (1ULL << bpf_core_enum_value(enum pageflags, PG_dirty)))
		return 0;
	if (bad)
		__sync_fetch_and_add(&bad->forgotten, 1);
	clean(*key, true);
	return 0;
}

/* Before the sums are read: what was cleaned unseen, by an event that was skipped or in another frame. */
SEC("syscall")
int forget_cleaned(void *ctx)
{
	bpf_for_each_map_elem(&dirty_folios, forget_if_clean, NULL, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
