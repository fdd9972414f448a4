/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program must not notice of the malloc that it was given. `sparse` touches little of a large block
 * and prints the KiB that became resident; `confined` allocates behind a filter that allows what glibc's
 * malloc needs; `patient SECONDS` prints the longest malloc and the sum of those over 20 ms, in ms;
 * `descriptors` compares its table before and after; `execs SECONDS` allocates and becomes sleep(1); `keeps`
 * takes 20,000 blocks that it does not touch, frees them, prints the processor time that it took in ms, and ends
 * with its input; `keeps-in-heap` the same with 100,000 that are small enough for the heap; `vforks` has a child that shares its memory confine itself, and is still refused what its
 * account has not; `many-vfork` has many at once do that; `killed-vforks` has such children killed while they free what
 * is a mapping, which locks nothing in glibc, and is still refused; `tables` fills its account with two threads that have
 * tables of descriptors of their own, and prints by how much each has grown.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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

static long resident_kib(void)
{
	long size = 0, resident = 0;
	FILE *statm = fopen("/proc/self/statm", "r");

	if (!statm || fscanf(statm, "%ld %ld", &size, &resident) != 2)
		return -1;
	fclose(statm);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int sparse(void)
{
	size_t size = (size_t)1 << 30;
	char *volatile block = malloc(size);

	if (!block)
		return 1;
	for (size_t at = 0; at < size; at += 1 << 20)
		block[at] = 1;
	printf("%ld\n", resident_kib());
	return 0;
}

/* `count` blocks, each of them used. */
static int allocates(int count, size_t size)
{
	for (int at = 0; at < count; at++) {
		char *block = malloc(size);

		if (!block)
			return 0;
		memset(block, 1, size);
	}
	return 1;
}

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void confine(int by_syscall)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect), ALLOW(madvise),
		ALLOW(futex), ALLOW(getrandom), ALLOW(exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };
	long done;

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (by_syscall)
		done = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
	else
		done = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	if (done)
		_exit(1);
}

static int confined(int by_syscall)
{
	/* Something was asked for before. */
	int fine = allocates(3, 500000);

	confine(by_syscall);
	fine = fine && allocates(5000, 4000) && allocates(40, 500000);
	for (int at = 0; at < 2000; at++)
		fine = fine && malloc(500000);
	_exit(fine ? 0 : 2);
}

static int patient(double seconds)
{
	double end = now_ms() + seconds * 1e3, longest = 0, sum = 0;
	static char *kept[1024];

	for (unsigned at = 0; now_ms() < end; at++) {
		double before = now_ms(), took;
		char *block = malloc(64 << 10);

		took = now_ms() - before;
		if (took > longest)
			longest = took;
		if (took > 20)
			sum += took;
		if (!block)
			return 1;
		memset(block, 1, 64 << 10);
		free(kept[at % 1024]);
		kept[at % 1024] = block;
		if (at % 1024 == 1023)
			for (int each = 0; each < 1024; each++) {
				free(kept[each]);
				kept[each] = NULL;
			}
		if (at % 64 == 0)
			usleep(1000);
	}
	printf("%.0f %.0f\n", longest, sum);
	return 0;
}

static int descriptors(void)
{
	int count = 0;
	DIR *table = opendir("/proc/self/fd");

	if (!table)
		return -1;
	while (readdir(table))
		count++;
	closedir(table);
	return count;
}

static int keeps(int count, size_t size)
{
	static char *kept[100000];

	for (int at = 0; at < count; at++) {
		kept[at] = malloc(size);
		if (!kept[at])
			return 1;
	}
	for (int at = 0; at < count; at++)
		free(kept[at]);
	printf("%ld\n", clock() / (CLOCKS_PER_SEC / 1000));
	fflush(stdout);
	return getchar() == EOF ? 0 : 2;
}

/* Blocks that are not touched, until `most` bytes are there. */
static int is_refused(size_t most)
{
	const size_t size = 4 << 20;

	for (size_t got = 0; got < most; got += size)
		if (!malloc(size))
			return 1;
	return 0;
}

