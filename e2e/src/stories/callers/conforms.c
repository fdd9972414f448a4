/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A table of calls of malloc's family, and what each answered, a line each: what glibc's manual says of them,
 * and what other allocators' manuals and bug trackers say that programs rely upon. Compared line by line with
 * what plain glibc answers. Addresses and what depends on them are not printed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(table) (sizeof(table) / sizeof(*(table)))
/* Through pointers: the compiler knows these functions, and would answer for them. */
static void *(*volatile get)(size_t) = malloc;
static void *(*volatile get_zeroed)(size_t, size_t) = calloc;
static void *(*volatile resize)(void *, size_t) = realloc;
static void *(*volatile resize_array)(void *, size_t, size_t) = reallocarray;
static void *(*volatile get_aligned)(size_t, size_t) = aligned_alloc;
static void *(*volatile get_memalign)(size_t, size_t) = memalign;
static int (*volatile get_posix)(void **, size_t, size_t) = posix_memalign;
static size_t (*volatile usable)(void *) = malloc_usable_size;
static void (*volatile release)(void *) = free;

static const size_t SIZES[] = {
	0, 1, 16, 24, 25, 100, 1024, 4064, 4065, 4095, 4096, 4097, 65536, 131071, 131072, 131073, 300000,
	(size_t)5 << 20, (size_t)33 << 20, PTRDIFF_MAX - 4096, PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1,
	SIZE_MAX - 8192, SIZE_MAX - 1, SIZE_MAX,
};
static const size_t ALIGNMENTS[] = {
	0, 1, 2, 3, 4, 7, 8, 16, 24, 32, 48, 64, 4096, 6000, 65536, (size_t)1 << 21, (size_t)1 << 40,
	(size_t)1 << 62, (size_t)1 << 63, SIZE_MAX,
};

static int is_zero(const char *bytes, size_t count)
{
	for (size_t at = 0; at < count; at++)
		if (bytes[at])
			return 0;
	return 1;
}

/* Whether a block is one, is large enough, is aligned, and can be used to its end. Frees it. */
static void answered(const char *what, size_t a, size_t b, void *block, size_t alignment, size_t size)
{
	int error = errno;

	printf("%s %zx %zx: ", what, a, b);
	if (!block) {
		printf("NULL %d\n", error);
		return;
	}
	if (usable(block) < size)
		printf("too small ");
	if ((uintptr_t)block % (alignment > 16 ? alignment : 16))
		printf("misaligned ");
	memset(block, 0xa5, usable(block));
	errno = 33;
	release(block);
	printf("block%s\n", errno == 33 ? "" : ", and free changes errno");
}

#define ANSWER(what, a, b, call, alignment, size) \
	do { \
		errno = 0; \
		void *block = (call); \
		answered(what, a, b, block, alignment, size); \
	} while (0)

static void sizes(void)
{
	for (size_t at = 0; at < COUNT(SIZES); at++) {
		size_t size = SIZES[at];

		ANSWER("malloc", size, 0, get(size), 0, size);
		ANSWER("calloc", 1, size, get_zeroed(1, size), 0, size);
		ANSWER("calloc", size, 1, get_zeroed(size, 1), 0, size);
		ANSWER("calloc", size, 3, get_zeroed(size, 3), 0, size);
		ANSWER("realloc of NULL", size, 0, resize(NULL, size), 0, size);
		ANSWER("reallocarray of NULL", size, 2, resize_array(NULL, size, 2), 0, size);
		ANSWER("valloc", size, 0, valloc(size), 4096, size);
		ANSWER("pvalloc", size, 0, pvalloc(size), 4096, size);
	}
	for (size_t a = 0; a < COUNT(SIZES); a++)
		for (size_t b = 0; b < COUNT(SIZES); b++)
			if (SIZES[b] && SIZES[a] > SIZE_MAX / SIZES[b])
				ANSWER("calloc that overflows", SIZES[a], SIZES[b], get_zeroed(SIZES[a], SIZES[b]), 0, 0);
}

static void alignments(void)
{
	for (size_t a = 0; a < COUNT(ALIGNMENTS); a++)
		for (size_t b = 0; b < COUNT(SIZES); b++) {
			size_t alignment = ALIGNMENTS[a], size = SIZES[b];
			int is_power = alignment && !(alignment & (alignment - 1));
			int is_vast = alignment >> 39 && size < PTRDIFF_MAX && size > 4096;
			void *block = &block;

			/* glibc rounds such a one up, for which no room may be left in the address space. */
			if (is_vast)
				continue;
			errno = 77;
			int error = get_posix(&block, alignment, size);

			printf("posix_memalign %zx %zx: %d, errno %d, %s", alignment, size, error, errno,
			       error ? (block == &block ? "untouched" : "changed") : "block");
			if (!error) {
				if (usable(block) < size)
					printf(", too small");
				if ((uintptr_t)block % alignment)
					printf(", misaligned");
				memset(block, 1, usable(block));
				release(block);
			}
			puts("");
			ANSWER("memalign", alignment, size, get_memalign(alignment, size), is_power ? alignment : 0, size);
			ANSWER("aligned_alloc", alignment, size, get_aligned(alignment, size),
			       is_power ? alignment : 0, size);
		}
}

