// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this kernel lets us do. Nothing is concluded from version numbers: BTF is asked for types
//! and functions, and what only an attempt can tell is attempted.

use std::env;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::skeleton::{probe, timer_probe};
use crate::{Error, Options, call, root_cgroup};

/// Something a kernel may or may not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ability {
    /// Types of the kernel, without which no program can be loaded.
    Btf,
    /// The event that the ledger lives on: kmem:rss_stat.
    RssEvent,
    /// The end of an address space: exit_mmap.
    ExitEvent,
    /// Killing another process from the event (bpf_send_signal_task, 6.13).
    SignalOthers,
    /// Walking all tasks in the timer (bpf_iter_task_new, 6.7).
    TaskIterator,
    /// Timers for programs (bpf_timer), which PREEMPT_RT refuses.
    Timer,
    /// fentry, fmod_ret and LSM programs: what the gate is made of.
    Trampolines,
    /// `bpf` among the active security modules, without which LSM programs are never called.
    BpfLsm,
    /// process_mrelease(2), 5.15.
    MemoryRelease,
    /// The root control group of version 2, where programs see the events of all TCP sockets.
    RootControlGroup,
}

/// What was found out about an ability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It is there.
    Available,
    /// It is not; the text says how that shows.
    Missing(String),
    /// It is there and refused to us; the text says by whom.
    Refused(String),
}

/// What this kernel lets us do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    findings: Vec<(Ability, Finding)>,
}

impl Finding {
    /// Whether the ability can be used.
    pub const fn is_available(&self) -> bool {
        matches!(self, Self::Available)
    }
}

impl Support {
    /// Looks and tries. Needs root for the tries; without, they are refused and say so.
    pub fn probe() -> Self {
        // The tries fail on purpose; what libbpf says of them is in the findings.
        let talk = libbpf_rs::set_print(None);
        let btf = Btf::from_vmlinux().ok();
        let in_btf = |is_there: fn(&Btf<'_>) -> bool, what: &str| match &btf {
            Some(btf) if is_there(btf) => Finding::Available,
            Some(_) => Finding::Missing(format!("the kernel's BTF has no {what}")),
            None => Finding::Missing("the kernel has no BTF".to_owned()),
        };
        let trampolines = try_trampoline();
        let has_function_of_exit = btf
            .as_ref()
            .is_some_and(|btf| has_function(btf, "exit_mmap"));
        let exit_event = if trampolines.is_available() && has_function_of_exit {
            Finding::Available
        } else {
            in_btf(
                |btf| has_tracepoint(btf, "exit_mmap"),
                "tracepoint exit_mmap",
            )
        };
        let findings = vec![
            (
                Ability::Btf,
                match btf {
                    Some(_) => Finding::Available,
                    None => Finding::Missing("/sys/kernel/btf/vmlinux cannot be read".to_owned()),
                },
            ),
            (
                Ability::RssEvent,
                in_btf(|btf| has_tracepoint(btf, "rss_stat"), "tracepoint rss_stat"),
            ),
            (Ability::ExitEvent, exit_event),
            (
                Ability::SignalOthers,
                in_btf(
                    |btf| has_function(btf, "bpf_send_signal_task"),
                    "bpf_send_signal_task()",
                ),
            ),
            (
                Ability::TaskIterator,
                in_btf(
                    |btf| has_function(btf, TASK_ITERATOR),
                    "bpf_iter_task_new()",
                ),
            ),
            (Ability::Timer, try_timer()),
            (Ability::Trampolines, trampolines),
            (
                Ability::BpfLsm,
                bpf_lsm(Path::new("/sys/kernel/security/lsm")),
            ),
            (
                Ability::MemoryRelease,
                in_btf(
                    |btf| {
                        has_function(btf, "__x64_sys_process_mrelease")
                            || has_function(btf, "__arm64_sys_process_mrelease")
                            || has_function(btf, "__do_sys_process_mrelease")
                    },
                    "process_mrelease(2)",
                ),
            ),
            (
                Ability::RootControlGroup,
                match root_cgroup::open() {
                    Ok(_) => Finding::Available,
                    Err(error) => Finding::Missing(error.to_string()),
                },
            ),
        ];
        libbpf_rs::set_print(talk);
        Self { findings }
    }

    /// What was found out, in the order of [`Ability`].
    pub fn findings(&self) -> &[(Ability, Finding)] {
        &self.findings
    }

    /// What was found out about one ability.
    pub fn of(&self, ability: Ability) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|(it, _)| *it == ability)
            .map(|(_, finding)| finding)
    }
}

/// What the kernel's types tell that a start must know. Looked up together: to read them all takes tens of milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KernelTypes {
    /// The kernel half's timer can meet all tasks by itself (6.7).
    pub(crate) has_task_iterator: bool,
    /// The kernel tells that it has made a huge page of small ones: it has none with PREEMPT_RT.
    pub(crate) tells_of_collapses: bool,
    /// A function is called where mremap(2) moves a mapping.
    pub(crate) tells_of_moves: bool,
    /// The kernel tells of the end of an address space; else a function that returns does.
    pub(crate) tells_of_ends: bool,
    /// Programs can loop by a helper.
    pub(crate) has_bpf_loop: bool,
    /// Hash maps allocate elements that no context is in the way of (6.1).
    pub(crate) has_bpf_mem_alloc: bool,
}

