/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is logging in, and all that comes of it. At a full account's barrier it may go a little further for a minute, so
 * that whoever is to clear up gets in.
 *
 * Found by what it is, not by its name. Its beginning is that root's real uid became the user's, as in sshd, login,
 * cron and the user's systemd. It is a login as long as it is root's program still, forked and without an exec since
 * (sshd's session), and what leads a session then: itself, what root's program has begun, or, on a terminal, root's
 * program that it was forked from (the login of Debian 12). A program that gives up
 * the rights of its set-user-id bit has the user's real uid already; who is left to init has no such ancestor; what
 * su and sudo begin in somebody's session leads none.
 */
#ifndef BURSAR_LOGIN_BPF_H
#define BURSAR_LOGIN_BPF_H

#include "maps.bpf.h"

enum {
	LOGINS = 1024,
	LOGIN_GENERATIONS = 16,	/* sshd, shell, make, … */
	PF_FORKNOEXEC = 0x40,	/* include/linux/sched.h */
};

#define LOGIN_NS 60000000000ULL

/* Of a process that became a user's. */
struct login {
	__u64 since_ns;
	__s64 pages;		/* that it and its descendants were granted beyond the barrier */
	__s64 held[2];		/* of processes, of files: when it first went beyond that barrier; 0: it has not */
};

/* Key: process number. Written by note_login (membership.bpf.c), read by who refuses. Bound: LOGINS. Full: who has not
 * been looked up for longest is no login any more. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LOGINS);
	__type(key, __u32);
	__type(value, struct login);
} logins SEC(".maps");

static __always_inline bool leads_session(__u64 leader)
{
	__u64 signal = (__u64)FAR_READ(leader, struct task_struct, signal);

	return signal && FAR_READ(signal, struct signal_struct, leader);
}

/* Whether it has begun below what leads a terminal's session. */
static __always_inline bool is_on_terminal(__u64 leader)
{
	__u64 parent = (__u64)FAR_READ(leader, struct task_struct, real_parent);
	__u64 signal = parent ? (__u64)FAR_READ(parent, struct task_struct, signal) : 0;

	return signal && FAR_READ(signal, struct signal_struct, leader) && FAR_READ(signal, struct signal_struct, tty);
}

/* The login that the running process is part of. Asked only where it would be refused: a walk to its ancestors. */
static inline struct login *login_of_me(void)
{
	__u64 me = (__u64)bpf_get_current_task_btf()->group_leader, leader = me, below = 0, parent;
	struct login *login;
	bool is_roots;
	__u32 tgid;
	int i;

	for (i = 0; i < LOGIN_GENERATIONS && leader; i++) {
		tgid = FAR_READ(leader, struct task_struct, tgid);
		login = bpf_map_lookup_elem(&logins, &tgid);
		if (login) {
			is_roots = FAR_READ(leader, struct task_struct, flags) & PF_FORKNOEXEC;
			if (bpf_ktime_get_ns() - login->since_ns >= LOGIN_NS)
				return NULL;
			if ((is_roots && (!below || leads_session(below))) || leads_session(leader) ||
			    is_on_terminal(leader))
				return login;
			return NULL;
		}
		below = leader;
		parent = (__u64)FAR_READ(leader, struct task_struct, real_parent);
		leader = parent ? (__u64)FAR_READ(parent, struct task_struct, group_leader) : 0;
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
