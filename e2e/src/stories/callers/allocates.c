/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program that is linked with an allocator of its own, and uses all of malloc's family. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
	static const size_t sizes[] = {1, 24, 5000, 200000, 3 << 20};
	char *line = NULL;

	alarm(25);
	for (size_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++) {
		size_t size = sizes[at];
		char *block = malloc(size), *zeroes = calloc(2, size);

		if (!block || !zeroes || malloc_usable_size(block) < size)
			return 3;
		memset(block, 7, malloc_usable_size(block));
		block = realloc(block, 2 * size);
		if (!block || block[size - 1] != 7 || zeroes[size])
			return 4;
		errno = 42;
		free(block);
		free(zeroes);
		if (errno != 42)
			return 5;
	}
	/* The C library allocates, the program frees. */
	if (asprintf(&line, "%s", "a line") != 6)
		return 6;
	free(line);
	free(strdup("another"));
	free(NULL);
	return malloc_usable_size(NULL) != 0;
}
