// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel gives, said in terms of what an administrator gets.

use bursar_kernel::{Ability as Kernels, Finding, Support};

use crate::view::abilities::{Ability, State};

/// The kernel's abilities. Takes a moment: some are tried.
pub(super) fn abilities() -> Vec<Ability> {
    Support::probe()
        .findings()
        .iter()
        .map(|(ability, finding)| told(*ability, finding))
        .collect()
}

fn told(kernels: Kernels, finding: &Finding) -> Ability {
    let (ability, cost, remedy) = words(kernels);
    let state = match finding {
        Finding::Available => State::Available,
        Finding::Missing(reason) => State::Missing(reason.clone()),
        Finding::Refused(reason) => State::Refused(reason.clone()),
    };
    Ability {
        ability: ability.into(),
        state,
        cost: cost.into(),
        remedy: remedy.map(str::to_owned),
        ledger: None,
    }
}

/// What it is, what its absence costs, what to do about that (docs/reference/kernels.md).
const fn words(ability: Kernels) -> (&'static str, &'static str, Option<&'static str>) {
    match ability {
        Kernels::Btf => (
            "types of the kernel (BTF)",
            "no kernel half: limits hold only while bursard runs, and later (--trigger trace or poll)",
            Some("a kernel with CONFIG_DEBUG_INFO_BTF=y; Debian's have it"),
        ),
        Kernels::RssEvent => (
            "the event of changing memory (kmem:rss_stat)",
            "no kernel half: limits hold only while bursard runs, by a scan of /proc every 200 ms",
            Some("a kernel with CONFIG_TRACEPOINTS=y"),
        ),
        Kernels::ExitEvent => (
            "the event of memory going away (exit_mmap)",
            "no kernel half: limits hold only while bursard runs, and later (--trigger trace or poll)",
            Some("Linux 6.1 or newer, or one that lets root attach trampolines"),
        ),
        Kernels::SignalOthers => (
            "killing another process from the event (bpf_send_signal_task)",
            "a victim other than the process that crossed the limit dies at its own next event or by \
             bursard, not at once",
            Some("Linux 6.13 or newer"),
        ),
        Kernels::TaskIterator => (
            "walking all processes in the kernel's timer (bpf_iter_task)",
            "processes that no event told of are found by bursard, not by the timer",
            Some("Linux 6.7 or newer"),
        ),
        Kernels::Timer => (
            "timers of programs in the kernel (bpf_timer)",
            "where trampolines are available, a thread of the kernel re-sums every 200 ms, started by the \
             clock interrupt of whoever runs; elsewhere no kernel half: limits hold only while bursard runs, \
             and later",
            Some("a kernel without CONFIG_PREEMPT_RT, unless that is what you need"),
        ),
        Kernels::Trampolines => (
            "trampolines (fentry, fmod_ret)",
            "nothing is refused at the barrier: the notice is followed by the limit; beancounters are counted \
             and nothing is refused at them",
            Some(
                "a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y that lets root attach them",
            ),
        ),
        Kernels::BpfLsm => (
            "BPF security module",
            "LSM programs attach and are never called; the gate is then best effort, by fmod_ret, and \
             nothing is refused at beancounters",
            Some("add bpf to lsm= on the kernel's command line"),
        ),
        Kernels::MemoryRelease => (
            "taking back a killed process's memory at once (process_mrelease)",
            "its memory comes back only as fast as it exits",
            Some("Linux 5.15 or newer"),
        ),
        Kernels::RootControlGroup => (
            "the root control group of version 2 (sockops)",
            "limits on tcpsndbuf and tcprcvbuf are counted, and nothing is held at them",
            Some("mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"),
        ),
    }
}
