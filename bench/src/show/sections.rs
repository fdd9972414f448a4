// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables in the order and with the words in which the page and the Markdown show them.

use crate::results::Results;

use super::{Grid, gate, malloc, observe, overcommit, peers, scale, speed, system};

/// One table with its pictures.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) pictures: &'static [&'static str],
    pub(crate) grids: Vec<Grid>,
}

pub(crate) fn sections(results: &Results) -> Vec<Section> {
    let mut sections = Vec::new();
    if let Some(table) = &results.overcommit {
        sections.push(Section {
            title: "Over-commit (S1 section 6.3)",
            about: "Processes of one user allocate as fast as they can until they are killed. At every SIGKILL \
                    an observer at the kernel's signal_generate writes down what all the living ones hold, by \
                    their own page counts: the same measure for every contender. Over is held − limit at that \
                    moment; from crossing to end is until the first victim of a run can be waited for, its \
                    memory freed. Peak RSS is what wait4 says: with file pages, which no contender but the cgroup counts, and too low for bursar, whose reaper empties a victim before the kernel looks. At \
                    the cap: a process reached the most that a run may use, so that over is too small.",
            pictures: &["overcommit"],
            grids: overcommit(table),
        });
    }
    if let Some(table) = &results.speed {
        sections.push(Section {
            title: "Speed of allocation (S1 section 6.2)",
            about: "Each iteration starts the processes of the case; each allocates with malloc, fills with \
                    memset, frees and exits. Compared is user and system time as time(1) counts it, in rounds in \
                    which contenders run between two runs of the plain kernel: medians of the ratios, with 95 % \
                    intervals (bootstrap over rounds). `unlimited` and `far` take part in all rounds, `empty` \
                    and `near` in half of them, the others in an eighth; `near` in the cases that hold 64 MB \
                    or less. `empty` is a BPF program that does nothing: the floor of anything that listens to \
                    RSS events. Nanoseconds are those of a first touch alone.",
            pictures: &["speed-one-process", "speed-many-processes"],
            grids: speed(table),
        });
    }
    if let Some(table) = &results.scale {
        sections.push(Section {
            title: "Scale",
            about: "Sleeping processes spread over accounts. The re-sum is the kernel half's timer \
                    walk, timed by itself; search and kill is from the event that crosses the limit to the \
                    signal sent. What an event takes is what the kernel's own statistics say of the event \
                    trigger while a user with a limit touches memory. Two readings of the clock are in it; \
                    what the kernel spends on its way to a program is not. Memory is bursard's resident set \
                    and that of all maps, which have room for 32,768 processes and 4,096 accounts.",
            pictures: &["scale"],
            grids: scale(table),
        });
    }
    if let Some(table) = &results.observe {
        sections.push(Section {
            title: "Observing",
            about: "1,000 sleeping processes of 200 users with a limit each: enforced, observed, and \
                    observed above their limits, in turns. An event is one of another such user who touches \
                    memory, as in the table before.",
            pictures: &[],
            grids: observe(table),
        });
    }
    if let Some(table) = &results.system {
        sections.push(Section {
            title: "The rest of the system (S5 section 4, Tables 2 and 3)",
            about: "How often each of S5's tests goes into a second of user and system time, and what share of \
                    that is left while bursard runs.",
            pictures: &[],
            grids: system(table),
        });
    }
    if let Some(table) = &results.gate {
        sections.push(Section {
            title: "The gate",
            about: "User and system time of a pair of calls. The gate's own hooks cannot be used on \
                    every machine, so the code that decides runs at the beginning of the same system calls \
                    (tp_btf/sys_enter). It is measured alone (what a program costs that does nothing there is \
                    taken off) and together with that. The latter is taken for an upper bound of what the hook \
                    and its program cost. Every call of the pair pays for it and leaves the short way into the \
                    kernel for it, munmap too, which the gate does not hook. Differences within each round: \
                    medians with 95 % intervals. All are far below their barriers.",
            pictures: &[],
            grids: gate(table),
        });
    }
    if let Some(table) = &results.malloc {
        sections.push(Section {
            title: "tmalloc beside other mallocs",
            about: "`bursar-bench malloc`. The first table is user and system time, glibc's malloc of the same user \
                    in the same round being 1: medians with 95 % intervals. The clock's ratio stands beside it \
                    where it is more than 0.05 higher. The second is resident MiB at the end (and at most), medians. \
                    `glibc, again` is the noise. `a bare jump` is the floor of a library that is put before \
                    glibc: its functions only jump there. bursard runs all the time; `no bursard` means that \
                    nobody listens where tmalloc asks. The limit is far.",
            pictures: &[],
            grids: malloc(table),
        });
    }
    if let Some(table) = &results.peers {
        sections.push(Section {
            title: "Peers that are Debian packages",
            about: "What each can do about one user at a limit. They are run only where they can be made to act \
                    on the bench's own processes and nobody else's.",
            pictures: &[],
            grids: peers(table),
        });
    }
    sections
}
