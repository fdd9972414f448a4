// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of bursard (docs/reference/commands.md).

use std::path::PathBuf;

use bursar_config::BackendChoice;
use clap::{Parser, ValueEnum};

/// Memory quotas for the users of this machine
///
/// Runs in the foreground, logs to stderr (or the journal) and says "bursard: ready" once limits are
/// enforced. SIGTERM ends it and leaves the kernel half in charge, unless on_exit = "release"; SIGHUP
/// reads the limits, log.level and messages.hint again.
#[derive(Debug, Parser)]
#[command(name = "bursard", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The configuration [default: /etc/bursar/bursar.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What decides, whatever the configuration says
    #[arg(long, value_enum)]
    pub(crate) trigger: Option<Trigger>,
    /// Kill nobody and load nothing into the kernel: say what would be killed
    #[arg(long, alias = "dryrun")]
    pub(crate) dry_run: bool,
    /// Remove every trace of the kernel half and end
    #[arg(long, conflicts_with_all = ["dry_run", "trigger"])]
    pub(crate) release: bool,
}

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Trigger {
    /// The best that this kernel gives
    Auto,
    /// The kernel half
    Bpf,
    /// The trace pipe of kmem:rss_stat
    Trace,
    /// A scan of /proc every 200 ms
    Poll,
}

impl From<Trigger> for BackendChoice {
    fn from(trigger: Trigger) -> Self {
        match trigger {
            Trigger::Auto => Self::Auto,
            Trigger::Bpf => Self::Bpf,
            Trigger::Trace => Self::Trace,
            Trigger::Poll => Self::Poll,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_man_page_has_every_option_and_no_other() {
        let page = include_str!("../../../dist/bursard.8")
            .replace("\\fB", "")
            .replace("\\fR", " ")
            .replace("\\-", "-");
        let mut command = Arguments::command();
        command.build();
        let mut known: Vec<String> = command
            .get_arguments()
            .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
            .collect();
        let mut told: Vec<String> = page
            .split(|letter: char| !letter.is_ascii_lowercase() && letter != '-')
            .filter(|word| word.starts_with("--"))
            .map(str::to_owned)
            .collect();
        known.sort();
        told.sort();
        told.dedup();
        assert_eq!(told, known);
    }
}
