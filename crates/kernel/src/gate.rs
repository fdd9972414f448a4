// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate: loaded beside the ledger, tried with a real child, kept if it refuses.
//!
//! An attach that succeeds proves nothing: where `bpf` is not among the active security modules LSM
//! programs attach and are never called. So a child in a tiny account asks for memory.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bursar_model::{AccountId, GateMode, Pages, Uid};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::blocks;
use crate::books::{Books, History, PageBounds};
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::gate;
use crate::{Error, Options};

/// What the gate of a kernel half does, found by trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// How far it can be relied on.
    pub mode: GateMode,
    /// Why it is no better.
    pub reason: Option<String>,
    /// Why files in tmpfs may grow past the barrier all the same. Absent where they may not, and without
    /// a gate.
    pub files: Option<String>,
}

/// Which programs it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    /// LSM programs: never skipped.
    Strict,
    /// fmod_ret programs: skipped where one was preempted.
    BestEffort,
}

/// Whom the child of the self-test is made: nobody on any machine has this uid. Shared accounts begin at
/// 2^31.
pub(crate) const TESTER: Uid = Uid::new(2_147_483_632);
/// What it asks for.
const TEST_BYTES: usize = 64 << 20;

impl Flavour {
    const fn mode(self) -> GateMode {
        match self {
            Self::Strict => GateMode::Strict,
            Self::BestEffort => GateMode::BestEffort,
        }
    }

    /// What is said where it does not work.
    const fn refuses_nothing(self) -> &'static str {
        match self {
            Self::Strict => {
                "LSM programs attach and are never called: is bpf in /sys/kernel/security/lsm?"
            }
            Self::BestEffort => "fmod_ret programs attach and refuse nothing",
        }
    }

    /// The pins of its links.
    const fn pins(self) -> &'static [&'static str] {
        match self {
            Self::Strict => &[
                "link_gate_growth",
                "link_gate_writable",
                "link_gate_fork",
                "link_gate_exec",
                "link_gate_prctl",
                "link_gate_task_free",
                "link_gate_child",
            ],
            Self::BestEffort => &[
                "link_try_growth",
                "link_try_writable",
                "link_try_fork",
                "link_try_prctl",
                "link_try_task_free",
                "link_gate_child",
            ],
        }
    }

    fn is_pinned(self, pins: &Pins) -> bool {
        pins.has_all(self.pins())
    }

    fn unpin(self, pins: &Pins) {
        pins.unlink(self.pins());
    }
}

impl Gate {
    /// Puts up the best gate this kernel allows in front of the accounts of the kernel half in `pins`,
    /// or finds the one that is there. Never an error: without a gate everything else goes on.
    pub(crate) fn put_up(pins: &Pins, options: &Options, books: &Books) -> Self {
        let (mode, reasons) = if options.gate {
            put_up_best(pins, options, books)
        } else {
            // One may be there since before it was switched off.
            Flavour::Strict.unpin(pins);
            Flavour::BestEffort.unpin(pins);
            let reason = "switched off (gate.mode in bursar.toml)".to_owned();
            (GateMode::None, vec![reason])
        };
        let files = if mode == GateMode::None {
            blocks::take_down(pins);
            None
        } else {
            blocks::put_up(pins, options, books)
        };
        Self {
            mode,
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
            files,
        }
    }
}

/// The best gate for memory, and why it is no better.
fn put_up_best(pins: &Pins, options: &Options, books: &Books) -> (GateMode, Vec<String>) {
    let mut reasons = Vec::new();
    for flavour in [Flavour::Strict, Flavour::BestEffort] {
        if !flavour.is_pinned(pins) {
            flavour.unpin(pins); // half of one, left by a crash
            if let Err(error) = load(flavour, pins, options) {
                flavour.unpin(pins);
                reasons.push(error.to_string());
                continue;
            }
        }
        match as_tester(books, || ask_as_tester(be_mapping_tester)) {
            Ok(true) => return (flavour.mode(), reasons),
            Ok(false) => {
                flavour.unpin(pins);
                reasons.push(flavour.refuses_nothing().to_owned());
            }
            Err(error) => {
                // It may well work; nobody can promise it.
                reasons.push(format!("the gate could not be tried: {error}"));
                return (GateMode::BestEffort, reasons);
            }
        }
    }
    (GateMode::None, reasons)
}