/* From each size to each: what is kept, and what is left when it fails. */
static void resizes(void)
{
	for (size_t a = 1; a < COUNT(SIZES); a++)
		for (size_t b = 0; b < COUNT(SIZES); b++) {
			size_t before = SIZES[a], after = SIZES[b];

			if (before > 1 << 20)
				continue;
			char *block = get(before);

			memset(block, 7, before);
			errno = 0;
			char *moved = resize(block, after);
			int error = errno;
			size_t kept = before < after ? before : after;

			printf("realloc %zx to %zx: ", before, after);
			if (moved) {
				printf("block%s%s\n", kept && (moved[0] != 7 || moved[kept - 1] != 7) ? ", lost" : "",
				       usable(moved) < after ? ", too small" : "");
				memset(moved, 1, usable(moved));
				release(moved);
			} else if (after) {
				printf("NULL %d, %s\n", error, block[before - 1] == 7 ? "kept" : "lost");
				release(block);
			} else {
				printf("NULL %d, freed\n", error);
			}
		}
	/* Of an aligned block, and one page by page, in place and elsewhere. */
	void *aligned = NULL;
	int error = get_posix(&aligned, 65536, 200000);

	memset(aligned, 5, 200000);
	aligned = resize(aligned, 900000);
	printf("realloc of an aligned block: %d, %s\n", error, ((char *)aligned)[199999] == 5 ? "kept" : "lost");
	release(aligned);
	char *block = get(1);
	size_t lost = 0;

	block[0] = 9;
	for (size_t size = 1; size < (size_t)24 << 20; size += size / 3 + 1) {
		block = resize(block, size);
		lost += block[0] != 9;
		block[size - 1] = 9;
	}
	for (size_t size = (size_t)24 << 20; size; size /= 2) {
		block = resize(block, size);
		lost += block[0] != 9;
	}
	printf("grown and shrunk: lost %zu\n", lost);
	release(block);
	block = get(10);
	errno = 0;
	printf("reallocarray that overflows: %d, ", !!resize_array(block, SIZE_MAX / 2, 3));
	printf("errno %d\n", errno);
	release(block);
}

static void contents(void)
{
	size_t dirty = 0;

	/* Memory that was used, freed and comes again. */
	for (size_t round = 0; round < 400; round++) {
		size_t size = 1 + round * 7919 % 600000;
		char *block = get(size);

		memset(block, 0xff, usable(block));
		release(block);
		block = get_zeroed(1, size);
		dirty += !is_zero(block, size);
		memset(block, 0xff, usable(block));
		release(block);
	}
	printf("calloc of used memory: %zu not zero\n", dirty);
	char *block = get_zeroed(1, (size_t)64 << 20);

	printf("calloc of a mapping: %s\n", is_zero(block, (size_t)64 << 20) ? "zero" : "not zero");
	release(block);
	/* Many at once: none overlaps another. */
	enum { MANY = 20000 };
	static unsigned char *blocks[MANY];
	size_t wrong = 0;

	for (size_t at = 0; at < MANY; at++) {
		size_t size = 1 + at * 31 % 700;

		blocks[at] = get(size);
		memset(blocks[at], (int)(at % 251), size);
	}
	for (size_t at = 0; at < MANY; at++) {
		size_t size = 1 + at * 31 % 700;

		wrong += blocks[at][0] != at % 251 || blocks[at][size - 1] != at % 251;
		release(blocks[at]);
	}
	printf("20,000 blocks: %zu overwritten\n", wrong);
}

static void errnos(void)
{
	errno = 5;
	void *block = get((size_t)9 << 20);

	printf("errno after malloc: %d, ", errno);
	errno = 6;
	release(block);
	printf("free: %d, ", errno);
	errno = 7;
	release(NULL);
	printf("free of NULL: %d, ", errno);
	errno = 8;
	block = get_zeroed(1, 50000);
	printf("calloc: %d, ", errno);
	errno = 9;
	block = resize(block, 500000);
	printf("realloc: %d\n", errno);
	release(block);
	printf("usable size of NULL: %zu\n", usable(NULL));
	void *first = get(0), *second = get(0);

	printf("blocks of nothing: %s\n", first && second && first != second ? "two" : "the same");
	release(first);
	release(second);
}

