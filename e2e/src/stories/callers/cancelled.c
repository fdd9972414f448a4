/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A thread that has been cancelled asks for memory, by malloc or by libbursar: none of them is a
 * cancellation point (POSIX, XSH 2.9.5.2), so the call returns and the thread ends at the next one.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bursar.h"

static atomic_int is_cancelled, has_returned;
static const char *way;

static void ask(void)
{
	struct bursar_account account;

	if (!strcmp(way, "malloc")) {
		void *volatile block = malloc(3 << 20);

		free(block);
	}
	if (!strcmp(way, "reserve"))
		transaction_reserve(1);
	if (!strcmp(way, "account"))
		bursar_account(&account);
}

static void *work(void *unused)
{
	while (!is_cancelled)
		;
	ask();
	has_returned = 1;
	pthread_testcancel();
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	void *result;

	alarm(25);
	way = argc > 1 ? argv[1] : "";
	if (pthread_create(&thread, NULL, work, NULL) || pthread_cancel(thread))
		return 3;
	is_cancelled = 1;
	if (pthread_join(thread, &result))
		return 4;
	if (!has_returned)
		return 5;
	if (result != PTHREAD_CANCELED)
		return 6;
	/* Nothing is left locked. */
	ask();
	return 0;
}