fn load(flavour: Flavour, pins: &Pins, options: &Options) -> Result<(), Error> {
    let unsupported = Error::unsupported(match flavour {
        Flavour::Strict => "the gate (LSM programs)",
        Flavour::BestEffort => "the gate (fmod_ret programs)",
    });
    let mut storage = MaybeUninit::uninit();
    let mut open = gate::GateSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported)?;
    set_knobs!(open, "gate", options, {});
    open.maps
        .births
        .set_max_entries(options.max_processes)
        .map_err(Error::io("size a map"))?;
    share_pinned!(open, pins, {
        accounts: "accounts",
        payers: "payers",
        mm_index: "mm_index",
        mms: "mms",
        events: "events",
        state_map: "state",
        members: "members"
    });
    let strict = flavour == Flavour::Strict;
    {
        let progs = &mut open.progs;
        for program in [
            &mut progs.gate_growth,
            &mut progs.gate_writable,
            &mut progs.gate_fork,
            &mut progs.gate_exec,
            &mut progs.gate_prctl,
            &mut progs.gate_task_free,
        ] {
            program.set_autoload(strict);
        }
        for program in [
            &mut progs.try_growth,
            &mut progs.try_writable,
            &mut progs.try_fork,
            &mut progs.try_prctl,
            &mut progs.try_task_free,
        ] {
            program.set_autoload(!strict);
        }
    }
    let skeleton = open.load().map_err(unsupported)?;
    macro_rules! attach {
        ($($program:ident => $pin:literal),* $(,)?) => {$(
            let mut link = skeleton.progs.$program.attach().map_err(unsupported)?;
            link.pin(pins.path($pin)).map_err(Error::io("pin the gate"))?;
        )*};
    }
    // What ends a charge before what makes one.
    attach!(gate_child => "link_gate_child");
    if strict {
        attach! {
            gate_task_free => "link_gate_task_free",
            gate_fork => "link_gate_fork",
            gate_growth => "link_gate_growth",
            gate_writable => "link_gate_writable",
            gate_exec => "link_gate_exec",
            gate_prctl => "link_gate_prctl",
        }
    } else {
        attach! {
            try_task_free => "link_try_task_free",
            try_fork => "link_try_fork",
            try_prctl => "link_try_prctl",
            try_growth => "link_try_growth",
            try_writable => "link_try_writable",
        }
    }
    Ok(())
}

/// Asks while the tester has an account with a barrier of one page.
pub(crate) fn as_tester<T>(
    books: &Books,
    ask: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let id = AccountId::of(TESTER);
    let slot = books.open_account(id, false, false, History::default())?;
    let bounds = PageBounds {
        barrier: Some(Pages::new(1)),
        ..PageBounds::default()
    };
    let seen = books.set_bounds(slot, bounds).and_then(|()| ask());
    books.close_account(slot)?;
    seen
}

/// Has a child of ours, who is the tester, ask for something; whether it was refused. The child makes
/// system calls only; an error is its errno.
pub(crate) fn ask_as_tester(ask: fn() -> Result<bool, i32>) -> Result<bool, Error> {
    const WHAT: &str = "try the gate with a child";
    let failed = |source| Error::Io { what: WHAT, source };
    // SAFETY: the child makes system calls only, then ends without unwinding or exit handlers: nothing
    // another thread may have been holding at the fork is touched.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            be_tester(ask);
        }
        child
    };
    if child < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is ours to write.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(failed(error));
        }
    }
    if !libc::WIFEXITED(status) {
        return Err(failed(io::Error::other("the child was killed")));
    }
    said_by(libc::WEXITSTATUS(status)).map_err(failed)
}

/// What the child exits with. Errnos come last: the largest is 133, a status 255.
const REFUSED: i32 = 0;
const GRANTED: i32 = 1;
const MAY_NOT_BECOME: i32 = 2;
const ERRNO_0: i32 = 3;

const fn status_of(answer: Result<bool, i32>) -> i32 {
    match answer {
        Ok(true) => REFUSED,
        Ok(false) => GRANTED,
        Err(errno) => ERRNO_0.saturating_add(errno),
    }
}

fn said_by(status: i32) -> io::Result<bool> {
    match status {
        REFUSED => Ok(true),
        GRANTED => Ok(false),
        MAY_NOT_BECOME => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it may not become another user; does bursard have CAP_SETUID?",
        )),
        status => Err(io::Error::from_raw_os_error(status.saturating_sub(ERRNO_0))),
    }
}

/// In the child.
fn be_tester(ask: fn() -> Result<bool, i32>) -> ! {
    let uid = TESTER.get();
    // SAFETY: plain system calls on numbers. The raw setresuid, for libc's would signal threads that a
    // forked child does not have.
    unsafe {
        let status = if libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0 {
            status_of(ask())
        } else {
            match *libc::__errno_location() {
                libc::EPERM => MAY_NOT_BECOME,
                errno => status_of(Err(errno)),
            }
        };
        libc::_exit(status)
    }
}

fn be_mapping_tester() -> Result<bool, i32> {
    // SAFETY: the mapping is fresh and never touched.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            TEST_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    Ok(at == libc::MAP_FAILED)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn what_the_child_meets_arrives_as_it_is() {
        for refused in [true, false] {
            assert_eq!(said_by(status_of(Ok(refused))).unwrap(), refused);
        }
        for errno in 1..=libc::EHWPOISON {
            let status = status_of(Err(errno));
            assert!(status <= 255, "{errno} does not fit");
            assert_eq!(said_by(status).unwrap_err().raw_os_error(), Some(errno));
        }
    }

    #[test]
    fn a_child_that_may_not_become_another_user_says_what_is_missing() {
        // A thread's capabilities are its own, and its children's.
        let asking = std::thread::spawn(|| {
            let mut own = capabilities(None).unwrap();
            own.effective.remove(CapabilitySet::SETUID);
            set_capabilities(None, own).unwrap();
            ask_as_tester(|| Ok(true))
        });
        let error = asking.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("CAP_SETUID"), "{error}");
    }
}
