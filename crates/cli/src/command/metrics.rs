// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar metrics`.

use std::fs::Permissions;
use std::io::Write;
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

/// Show the status as metrics, for Prometheus and what reads its format
///
/// bursard listens nowhere for this and does nothing while nobody asks: let a timer write a file for
/// node_exporter's textfile collector (bursar metrics --textfile /var/lib/prometheus/node-exporter/bursar.prom).
/// An ordinary user gets his own account.
#[derive(Debug, Args)]
pub(crate) struct Metrics {
    /// Write them to this file, replaced as a whole, instead of to stdout
    #[arg(long, value_name = "PATH", conflicts_with = "json")]
    textfile: Option<PathBuf>,
    /// What each of them means, without asking anybody
    #[arg(long, conflicts_with_all = ["textfile", "json"])]
    list: bool,
}

impl Metrics {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        if self.list {
            return output::say(&view::metrics::list());
        }
        let Reply::Status(status) = caller.ask(Operation::Status { who: None })? else {
            return Err(Failure::off_topic());
        };
        match (self.textfile, caller.form) {
            (Some(path), _) => replace(&path, &exposition(&status)?),
            (None, Form::People) => output::say(&exposition(&status)?),
            // The same facts in the form that programs of ours read.
            (None, Form::Json) => caller.answer(&*status, |_| String::new()),
        }
    }
}

fn exposition(status: &DaemonStatus) -> Result<String, Failure> {
    let failed = |error| Failure::failed(format!("cannot write the metrics: {error}"));
    view::metrics::exposition(status).map_err(failed)
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
