// SPDX-License-Identifier: GPL-2.0-only
/*
 * What every kernel half has. One object, because each costs a start a reading of the kernel's types and a search
 * of them for those that it names, and these name the same ones.
 */
#include "charge.bpf.h"
#include "calls.bpf.h"
#include "ticker.bpf.h"
#include "discover.bpf.h"
#include "survey.bpf.h"
#include "death.bpf.h"

char LICENSE[] SEC("license") = "GPL";
