// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon that says what a test wants it to say.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use assert_cmd::Command;
use bursar_protocol::{Reply, Request};
use tempfile::TempDir;

use crate::surroundings::bursar;

/// What it does with a client, after it read the request.
type Script = Box<dyn FnOnce(&mut UnixStream) + Send>;

/// A listener that serves one client, or a few, one after the other.
pub(crate) struct Daemon {
    folder: TempDir,
    served: JoinHandle<Option<Request>>,
}

impl Daemon {
    /// One that does as `script` says.
    pub(crate) fn doing(script: impl FnOnce(&mut UnixStream) + Send + 'static) -> Self {
        Self::start(true, vec![Box::new(script)])
    }

    /// One that answers `reply` and closes.
    pub(crate) fn answering(reply: &Reply) -> Self {
        let line = serde_json::to_string(reply).unwrap() + "\n";
        Self::doing(move |client| client.write_all(line.as_bytes()).unwrap())
    }

    /// One that answers each of these to a client of its own.
    pub(crate) fn answering_each(replies: &[Reply]) -> Self {
        let lines = replies.iter().map(|it| serde_json::to_string(it).unwrap());
        let scripts = lines.map(|line| -> Script {
            Box::new(move |client| client.write_all((line + "\n").as_bytes()).unwrap())
        });
        Self::start(true, scripts.collect())
    }

    /// One that closes before it is asked.
    pub(crate) fn closing() -> Self {
        Self::start(false, vec![Box::new(|_| {})])
    }

    fn start(reads: bool, scripts: Vec<Script>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("bursar.sock")).unwrap();
        let served = thread::spawn(move || {
            let mut line = String::new();
            for script in scripts {
                let (mut client, _) = listener.accept().unwrap();
                line.clear();
                if reads {
                    BufReader::new(client.try_clone().unwrap())
                        .read_line(&mut line)
                        .unwrap();
                }
                script(&mut client);
            }
            serde_json::from_str(&line).ok()
        });
        Self { folder, served }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("bursar.sock")
    }

    /// `bursar`, which is to ask this daemon.
    pub(crate) fn bursar(&self, arguments: &[&str]) -> Command {
        let mut command = bursar();
        command.env("BURSAR_SOCKET", self.socket()).args(arguments);
        command
    }

    /// What it was asked last, once it has answered.
    pub(crate) fn asked(self) -> Request {
        self.served.join().unwrap().unwrap()
    }
}
