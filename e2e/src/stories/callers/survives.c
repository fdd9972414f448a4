/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Programs that must not notice what becomes of bursard, or of themselves.
 *
 * `million` mallocs that grow to 200 MiB: prints the milliseconds and the NULLs.
 * `churns` 3,000 threads and 150 children that allocate while others fork; ends with what it holds freed.
 * `namesakes` as pid 1 of a pid namespace, makes another pid 1 by clone(2); both allocate.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

static int million(void)
{
	enum { TIMES = 1000000, ALIVE = 1 << 19 };
	static char *blocks[ALIVE];
	double began = now_ms();
	long nulls = 0;

	for (unsigned at = 0; at < TIMES; at++) {
		unsigned place = at * 2654435761u % ALIVE;
		size_t size = 16 + at % 700;

		if (at % 50000 == 49999)
			size = 4 << 20;
		free(blocks[place]);
		blocks[place] = malloc(size);
		if (blocks[place])
			blocks[place][size - 1] = 1;
		else
			nulls++;
	}
	printf("%.0f %ld\n", now_ms() - began, nulls);
	return 0;
}

static void *works(void *thread)
{
	unsigned seed = (unsigned)(size_t)thread;

	for (int round = 0; round < 20; round++) {
		size_t size = 1 + (unsigned)rand_r(&seed) % 300000;
		char *block = malloc(size);

		if (!block)
			return "NULL";
		block[0] = block[size - 1] = 1;
		char *larger = realloc(block, size * 2);

		free(larger ? larger : block);
		if (!larger)
			return "NULL";
	}
	return NULL;
}

static void *makes_children(void *failed)
{
	for (int round = 0; round < 150; round++) {
		pid_t child = fork();
		int status = 1;

		if (!child) {
			alarm(20);
			_exit(works((void *)7) != NULL);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			++*(int *)failed;
	}
	return NULL;
}

static int churns(void)
{
	pthread_t forking, own[10];
	int failed = 0;
	void *word;

	if (pthread_create(&forking, NULL, makes_children, &failed))
		return 2;
	for (size_t round = 0; round < 300; round++) {
		for (size_t at = 0; at < 10; at++)
			if (pthread_create(own + at, NULL, works, (void *)(round * 10 + at)))
				return 2;
		for (size_t at = 0; at < 10; at++) {
			pthread_join(own[at], &word);
			failed += word != NULL;
		}
	}
	pthread_join(forking, NULL);
	if (failed)
		fprintf(stderr, "%d failed\n", failed);
	return failed != 0;
}

/* The longest malloc of three times 400, ms; -1: one was NULL. */
static double longest(void)
{
	double most = 0;
	char *blocks[400];

	for (int round = 0; round < 3; round++) {
		for (int at = 0; at < 400; at++) {
			double before = now_ms(), took;

			blocks[at] = malloc(100000);
			took = now_ms() - before;
			if (!blocks[at])
				return -1;
			if (took > most)
				most = took;
			memset(blocks[at], 1, 100000);
		}
		for (int at = 0; at < 400; at++)
			free(blocks[at]);
	}
	return most;
}

static int namesakes(void)
{
	if (unshare(CLONE_NEWPID))
		return 3;
	pid_t first = fork();
	int status = 0;

	if (first) {
		waitpid(first, &status, 0);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
	}
	char *warm = malloc(5000000);

	memset(warm, 1, 5000000);
	long second = syscall(SYS_clone, (long)(CLONE_NEWPID | SIGCHLD), 0L, 0L, 0L, 0L);

	if (second < 0 || getpid() != 1)
		_exit(5);
	double most = longest();
	int is_well = most >= 0 && most < 1000;

	if (!second)
		_exit(!is_well);
	waitpid((pid_t)second, &status, 0);
	_exit(status || !is_well);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (!strcmp(way, "million"))
		return million();
	if (!strcmp(way, "churns"))
		return churns();
	if (!strcmp(way, "namesakes"))
		return namesakes();
	return 9;
}
