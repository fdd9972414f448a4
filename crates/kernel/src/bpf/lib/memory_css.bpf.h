/* SPDX-License-Identifier: GPL-2.0-only */
/* Where the memory controller has a task. */
#ifndef BURSAR_MEMORY_CSS_BPF_H
#define BURSAR_MEMORY_CSS_BPF_H

#include "vmlinux.h"
#include "probe_read.bpf.h"

/* The struct cgroup_subsys_state of its group; 0 without the memory controller. */
static __always_inline __u64 memory_css_of(__u64 task)
{
	__u64 set = (__u64)PROBE_READ(task, struct task_struct, cgroups);

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return 0;
	set += sizeof(void *) * bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	return (__u64)PROBE_READ(set, struct css_set, subsys[0]);
}

#endif /* BURSAR_MEMORY_CSS_BPF_H */
