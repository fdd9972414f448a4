/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bytes that are asked for, in pages.
 */
#ifndef BURSAR_PAGE_SIZE_BPF_H
#define BURSAR_PAGE_SIZE_BPF_H

#include "compat.bpf.h"

static __always_inline __s64 pages_of(__u64 bytes)
{
	/* no overflow: the kernel refuses what is larger than an address space by itself */
	if (bytes >> 62)
		return 0;
	return (bytes + (1ULL << page_shift) - 1) >> page_shift;
}

#endif /* BURSAR_PAGE_SIZE_BPF_H */
