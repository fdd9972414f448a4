// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the gate's decision costs where programs for its hooks cannot be loaded: the same code on the same
 * system calls, run at their beginning instead. What it decides is dropped; what it charges stays.
 *
 * Hooks:   tp_btf/sys_enter.
 * Cost:    every system call of the machine takes its slow way meanwhile: nothing_at_entry is the baseline.
 */
#include "gate/gate.bpf.c"

#if defined(__TARGET_ARCH_arm64)
enum { NR_MMAP = 222, NR_BRK = 214, NR_PRCTL = 167 };
#define ARGUMENT(regs, index) ((regs)->regs[index])
#else
enum { NR_MMAP = 9, NR_BRK = 12, NR_PRCTL = 157 };	/* x86-64 */
#define ARGUMENT(regs, index) ((index) == 0 ? (regs)->di : (index) == 1 ? (regs)->si : (regs)->dx)
#endif

SEC("tp_btf/sys_enter")
int BPF_PROG(nothing_at_entry, struct pt_regs *regs, long number)
{
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(decide_at_entry, struct pt_regs *regs, long number)
{
	if (number == NR_MMAP || number == NR_BRK)
		refuse_growth();
	else if (number == NR_PRCTL && ARGUMENT(regs, 0) == GATE_PRCTL)
		reserve_by_prctl(ARGUMENT(regs, 1), ARGUMENT(regs, 2));
	return 0;
}
