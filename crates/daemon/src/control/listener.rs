// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where clients come in. Who comes costs us something before he can be told from others, so that the
//! listener pauses for a moment when most of those who come have no business here.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{Peer, PeerOwner, Proc, Unresponsive, UserNamespaces, refuse_passed};
use bursar_model::{Gid, Pid, Uid};
use bursar_policy::Subordinates;
use bursar_watchdog::TimedQuery;

use super::bounds::CountedAs;
use super::requester::Socket;

/// The quota key shared by all clients whose user namespace is not known: by uid, one user could count as each of the
/// 65,536 uids of a container. No user has this number (setresuid(2)).
const UNKNOWN_USER: Uid = Uid::new(u32::MAX);

/// Who came: the kernel's word.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: UnixStream,
    pub(super) takes_descriptors: bool,
    pub(super) uid: Uid,
    pub(super) pid: Pid,
    /// Who answers for the user namespace that he is in, and for a subordinate uid, as in the ledger; else himself.
    pub(super) payer: Uid,
    /// Whose quota the connection counts against: who pays, for a user namespace may hold 65,536 uids; or
    /// [`UNKNOWN_USER`] where the process did not answer in time.
    pub(super) counts_as: Uid,
    pub(super) socket: Socket,
}

#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    socket: Socket,
    listener: UnixListener,
    proc: Proc,
    query: TimedQuery,
    paused_until: Option<Duration>,
    /// Whether clients can pass descriptors to us, who want none.
    takes_descriptors: bool,
}

impl Accepted {
    /// With whose others it is counted.
    pub(super) const fn counted_as(&self) -> CountedAs {
        CountedAs {
            socket: self.socket,
            uid: self.counts_as,
        }
    }
}

impl Listener {
    /// Listens at `path`, for those whom `mode` lets in; a socket that a dead daemon left there is
    /// replaced (the caller holds the lock that says it is dead).
    pub(super) fn open(path: &Path, mode: u32, socket: Socket, query: TimedQuery) -> Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove the old socket {path:?}"));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(|| format!("listen at {path:?}"))?;
        listener
            .set_nonblocking(true)
            .context("make the socket non-blocking")?;
        // Before anybody can connect: it is handed on to what is accepted.
        let takes_descriptors = !refuse_passed(&listener);
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("say who may connect to {path:?}"))?;
        Ok(Self {
            path: path.to_owned(),
            socket,
            listener,
            proc: Proc::host()?,
            query,
            paused_until: None,
            takes_descriptors,
        })
    }

    /// Who is next; `None`: nobody waits.
    pub(super) fn next(&mut self, subordinates: &Subordinates) -> io::Result<Option<Accepted>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let peer = Peer::of(&stream)?;
        stream.set_nonblocking(true)?;
        let owner = self.owner_of_peer(&peer);
        let answers = match owner {
            Ok(PeerOwner::User(owner)) => owner,
            Ok(PeerOwner::Nobody | PeerOwner::Gone) | Err(Unresponsive) => peer.uid(),
        };
        // One that is subordinate can be taken for good, by a set-uid program made in a user namespace.
        let payer = subordinates.payer_of(answers).unwrap_or(answers);
        Ok(Some(Accepted {
            stream,
            takes_descriptors: self.takes_descriptors,
            uid: peer.uid(),
            pid: peer.pid(),
            payer,
            counts_as: match owner {
                Ok(PeerOwner::User(_) | PeerOwner::Nobody) => payer,
                // Gone: a child of each of somebody's subordinate uids may have connected, and ended.
                Ok(PeerOwner::Gone) | Err(Unresponsive) => UNKNOWN_USER,
            },
            socket: self.socket,
        }))
    }

    /// Which one it is, as those are counted who come by it.
    pub(super) const fn socket(&self) -> Socket {
        self.socket
    }

    /// Lets in a group besides root, or root alone.
    pub(super) fn let_group_in(&self, group: Option<Gid>) -> Result<()> {
        let gid = group.map_or(0, Gid::get);
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        chown(&self.path, None, Some(gid))
            .and_then(|()| fs::set_permissions(&self.path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("say who may connect to {:?}", self.path))
    }

    fn owner_of_peer(&mut self, peer: &Peer) -> Result<PeerOwner, Unresponsive> {
        if peer.uid().get() == 0 {
            return Ok(PeerOwner::Nobody);
        }
        // Numbers of namespaces come again, so nothing is remembered. Nor is it asked whether root has
        // shifted him, who would answer then: root is let in beyond all bounds.
        let Ok(mut namespaces) = UserNamespaces::new(&self.proc) else {
            return Ok(PeerOwner::Nobody);
        };
        namespaces.owner_of_peer(&self.proc, peer, &mut self.query)
    }

    /// Nobody is let in before that moment.
    pub(super) fn pause(&mut self, until: Duration) {
        self.paused_until = Some(until);
    }

    /// Whether it was shut and need not be any more.
    pub(super) fn resumes(&mut self, now: Duration) -> bool {
        self.paused_until.take_if(|until| *until <= now).is_some()
    }

    /// How long until it opens; `None`: it is not shut.
    pub(super) fn timeout(&self, now: Duration) -> Option<Duration> {
        self.paused_until.map(|until| until.saturating_sub(now))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
