/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fork(2) where somebody is asking for memory: `handlers` other libraries' fork handlers, `meanwhile`
 * another thread, `malloc` and `reserve` this very thread, whom a signal handler interrupted.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bursar.h"

extern pthread_t worker;
extern atomic_int has_worker, is_to_end;

static pid_t parent;
static volatile pid_t ender, goer;

static int allocates(void)
{
	void *volatile block = malloc(3 << 20);
	int is_there = block != NULL;

	free(block);
	return is_there;
}

static void ask(const char *way)
{
	if (!strcmp(way, "reserve"))
		transaction_reserve(1);
	else if (!allocates())
		_exit(3);
}

static int ends_well(pid_t child)
{
	int status;

	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 0;
}

/* poll(2) is ppoll(2) where a kernel has only that one. */
static int is_waiting(int call)
{
#ifdef SYS_poll
	if (call == SYS_poll)
		return 1;
#endif
	return call == SYS_ppoll;
}

/* Until a thread waits for bursard's answer. */
static void await_receiving(pid_t thread)
{
	char path[64], text[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
	for (;;) {
		int fd = open(path, O_RDONLY);
		ssize_t got = read(fd, text, sizeof(text) - 1);

		close(fd);
		text[got > 0 ? got : 0] = 0;
		if (got > 0 && text[0] != 'r' && is_waiting(atoi(text)))
			return;
		usleep(1000);
	}
}

static void *allocate_at_the_end(void *unused)
{
	allocates();
	while (!is_to_end)
		usleep(1000);
	allocates();
	return unused;
}

/* Again and again: for a second after it has not answered bursard is not asked. */
static void *allocate_all_the_time(void *tid)
{
	*(atomic_int *)tid = gettid();
	for (;;)
		allocates();
	return NULL;
}

static void *signal_it(void *unused)
{
	await_receiving(parent);
	kill(parent, SIGUSR1);
	return unused;
}

/* One child ends here; the other goes on with what was interrupted. */
static void fork_twice(int unused)
{
	(void)unused;
	ender = fork();
	if (ender == 0)
		_exit(0);
	goer = fork();
	if (goer == 0)
		alarm(20);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	pthread_t other;
	pid_t child;

	alarm(25);
	parent = getpid();
	if (!strcmp(way, "handlers")) {
		pthread_create(&worker, NULL, allocate_at_the_end, NULL);
		has_worker = 1;
		child = fork();
		if (child == 0)
			_exit(!allocates());
		return !ends_well(child) || !allocates();
	}
	if (!strcmp(way, "meanwhile")) {
		static atomic_int tid;

		pthread_create(&other, NULL, allocate_all_the_time, &tid);
		while (!tid)
			usleep(1000);
		await_receiving(tid);
		child = fork();
		if (child == 0)
			_exit(!allocates());
		return !ends_well(child);
	}
	signal(SIGUSR1, fork_twice);
	pthread_create(&other, NULL, signal_it, NULL);
	while (!goer && getpid() == parent)
		ask(way);
	/* Nothing is left locked. */
	ask(way);
	if (getpid() != parent)
		_exit(0);
	pthread_join(other, NULL);
	return !ends_well(ender) || !ends_well(goer);
}
