/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A loop whose body is verified once: bpf_loop(), since 5.17 (e6f2dd0f8067 "bpf: Add bpf_loop helper"). Before that,
 * bpf_for_each_map_elem() (5.13) walks an array for its indices alone.
 *
 *	static __always_inline long add_one(__u32 index, struct sum *sum) { … return 0; }	1 ends the loop
 *	LOOP_BODY(add_one, struct sum *, what->count)
 *	LOOP(add_one, &sum);
 */
#ifndef BURSAR_LOOP_BPF_H
#define BURSAR_LOOP_BPF_H

#include <bpf/bpf_helpers.h>

const volatile bool has_bpf_loop = true;

/* Nobody reads or writes the elements. Not made where there is bpf_loop(). Bound: the longest loop. A loop that is
 * longer ends there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* (set) */
	__type(key, __u32);
	__type(value, __u64);
} loop_indices SEC(".maps");

/* `times`: an expression in which the context is `what`. No variable of a loop's own: nested loops have 512 bytes of
 * stack between them. */
#define LOOP_BODY(body, type, times)								\
static __always_inline __u32 body##_times(type what)						\
{												\
	return times;										\
}												\
												\
static long body##_at(void *array, __u32 *index, void *element, type what)			\
{												\
	return *index >= body##_times(what) ? 1 : body(*index, what);				\
}

/* `what`: on the caller's stack, or NULL. */
#define LOOP(body, what) do {									\
	if (has_bpf_loop)									\
		bpf_loop(body##_times(what), body, what, 0);					\
	else											\
		bpf_for_each_map_elem(&loop_indices, body##_at, what, 0);			\
} while (0)

#endif /* BURSAR_LOOP_BPF_H */
