// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays a scenario in a machine and writes down what was seen.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::machine::{Machine, PATIENCE};
use super::scenario::{Action, Scenario, Step};
use super::terminal::{Answer, Terminal};

/// Plays all steps; an error says which one went wrong and how. What was seen is in `protocol`.
pub(super) fn play(scenario: &Scenario, machine: &mut Machine, protocol: &Path) -> Result<()> {
    let mut log = File::create(protocol).with_context(|| format!("create {protocol:?}"))?;
    let mut sessions = BTreeMap::new();
    let started = Instant::now();
    for step in &scenario.steps {
        writeln!(
            log,
            "[{:6.1}] {}",
            started.elapsed().as_secs_f64(),
            step.line
        )
        .context("write the protocol")?;
        let mut seen = String::new();
        let played = play_step(step, machine, &mut sessions, &mut seen);
        for line in seen.lines() {
            writeln!(log, "    {line}").context("write the protocol")?;
        }
        if let Err(error) = played {
            writeln!(log, "WRONG: {error:#}").context("write the protocol")?;
            let shown: Vec<&str> = seen.lines().collect();
            let last = shown[shown.len().saturating_sub(15)..].join("\n        ");
            return Err(error.context(format!("{}\n        {last}\n    ", step.line)));
        }
    }
    let complaints = machine.complaints();
    ensure!(
        complaints.is_empty(),
        "the kernel complained: {}",
        complaints.join("; ")
    );
    Ok(())
}

fn play_step(
    step: &Step,
    machine: &mut Machine,
    sessions: &mut BTreeMap<String, Terminal>,
    seen: &mut String,
) -> Result<()> {
    let again_until = Instant::now() + Duration::from_secs(step.within_s.unwrap_or(0));
    let patience = PATIENCE.max(Duration::from_secs(step.within_s.unwrap_or(0)));
    loop {
        let Answer { text, status } = act(step, machine, sessions, Instant::now() + patience)?;
        let objection = step.objection(&text, status);
        *seen = text;
        let Some(objection) = objection else {
            return Ok(());
        };
        // What a session shows by itself may need a moment longer.
        let is_look = matches!(step.action, Action::See { .. });
        let moment = if is_look {
            Duration::from_secs(10)
        } else {
            Duration::ZERO
        };
        if Instant::now() >= again_until.max(again_until + moment) {
            bail!(objection);
        }
        thread::sleep(Duration::from_millis(500));
    }
}

fn act(
    step: &Step,
    machine: &mut Machine,
    sessions: &mut BTreeMap<String, Terminal>,
    deadline: Instant,
) -> Result<Answer> {
    let nothing = || Answer {
        text: String::new(),
        status: Some(0),
    };
    match &step.action {
        Action::Reboot | Action::PowerCut => {
            sessions.clear();
            machine.reboot(step.action == Action::Reboot)?;
            Ok(nothing())
        }
        Action::Run { session, command } => {
            if !sessions.contains_key(session) {
                log_in(session, machine, sessions, deadline)?;
            }
            let answer = terminal(session, machine, sessions)?.run(command, deadline)?;
            if answer.status.is_none() {
                sessions.remove(session);
            }
            Ok(answer)
        }
        Action::LogIn { session } => {
            ensure!(
                !sessions.contains_key(session),
                "{session} is logged in already"
            );
            log_in(session, machine, sessions, deadline)
        }
        Action::See { session } => {
            let text = terminal(session, machine, sessions)?.unread();
            Ok(Answer {
                text,
                status: Some(0),
            })
        }
        Action::Type { session, keys } => {
            let mut typed = String::new();
            let mut chars = keys.chars();
            while let Some(c) = chars.next() {
                match (c, chars.clone().next()) {
                    ('^', Some(letter @ 'A'..='Z')) => {
                        typed.push(char::from(letter as u8 - b'@'));
                        chars.next();
                    }
                    _ => typed.push(c),
                }
            }
            if !keys.contains('^') {
                typed.push('\n');
            }
            terminal(session, machine, sessions)?.type_keys(&typed)?;
            Ok(nothing())
        }
        Action::HangUp { session } if session.ends_with("@console") => {
            machine.console.type_keys("\u{4}")?;
            machine.console.wait_for("login: ", deadline)?;
            Ok(nothing())
        }
        Action::HangUp { session } => {
            ensure!(
                sessions.remove(session).is_some(),
                "{session} is not logged in"
            );
            Ok(nothing())
        }
    }
}

fn terminal<'a>(
    session: &str,
    machine: &'a mut Machine,
    sessions: &'a mut BTreeMap<String, Terminal>,
) -> Result<&'a mut Terminal> {
    match session.split_once('@') {
        None => Ok(&mut machine.root),
        Some((_, "console")) => Ok(&mut machine.console),
        Some(_) => sessions
            .get_mut(session)
            .with_context(|| format!("{session} is not logged in")),
    }
}

/// A session begins: by key over ssh, or by password on the console.
fn log_in(
    session: &str,
    machine: &mut Machine,
    sessions: &mut BTreeMap<String, Terminal>,
    deadline: Instant,
) -> Result<Answer> {
    let answer = match session.split_once('@') {
        // root's control line is always there.
        None => {
            return Ok(Answer {
                text: String::new(),
                status: Some(0),
            });
        }
        Some((user, "console")) => {
            let console = &mut machine.console;
            console.send("")?;
            console.wait_for("login: ", deadline)?;
            console.send(user)?;
            console.wait_for("Password: ", deadline)?;
            console.send(user)?;
            console.wait_for_prompt(deadline)?
        }
        Some((user, _)) => {
            let mut ssh = machine.ssh(user, session)?;
            let answer = ssh.wait_for_prompt(deadline)?;
            ensure!(
                answer.status.is_some(),
                "ssh closed the connection: {}",
                answer.text
            );
            sessions.insert(session.to_owned(), ssh);
            answer
        }
    };
    Ok(answer)
}
