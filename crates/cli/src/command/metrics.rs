// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar metrics`.

mod http;

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bursar_model::DaemonStatus;
use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::{Caller, Form};
use crate::failure::Failure;
use crate::output;
use crate::view;

/// The file is for a collector that is not root.
const READABLE: u32 = 0o644;

/// Show the status as metrics, for Prometheus and compatible collectors
///
/// bursard listens nowhere for this and does nothing while nobody asks: let a timer write a file for
/// node_exporter's textfile collector (bursar metrics --textfile /var/lib/prometheus/node-exporter/bursar.prom).
/// An ordinary user gets his own account. Or let a socket unit of systemd start it for each request (--http).
#[derive(Debug, Args)]
pub(crate) struct Metrics {
    /// Write them to this file, replaced as a whole, instead of to stdout
    #[arg(long, value_name = "PATH", conflicts_with = "json")]
    textfile: Option<PathBuf>,
    /// Answer one request of HTTP, on standard input, with them: for a socket unit with Accept=yes
    #[arg(long, conflicts_with_all = ["textfile", "json"])]
    http: bool,
    /// Only the accounts that hold most, so many of them, and what is left out
    #[arg(long, value_name = "N", conflicts_with = "json")]
    accounts: Option<usize>,
    /// What each of them means, without asking anybody
    #[arg(long, conflicts_with_all = ["textfile", "http", "accounts"])]
    list: bool,
}

impl Metrics {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        if self.list {
            return caller.answer(&view::metrics::listed(), |it| view::metrics::list(it));
        }
        if self.http {
            return self.answer(caller);
        }
        let status = ask(caller)?;
        match (&self.textfile, caller.form) {
            (Some(path), _) => replace(path, &self.exposition(caller, *status)?),
            (None, Form::People) => output::say(&self.exposition(caller, *status)?),
            // The same facts in the form that programs of ours read.
            (None, Form::Json) => caller.answer(&*status, |_| String::new()),
        }
    }

    fn exposition(&self, caller: &Caller, mut status: DaemonStatus) -> Result<String, Failure> {
        let left_out = self
            .accounts
            .map(|most| view::metrics::leave_largest(&mut status, most));
        view::metrics::exposition(&status, caller.role, left_out.as_ref())
            .map_err(|error| Failure::failed(format!("cannot write the metrics: {error}")))
    }

    /// To whoever is at the other end of standard input; the socket is standard output as well.
    fn answer(&self, caller: &Caller) -> Result<(), Failure> {
        let failed = |error| Failure::failed(format!("cannot answer the request: {error}"));
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let mut socket = File::from(socket.map_err(failed)?);
        let asked = http::read_request(&mut socket).map_err(failed)?;
        let metrics = match asked {
            http::Status::Ok => ask(caller).and_then(|status| self.exposition(caller, *status)),
            _ => Ok("the metrics are at /metrics\n".to_owned()),
        };
        let (status, text) = match &metrics {
            Ok(text) => (asked, text.as_str()),
            Err(_) => (
                http::Status::ServiceUnavailable,
                "bursard does not answer\n",
            ),
        };
        http::write_answer(&mut socket, status, text).map_err(failed)?;
        metrics.map(drop)
    }
}

fn ask(caller: &Caller) -> Result<Box<DaemonStatus>, Failure> {
    match caller.ask(Operation::Status { who: None })? {
        Reply::Status(status) => Ok(status),
        _ => Err(Failure::off_topic()),
    }
}

/// A reader sees the old file or the new one, never half of one.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let written = tempfile::Builder::new()
        .prefix(".bursar-metrics-")
        .permissions(Permissions::from_mode(READABLE))
        .tempfile_in(directory)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // The umask has made it narrower.
            file.as_file()
                .set_permissions(Permissions::from_mode(READABLE))?;
            file.persist(path).map_err(|error| error.error)
        });
    written.map(drop).map_err(|error| {
        Failure::failed(format!(
            "cannot write the metrics to {path:?}: {error}; does the directory exist, and may you write \
             there?"
        ))
    })
}
