// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own OOM killer: hears of its victims from a trace buffer of our own (oom:mark_victim), so
//! that those of accounts with a limit are helped out like ours (its own reaper needed 2.1 s
//! beside busy loops).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use anyhow::{Context, Result};
use bursar_host::{Comm, Pidfd, Proc};
use bursar_model::{Bytes, Pid, Uid};
use bursar_protocol::LineBuffer;

use crate::killer::hold_dying;
use crate::trace_instance::TraceInstance;

const LONGEST_LINE: usize = 4096;
/// The buffer holds some hundred victims, KiB for each CPU.
const BUFFER_KIB: u32 = 8;
/// 16 bytes of comm cannot hold it, so nobody can forge it by his name.
const MARK: &[u8] = b": mark_victim: pid=";

/// One that the kernel has marked, with what it says of it (since 6.8; before, only the number).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) pid: Pid,
    pub(crate) uid: Option<Uid>,
    /// Its anonymous memory.
    pub(crate) private: Option<Bytes>,
    /// Made printable.
    pub(crate) comm: Option<String>,
}

/// A marked process that is there still.
#[derive(Debug)]
pub(crate) struct HeldProcess {
    pub(crate) pidfd: Pidfd,
    pub(crate) uid: Uid,
    /// Made printable.
    pub(crate) comm: Option<String>,
}

/// Victims, as the kernel marks them.
#[derive(Debug)]
pub(crate) struct OomWatch {
    pipe: File,
    lines: LineBuffer,
    /// After the pipe: what is open cannot be removed.
    _instance: TraceInstance,
}

impl OomWatch {
    pub(crate) fn start(tracefs: &Path) -> Result<Self> {
        let instance = TraceInstance::make(tracefs, "oom", "oom/mark_victim", BUFFER_KIB)?;
        // Wakes at the first event (since 6.2 readers may have to wait for half a buffer).
        let _ = instance.set("buffer_percent", "0");
        let pipe = instance.listen().context("listen to the OOM killer")?;
        Ok(Self {
            pipe,
            lines: LineBuffer::new(LONGEST_LINE),
            _instance: instance,
        })
    }

    /// The processes marked since the last call.
    pub(crate) fn drain(&mut self) -> Vec<Marked> {
        let mut found = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.pipe.read(&mut buffer) {
                Ok(0) => return found,
                Ok(count) => {
                    self.lines.push(buffer.get(..count).unwrap_or_default());
                    loop {
                        match self.lines.next_line() {
                            Ok(Some(line)) => found.extend(victim_in(&line)),
                            Ok(None) => break,
                            Err(_) => {
                                self.lines = LineBuffer::new(LONGEST_LINE);
                                break;
                            }
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return found,
            }
        }
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// `    comm-123 [000] ..... 12.3: mark_victim: pid=456 comm=… anon-rss=789kB … uid=1000 …`: the first
/// mark is the kernel's, and of other words the last, for a name stands between.
fn victim_in(line: &[u8]) -> Option<Marked> {
    let at = line.windows(MARK.len()).position(|part| part == MARK)?;
    let rest = line.get(at.saturating_add(MARK.len())..)?;
    let last = |word: &[u8]| {
        let at = rest.windows(word.len()).rposition(|part| part == word)?;
        number(rest.get(at.saturating_add(word.len())..)?)
    };
    // From the first of these words to the last: what stands between is the name, whatever that is.
    let comm = || {
        let word = b" comm=".as_slice();
        let begin = rest.windows(word.len()).position(|part| part == word)? + word.len();
        let name = rest.get(begin..)?;
        let end = name.windows(10).rposition(|part| part == b" total-vm=")?;
        name.get(..end)
    };
    let kib = last(b" anon-rss=").or_else(|| last(b" anon-rss:"));
    Some(Marked {
        pid: Pid::new(u32::try_from(number(rest)?).ok()?),
        uid: last(b" uid=")
            .and_then(|uid| u32::try_from(uid).ok())
            .map(Uid::new),
        comm: comm().map(|it| Comm::new(it).to_printable()),
        private: kib.and_then(|kib| kib.checked_mul(1024)).map(Bytes::new),
    })
}

/// The number that a text begins with.
fn number(text: &[u8]) -> Option<u64> {
    let end = text.iter().take_while(|it| it.is_ascii_digit()).count();
    std::str::from_utf8(text.get(..end)?).ok()?.parse().ok()
}

/// A hold on a marked process, if it really is dying: its number may be another's by now.
pub(crate) fn hold(proc: &Proc, pid: Pid) -> Option<HeldProcess> {
    let (pidfd, status) = hold_dying(proc, pid)?;
    let comm = proc.comm(pid).ok().flatten();
    let is_there = !pidfd.wait_readable(Some(std::time::Duration::ZERO)).ok()?;
    Some(HeldProcess {
        pidfd,
        uid: status.uid,
        comm: comm.filter(|_| is_there).map(|it| it.to_printable()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_are_read_and_names_do_not_forge_them() {
        let table: [(&[u8], Option<u32>); 5] = [
            (b"  hog-7 [001] ..... 12.5: mark_victim: pid=812", Some(812)),
            (
                b" a b-7 [001] ..... 1.5: mark_victim: pid=9 comm=x uid=1",
                Some(9),
            ),
            (
                b" mark_victim: 1-7 [001] d..1. 1.5: mark_victim: pid=9",
                Some(9),
            ),
            (b"k_victim: pid=1-7 [001] ..... 1.5: rss_stat: pid=9", None),
            (b": mark_victim: pid=", None),
        ];
        for (line, pid) in table {
            assert_eq!(victim_in(line).map(|it| it.pid.get()), pid);
        }
    }

    #[test]
    fn what_newer_kernels_say_of_a_victim_is_read_behind_its_name() {
        let said = victim_in(
            b" hog-7 [001] ..... 1.5: mark_victim: pid=9 comm=x uid=0 anon-rss=1 total-vm=9000kB \
              anon-rss=2048kB file-rss:0kB shmem-rss:0kB uid=60001 pgtables=44kB oom_score_adj=998",
        );
        let expected = Marked {
            pid: Pid::new(9),
            uid: Some(Uid::new(60001)),
            private: Some(Bytes::from_mib(2)),
            comm: Some("x uid=0 anon-rss=1".to_owned()),
        };
        assert_eq!(said, Some(expected));
        let old = victim_in(b"  hog-7 [001] ..... 12.5: mark_victim: pid=812");
        assert!(old.is_some_and(|it| it.uid.is_none() && it.private.is_none()));
    }
}
