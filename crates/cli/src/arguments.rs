// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be typed. Parser, help, man pages and completions all come from here and from the
//! `Args` of each command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Parser};

use crate::command::Command;
use crate::failure::Failure;
use crate::output;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 not permitted, 4 daemon not reachable.";

/// Memory quotas for the users of a shared machine
///
/// An administrator gives a user a limit. The user is warned when she comes near it, and her programs are
/// refused more memory before anything dies. If she still goes over, her largest process is killed.
/// Nobody else on the machine notices.
#[derive(Debug, Parser)]
#[command(
    name = "bursar",
    version,
    max_term_width = 100,
    after_help = EXIT_CODES,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// The control socket of the daemon to ask
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "BURSAR_SOCKET",
        hide_env_values = true,
        default_value = "/run/bursar/bursar.sock",
        // Programs that are started with it may be in another directory when they ask.
        value_parser = PathBufValueParser::new().try_map(std::path::absolute)
    )]
    pub(crate) socket: PathBuf,
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Arguments {
    /// What was typed, if it is a command; `--help` and `--version` are answered here.
    pub(crate) fn typed() -> Result<Self, Failure> {
        let mut words: Vec<OsString> = std::env::args_os().collect();
        // `bursar help limit` is `bursar limit --help`.
        if words.get(1).is_some_and(|it| it == "help") {
            words.remove(1);
            words.push("--help".into());
        }
        Self::try_parse_from(&words).map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => output::say_help(&error),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                Failure::usage(format!(
                    "which command?\n\n{}",
                    error.render().to_string().trim_end()
                ))
            }
            _ => {
                let text = error.render().to_string();
                let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
                match meant(&words) {
                    Some(meant) => Failure::usage(format!("{text}\n\nDid you mean: {meant}")),
                    None => Failure::usage(text),
                }
            }
        })
    }
}

/// Commands on limits.
const ON_LIMITS: [&str; 5] = ["set", "show", "clear", "apply", "log"];

/// The command that somebody meant who left out `limit`, or what to do with it, or who asks `quota` about others.
fn meant(words: &[OsString]) -> Option<String> {
    let word = |index: usize| words.get(index).and_then(|it| it.to_str());
    let rest = |from: usize| {
        let rest: Vec<&str> = words
            .iter()
            .skip(from)
            .filter_map(|it| it.to_str())
            .collect();
        rest.join(" ")
    };
    match (word(1)?, word(2)) {
        // Root's question: quota is everybody's own.
        ("quota", Some(second)) if !second.starts_with('-') => {
            Some(format!("bursar status {}", rest(2)))
        }
        (first, _) if ON_LIMITS.contains(&first) => Some(format!("bursar limit {}", rest(1))),
        ("limit", Some(second)) if !ON_LIMITS.contains(&second) && !second.starts_with('-') => {
            match word(3) {
                Some(_) => Some(format!("bursar limit set {}", rest(2))),
                None => Some(format!("bursar limit show {second}")),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_the_same_one_from_any_directory() {
        let socket = |typed: &str| {
            let words = ["bursar", "--socket", typed, "status"];
            Arguments::try_parse_from(words).unwrap().globals.socket
        };
        assert_eq!(socket("/run/a.sock"), PathBuf::from("/run/a.sock"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(socket("run/../a.sock"), here.join("run/../a.sock"));
    }

    #[test]
    fn a_heap_that_malloc_would_not_keep_is_not_asked_for() {
        let parsed = |lock: &[&str], options: &[&str]| {
            let words = [&["bursar"], lock, options, &["--", "true"]].concat();
            Arguments::try_parse_from(words).map_err(|error| error.kind())
        };
        let conflict = Some(ErrorKind::ArgumentConflict);
        for lock in [&["run", "--lock"][..], &["faults", "lock"]] {
            let refused = parsed(lock, &["--heap", "64M", "--keep-malloc"]);
            assert_eq!(refused.err(), conflict, "{lock:?}");
            assert!(parsed(lock, &["--keep-malloc"]).is_ok(), "{lock:?}");
        }
    }

    #[test]
    fn who_leaves_out_a_word_is_told_it() {
        let meant = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            super::meant(&words)
        };
        for (typed, right) in [
            ("bursar set alice 1G", "bursar limit set alice 1G"),
            ("bursar limit alice 1G", "bursar limit set alice 1G"),
            ("bursar limit alice", "bursar limit show alice"),
            ("bursar quota alice", "bursar status alice"),
        ] {
            assert_eq!(meant(typed).as_deref(), Some(right), "{typed}");
        }
        for typed in [
            "bursar",
            "bursar limit",
            "bursar limit set",
            "bursar limit --bad x",
        ] {
            assert_eq!(meant(typed), None, "{typed}");
        }
    }
}