impl KernelTypes {
    /// Those of this kernel; without BTF none.
    pub(crate) fn get() -> Self {
        static TYPES: OnceLock<KernelTypes> = OnceLock::new();
        *TYPES.get_or_init(|| {
            let Ok(btf) = Btf::from_vmlinux() else {
                return Self::default();
            };
            Self {
                has_task_iterator: has_function(&btf, TASK_ITERATOR),
                tells_of_collapses: has_tracepoint(&btf, "mm_collapse_huge_page"),
                // bpf_get_func_arg() came with bpf_loop() (5.17).
                tells_of_moves: has_function(&btf, "copy_vma") && has_function(&btf, "bpf_loop"),
                tells_of_ends: has_tracepoint(&btf, "exit_mmap"),
                has_bpf_loop: has_function(&btf, "bpf_loop"),
                has_bpf_mem_alloc: has_function(&btf, "bpf_mem_alloc_init"),
            }
        })
    }
}

/// Names that are taken for missing from the kernel's BTF, for tests of older kernels' ways: `exit_mmap,…`.
pub const WITHOUT: &str = "BURSAR_WITHOUT";

fn is_left_out(name: &str) -> bool {
    env::var(WITHOUT).is_ok_and(|names| names.split(',').any(|it| it == name))
}

const TASK_ITERATOR: &str = "bpf_iter_task_new";

fn has_function(btf: &Btf<'_>, name: &str) -> bool {
    !is_left_out(name) && btf.type_by_name::<Func<'_>>(name).is_some()
}

fn has_tracepoint(btf: &Btf<'_>, name: &str) -> bool {
    let name_of_type = format!("btf_trace_{name}");
    !is_left_out(name) && btf.type_by_name::<Typedef<'_>>(&name_of_type).is_some()
}

fn try_trampoline() -> Finding {
    let attempt = || -> libbpf_rs::Result<()> {
        let mut storage = MaybeUninit::uninit();
        let loaded = probe::ProbeSkelBuilder::default()
            .open(&mut storage)?
            .load()?;
        // Dropping the link detaches it again.
        loaded.progs.probe_trampoline.attach().map(drop)
    };
    match attempt() {
        Ok(()) => Finding::Available,
        Err(error) if error.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
            Finding::Refused(format!("attaching one: {error}"))
        }
        Err(error) => Finding::Missing(format!("attaching one: {error}")),
    }
}

/// What refuses it on PREEMPT_RT answers as if permission were missing, so that is no word of its own.
fn try_timer() -> Finding {
    match start_a_timer() {
        Ok(()) => Finding::Available,
        Err(error) => Finding::Missing(format!("starting one: {error}")),
    }
}

fn start_a_timer() -> Result<(), Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = timer_probe::TimerProbeSkelBuilder::default()
        .open(&mut storage)
        .map_err(Error::unsupported("timer_probe"))?;
    open.progs.probe_hold.set_autoload(false);
    let loaded = open.load().map_err(Error::unsupported("timer_probe"))?;
    call::run(loaded.progs.probe_timer.as_fd(), "try a timer", &mut [])
}

fn hold_a_cpu() -> libbpf_rs::Result<()> {
    let mut storage = MaybeUninit::uninit();
    let mut open = timer_probe::TimerProbeSkelBuilder::default().open(&mut storage)?;
    open.progs.probe_timer.set_autoload(false);
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.events_are_preempted = true;
    }
    open.load().map(drop)
}

/// What makes the kernel half tick, and what events need beside that. Tried, for no type or function tells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimerSupport {
    /// Programs may have timers.
    pub(crate) has_timers: bool,
    /// Without timers (PREEMPT_RT): programs of events can keep their CPU, and have to from 7.0 on.
    pub(crate) holds_cpu: bool,
}

impl TimerSupport {
    pub(crate) fn probe() -> Self {
        let talk = libbpf_rs::set_print(None);
        let has_timers = start_a_timer().is_ok();
        let holds_cpu = !has_timers && hold_a_cpu().is_ok();
        libbpf_rs::set_print(talk);
        Self {
            has_timers,
            holds_cpu,
        }
    }

    /// A thread of the kernel's does what takes long (`lib/deferred.bpf.h`).
    pub(crate) fn defers_work(self, options: &Options) -> bool {
        !self.has_timers && options.timer_trigger
    }
}

fn bpf_lsm(list: &Path) -> Finding {
    match fs::read_to_string(list) {
        Ok(names) if names.trim().split(',').any(|name| name == "bpf") => Finding::Available,
        Ok(names) => Finding::Missing(format!("active are: {}", names.trim())),
        Err(error) => Finding::Missing(format!("{}: {error}", list.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpf_is_looked_for_as_a_whole_name() {
        let directory = std::env::temp_dir().join(format!("bursar-lsm-{}", std::process::id()));
        for (text, expected) in [("lockdown,yama,bpf\n", true), ("lockdown,bpfx", false)] {
            fs::write(&directory, text).unwrap();
            assert_eq!(bpf_lsm(&directory).is_available(), expected, "{text}");
        }
        fs::remove_file(&directory).unwrap();
        assert!(!bpf_lsm(&directory).is_available());
    }
}
