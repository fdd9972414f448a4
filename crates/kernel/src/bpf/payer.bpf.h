/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who pays for an address space: the real uid of the task that owns it, or, inside user namespaces,
 * the owner of the outermost one (rootless containers map 65,536 uids: each would be a fresh limit).
 *
 * The owner, not `current`: reclaim, khugepaged, process_mrelease, ptrace and exec change foreign
 * address spaces.
 */
#ifndef BURSAR_PAYER_BPF_H
#define BURSAR_PAYER_BPF_H

#include "maps.bpf.h"

enum {
	NOBODY = 0xffffffffU,	/* no account pays: never counted, never killed */
	USERNS_DEPTH = 33,	/* kernel/user_namespace.c refuses deeper nesting than 32 */
};

struct payer {
	__u32 uid;
	__u64 user_ns;
};

static __always_inline bool payer_of_task(struct task_struct *owner, struct payer *payer)
{
	const struct cred *cred;
	struct user_namespace *ns;
	int level, i;

	if (!owner)
		return false;
	cred = owner->real_cred;
	if (!cred)
		return false;
	ns = cred->user_ns;
	payer->uid = cred->uid.val;
	payer->user_ns = (__u64)ns;
	if (!ns)
		return true;
	level = ns->level;
	for (i = 0; i < USERNS_DEPTH && level > 0; i++) {
		payer->uid = ns->owner.val;
		ns = ns->parent;
		if (!ns)
			break;
		level = ns->level;
	}
	return true;
}

/* The same for an address remembered earlier. */
static __always_inline bool payer_of_far_task(__u64 owner, struct payer *payer)
{
	__u64 cred, ns;
	int level, i;

	if (!owner)
		return false;
	cred = (__u64)FAR_READ(owner, struct task_struct, real_cred);
	if (!cred)
		return false;
	ns = (__u64)FAR_READ(cred, struct cred, user_ns);
	payer->uid = FAR_READ(cred, struct cred, uid.val);
	payer->user_ns = ns;
	if (!ns)
		return true;
	level = FAR_READ(ns, struct user_namespace, level);
	for (i = 0; i < USERNS_DEPTH && level > 0; i++) {
		payer->uid = FAR_READ(ns, struct user_namespace, owner.val);
		ns = (__u64)FAR_READ(ns, struct user_namespace, parent);
		if (!ns)
			break;
		level = FAR_READ(ns, struct user_namespace, level);
	}
	return true;
}

static __always_inline bool is_covered_by_default(struct ledger_state *state, __u32 uid)
{
	int i;

	if (uid < state->uid_min)
		return false;
	for (i = 0; i < EXEMPT_RANGES; i++)
		if (uid >= state->exempt[i].first && uid <= state->exempt[i].last)
			return false;
	return true;
}

/* Makes `uid` pay into a new account in `slot`; another CPU may have been first: then into that one. */
static __always_inline __u32 let_pay(__u32 uid, __u32 slot, struct account *account)
{
	__u32 *found;

	if (!bpf_map_update_elem(&payers, &uid, &slot, BPF_NOEXIST))
		return slot;
	account->flags = ACCOUNT_CLOSED;
	found = bpf_map_lookup_elem(&payers, &uid);
	return found ? *found : NOBODY;
}

static __always_inline __u32 take_slot(struct ledger_state *state)
{
	__u32 slot = __sync_fetch_and_add(&state->account_high_water, 1);

	if (slot < max_accounts)
		return slot;
	__sync_fetch_and_add(&state->account_high_water, -1);
	__sync_fetch_and_add(&state->accounts_full, 1);
	return NOBODY;
}

/* First process of a uid that `default` covers: its account is made here, where its memory is. */
static __noinline __u32 open_default_account(struct ledger_state *state, __u32 uid)
{
	struct account *template = account_at(0), *account;
	__u32 slot;

	if (!template || !(template->flags & ACCOUNT_USED) || !is_covered_by_default(state, uid))
		return NOBODY;
	slot = take_slot(state);
	account = slot != NOBODY ? account_at(slot) : NULL;
	if (!account)
		return NOBODY;
	account->id = uid;
	account->limit_pages = template->limit_pages;
	account->barrier_pages = template->barrier_pages;
	account->notice_pages = template->notice_pages;
	account->near_pages = template->near_pages;
	account->flags = template->flags | ACCOUNT_DEFAULT;
	return let_pay(uid, slot, account);
}

static __always_inline __u32 account_of(struct ledger_state *state, __u32 uid)
{
	__u32 *slot = bpf_map_lookup_elem(&payers, &uid);

	return slot ? *slot : open_default_account(state, uid);
}

#endif /* BURSAR_PAYER_BPF_H */
