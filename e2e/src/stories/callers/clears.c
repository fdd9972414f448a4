/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program that throws its environment away, as daemons do, and allocates afterwards. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(void)
{
	void *volatile block;

	alarm(25);
	/* Who still looks there finds nothing good. */
	for (char **entry = environ; *entry; entry++)
		memset(*entry, '?', strlen(*entry));
	clearenv();
	block = malloc(3 << 20);
	free(block);
	return !block;
}
