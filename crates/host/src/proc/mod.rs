// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc: which processes there are, and what the machine as a whole holds.

mod comm;
mod image;
mod meminfo;
mod process;
mod rollup;
mod segments;
mod shared;
mod stat;
mod statm;
mod status;
mod uid_map;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bursar_model::{Pid, Uid};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::bytes::{number, words};
use crate::{HostError, Malformed};

pub use comm::Comm;
pub use image::Image;
pub use meminfo::MemInfo;
pub use process::{Adjusted, Process};
pub use rollup::Rollup;
pub use segments::Segment;
pub use shared::SharedMemory;
pub use stat::{Device, StartTime, Stat, State};
pub use statm::Statm;
pub use status::{Memory, Status};
pub(crate) use uid_map::UidMap;

/// /proc, or a directory that looks like it.
#[derive(Debug)]
pub struct Proc {
    root: PathBuf,
    directory: OwnedFd,
}

impl Proc {
    /// The process file system mounted at `root`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn at(root: &Path) -> Result<Self, HostError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|errno| HostError::new("open", root, errno))?;
        Ok(Self {
            root: root.to_owned(),
            directory,
        })
    }

    /// This machine's, `/proc`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn host() -> Result<Self, HostError> {
        Self::at(Path::new("/proc"))
    }

    /// The processes there are, in the kernel's order. One that comes or goes meanwhile may or may
    /// not be among them.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn pids(&self) -> Result<Pids, HostError> {
        let failed = |errno| HostError::new("list", &self.root, errno);
        Ok(Pids {
            entries: Dir::read_from(&self.directory).map_err(failed)?,
            root: self.root.clone(),
        })
    }

    /// What /proc/PID/stat says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn stat(&self, pid: Pid) -> Result<Option<Stat>, HostError> {
        self.parsed(&format!("{pid}/stat"), Stat::parse)
    }

    /// Which program image it runs.
    ///
    /// # Errors
    /// When that cannot be read or understood.
    pub fn image(&self, pid: Pid) -> Result<Option<Image>, HostError> {
        // Of the first thread: a process's own stat adds up what all its threads did.
        self.parsed(&format!("{pid}/task/{pid}/stat"), Image::parse)
    }

    /// What /proc/PID/statm says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn statm(&self, pid: Pid) -> Result<Option<Statm>, HostError> {
        self.parsed(&format!("{pid}/statm"), Statm::parse)
    }

    /// What /proc/PID/status says; of a process whose first thread has ended, what that of one that lives says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn status(&self, pid: Pid) -> Result<Option<Status>, HostError> {
        let read = |tid: Pid| self.parsed(&format!("{tid}/status"), Status::parse);
        let Some(status) = read(pid)? else {
            return Ok(None);
        };
        if status.memory.is_some() || status.threads < 2 {
            return Ok(Some(status));
        }
        for tid in self.threads(pid, THREADS_LOOKED_AT)? {
            if let Some(living) = read(tid)?.filter(|it| it.memory.is_some()) {
                return Ok(Some(living));
            }
        }
        Ok(Some(status))
    }

    /// Whether a process's users have the numbers that they have here: it is in no user namespace with a map of its
    /// own. `None` when it is gone. Nothing that a process does keeps this waiting.
    ///
    /// # Errors
    /// When /proc/PID/uid_map cannot be read.
    pub fn has_our_users(&self, pid: Pid) -> Result<Option<bool>, HostError> {
        let map = |of: &str| self.parsed(&format!("{of}/uid_map"), |bytes| Ok(bytes.to_vec()));
        let (own, its) = (map("self")?, map(&pid.to_string())?);
        Ok(its.map(|its| own == Some(its)))
    }

    /// Whether a process's user namespace shows this uid as one of a range of others. `None` when it is gone. Nothing that a
    /// process does keeps this waiting.
    ///
    /// # Errors
    /// When /proc/PID/uid_map cannot be read or understood.
    pub fn shifts(&self, pid: Pid, uid: Uid) -> Result<Option<bool>, HostError> {
        Ok(self.uid_map(pid)?.map(|map| map.shifts(uid)))
    }

    /// What /proc/PID/smaps_rollup says; `None` also for a process without memory.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn rollup(&self, pid: Pid) -> Result<Option<Rollup>, HostError> {
        self.parsed(&format!("{pid}/smaps_rollup"), Rollup::parse)
    }

    /// The command name, at most 64 bytes that the process chose.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn comm(&self, pid: Pid) -> Result<Option<Comm>, HostError> {
        self.parsed(&format!("{pid}/comm"), |bytes| Ok(Comm::from_file(bytes)))
    }

    /// The command line, at most a page of it, arguments separated by NULs; empty for a process without memory. The
    /// process can keep whoever asks waiting, and has written it. No more is read: the kernel takes its lock for each page.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn command_line(&self, pid: Pid) -> Result<Option<Vec<u8>>, HostError> {
        let name = format!("{pid}/cmdline");
        look_twice(|| read_at_most(self.directory.as_fd(), &self.root, &name, MOST_OF_COMMAND))
    }

    /// How the kernel's OOM killer prefers it, −1000 (never) to 1000 (first).
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn oom_score_adj(&self, pid: Pid) -> Result<Option<i16>, HostError> {
        self.parsed(&format!("{pid}/oom_score_adj"), process::oom_score_adj)
    }

    /// A hold on a process's directory: what is read or written through it concerns that process even
    /// when its number has gone to another one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn process(&self, pid: Pid) -> Result<Option<Process>, HostError> {
        Process::open(self, pid)
    }

    /// The threads of a process, at most `most`; none when it is gone.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn threads(&self, pid: Pid, most: usize) -> Result<Vec<Pid>, HostError> {
        let path = self.root.join(format!("{pid}/task"));
        let failed = |errno| HostError::new("list", &path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let name = format!("{pid}/task");
        let open = || match rustix::fs::openat(&self.directory, &name, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::SRCH) => Ok(None),
            Err(errno) => Err(failed(errno)),
        };
        let Some(directory) = look_twice(open)? else {
            return Ok(Vec::new());
        };
        let entries = Dir::new(directory).map_err(failed)?;
        let threads = entries.map_while(Result::ok).filter_map(|entry| {
            number::<u32>(entry.file_name().to_bytes())
                .filter(|&tid| tid > 0)
                .map(Pid::new)
        });
        Ok(threads.take(most).collect())
    }

    /// The processes that the threads of `pid` have made and not waited for, and those left to it
    /// (PR_SET_CHILD_SUBREAPER); none when it is gone. At most `most` of its threads are asked.
    ///
    /// `None` where the kernel keeps no such list (CONFIG_PROC_CHILDREN), or the process is gone.
    ///
    /// # Errors
    /// When the list cannot be read or understood.
    pub fn children(&self, pid: Pid, most: usize) -> Result<Option<Vec<Pid>>, HostError> {
        let mut all = None;
        for thread in self.threads(pid, most)? {
            let name = format!("{pid}/task/{thread}/children");
            let some = self.parsed(&name, |bytes| {
                let numbers = bytes
                    .split(u8::is_ascii_whitespace)
                    .filter(|it| !it.is_empty());
                numbers
                    .map(|word| number(word).map(Pid::new))
                    .collect::<Option<Vec<Pid>>>()
                    .ok_or_else(|| Malformed::new("no list of processes"))
            })?;
            if let Some(some) = some {
                all.get_or_insert_with(Vec::new).extend(some);
            }
        }
        Ok(all)
    }

    /// The number given last to a process or thread: as long as it is the same, none was made.
    ///
    /// # Errors
    /// When /proc/loadavg cannot be read or understood.
    pub fn last_pid(&self) -> Result<Pid, HostError> {
        let last = self.parsed("loadavg", |bytes| {
            let word = words(bytes).nth(4).and_then(number);
            word.map(Pid::new)
                .ok_or_else(|| Malformed::new("no last process"))
        })?;
        last.ok_or_else(|| {
            HostError::new("read", &self.root.join("loadavg"), rustix::io::Errno::NOENT)
        })
    }

    /// The shared memory that a process maps, at most 64 pieces; `None` when it is gone.
    ///
    /// # Errors
    /// When /proc/PID/maps cannot be read.
    pub fn shared_memory(&self, pid: Pid) -> Result<Option<Vec<SharedMemory>>, HostError> {
        self.parsed(&format!("{pid}/maps"), |bytes| Ok(shared::parse(bytes)))
    }

    /// How many threads run or want to run on this machine at this moment, ours included.
    ///
    /// # Errors
    /// When /proc/loadavg cannot be read or understood.
    pub fn runnable(&self) -> Result<u32, HostError> {
        let found = self.parsed("loadavg", |bytes| {
            let field = crate::bytes::words(bytes).nth(3);
            let running = field.and_then(|it| it.split(|&byte| byte == b'/').next());
            running
                .and_then(number)
                .ok_or_else(|| Malformed::new("no number of running threads"))
        })?;
        let missing = || HostError::new("read", &self.root.join("loadavg"), Errno::NOENT);
        found.ok_or_else(missing)
    }

    /// The machine's memory.
    ///
    /// # Errors
    /// When /proc/meminfo cannot be read or understood.
    pub fn meminfo(&self) -> Result<MemInfo, HostError> {
        let missing = || HostError::new("read", &self.root.join("meminfo"), Errno::NOENT);
        self.parsed("meminfo", MemInfo::parse)?.ok_or_else(missing)
    }

    /// The System V shared memory segments of our IPC namespace; none where the kernel has no such thing.
    ///
    /// # Errors
    /// When /proc/sysvipc/shm cannot be read.
    pub fn segments(&self) -> Result<Vec<Segment>, HostError> {
        let found = self.parsed("sysvipc/shm", |bytes| Ok(segments::parse(bytes)))?;
        Ok(found.unwrap_or_default())
    }

    /// What names this boot, a UUID; `None` where the kernel does not say.
    ///
    /// # Errors
    /// When it cannot be read or is no UUID.
    pub fn boot_id(&self) -> Result<Option<String>, HostError> {
        self.parsed("sys/kernel/random/boot_id", |bytes| {
            let text = str::from_utf8(bytes.trim_ascii()).unwrap_or_default();
            let is_uuid =
                text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
            if is_uuid {
                Ok(text.to_owned())
            } else {
                Err(Malformed::new("no UUID"))
            }
        })
    }

    /// What uids the user namespace of `pid` shows as which.
    pub(crate) fn uid_map(&self, pid: Pid) -> Result<Option<UidMap>, HostError> {
        self.parsed(&format!("{pid}/uid_map"), UidMap::parse)
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// What `parse` makes of a file; `None` when there is none.
    pub(crate) fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, HostError> {
        let bytes = look_twice(|| read(self.directory.as_fd(), &self.root, name))?;
        parsed(bytes, &self.root, name, parse)
    }
}

