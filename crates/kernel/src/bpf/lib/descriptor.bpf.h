/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The file behind a descriptor of the running process.
 */
#ifndef BURSAR_DESCRIPTOR_BPF_H
#define BURSAR_DESCRIPTOR_BPF_H

#include "vmlinux.h"
#include "vmlinux_files.h"
#include "probe_read.bpf.h"

/* 0: there is none. Who shares its table may put another file there at any time. */
static __always_inline __u64 probe_own_file(__u64 fd)
{
	__u64 me = (__u64)bpf_get_current_task(), table, file = 0;

	table = (__u64)PROBE_READ(PROBE_READ(me, struct task_struct, files), struct files_struct, fdt);
	if (!table || fd >= PROBE_READ(table, struct fdtable, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file),
			      (void *)((__u64)PROBE_READ(table, struct fdtable, fd) + fd * sizeof(file)));
	return file;
}

#endif /* BURSAR_DESCRIPTOR_BPF_H */
