// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RLIMIT_DATA of another process: prlimit(2). The kernel lets everybody do that to processes whose
//! real, effective and saved user and group are all his own; others take CAP_SYS_RESOURCE.

use std::path::PathBuf;

use bursar_model::{Bytes, Pid};
use rustix::io::Errno;

use crate::HostError;

/// How much private writable memory a process may map, stacks aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataLimit {
    /// In force; `None`: no limit. The kernel takes 0 for "use `hard`" (a favour to Valgrind).
    pub soft: Option<Bytes>,
    /// Up to where `soft` can be raised; `None`: anywhere.
    pub hard: Option<Bytes>,
}

/// What became of a change of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// It is so now, and was so before.
    Done(DataLimit),
    /// There is no such process.
    Gone,
    /// It is somebody else's.
    Denied,
}

/// The limit of the process with this number.
///
/// # Errors
/// What prlimit(2) does not list for this.
pub fn data_limit(pid: Pid) -> Result<Limited, HostError> {
    prlimit(pid, None)
}

/// Sets it; the answer is what it was, read in the same step.
///
/// # Errors
/// As [`data_limit`]; also when `soft` is above `hard`.
pub fn set_data_limit(pid: Pid, limit: DataLimit) -> Result<Limited, HostError> {
    prlimit(pid, Some(limit))
}

fn prlimit(pid: Pid, new: Option<DataLimit>) -> Result<Limited, HostError> {
    let Ok(number) = libc::pid_t::try_from(pid.get()) else {
        return Ok(Limited::Gone);
    };
    let new = new.map(|limit| libc::rlimit64 {
        rlim_cur: encode(limit.soft),
        rlim_max: encode(limit.hard),
    });
    let new_limit = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut old = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both pointers are to locals that live until the call returns; the first may be null.
    let done = unsafe { libc::prlimit64(number, libc::RLIMIT_DATA, new_limit, &raw mut old) };
    if done == 0 {
        return Ok(Limited::Done(DataLimit {
            soft: decode(old.rlim_cur),
            hard: decode(old.rlim_max),
        }));
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
        Errno::SRCH => Ok(Limited::Gone),
        Errno::PERM | Errno::ACCESS => Ok(Limited::Denied),
        errno => {
            let whose = PathBuf::from(format!("process {pid}"));
            Err(HostError::new("limit the data of", &whose, errno))
        }
    }
}

fn decode(value: u64) -> Option<Bytes> {
    (value != libc::RLIM64_INFINITY).then(|| Bytes::new(value))
}

fn encode(limit: Option<Bytes>) -> u64 {
    limit.map_or(libc::RLIM64_INFINITY, Bytes::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_set_is_read_back_and_the_one_before_is_told() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::new(child.id());
        let Limited::Done(before) = data_limit(pid).unwrap() else {
            panic!("our own child")
        };
        let less = DataLimit {
            soft: Some(Bytes::new(12_345_678)),
            ..before
        };
        assert_eq!(set_data_limit(pid, less).unwrap(), Limited::Done(before));
        assert_eq!(data_limit(pid).unwrap(), Limited::Done(less));
        assert_eq!(set_data_limit(pid, before).unwrap(), Limited::Done(less));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(data_limit(pid).unwrap(), Limited::Gone);
    }
}
