/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who pays for an address space: the real uid of the task that owns it, or, inside user namespaces, who
 * answers for what is in there (userns.bpf.h).
 *
 * The owner, not `current`: reclaim, khugepaged, process_mrelease, ptrace and exec change foreign
 * address spaces.
 */
#ifndef BURSAR_PAYER_BPF_H
#define BURSAR_PAYER_BPF_H

#include "clock.bpf.h"
#include "membership.bpf.h"
#include "userns.bpf.h"
#include "subuid.bpf.h"
#include "exempt.bpf.h"

struct payer {
	__u32 uid;
	__u32 pad;
	__u64 entered;	/* the account that the task has entered; 0: none; NOBODYS_ID: nobody pays */
	__u64 user_ns;	/* or that account: is_entered() */
};

/* Whether limits.toml has something for him in particular. */
static __always_inline bool is_named(__u32 uid)
{
	__u64 id = uid;
	__u32 *slot = bpf_map_lookup_elem(&payers, &id);
	struct account *account = slot ? account_at(*slot) : NULL;

	return account && !(account->flags & ACCOUNT_DEFAULT);
}

/* Global as find_userns_owner() is. Root answers for a uid that he has shifted, unless it is named. */
__noinline __u32 payer_below(struct userns_owner *owner)
{
	if (!owner)
		return NOBODY;
	find_userns_owner(owner);
	return owner->is_shifted && !is_named(owner->uid) ? 0 : owner->uid;
}

/* Who pays for `uid` in a namespace at an address, `level` below the initial one. */
static __always_inline __u32 probe_payer_in(__u64 ns, int level, __u32 uid)
{
	struct userns_owner owner = { .ns = ns, .uid = uid };

	return level > 0 ? payer_below(&owner) : uid;
}

static __always_inline __u32 payer_in(struct user_namespace *ns, __u32 uid)
{
	return ns ? probe_payer_in((__u64)ns, ns->level, uid) : uid;
}

/* By credentials: a task's, or those a file was opened with. */
static __always_inline bool uid_of_cred(const struct cred *cred, __u32 *uid)
{
	if (!cred)
		return false;
	*uid = payer_in(cred->user_ns, cred->uid.val);
	return true;
}

static __always_inline void let_nobody(struct payer *payer)
{
	payer->entered = NOBODYS_ID;
	payer->user_ns = NOBODYS_ID;
}

/* While a process is being forked it is in no group yet: then it is its parent's, who runs. */
static __always_inline bool is_exempt_owner(struct task_struct *owner)
{
	struct task_struct *me = bpf_get_current_task_btf();

	return is_exempt(number_of(owner != me && owner->pid == me->pid ? me : owner));
}

static __always_inline bool payer_of_task(struct task_struct *owner, struct payer *payer)
{
	const struct cred *cred;

	if (!owner)
		return false;
	cred = owner->real_cred;
	if (!uid_of_cred(cred, &payer->uid))
		return false;
	payer->user_ns = (__u64)cred->user_ns;
	if (is_exempt_owner(owner))
		let_nobody(payer);
	return true;
}

/* The same for an address remembered earlier. */
static __always_inline bool payer_of_task_at(__u64 owner, struct payer *payer)
{
	__u64 cred, ns;

	if (!owner)
		return false;
	cred = (__u64)PROBE_READ(owner, struct task_struct, real_cred);
	if (!cred)
		return false;
	ns = (__u64)PROBE_READ(cred, struct cred, user_ns);
	payer->uid = probe_payer_in(ns, ns ? PROBE_READ(ns, struct user_namespace, level) : 0,
				  PROBE_READ(cred, struct cred, uid.val));
	payer->user_ns = ns;
	if (is_exempt(number_of((void *)owner)))
		let_nobody(payer);
	return true;
}

/* bursard, and not who has got its number since it died. */
static __always_inline bool is_bursard(struct ledger_state *state, struct task_struct *task)
{
	return (__u32)task->tgid == state->bursard_tgid &&
	       task->group_leader->start_boottime == state->bursard_start_ns;
}

/* The same of a task at a remembered address; its process's number is known. */
static __always_inline bool is_bursard_at(struct ledger_state *state, __u64 task, __u32 tgid)
{
	if (tgid != state->bursard_tgid)
		return false;
	return PROBE_READ(PROBE_READ(task, struct task_struct, group_leader), struct task_struct, start_boottime) ==
	       state->bursard_start_ns;
}

/* A task that is never refused anything, whatever account it is in: kernel threads, init, bursard. */
static __always_inline bool is_beyond_refusal(struct ledger_state *state, struct task_struct *task)
{
	return (task->flags & PF_KTHREAD) || task->tgid == 1 || is_bursard(state, task);
}

/* Never a victim. */
static __always_inline bool is_protected(struct ledger_state *state, __u64 owner, __u32 pid, int adj)
{
	return pid == 1 || adj <= OOM_SCORE_ADJ_MIN || is_bursard_at(state, owner, pid) ||
	       (PROBE_READ(owner, struct task_struct, flags) & PF_KTHREAD);
}

/* The id of an account entered, if there still is one: its processes pay for themselves when it is
 * taken away. */
static __always_inline void pay_into(struct payer *payer, __u64 account)
{
	if (account && payer->entered != NOBODYS_ID && bpf_map_lookup_elem(&payers, &account)) {
		payer->entered = account;
		payer->user_ns = account;
	}
}

