// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command that is started, held before its exec until somebody watches it, and then let go.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use bursar_model::Pid;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::usage::Faults;
use crate::{Error, program};

/// What becomes of the command's stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// It is ours.
    Shared,
    /// We read it.
    Piped,
    /// It goes to our stderr: stdout is for our answer.
    Errors,
}

/// A child that has not begun, or that runs.
#[derive(Debug)]
pub struct Held {
    pid: Pid,
    raw: libc::pid_t,
    pidfd: OwnedFd,
    go: Option<std::fs::File>,
    failure: std::fs::File,
    output: Option<OwnedFd>,
    ended: Option<(ExitStatus, Faults)>,
}

fn c_string(text: &OsStr) -> Result<CString, Error> {
    CString::new(text.as_bytes())
        .map_err(|error| Error::io(format!("start {text:?}"))(error.into()))
}

impl Held {
    /// Starts `command` with `variables` set, and holds it.
    ///
    /// # Errors
    /// When there is no such program or no more processes.
    pub fn start(
        command: &[OsString],
        variables: &[(OsString, OsString)],
        output: Output,
    ) -> Result<Self, Error> {
        let name = command
            .first()
            .ok_or_else(|| Error::io("start a command")(io::ErrorKind::InvalidInput.into()))?;
        let starting = || format!("start {name:?}");
        let path = program::find(name)
            .ok_or_else(|| Error::io(starting())(io::ErrorKind::NotFound.into()))?;
        let path = c_string(path.as_os_str())?;
        let arguments: Vec<CString> = command
            .iter()
            .map(|word| c_string(word))
            .collect::<Result<_, _>>()?;
        let mut environment: Vec<(OsString, OsString)> = std::env::vars_os()
            .filter(|(key, _)| variables.iter().all(|(other, _)| other != key))
            .collect();
        environment.extend_from_slice(variables);
        let environment: Vec<CString> = environment
            .iter()
            .map(|(key, value)| {
                let mut text = key.clone();
                text.push("=");
                text.push(value);
                c_string(&text)
            })
            .collect::<Result<_, _>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings
                .iter()
                .map(|text| text.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let (argv, envp) = (pointers(&arguments), pointers(&environment));

        let pipe = || {
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Error::io("make a pipe")(errno.into()))
        };
        let (wait, go) = pipe()?;
        let (failure, fail) = pipe()?;
        let piped = match output {
            Output::Piped => Some(pipe()?),
            Output::Shared | Output::Errors => None,
        };
        let stdout = match output {
            Output::Shared => None,
            Output::Piped => piped.as_ref().map(|(_, write)| write.as_raw_fd()),
            Output::Errors => Some(2),
        };
        // Everything the child needs is ready: it may only make system calls.
        // SAFETY: the child calls async-signal-safe functions only, on live pointers.
        let raw = unsafe { libc::fork() };
        if raw == 0 {
            // SAFETY: as above; `argv` and `envp` end with NULL.
            unsafe {
                libc::close(go.as_raw_fd());
                let mut byte = 0u8;
                if libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                    libc::_exit(0);
                }
                if let Some(stdout) = stdout {
                    libc::dup2(stdout, 1);
                }
                // Rust ignores it; programs expect it.
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
                let errno = (*libc::__errno_location()).to_ne_bytes();
                libc::write(fail.as_raw_fd(), errno.as_ptr().cast(), errno.len());
                libc::_exit(127)
            }
        }
        if raw < 0 {
            return Err(Error::last_os(starting()));
        }
        let pid = rustix::process::Pid::from_raw(raw)
            .ok_or_else(|| Error::io(starting())(io::ErrorKind::Other.into()))?;
        // Our child and not waited for: the number is its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| Error::io("open a pidfd")(errno.into()))?;
        Ok(Self {
            pid: Pid::new(raw.unsigned_abs()),
            raw,
            pidfd,
            go: Some(go.into()),
            failure: failure.into(),
            output: piped.map(|(read, _)| read),
            ended: None,
        })
    }

    /// Its number.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// A hold on it.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// What it says, if that is ours to read.
    pub fn take_output(&mut self) -> Option<OwnedFd> {
        self.output.take()
    }

    /// Lets it go.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub fn go(&mut self) -> Result<(), Error> {
        if let Some(mut go) = self.go.take() {
            go.write_all(b"g")
                .map_err(Error::io("let the command go"))?;
        }
        let mut errno = [0; 4];
        match self.failure.read(&mut errno) {
            Ok(4) => {
                let source = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
                Err(Error::io("start the command")(source))
            }
            // Closed by the exec.
            _ => Ok(()),
        }
    }

    /// How it ended, with all its faults and those of its children that it waited for; `None` while it
    /// runs.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<(ExitStatus, Faults)>, Error> {
        if self.ended.is_none() {
            let mut status = 0;
            // SAFETY: plain data that the call fills.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: our own child, not waited for yet; pointers to live locals.
            match unsafe { libc::wait4(self.raw, &mut status, libc::WNOHANG, &mut usage) } {
                0 => {}
                -1 => return Err(Error::last_os("wait for the command")),
                _ => self.ended = Some((ExitStatus::from_raw(status), Faults::of(&usage))),
            }
        }
        Ok(self.ended)
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        if self.ended.is_none() {
            // SAFETY: our own child, not waited for: the number is its own.
            unsafe { libc::kill(self.raw, libc::SIGTERM) };
        }
    }
}

impl Drop for Held {
    /// One that was never let go ends by itself (its pipe closes); one that runs is killed.
    fn drop(&mut self) {
        let held = self.go.take().is_some();
        if self.ended.is_none() {
            // SAFETY: our own child, not waited for.
            unsafe {
                if !held {
                    libc::kill(self.raw, libc::SIGKILL);
                }
                libc::waitpid(self.raw, std::ptr::null_mut(), 0);
            }
        }
    }
}
