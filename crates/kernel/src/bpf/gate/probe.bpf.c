// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether this kernel lets us attach trampolines. The target exists for such tests
 * (net/bpf/test_run.c) and is never called otherwise.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

SEC("fentry/bpf_fentry_test1")
int BPF_PROG(probe_trampoline, int a)
{
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
