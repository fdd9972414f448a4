// SPDX-License-Identifier: GPL-2.0-only
/* The rules of the BPF programs as functions that Rust can call. */
#include <stdint.h>

typedef uint32_t __u32;
typedef int64_t __s64;
typedef int32_t __s32;

#define RULE
#include "rules.h"
