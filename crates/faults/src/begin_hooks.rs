// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks at which faults begin: there, or away for a part of a flood.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::Link;
use libbpf_rs::libbpf_sys::bpf_raw_tracepoint_open;

use crate::Error;
use crate::error::{ATTACH, refused};
use crate::switches::Switches;
use crate::task_iterator;

/// Held while the hooks change and while counts are read: neither meets the other half done.
pub(crate) type Edge = Arc<Mutex<()>>;

/// The hooks at which faults begin. Dropped, they are detached.
#[derive(Debug)]
pub(crate) struct BeginHooks {
    programs: Vec<OwnedFd>,
    hooks: Vec<OwnedFd>,
    /// Books what threads have not.
    settle: Link,
    edge: Edge,
}

impl BeginHooks {
    /// Attaches `programs`. `settle` runs over all threads.
    pub(crate) fn attach(programs: Vec<OwnedFd>, settle: Link, edge: Edge) -> Result<Self, Error> {
        let mut begins = Self {
            programs,
            hooks: Vec::new(),
            settle,
            edge,
        };
        begins.hook()?;
        Ok(begins)
    }

    fn hook(&mut self) -> Result<(), Error> {
        if !self.hooks.is_empty() {
            return Ok(());
        }
        for program in &self.programs {
            // SAFETY: no name, which a program for BTF's tracepoints has itself, and a live descriptor.
            let fd =
                unsafe { bpf_raw_tracepoint_open(std::ptr::null(), program.as_fd().as_raw_fd()) };
            if fd < 0 {
                self.hooks.clear();
                return Err(refused(ATTACH)(libbpf_rs::Error::from_raw_os_error(-fd)));
            }
            // SAFETY: a file descriptor that the kernel just gave us and nobody else has.
            self.hooks.push(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Ok(())
    }

    /// Takes the hooks away, or puts them back, unless they are. In both orders a few faults are seen whose
    /// growth is booked as unseen: what is booked to their mapping is then taken from its process' others.
    ///
    /// # Errors
    /// When threads cannot be walked or hooks be attached: it can be tried again.
    pub(crate) fn set_away(&mut self, is_away: bool, switches: &mut Switches) -> Result<(), Error> {
        if is_away == switches.is_away() {
            return Ok(());
        }
        let edge = Arc::clone(&self.edge);
        let _edge = edge.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_away {
            self.hook()?;
        }
        task_iterator::run(&self.settle)?;
        switches.set_away(is_away)?;
        if is_away {
            self.hooks.clear();
        }
        Ok(())
    }
}
