/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who pays for a file that is open already, to walks over all of them (beancounters.bpf.c, network_buffers.bpf.c).
 */
#ifndef BURSAR_OPEN_FILE_BPF_H
#define BURSAR_OPEN_FILE_BPF_H

#include "row.bpf.h"
#include "vmlinux_beancounters.h"

/* The account that pays for a file which `task` has open, or NOBODY: the one that who opened it is in. No
 * file says whether its user had entered an account by then; what it has open in there counts as opened
 * in there. */
static __noinline __u32 slot_of_file(struct file *file, struct task_struct *task)
{
	struct ledger_state *state = ledger_state();
	struct payer holder = {};
	__u32 uid = 0;

	if (!file || !state || !task || (task->flags & PF_KTHREAD) ||
	    is_bursard(state, task) || !uid_of_cred(file->f_cred, &uid))
		return NOBODY;
	if (state->entered || state->exempts_cgroups) {
		if (payer_of_owner(state, task, &holder) != OWNER_FOUND)
			return NOBODY;
		if (holder.entered && holder.uid == uid)
			return account_of_payer(state, &holder);
	}
	return uid ? account_of(state, uid) : NOBODY;
}

#endif /* BURSAR_OPEN_FILE_BPF_H */