enum ownership { OWNER_GONE, OWNER_FOUND, OWNER_UNKNOWN };

/* Who pays for what a task owns: the account that it has entered, else its user. Unknown: it may be a
 * member of one, so nothing may be charged to its user; the next event is asked again. */
static __always_inline enum ownership payer_of_owner(struct ledger_state *state,
						     struct task_struct *owner, struct payer *payer)
{
	__u64 account;

	if (!payer_of_task(owner, payer))
		return OWNER_GONE;
	if (!state->entered)
		return OWNER_FOUND;
	account = entered_by(owner);
	if (account == MEMBERSHIP_UNKNOWN)
		return OWNER_UNKNOWN;
	pay_into(payer, account);
	return OWNER_FOUND;
}

static __always_inline bool is_in(const struct uid_range *ranges, __u32 uid)
{
	int i;

	for (i = 0; i < EXEMPT_RANGES; i++)
		if (uid >= ranges[i].first && uid <= ranges[i].last)
			return true;
	return false;
}

static __always_inline bool is_covered_by_default(struct ledger_state *state, __u32 uid)
{
	return uid >= state->uid_min && !is_in(state->exempt, uid);
}

/* Makes `id` pay into a new account in `slot`; another CPU may have been first: then into that one. */
static __always_inline __u32 let_pay(__u64 id, __u32 slot, struct account *account)
{
	__u32 *found;

	if (!bpf_map_update_elem(&payers, &id, &slot, BPF_NOEXIST))
		return slot;
	account->flags = ACCOUNT_CLOSED;
	found = bpf_map_lookup_elem(&payers, &id);
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
	account->number = uid;
	account->limit_pages = template->limit_pages;
	account->barrier_pages = template->barrier_pages;
	account->notice_pages = template->notice_pages;
	account->near_pages = template->near_pages;
	account->private_barrier_pages = template->private_barrier_pages;
	account->private_observed = template->private_observed;
	account->private_maxheld_pages = 0;
	account->private_failcnt = 0;
	/* He may have been there before `default` was. */
	account->unbounded_until_ms = unbounded_until(0, template->limit_pages, page_shift, now_ms());
	/* Who wants to know when somebody begins to hold anything. */
	account->watch_above_pages = template->watch_above_pages;
	account->watched = template->watched;
	account->measure = is_in(state->committed, uid) ? MEASURE_COMMITTED : template->measure;
	account->flags = template->flags | ACCOUNT_DEFAULT;
	/* Somebody may be taking charge of all that there are (calls.bpf.h take_charge()). */
	if (!(*(volatile __u32 *)&template->flags & ACCOUNT_PAUSED))
		__sync_fetch_and_and(&account->flags, ~ACCOUNT_PAUSED);
	return let_pay(uid, slot, account);
}

/* The account that he has already, or NOBODY. */
static __always_inline __u32 open_account_of(__u32 uid)
{
	__u64 id = uid;
	__u32 *slot = bpf_map_lookup_elem(&payers, &id);

	return slot ? *slot : NOBODY;
}

/* bursard looks whether it is a user all the same, whom only a directory knows. */
static __always_inline void note_subuid(struct ledger_state *state, __u32 uid)
{
	volatile __u32 *noted = &state->subuids_met[uid % SUBUIDS_MET];

	if (*noted != uid)
		*noted = uid;
}

/* The account of a uid that has none yet. A subordinate uid's owner pays: under `default` a user could have as many
 * accounts as uids. Else `default` opens one. Global as find_userns_owner() is. */
__noinline __u32 account_of_stranger(__u32 uid)
{
	struct ledger_state *state = ledger_state();
	__u32 slot, owner;

	if (!state)
		return NOBODY;
	owner = owner_of_subuid(uid);
	if (owner == NOBODY)
		return open_default_account(state, uid);
	note_subuid(state, uid);
	slot = open_account_of(owner);
	return slot != NOBODY ? slot : open_default_account(state, owner);
}

static __always_inline __u32 account_of(struct ledger_state *state, __u32 uid)
{
	__u32 slot = open_account_of(uid);

	return slot != NOBODY ? slot : account_of_stranger(uid);
}

/* Of a file's owner, outside all namespaces. `default` opens accounts for processes only: anybody could give
 * files to each of his 65,536 subordinate uids. Those are his, as long as they are nobody's with an account. */
static __always_inline __u32 account_of_owner(__u32 uid)
{
	__u32 slot = open_account_of(uid), owner;

	if (slot != NOBODY)
		return slot;
	owner = owner_of_subuid(uid);
	return owner != NOBODY ? open_account_of(owner) : NOBODY;
}

/* Of a file in a file system of a namespace. */
static __always_inline __u32 account_of_file(__u64 ns, int level, __u32 uid)
{
	return account_of_owner(probe_payer_in(ns, level, uid));
}

static __always_inline __u32 account_of_payer(struct ledger_state *state, const struct payer *payer)
{
	__u64 entered = payer->entered;
	__u32 *slot;

	if (!entered)
		return account_of(state, payer->uid);
	slot = bpf_map_lookup_elem(&payers, &entered);
	return slot ? *slot : NOBODY;
}

#endif /* BURSAR_PAYER_BPF_H */