/// The processes that [`Proc::pids`] found.
#[derive(Debug)]
pub struct Pids {
    entries: Dir,
    root: PathBuf,
}

impl Iterator for Pids {
    type Item = Result<Pid, HostError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.entries.next()? {
                Ok(entry) => {
                    let pid = number::<i32>(entry.file_name().to_bytes());
                    if let Some(pid) = pid
                        .and_then(|pid| u32::try_from(pid).ok())
                        .filter(|&pid| pid > 0)
                    {
                        return Some(Ok(Pid::new(pid)));
                    }
                }
                Err(errno) => return Some(Err(HostError::new("list", &self.root, errno))),
            }
        }
    }
}

/// A file of /proc is never larger, bytes: a status with 65,536 groups has 720 KiB.
const MAX_FILE: u64 = 2 << 20;

/// Of a command line, bytes: a page.
const MOST_OF_COMMAND: u64 = 4096;

/// So many threads of a process are asked for its memory: those that have ended and are traced stay among them.
const THREADS_LOOKED_AT: usize = 64;

/// What the file `name` in `directory`, which is called `path`, says; `None` when it is not there or its process has gone
/// while we read.
fn read(directory: BorrowedFd<'_>, path: &Path, name: &str) -> Result<Option<Vec<u8>>, HostError> {
    read_at_most(directory, path, name, MAX_FILE)
}

