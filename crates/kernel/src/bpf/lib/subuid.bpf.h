/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whose a subordinate uid is. A process with one is in a user namespace and its user's (userns.bpf.h). But a
 * file it makes in a file system of the machine (memfd, /dev/shm, System V) has its uid and nothing else of it;
 * and whoever runs a set-uid program that was made in there can take that uid for good, outside.
 *
 * Races: who has begun to read a half while two changes are made may meet ranges of both, and count a file for
 * somebody else, or nobody, once. Nobody is killed for one count.
 */
#ifndef BURSAR_SUBUID_BPF_H
#define BURSAR_SUBUID_BPF_H

#include "maps.bpf.h"

enum {
	NOBODY = 0xffffffffU,	/* no account pays: never counted, never killed */
};

/* NOBODY: it is no subordinate uid. No function, for a decision has no frame left where it asks this. That
 * there are always as many ranges spares verifiers the bounds: 7.x would follow both ways of each comparison
 * with one, 10,000 instructions in every program that decides. */
static __always_inline __u32 owner_of_subuid(__u32 uid)
{
	struct ledger_state *state = ledger_state();
	struct subordinate *range;
	__u32 at, next, step;

	if (!state)
		return NOBODY;
	at = *(volatile __u32 *)&state->subordinates;
	range = bpf_map_lookup_elem(&subordinates, &at);
	if (!range || uid < range->first)	/* root, services, most users */
		return NOBODY;
#pragma clang loop unroll(disable)
	for (step = SUBORDINATES / 2; step; step /= 2) {
		next = at + step;
		range = bpf_map_lookup_elem(&subordinates, &next);
		if (!range)
			return NOBODY;
		if (range->first <= uid)
			at = next;
	}
	range = bpf_map_lookup_elem(&subordinates, &at);
	return range && range->first <= uid && uid <= range->last ? range->owner : NOBODY;
}

#endif /* BURSAR_SUBUID_BPF_H */
