// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether this kernel gives programs timers: some refuse the program, some the call, so it is loaded and run once. And
 * whether it lets a program that calls functions keep its CPU.
 */
#include <asm-generic/errno.h>

#include "compat.bpf.h"

struct probed {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probed);
} probed_timers SEC(".maps");

SEC("syscall")
int probe_timer(void *ctx)
{
	__u32 zero = 0;
	struct probed *probed = bpf_map_lookup_elem(&probed_timers, &zero);

	return probed ? bpf_timer_init(&probed->timer, &probed_timers, 1 /* CLOCK_MONOTONIC */) : -EINVAL;
}

__noinline int probe_call(__u32 number)
{
	return number == bpf_get_smp_processor_id();
}

SEC("tp_btf/rss_stat")
int BPF_PROG(probe_hold)
{
	hold_cpu();
	probe_call(0);
	release_cpu();
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
