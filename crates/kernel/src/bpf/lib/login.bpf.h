/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is logging in, and all that comes of it. At a full account's barrier it may go a little further for a minute, so
 * that whoever is to clear up gets in.
 *
 * Found by what it is, not by its name. Its beginning is that root's real uid became the user's, as in sshd, login,
 * cron and the user's systemd. It is a login as long as it is root's program still, forked and without an exec since
 * (sshd's session), and what leads a session then: itself, what root's program has begun, or, on a terminal, root's
 * program that it was forked from (the login of Debian 12). A program with a set-user-id bit that a user has begun makes
 * no login, whatever it becomes (sudo's askpass); who is left to init has no such ancestor.
 */
#ifndef BURSAR_LOGIN_BPF_H
#define BURSAR_LOGIN_BPF_H

#include "maps.bpf.h"

enum {
	LOGINS = 8192,
	LOGINS_OF_USER = 16,	/* at once; a further one may take the place of another of his */
	LOGINS_AT_ONCE = 4,	/* have room beyond a barrier of one account */
	LOGIN_GENERATIONS = 16,	/* sshd, shell, make, … */
	PF_FORKNOEXEC = 0x40,	/* include/linux/sched.h */
	AUXV_PAIRS = 32,	/* include/linux/mm_types.h: AT_VECTOR_SIZE / 2 */
	AT_NULL = 0,		/* include/uapi/linux/auxvec.h */
	AT_SECURE = 23,
};

#define LOGIN_NS 60000000000ULL

/* Of a process that became a user's. */
struct login {
	__u64 since_ns;
	__u64 began_ns;		/* the process: its number comes again */
	__s64 pages;		/* that it and its descendants were granted beyond the barrier */
	__s64 held[2];		/* of processes, of files: when it first went beyond that barrier; 0: it has not */
	__s64 kernel_bytes;	/* that it and its descendants had made beyond the barrier of kmemsize */
};

/* Key: key_of_login(). Written by note_login (membership.bpf.c), read by who refuses. Bound: LOGINS. Full: who has not
 * been looked up for longest is no login any more. A user who begins many fills his own places only. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LOGINS);
	__type(key, __u64);
	__type(value, struct login);
} logins SEC(".maps");

static __always_inline __u64 key_of_login(__u32 uid, __u32 tgid)
{
	return (__u64)uid << 32 | tgid % LOGINS_OF_USER;
}

struct auxv_pair {
	__u64 type, value;
};

/* Whether the running program has the rights of its set-user-id bit, and did not have them from who began it: what
 * getauxval(AT_SECURE) tells it. Children have it from their parents. */
static __always_inline bool is_secure_exec(void)
{
	__u64 mm = (__u64)PROBE_READ((__u64)bpf_get_current_task(), struct task_struct, mm);
	__u64 auxv = mm + bpf_core_field_offset(struct mm_struct, saved_auxv);
	struct auxv_pair pair;
	int i;

	for (i = 0; mm && i < AUXV_PAIRS; i++) {
		if (bpf_probe_read_kernel(&pair, sizeof(pair), (void *)(auxv + i * sizeof(pair))) ||
		    pair.type == AT_NULL)
			return false;
		if (pair.type == AT_SECURE)
			return pair.value;
	}
	return false;
}

static __always_inline bool leads_session(__u64 leader)
{
	__u64 signal = (__u64)PROBE_READ(leader, struct task_struct, signal);

	return signal && PROBE_READ(signal, struct signal_struct, leader);
}

/* Whether it has begun below what leads a terminal's session. */
static __always_inline bool is_on_terminal(__u64 leader)
{
	__u64 parent = (__u64)PROBE_READ(leader, struct task_struct, real_parent);
	__u64 signal = parent ? (__u64)PROBE_READ(parent, struct task_struct, signal) : 0;

	return signal && PROBE_READ(signal, struct signal_struct, leader) && PROBE_READ(signal, struct signal_struct, tty);
}

/* The login that the running process is part of. Asked only where it would be refused: a walk to its ancestors. */
static inline struct login *login_of_me(void)
{
	__u64 me = (__u64)bpf_get_current_task_btf()->group_leader, leader = me, below = 0, parent;
	__u32 uid = bpf_get_current_uid_gid();
	struct login *login;
	bool is_roots;
	__u64 key;
	int i;

	for (i = 0; i < LOGIN_GENERATIONS && leader; i++) {
		key = key_of_login(uid, PROBE_READ(leader, struct task_struct, tgid));
		login = bpf_map_lookup_elem(&logins, &key);
		if (login && login->began_ns == PROBE_READ(leader, struct task_struct, start_boottime)) {
			is_roots = PROBE_READ(leader, struct task_struct, flags) & PF_FORKNOEXEC;
			if (bpf_ktime_get_ns() - login->since_ns >= LOGIN_NS)
				return NULL;
			if ((is_roots && (!below || leads_session(below))) || leads_session(leader) ||
			    is_on_terminal(leader))
				return login;
			return NULL;
		}
		below = leader;
		parent = (__u64)PROBE_READ(leader, struct task_struct, real_parent);
		leader = parent ? (__u64)PROBE_READ(parent, struct task_struct, group_leader) : 0;
	}
	return NULL;
}

/* Takes so much of the memory that a login may ask for beyond the barrier. It is not given back. */
static __always_inline bool take_login_reserve(struct login *login, __s64 pages, __s64 most)
{
	if (!login || pages > most)
		return false;
	if (__sync_fetch_and_add(&login->pages, pages) + pages <= most)
		return true;
	__sync_fetch_and_add(&login->pages, -pages);
	return false;
}

#endif /* BURSAR_LOGIN_BPF_H */
