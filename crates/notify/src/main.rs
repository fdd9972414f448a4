// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-notify`: follows bursard's events and tells people by mail, webhook and programs. bursard itself runs no
//! program and opens no connection to the network.
//!
//! - [`stream`] reads events on from where they were read before; [`engine`] puts them into the [`queue`] and has done
//!   what is due; [`message`] what they say to each other
//! - [`config`] what is told to whom and how; [`delivery`] what one rule tells one recipient
//! - [`telling`] what all ways have in common; [`mail`], [`webhook`], [`exec`]; [`child`] programs that are run, [`address`] addresses of mail
//! - [`text`] words for people; [`report`] and [`metrics`] what was counted

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod address;
mod arguments;
mod child;
mod config;
mod delivery;
mod engine;
mod exec;
mod mail;
mod message;
mod metrics;
mod queue;
mod report;
mod stream;
mod telling;
mod text;
mod webhook;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{channel, sync_channel};

use anyhow::{Context, Result};
use bursar_config::{ConfigError, Finding};
use clap::Parser;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::Arguments;
use crate::config::{Config, Rule, Via};
use crate::engine::{Engine, READ_AHEAD};
use crate::exec::Exec;
use crate::mail::Mail;
use crate::queue::Queue;
use crate::stream::Stream;
use crate::telling::Tell;
use crate::text::Setting;
use crate::webhook::Webhook;

/// The configuration is wrong.
const WRONG: u8 = 2;
/// It could not be read, which may be different the next time.
const UNREAD: u8 = 1;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.status || arguments.metrics {
        return ended(look(&arguments));
    }
    let config = match load(&arguments) {
        Ok(config) => config,
        Err((code, said)) => {
            said.iter()
                .for_each(|line| eprintln!("bursar-notify: {line}"));
            return ExitCode::from(code);
        }
    };
    if arguments.check {
        let rules = config.rules.len();
        let noun = if rules == 1 { "rule" } else { "rules" };
        println!("{}: {rules} {noun}", arguments.config.display());
        return ExitCode::SUCCESS;
    }
    ended(run(&arguments, &config))
}

fn ended(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bursar-notify: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What was counted, whoever is at work.
fn look(arguments: &Arguments) -> Result<()> {
    let state = config::state_of(&arguments.config)?;
    if arguments.status {
        let state = state.unwrap_or_else(|| config::Config::default().state);
        println!("{}", report::report(&state)?);
        return Ok(());
    }
    // Who has not set it up, or does not want it any more, has nothing to say of it.
    let Some(state) = state else {
        return arguments.textfile.as_deref().map_or(Ok(()), remove);
    };
    let (state, is_running) = report::look(&state)?;
    let text = metrics::exposition(&state, is_running, Timestamp::now().as_second())?;
    match &arguments.textfile {
        Some(path) => bursar_host::replace_file(path, &text, 0o644)
            .with_context(|| format!("write {path:?}; see to the directory's permissions")),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

/// What an old textfile says would be told for ever: that bursar-notify does not run.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error)
            .with_context(|| format!("remove {path:?}; see to the directory's permissions")),
        _ => Ok(()),
    }
}

/// All that is wrong, if anything is, and the exit code.
fn load(arguments: &Arguments) -> Result<Config, (u8, Vec<String>)> {
    let lines = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect();
    let config = config::load(&arguments.config).map_err(|error| match &error {
        ConfigError::Invalid(findings) => (WRONG, lines(findings)),
        other if other.is_lasting() => (WRONG, vec![other.to_string()]),
        other => (UNREAD, vec![other.to_string()]),
    })?;
    match text::check(&arguments.config, &config.rules).as_slice() {
        [] => Ok(config),
        findings => Err((WRONG, lines(findings))),
    }
}

fn run(arguments: &Arguments, config: &Config) -> Result<()> {
    log();
    let setting = Setting {
        host: host(),
        hint: config.hint.clone(),
        zone: TimeZone::system(),
    };
    bursar_host::make_directory(&config.state, 0o700)
        .with_context(|| format!("make {:?}", config.state))?;
    let queue = Queue::open(&config.state, config.queue_bytes)?;
    let cursor = queue.state().cursor.clone();
    let (told, waiting) = sync_channel(READ_AHEAD);
    let (wake, inbox) = channel();
    let rules = config.rules.iter().map(|rule| {
        let way = way(arguments, config, rule, &setting)?;
        Ok((rule.clone(), way))
    });
    let rules = rules.collect::<Result<Vec<_>, Finding>>();
    let rules = rules.map_err(|finding| anyhow::anyhow!("{finding}"))?;
    let mut engine = Engine::new(rules, queue, waiting, inbox, &wake)?;
    let stream = Stream::new(&config.socket, cursor.as_ref(), told, wake.clone());
    engine::spawn("stream", move || stream.run())?;
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("catch signals")?;
    engine::spawn("signals", move || {
        if signals.forever().next().is_some() {
            engine::end(&wake);
        }
    })?;
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    engine.run();
    Ok(())
}

fn way(
    arguments: &Arguments,
    config: &Config,
    rule: &Rule,
    setting: &Setting,
) -> Result<Box<dyn Tell>, Finding> {
    Ok(match &rule.via {
        Via::Mail(mail) => {
            let path = &arguments.config;
            Box::new(Mail::new(path, &config.mail, rule, mail, setting)?)
        }
        Via::Webhook(webhook) => Box::new(Webhook::new(webhook, setting)),
        Via::Exec(exec) => Box::new(Exec::new(exec, &setting.host)),
    })
}

/// This machine's name, of characters that any header may have.
fn host() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    let plain = name
        .chars()
        .filter(|it| it.is_ascii_alphanumeric() || ".-".contains(*it));
    let plain: String = plain.collect();
    let plain = plain.trim_matches(['.', '-']);
    match plain {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// To stderr; the journal has a clock of its own.
fn log() {
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.without_time().init(),
        None => log.init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_configuration_an_old_textfile_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bursar-notify.prom");
        std::fs::write(&path, "bursar_notify_running 0\n").unwrap();
        let config = folder.path().join("notify.toml");
        let line = ["bursar-notify", "--config"].map(std::ffi::OsStr::new);
        let line = line.into_iter().chain([config.as_os_str()]);
        let rest = ["--metrics", "--textfile"].map(std::ffi::OsStr::new);
        let line: Vec<_> = line.chain(rest).chain([path.as_os_str()]).collect();
        let arguments = Arguments::parse_from(line);
        for _ in 0..2 {
            look(&arguments).unwrap();
            assert!(!path.exists());
        }
    }
}
