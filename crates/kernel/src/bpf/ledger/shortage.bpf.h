/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether the machine itself may soon be short of memory: looked at with the timer, so that nobody's user half has to
 * wake up to know that it is not (S1 3.4, the last defence).
 */
#ifndef BURSAR_SHORTAGE_BPF_H
#define BURSAR_SHORTAGE_BPF_H

#include "event.bpf.h"

enum zone_stat_item {
	NR_FREE_PAGES = 0,
};

enum bpf_func_id___5_16 {
	BPF_FUNC_kallsyms_lookup_name___5_16 = 179,
};

static const char zone_counters[] = "vm_zone_stat", node_counters[] = "vm_node_stat";

/* Where the machine's pages are counted. Asked for here: a __ksym would have libbpf read all of /proc/kallsyms at each
 * start. Before 5.16, and where the kernel hides addresses from us (kernel.kptr_restrict, and without CAP_SYSLOG
 * kernel.perf_event_paranoid above 1), nobody knows. */
static __always_inline void learn_where_pages_are_counted(struct ledger_state *state)
{
	__u64 zone = 0, node = 0;

	if (!bpf_core_enum_value_exists(enum bpf_func_id___5_16, BPF_FUNC_kallsyms_lookup_name___5_16) ||
	    bpf_kallsyms_lookup_name(zone_counters, sizeof(zone_counters), 0, &zone) ||
	    bpf_kallsyms_lookup_name(node_counters, sizeof(node_counters), 0, &node))
		return;
	state->zone_counters = zone;
	state->node_counters = node;
}

static __always_inline __s64 counter_at(__u64 counters, __u64 item)
{
	__s64 pages = 0;

	bpf_probe_read_kernel(&pages, sizeof(pages), (void *)(counters + item * sizeof(pages)));
	return pages > 0 ? pages : 0;
}

/* What is free, and what the kernel can take back without a swap: roughly MemAvailable, which has reclaimable slab as
 * well and less of the files. The user half looks at that then; so it is told at each tick until it has raised the
 * last defence. Where the kernel does not show where its counters are nothing is told. */
static __noinline int watch_for_shortage(void)
{
	struct ledger_state *state = ledger_state();
	__s64 pages;
	struct event *event;

	if (!state || !state->short_below_pages || state->raised_adj || !state->zone_counters)
		return 0;
	pages = counter_at(state->zone_counters, bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES));
	if (!pages)
		return 0;
	pages += counter_at(state->node_counters, bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE));
	pages += counter_at(state->node_counters, bpf_core_enum_value(enum node_stat_item, NR_ACTIVE_FILE));
	if (pages >= (__s64)state->short_below_pages)
		return 0;
	event = reserve_event(state, EVENT_SHORTAGE, TRIGGER_TIMER, bpf_ktime_get_ns());
	if (event)
		bpf_ringbuf_submit(event, 0);
	return 0;
}

#endif /* BURSAR_SHORTAGE_BPF_H */
