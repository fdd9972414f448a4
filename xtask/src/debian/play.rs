// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays a scenario in a machine and writes down what was seen.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::machine::{Machine, TIMEOUT};
use super::scenario::{Action, Scenario, Step};
use super::terminal::{Answer, Terminal};

/// Who is logged in.
type Sessions = BTreeMap<String, Terminal>;

/// Plays all steps; an error says which one went wrong and how. What was seen is in `protocol`.
pub(super) fn play(scenario: &Scenario, machine: &mut Machine, protocol: &Path) -> Result<()> {
    let mut log = File::create(protocol).with_context(|| format!("create {protocol:?}"))?;
    let mut sessions = Sessions::new();
    let started = Instant::now();
    for step in &scenario.steps {
        let seconds = started.elapsed().as_secs_f64();
        let mut seen = String::new();
        let played = play_step(step, machine, &mut sessions, &mut seen);
        let lines: Vec<&str> = seen.lines().collect();
        let mut shown = format!("[{seconds:6.1}] {}\n", step.line);
        for line in &lines {
            shown.push_str(&format!("    {line}\n"));
        }
        if let Err(error) = &played {
            shown.push_str(&format!("WRONG: {error:#}\n"));
        }
        log.write_all(shown.as_bytes())
            .context("write the protocol")?;
        let last = lines[lines.len().saturating_sub(15)..].join("\n        ");
        played.with_context(|| format!("{}\n        {last}\n    ", step.line))?;
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
    sessions: &mut Sessions,
    seen: &mut String,
) -> Result<()> {
    let within = Duration::from_secs(step.within_s);
    let again_until = Instant::now() + within;
    loop {
        let deadline = Instant::now() + TIMEOUT.max(within);
        let Answer { text, status } = act(step, machine, sessions, deadline)?;
        let objection = step.objection(&text, status);
        *seen = text;
        match objection {
            None => return Ok(()),
            Some(objection) => ensure!(Instant::now() < again_until, objection),
        }
        thread::sleep(Duration::from_millis(500));
    }
}

fn act(
    step: &Step,
    machine: &mut Machine,
    sessions: &mut Sessions,
    deadline: Instant,
) -> Result<Answer> {
    let session = step.session.as_str();
    let is_open = sessions.contains_key(session);
    match &step.action {
        Action::Reboot | Action::PowerCut => {
            sessions.clear();
            machine.reboot(step.action == Action::Reboot)?;
        }
        Action::LogIn => {
            ensure!(!is_open, "{session} is logged in already");
            return log_in(session, machine, sessions, deadline);
        }
        Action::Run(command) => {
            if !is_open {
                log_in(session, machine, sessions, deadline)?;
            }
            let terminal = match session.split_once('@') {
                None => &mut machine.root,
                Some((_, "console")) => &mut machine.console,
                Some(_) => sessions.get_mut(session).context("no session")?,
            };
            let answer = terminal.run(command, deadline)?;
            if answer.status.is_none() {
                sessions.remove(session);
            }
            return Ok(answer);
        }
        Action::HangUp if session.ends_with("@console") => {
            machine.console.type_keys("\u{4}")?;
            machine.console.wait_for("login: ", deadline)?;
        }
        Action::HangUp => {
            ensure!(
                sessions.remove(session).is_some(),
                "{session} is not logged in"
            );
        }
    }
    Ok(Answer::default())
}

/// A session begins: by key over ssh, or by password on the console. root's control line is always there.
fn log_in(
    session: &str,
    machine: &mut Machine,
    sessions: &mut Sessions,
    deadline: Instant,
) -> Result<Answer> {
    match session.split_once('@') {
        None => Ok(Answer::default()),
        Some((user, "console")) => {
            let console = &mut machine.console;
            console.send("")?;
            console.wait_for("login: ", deadline)?;
            console.send(user)?;
            console.wait_for("Password: ", deadline)?;
            console.send(user)?;
            console.wait_for_prompt(deadline)
        }
        Some((user, _)) => {
            let mut ssh = machine.ssh(user, session)?;
            let answer = ssh.wait_for_prompt(deadline)?;
            let text = &answer.text;
            ensure!(answer.status.is_some(), "ssh closed the connection: {text}");
            sessions.insert(session.to_owned(), ssh);
            Ok(answer)
        }
    }
}
