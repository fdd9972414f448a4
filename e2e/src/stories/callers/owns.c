/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program with a malloc, calloc, realloc and free of its own (allocator.c), which abort at a block that is not
 * theirs, as shells and interpreters have. Everything else of the C library's goes through them. The functions
 * of tmalloc.h, where they are there, are a family apart.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Times 3 it is more than there are addresses; the compiler is not to know. */
static volatile size_t too_many = SIZE_MAX / 2;

static int reallocates(void)
{
	char *block = malloc(100), *array;

	strcpy(block, "kept");
	array = reallocarray(block, 50, 1000);
	if (!array || strcmp(array, "kept"))
		return 1;
	errno = 0;
	if (reallocarray(array, too_many, 3) || errno != ENOMEM || strcmp(array, "kept"))
		return 2;
	free(array);
	array = reallocarray(NULL, 3, 7);
	if (!array || malloc_usable_size(array) < 21)
		return 3;
	free(array);
	return 0;
}

static int compares(const void *one, const void *other)
{
	return memcmp(one, other, 8);
}

/* The C library allocates, the program frees. */
static int receives(void)
{
	char *text = NULL, *line = NULL;
	size_t size = 0;
	FILE *file = fopen("/proc/self/status", "r");

	if (!file || asprintf(&text, "%s", "a line") != 6)
		return 11;
	free(text);
	free(strdup("another"));
	free(strndup("another", 3));
	while (getline(&line, &size, file) > 0)
		;
	free(line);
	fclose(file);
	free(realpath("/proc/self", NULL));
	free(getcwd(NULL, 0));
	file = open_memstream(&text, &size);
	for (int at = 0; at < 100000; at++)
		fputs("something", file);
	fclose(file);
	if (size != 900000)
		return 12;
	free(text);
	text = calloc(90000, 8);
	qsort(text, 90000, 8, compares);
	free(text);
	return 0;
}

typedef void *one_size(size_t), *two_sizes(size_t, size_t);
typedef void *resizes(void *, size_t), *resizes_array(void *, size_t, size_t), frees(void *);

static int own_names(void)
{
	one_size *tmalloc = (one_size *)dlsym(RTLD_DEFAULT, "tmalloc");
	two_sizes *tcalloc = (two_sizes *)dlsym(RTLD_DEFAULT, "tcalloc");
	two_sizes *taligned_alloc = (two_sizes *)dlsym(RTLD_DEFAULT, "taligned_alloc");
	resizes *trealloc = (resizes *)dlsym(RTLD_DEFAULT, "trealloc");
	resizes_array *treallocarray = (resizes_array *)dlsym(RTLD_DEFAULT, "treallocarray");
	frees *tfree = (frees *)dlsym(RTLD_DEFAULT, "tfree");

	if (!tmalloc)
		return 0;
	for (size_t size = 1; size < (8 << 20); size = size * 3 + 1) {
		char *blocks[] = {
			tmalloc(size), tcalloc(1, size), taligned_alloc(64, size), taligned_alloc(4096, size),
			trealloc(NULL, size), treallocarray(NULL, size, 1),
		};

		for (size_t at = 0; at < sizeof(blocks) / sizeof(*blocks); at++) {
			char *block = blocks[at];

			if (!block)
				return 21;
			memset(block, 7, size);
			block = trealloc(block, 2 * size);
			if (!block || block[size - 1] != 7)
				return 22;
			block = treallocarray(block, size, 3);
			errno = 0;
			if (!block || treallocarray(block, too_many, 3) || errno != ENOMEM || block[size - 1] != 7)
				return 23;
			block = trealloc(block, size / 2 + 1);
			if (!block || block[0] != 7)
				return 24;
			tfree(block);
		}
	}
	tfree(NULL);
	return 0;
}

int main(void)
{
	int wrong;

	alarm(25);
	wrong = reallocates();
	wrong = wrong ? wrong : receives();
	return wrong ? wrong : own_names();
}
