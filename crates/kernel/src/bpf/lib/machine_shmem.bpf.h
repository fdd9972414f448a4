/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared memory of the whole machine, files in tmpfs among it, as the kernel counts it (nr_shmem of /proc/vmstat).
 *
 * Absent:  without the memory controller (CONFIG_MEMCG, cgroup_disable=memory) it is 0.
 */
#ifndef BURSAR_MACHINE_SHMEM_BPF_H
#define BURSAR_MACHINE_SHMEM_BPF_H

#include "memory_css.bpf.h"

enum { MOST_NODES = 16 };	/* what lies beyond them is not in it: each costs 118 steps of the verifier */

static __always_inline __u64 probe_number(__u64 at)
{
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), (void *)at);
	return number;
}

/* Any control group of memory knows the machine's nodes. Not every kernel shows where it has their sum. */
static __always_inline __u64 nodes_of_machine(void)
{
	__u64 group = memory_css_of((__u64)bpf_get_current_task());

	if (!group || !bpf_core_field_exists(struct mem_cgroup, nodeinfo))
		return 0;
	return group + bpf_core_field_offset(struct mem_cgroup, nodeinfo);
}

static __noinline __s64 machine_shmem(void)
{
	__u64 nodes = nodes_of_machine(), node;
	__s64 pages = 0;
	int i;

	for (i = 0; nodes && i < MOST_NODES; i++) {
		node = probe_number(nodes + i * sizeof(__u64));
		if (node)
			node = (__u64)PROBE_READ(node, struct mem_cgroup_per_node, lruvec.pgdat);
		/* There are fewer places than nodes that there could be. */
		if (node && PROBE_READ(node, struct pglist_data, node_id) == i)
			pages += (__s64)probe_number(node + bpf_core_field_offset(struct pglist_data, vm_stat) +
						    bpf_core_enum_value(enum node_stat_item, NR_SHMEM) * sizeof(__u64));
	}
	return pages > 0 ? pages : 0;
}

#endif /* BURSAR_MACHINE_SHMEM_BPF_H */
