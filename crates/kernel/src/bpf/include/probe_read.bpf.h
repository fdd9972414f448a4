/* SPDX-License-Identifier: GPL-2.0-only */
/* Reading at addresses that were remembered. */
#ifndef BURSAR_PROBE_READ_BPF_H
#define BURSAR_PROBE_READ_BPF_H

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* 6.2: a35b9af4ec2c "bpf: Add a kfunc for generic type cast" */
void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/* One field at an address: a plain load that a fault turns into 0 where the kernel has
 * bpf_rdonly_cast(), else the helper, which costs about ten nanoseconds more. */
#define PROBE_READ(address, type, field)                                                             \
	({                                                                                         \
		__u64 probe_at = (__u64)(address);                                                   \
		typeof(((type *)0)->field) probe_value;                                              \
		if (bpf_ksym_exists(bpf_rdonly_cast))                                              \
			probe_value = ((type *)bpf_rdonly_cast((void *)probe_at,                       \
							     bpf_core_type_id_kernel(type)))       \
					    ->field;                                               \
		else                                                                               \
			bpf_core_read(&probe_value, sizeof(probe_value), &((type *)probe_at)->field);    \
		probe_value;                                                                         \
	})

/* An address as a number, which global functions take: verifiers keep the type of a pointer through every cast. */
static __always_inline __u64 number_of(const void *pointer)
{
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &pointer);
	return number;
}

#endif /* BURSAR_PROBE_READ_BPF_H */