fn read_at_most(
    directory: BorrowedFd<'_>,
    path: &Path,
    name: &str,
    most: u64,
) -> Result<Option<Vec<u8>>, HostError> {
    let failed = |errno| HostError::new("read", &path.join(name), errno);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let mut bytes = Vec::with_capacity(4096);
    match file.take(most).read_to_end(&mut bytes) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::NOENT) => Ok(None),
            errno => Err(failed(errno.unwrap_or(Errno::IO))),
        },
    }
}

fn parsed<T>(
    bytes: Option<Vec<u8>>,
    path: &Path,
    name: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
) -> Result<Option<T>, HostError> {
    let found = bytes.map(|bytes| parse(&bytes)).transpose();
    found.map_err(|malformed| malformed.at(&path.join(name)))
}

/// Looks once more where there is nothing. A directory of a process looked up while another of its threads executes belongs
/// to that thread's number, and vanishes with it though the process lives (fs/proc/base.c proc_pid_lookup() beside
/// fs/exec.c exchange_tids()).
fn look_twice<T>(look: impl Fn() -> Result<Option<T>, HostError>) -> Result<Option<T>, HostError> {
    match look()? {
        None => look(),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_not_there_is_looked_for_once_more() {
        let looks = Cell::new(0);
        let look = |found_at: u32| {
            looks.set(0);
            look_twice(|| {
                looks.set(looks.get() + 1);
                Ok((looks.get() == found_at).then_some(()))
            })
        };
        for (found_at, found, looked) in [(1, true, 1), (2, true, 2), (3, false, 2)] {
            assert_eq!(
                (look(found_at).unwrap().is_some(), looks.get()),
                (found, looked)
            );
        }
    }
}
