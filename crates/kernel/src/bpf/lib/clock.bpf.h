/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Times: CLOCK_MONOTONIC.
 */
#ifndef BURSAR_CLOCK_BPF_H
#define BURSAR_CLOCK_BPF_H

#include "maps.bpf.h"

/* How long ago that was. Another CPU may have written it later than `now` was read: then it is no time ago. */
static __always_inline __u64 ns_since(__u64 since, __u64 now)
{
	return now > since ? now - since : 0;
}

/* As rules.h has it. */
static __always_inline __u32 now_ms(void)
{
	return bpf_ktime_get_ns() / 1000000;
}

#endif /* BURSAR_CLOCK_BPF_H */
