// SPDX-License-Identifier: GPL-2.0-only
/*
 * A program that does nothing: what it costs to be called at every RSS event. No ledger can be
 * cheaper than this.
 *
 * Hooks:   tp_btf/rss_stat; or the entry of the function that the event is told by (6.2 and later,
 *          mm/memory.c mm_trace_rss_stat()), where trampolines may be attached.
 */
#include "compat.bpf.h"

SEC("tp_btf/rss_stat")
int BPF_PROG(bench_empty, struct mm_struct *mm, int member)
{
	return 0;
}

SEC("?fentry/mm_trace_rss_stat")
int BPF_PROG(bench_empty_at_entry, struct mm_struct *mm, int member)
{
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