static int vforks(size_t most)
{
	/* What a program holds when it makes children. */
	char *volatile block = malloc(1 << 20), *volatile mapping = malloc(1 << 20);
	pid_t child;
	int status;

	if (!block || !mapping)
		return 1;
	child = vfork();
	if (!child) {
		confine(0);
		free(mapping);
		_exit(allocates(300, 4000) && allocates(2, 500000) ? 0 : 2);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		return 3;
	free(block);
	return is_refused(most) ? 0 : 4;
}

enum { VFORKS = 8 };
static volatile int begun, first_is_gone;
static char threads_failed[1];

/* The first child confines itself before the others, and ends before they allocate. */
static void *vforks_with_others(void *place)
{
	void *volatile own = place;
	int status = 0;
	pid_t child;

	while (own && !begun)
		usleep(1000);
	child = vfork();
	if (!child) {
		confine(0);
		__atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
		while (begun < VFORKS || (own && !first_is_gone))
			;
		_exit(allocates(300, 4000) && allocates(2, 500000) ? 0 : 2);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		status = -1;
	if (!own)
		first_is_gone = 1;
	return status ? threads_failed : NULL;
}

static int many_vfork(size_t most)
{
	pthread_t threads[VFORKS];
	void *failed;

	/* A child that is killed in malloc leaves its lock locked. */
	alarm(20);
	for (int at = 0; at < VFORKS; at++)
		if (pthread_create(&threads[at], NULL, vforks_with_others, at ? threads : NULL))
			return 1;
	for (int at = 0; at < VFORKS; at++)
		if (pthread_join(threads[at], &failed) || failed)
			return 3;
	return is_refused(most) ? 0 : 4;
}

enum { MAPPINGS = 8, ROUNDS = 100 };
static const size_t mapping_size = 32 << 20;
static char *volatile kept[MAPPINGS];
static volatile int next;
static volatile pid_t doomed;
static volatile unsigned round_of_kills;

/* In the middle of the first free(3) that gives something back, a little later in each round. */
static void *kills(void *unused)
{
	while (!unused) {
		pid_t pid = doomed;
		double until;

		if (!pid || !next)
			continue;
		until = now_ms() + round_of_kills * 1e-3;
		while (now_ms() < until)
			;
		doomed = 0;
		kill(pid, SIGKILL);
	}
	return NULL;
}

static void *allocates_once(void *unused)
{
	free(malloc(mapping_size));
	return unused;
}

static int killed_vforks(size_t most)
{
	pthread_t killer, other;

	alarm(60);
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	if (pthread_create(&killer, NULL, kills, NULL))
		return 1;
	for (; round_of_kills < ROUNDS; round_of_kills++) {
		pid_t child;

		for (int at = 0; at < MAPPINGS; at++) {
			kept[at] = malloc(mapping_size);
			if (!kept[at])
				return 2;
		}
		next = 0;
		/* What is given back is told every 2 ms. */
		usleep(2500);
		child = vfork();
		if (!child) {
			doomed = getpid();
			while (next < MAPPINGS)
				free(kept[next++]);
			for (;;)
				pause();
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 3;
		while (next < MAPPINGS)
			free(kept[next++]);
	}
	if (pthread_create(&other, NULL, allocates_once, NULL) || pthread_join(other, NULL))
		return 1;
	return is_refused(most) ? 0 : 4;
}

/* How many there are; no malloc that fails. */
static int table(void)
{
	int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static pthread_barrier_t turn;

/* In turns with the other one, in an account that has nothing left. */
static void *asks_in_turns(void *grown)
{
	int before;

	if (unshare(CLONE_FILES))
		return NULL;
	before = table();
	pthread_barrier_wait(&turn);
	while (malloc(1 << 20))
		;
	for (int at = 0; at < 250; at++) {
		for (int each = 0; each < 3; each++) {
			free(malloc(2 << 20));
			usleep(2000);
		}
		pthread_barrier_wait(&turn);
	}
	*(int *)grown = table() - before;
	return grown;
}

static int tables(void)
{
	int grown[2] = { -1, -1 };
	pthread_t threads[2];

	pthread_barrier_init(&turn, NULL, 2);
	for (int at = 0; at < 2; at++)
		if (pthread_create(&threads[at], NULL, asks_in_turns, &grown[at]))
			return 1;
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
	printf("%d %d\n", grown[0], grown[1]);
	return grown[0] < 0 || grown[1] < 0;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	const char *seconds = argc > 2 ? argv[2] : "1";

	if (!strcmp(way, "sparse"))
		return sparse();
	if (!strcmp(way, "confined"))
		return confined(0);
	if (!strcmp(way, "confined-by-syscall"))
		return confined(1);
	if (!strcmp(way, "keeps"))
		return keeps(20000, 300000);
	if (!strcmp(way, "keeps-in-heap"))
		return keeps(100000, 30000);
	if (!strcmp(way, "vforks"))
		return vforks((size_t)1 << 30);
	if (!strcmp(way, "many-vfork"))
		return many_vfork((size_t)1 << 30);
	if (!strcmp(way, "killed-vforks"))
		return killed_vforks((size_t)2 << 30);
	if (!strcmp(way, "tables"))
		return tables();
	if (!strcmp(way, "patient"))
		return patient(atof(seconds));
	if (!strcmp(way, "descriptors")) {
		int before = descriptors();

		return !allocates(300, 100000) || descriptors() != before;
	}
	if (!strcmp(way, "execs") && allocates(400, 100000))
		execlp("sleep", "sleep", seconds, NULL);
	return 9;
}
