/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * bursar.h: per-user memory limits and reservations (link with -lbursar).
 *
 * All functions return 0 or more when done and -1 with errno otherwise. All may be called by any
 * thread; none by a signal handler. None is a cancellation point (pthread_cancel(3)). They talk to bursard over the Unix socket that BURSAR_SOCKET names,
 * or /run/bursar/bursar.sock, and wait at most 30 s (reservations: 2 s) for its answer. Errno values
 * that every function can yield:
 *
 *   ENOENT, ECONNREFUSED  bursard does not run
 *   EACCES                its socket may not be used
 *   ETIMEDOUT or EAGAIN   it does not answer in time, or too many of the user's programs ask
 *   EPROTO                it speaks another version of the protocol
 *   EIO                   it answered that it could not
 */
#ifndef BURSAR_H
#define BURSAR_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a bound is told: there is none. */
#define BURSAR_NO_LIMIT UINT64_MAX

/*
 * Gives user `uid` a limit of `mm_max` bytes, in force when this returns and kept over restarts.
 * ULONG_MAX takes the limit away (done also when there was none). Root.
 *   EPERM   not root
 *   EINVAL  mm_max is 0
 *   EBUSY   the user holds more than that now, or than he may when it is taken away: it would kill at
 *           once
 */
int set_mm_limit(uid_t uid, unsigned long mm_max);

/*
 * Writes the limits in force, one an element: users in `uid`, bytes in `mm_max`, ascending by uid.
 * Returns how many. Shared accounts have no uid and are left out. A user who is not root gets his own.
 *   EFAULT  there are more than `max_element`, or an array is NULL and `max_element` is not 0; nothing
 *           is written (S1 section 4.1)
 */
int get_mm_limit(uid_t *uid, unsigned long *mm_max, unsigned int max_element);

/*
 * Counts every account anew and kills where a limit is passed, now. Returns how many processes it
 * killed. The kernel half does the same by itself; this is S1's trigger from user space. Root.
 *   EPERM   not root
 */
int run_oom_killer(void);

/*
 * Reserves `pages` pages (of sysconf(_SC_PAGESIZE) bytes) for this process, if held + all reservations
 * of the account + pages stay within its limit: decided atomically. Call it before memory is allocated.
 * The reservation lasts until it is committed or this process ends, however it ends. A forked child has
 * none; exec ends it. Reservations of one process add up.
 *   ENOMEM  no room: nothing is reserved, the refusal is counted in the account's failcnt
 *   EINVAL  pages is less than 1
 */
int transaction_reserve(long pages);

/*
 * Gives back `pages` of what is reserved: call it once the memory is resident (touched), when held
 * speaks for it. Does not wait for bursard, which reads it before anything that is asked later.
 *   EINVAL  pages is less than 1, or more than this process has reserved (never reserved, committed
 *           already); nothing is given back
 */
int transaction_commit(long pages);

/* The caller's account. Amounts in bytes; a bound that is not set is BURSAR_NO_LIMIT. */
struct bursar_account {
	uint64_t held;      /* now, by living processes */
	uint64_t maxheld;   /* the most ever */
	uint64_t reserved;  /* promised and not held yet */
	uint64_t notice;    /* above this the user is told */
	uint64_t barrier;   /* above this requests are refused */
	uint64_t limit;     /* above this a process is killed */
	uint64_t failcnt;   /* requests refused and breaches answered by a kill */
	uint64_t kills;     /* processes killed because of it */
};

/*
 * The account that the caller pays into.
 *   ESRCH   no limit concerns him
 *   EFAULT  account is NULL
 */
int bursar_account(struct bursar_account *account);

/*
 * Opens a descriptor that becomes readable (POLLIN, EPOLLIN, asyncio's add_reader) when the account that the caller
 * pays into comes to a level, at once if it is there already, and each time that it comes there again after it has
 * held a sixteenth less. `at`: "notice", "barrier" (also a request refused there), or a part of the limit, "1%" to
 * "100%". The descriptor is close-on-exec and non-blocking; close(2) ends it. Read it with bursar_watch_take() only.
 * A forked child shares it: one of the two should close it.
 *   EINVAL  at is no level
 *   EFAULT  at is NULL
 */
int bursar_watch(const char *at);

/*
 * Takes what made the descriptor readable. Returns 1 if the account has come to the level, 0 if there is nothing to
 * take. Never waits.
 *   ECONNRESET  bursard has ended, or is being restarted: close the descriptor and open another one
 *   ESRCH       no limit concerns the caller, or not the bound that `at` takes: nothing will come any more
 *   EBUSY       too many of the user's programs wait (128)
 *   EBADF, ENOTSOCK  it is no descriptor of bursar_watch()
 */
int bursar_watch_take(int watch);

#ifdef __cplusplus
}
#endif
#endif