static void knobs(void)
{
	printf("mallopt: %d %d %d %d %d\n", mallopt(M_MMAP_THRESHOLD, 8192), mallopt(M_TOP_PAD, 1 << 16),
	       mallopt(M_ARENA_MAX, 2), mallopt(M_TRIM_THRESHOLD, 1 << 17), mallopt(12345, 1));
	size_t dirty = 0;

	for (size_t round = 0; round < 300; round++) {
		size_t size = 4000 + round * 531;
		char *block = get_zeroed(1, size);

		dirty += !is_zero(block, size);
		block = resize(block, size * 2);
		memset(block, 1, size * 2);
		block = resize(block, size / 2);
		release(block);
	}
	printf("mappings of their own: %zu not zero\n", dirty);
	mallopt(M_PERTURB, 0x55);
	char *block = get_zeroed(3, 10000);

	printf("perturbed: calloc %s\n", is_zero(block, 30000) ? "zero" : "not zero");
	release(block);
	mallopt(M_PERTURB, 0);
	struct mallinfo2 found = mallinfo2();

	printf("mallinfo2: %s, malloc_trim: %d\n", found.arena > 0 && found.uordblks > 0 ? "told" : "empty",
	       malloc_trim(0) >= 0);
	FILE *null = fopen("/dev/null", "w");

	printf("malloc_info: %d\n", malloc_info(0, null));
	fclose(null);
}

/* Blocks made by libc for the program, which frees them; and asked for by names that dlsym(3) finds. */
static void others(void)
{
	char *line = NULL, *text = NULL;
	size_t room = 0;
	FILE *zero = fopen("/proc/self/maps", "r");
	long got = getline(&line, &room, zero);

	fclose(zero);
	release(line);
	int printed = asprintf(&text, "%0100000d", 1);

	release(text);
	char *copy = strdup("a text"), *path = realpath("/", NULL);

	printf("getline %d, asprintf %d, strdup %s, realpath %s\n", got > 0, printed, copy, path);
	release(copy);
	release(path);
	void *(*found)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
	void (*given)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "free");

	given(found(100000));
	given(get(100000));
	release(found(100));
	void *library = dlopen("libm.so.6", RTLD_NOW);

	printf("dlopen: %d, dlclose: %d\n", !!library, dlclose(library));
}

static pthread_key_t key;

static void at_end(void *block)
{
	release(block);
	release(get(150000));
}

static void *works(void *thread)
{
	void *kept = NULL;

	pthread_setspecific(key, get(90000));
	for (size_t round = 0; round < 300; round++) {
		release(kept);
		kept = get(1 + (round * 7919 + (size_t)thread) % 200000);
		*(char *)kept = 1;
	}
	return kept;
}

/* What one thread allocates another frees; threads end with memory of theirs alive. */
static void threads(void)
{
	size_t given = 0;

	pthread_key_create(&key, at_end);
	for (size_t round = 0; round < 20; round++) {
		pthread_t own[8];
		void *block;

		for (size_t at = 0; at < COUNT(own); at++)
			if (pthread_create(own + at, NULL, works, (void *)at))
				return;
		for (size_t at = 0; at < COUNT(own); at++) {
			pthread_join(own[at], &block);
			given += !!block;
			release(block);
		}
	}
	printf("160 threads: %zu blocks\n", given);
}

static volatile sig_atomic_t signals;

static void hears(int signal)
{
	(void)signal;
	signals++;
}

/* Children that allocate; and signals that come while memory is asked for. */
static void children(void)
{
	size_t failed = 0;

	for (size_t round = 0; round < 40; round++) {
		pid_t child = fork();
		int status = 1;

		if (!child) {
			char *block = get_zeroed(1, 100000 + round * 10000);

			_exit(!block || !is_zero(block, 100000));
		}
		waitpid(child, &status, 0);
		failed += status != 0;
	}
	printf("40 children: %zu failed\n", failed);
	struct sigaction heard = { .sa_handler = hears }, before;

	sigaction(SIGALRM, &heard, &before);
	ualarm(300, 300);
	void *blocks[64] = { 0 };
	size_t nulls = 0;

	for (size_t round = 0; round < 200000; round++) {
		release(blocks[round % 64]);
		blocks[round % 64] = get(1 + round * 7919 % 60000);
		nulls += !blocks[round % 64];
	}
	ualarm(0, 0);
	sigaction(SIGALRM, &before, NULL);
	for (size_t at = 0; at < COUNT(blocks); at++)
		release(blocks[at]);
	printf("signals: %s, %zu NULL\n", signals ? "heard" : "none", nulls);
}

int main(void)
{
	alarm(50);
	sizes();
	alignments();
	resizes();
	contents();
	errnos();
	others();
	alarm(0);
	children();
	alarm(50);
	threads();
	knobs();
	return 0;
}
