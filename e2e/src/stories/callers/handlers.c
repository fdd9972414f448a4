/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A library with fork handlers of its own, registered before a preloaded library's: they allocate, and
 * before a fork they wait for a thread that allocates.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

pthread_t worker;
atomic_int has_worker, is_to_end;

static void allocate(void)
{
	char *block = malloc(2 << 20);

	if (!block)
		abort();
	block[1 << 20] = 1;
	free(block);
}

static void before(void)
{
	allocate();
	if (!has_worker)
		return;
	is_to_end = 1;
	if (pthread_join(worker, NULL))
		abort();
	has_worker = 0;
}

__attribute__((constructor)) static void begin(void)
{
	pthread_atfork(before, allocate, allocate);
}
