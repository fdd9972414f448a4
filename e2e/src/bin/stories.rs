// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `stories [--guest] [--whole] [--unit] [--share FROM..TO/OF] [--beside-host] [--shared] [NAME…]`: tells the stories
//! whose names contain one of these, or all, on the running kernel. Needs root; acts on uids 60000–60999 and on programs
//! it started.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bursar_e2e::{Binaries, Place, Share, run, stories, sweep, tell_whole};
use clap::Parser;

#[derive(Debug, Parser)]
struct Arguments {
    /// We are in a guest: stories that change the machine as a whole may be told
    #[arg(long)]
    guest: bool,
    /// At the whole length that the issues ask for: longer than an everyday run
    #[arg(long)]
    whole: bool,
    /// Every bursard has only the capabilities that dist/bursard.service leaves it
    #[arg(long)]
    unit: bool,
    /// One of several that tell the stories together: 1..3/8 is the second and third of every
    /// eight; what matters on every kernel each tells
    #[arg(long)]
    share: Option<Share>,
    /// Without those that the host tells on its own kernel, but for what matters on every kernel
    #[arg(long)]
    beside_host: bool,
    /// Only of those that are shared out: an older and a newer kernel tell what matters on every one
    #[arg(long)]
    shared: bool,
    /// Parts of names
    names: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !rustix::process::geteuid().is_root() {
        eprintln!("stories: need root");
        return ExitCode::from(2);
    }
    let binaries = match Binaries::beside_us() {
        Ok(binaries) => binaries,
        Err(error) => {
            eprintln!("stories: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let binaries = if arguments.unit {
        binaries.under_unit()
    } else {
        binaries
    };
    if arguments.whole {
        tell_whole();
    }
    // Two at once would set limits for the same users.
    let _stage = match stage() {
        Ok(stage) => stage,
        Err(error) => {
            eprintln!("stories: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut all = stories::all();
    let is_unknown = |part: &&String| !all.iter().any(|it| it.name.contains(part.as_str()));
    if let Some(part) = arguments.names.iter().find(is_unknown) {
        eprintln!("stories: no story's name contains {part:?}");
        return ExitCode::from(2);
    }
    if arguments.beside_host {
        all.retain(|it| it.place != Place::Anywhere || stories::is_for_everywhere(it.name));
    }
    if arguments.shared {
        all.retain(|it| !stories::is_for_everywhere(it.name));
    }
    let is_well = run(
        &all,
        &binaries,
        arguments.guest,
        &arguments.names,
        arguments.share.as_ref(),
        stories::is_for_everywhere,
    );
    if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The uids, while the result lives; waits for whoever has them.
fn stage() -> Result<File> {
    use rustix::fs::{FlockOperation, flock};
    let path = Path::new("/run/bursar-stories.lock");
    let file = File::create(path).with_context(|| format!("open {path:?}"))?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("lock {path:?}"))?;
    sweep();
    Ok(file)
}
