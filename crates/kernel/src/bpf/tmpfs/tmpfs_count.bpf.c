// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files in tmpfs and ramfs, counted for whoever owns them (docs/explanation/accounting.md): those that nobody maps are in no
 * process's RSS. The superblocks of the type hang on one list and the inodes of each on another, so
 * everything is met: names in any mount namespace, unlinked files, memfd, System V segments, what is
 * on its way through a socket. No path is walked and nothing is opened.
 *
 * Hooks:   bpf_timer (softirq), armed by SEC("syscall") start_files, or, where that is refused,
 *          fentry/group_send_sig_info (lib/deferred.bpf.h); SEC("syscall") count_files, in bursard's own
 *          context, where there are more files than a softirq should count.
 * Cost:    50–100 ns a file; the timer waits five hundred times as long as a count took (a second at
 *          most), bursard fifty times.
 * Races:   tmpfs_count.bpf.h.
 * Absent:  what is unmapped is not counted, and status says so.
 */
#include <asm-generic/errno.h>

#include "deferred.bpf.h"
#include "tmpfs_count.bpf.h"
#include "descriptor.bpf.h"

enum {
	MOST_FILES = 1 << 22,	/* met in bursard's own time */
	FILES_EVERY_MS = 200,	/* at most so often … */
	FILES_LATEST_MS = 1000,	/* … and at least */
	FILES_SHARE = 500,	/* of the time: one part */
	ASK_PAUSE_NS = 1000000000, /* bursard is asked at most so often … */
	ASK_SHARE = 50,		/* … and for one part of the time */
};

struct files_timer {
	struct bpf_timer timer;
	__u32 initialised;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct files_timer);
} files_timers SEC(".maps");

/* Returns when it may be asked again, in nanoseconds from now. */
static __noinline __u64 ask_to_count(struct ledger_state *state)
{
	__u64 now = bpf_ktime_get_ns(), pause = state->files_full_ns * ASK_SHARE;
	struct event *event;

	if (pause < ASK_PAUSE_NS)
		pause = ASK_PAUSE_NS;
	if (ns_since(state->files_asked_ns, now) < pause)
		return pause - ns_since(state->files_asked_ns, now);
	event = reserve_event(state, EVENT_COUNT_FILES, TRIGGER_TIMER, now);
	if (!event)
		return ASK_PAUSE_NS;
	state->files_asked_ns = now;
	bpf_ringbuf_submit(event, 0);
	return pause;
}

/* Returns how long to wait with the next one, in nanoseconds. */
static __always_inline __u64 count_few(struct ledger_state *state)
{
	__u64 pause = FILES_EVERY_MS, due_ms = FILES_LATEST_MS;

	/* Too many for a timer: it comes again when bursard may be asked, and not up to a pause later. */
	if (!count_all(state, FEW_FILES, false))
		due_ms = ask_to_count(state) / 1000000 + 1;
	if (!state->files_wanted)
		pause = state->files_ns * FILES_SHARE / 1000000;
	if (pause > due_ms)
		pause = due_ms;
	if (pause < FILES_EVERY_MS)
		pause = FILES_EVERY_MS;
	if (pause > FILES_LATEST_MS)
		pause = FILES_LATEST_MS;
	return pause * 1000000ULL;
}

static int on_files_tick(void *map, __u32 *key, struct files_timer *timer)
{
	struct ledger_state *state = ledger_state();

	if (state)
		bpf_timer_start(&timer->timer, count_few(state), 0);
	return 0;
}

SEC("fentry/group_send_sig_info")
int BPF_PROG(on_files_deferred, int sig, struct kernel_siginfo *info)
{
	struct due_times *due;
	struct ledger_state *state;
	__u64 now;

	if (!is_deferred(sig, info))
		return 0;
	due = due_times_of();
	state = ledger_state();
	now = bpf_ktime_get_ns();
	if (due && state && take_turn(&due->files_ns, now, now + FILES_LATEST_MS * 1000000ULL))
		due->files_ns = now + count_few(state);
	return 0;
}

/* All files, however many: by bursard, when the timer asked for it. */
SEC("syscall")
int count_files(void *ctx)
{
	struct ledger_state *state = ledger_state();
	__u64 start = bpf_ktime_get_ns();
	bool met_all;

	if (!state || !state->tmpfs_type)
		return -EINVAL;
	met_all = count_all(state, MOST_FILES, false);
	state->files_full_ns = bpf_ktime_get_ns() - start;
	return met_all ? 0 : -EAGAIN; /* they change too fast, or are too many */
}

enum { FILE_SYSTEM_TYPES = 64 };	/* after tmpfs' own that are looked at */

static __always_inline bool is_called_ramfs(__u64 type)
{
	char name[6] = {};

	bpf_probe_read_kernel(name, sizeof(name),
			      (void *)PROBE_READ(type, struct file_system_type, name));
	return name[0] == 'r' && name[1] == 'a' && name[2] == 'm' && name[3] == 'f' && name[4] == 's' &&
	       !name[5];
}

/* File systems are on one list, the newest last; tmpfs is one of the first. */
static __always_inline long find_ramfs(__u32 index, __u64 **at)
{
	struct ledger_state *state = ledger_state();
	__u64 type = **at;

	if (!state || !type)
		return 1;
	if (is_called_ramfs(type)) {
		state->ramfs_type = type;
		return 1;
	}
	**at = probe_next_type(type);
	return 0;
}
LOOP_BODY(find_ramfs, __u64 **, FILE_SYSTEM_TYPES)

static __always_inline int start_files_timer(struct ledger_state *state)
{
	__u32 zero = 0;
	struct files_timer *timer = bpf_map_lookup_elem(&files_timers, &zero);
	int err;

	if (!timer)
		return -EINVAL;
	if (__sync_val_compare_and_swap(&timer->initialised, 0, 1))
		return 0;
	err = bpf_timer_init(&timer->timer, &files_timers, 1 /* CLOCK_MONOTONIC */);
	if (!err)
		err = bpf_timer_set_callback(&timer->timer, on_files_tick);
	if (err)
		return err;
	state->files_timer = 1;
	return bpf_timer_start(&timer->timer, 0, 0);
}

static __always_inline int start_files_deferred(struct ledger_state *state)
{
	struct due_times *due = due_times_of();

	if (!due)
		return -EINVAL;
	state->files_timer = 1;
	due->files_ns = bpf_ktime_get_ns() + count_few(state);
	return 0;
}

/* Finds tmpfs by a file of the caller's, and arms the timer. */
SEC("syscall")
int start_files(struct count_files_args *args)
{
	struct ledger_state *state = ledger_state();
	__u64 file = probe_own_file((__u32)args->fd), sb, type, next, *at = &next;

	if (!state)
		return -EINVAL;
	sb = (__u64)PROBE_READ(PROBE_READ(file, struct file, f_inode), struct inode, i_sb);
	type = (__u64)PROBE_READ(sb, struct super_block, s_type);
	if (!file || !type)
		return -EBADF;
	state->tmpfs_type = type;
	next = type;
	LOOP(find_ramfs, &at);
	return has_timers ? start_files_timer(state) : start_files_deferred(state);
}

char LICENSE[] SEC("license") = "GPL";
