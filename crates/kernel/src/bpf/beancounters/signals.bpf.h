/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numsiginfo: whether one more signal may be queued.
 */
#ifndef BURSAR_SIGNALS_BPF_H
#define BURSAR_SIGNALS_BPF_H

#include "row.bpf.h"
#include "user_counts.bpf.h"

enum {
	SIGRTMIN = 32,
	SIGSETXID = 33,	/* the C library's own last one */
};

/* What root, init and bursard send is charged and never refused: root's word to a program must not depend
 * on how many its user has queued for it. Nor is what the C library sends to its own threads (pthread_cancel,
 * setuid): refused, a thread would keep the uid that its process has given up. The hook's `cred` is not asked:
 * it is NULL nearly always, and verifiers (7.2) take it for never NULL and drop the comparison, an oops. */
static __always_inline bool is_signal_beyond_refusal(int signal)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *sender = bpf_get_current_task_btf();
	__u32 uid = 0;

	if (signal <= SIGSETXID)
		return true;
	return (state && is_beyond_refusal(state, sender)) ||
	       (uid_of_cred(sender->real_cred, &uid) && !uid);
}

/* The kernel counts these itself, for each user; a queued signal is paid for by who is to get it. Those
 * below SIGRTMIN are not queued twice, and SIGKILL is among them. `asks`: the running task sends it. Returns 1 where one
 * more is granted. */
static __always_inline int may_queue_signal(struct task_struct *target, int signal, bool asks)
{
	__u32 slot;
	struct row *row;
	__s64 held;

	if (signal < SIGRTMIN)
		return 1;
	slot = slot_of_task(target);
	row = counted_row(slot, BILL_NUMSIGINFO);
	if (!row)
		return 1;
	held = pending_signals_of(target);
	if (held + 1 > row->barrier && !(asks && is_signal_beyond_refusal(signal))) {
		row->held = held;
		tell_bill(slot, BILL_NUMSIGINFO, 1, asks);
		if (!row->observed)
			return 0;
	}
	row->held = held + 1;
	raise_to(&row->maxheld, held + 1);
	return 1;
}

#endif /* BURSAR_SIGNALS_BPF_H */
