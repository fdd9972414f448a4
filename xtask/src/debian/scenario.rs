// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenario files: the protocol of an administrator, who writes down what was typed where and what had
//! to come of it. Pure.

use anyhow::{Context, Result, bail, ensure};

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub title: String,
    /// When it is played: `ci` always, `long` on demand, `later` what is known to fail.
    pub set: String,
    /// Releases that it is for; all when there are none.
    pub suites: Vec<String>,
    /// Whether bursar is installed when it begins.
    pub installed: bool,
    pub steps: Vec<Step>,
}

/// One thing that is done, and what has to come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// As it stands in the file.
    pub line: String,
    pub action: Action,
    /// Done again and again for so many seconds until the expectations hold.
    pub within_s: Option<u64>,
    pub expected: Vec<Expectation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A command in a shell, of root's control line or in somebody's session, which begins with it.
    Run {
        session: String,
        command: String,
    },
    /// A session begins.
    LogIn {
        session: String,
    },
    /// What a session shows by itself.
    See {
        session: String,
    },
    /// Keys, with ^C for Ctrl-C; nobody waits for a prompt.
    Type {
        session: String,
        keys: String,
    },
    /// A session is closed as when a lid is shut.
    HangUp {
        session: String,
    },
    Reboot,
    PowerCut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    /// A line, after those before it, has this in it; `*` stands for anything.
    Line(String),
    /// No line has this in it.
    NoLine(String),
    /// The exit status, 0 when nothing is said.
    Status(u8),
    /// The connection is closed.
    Closed,
}

impl Scenario {
    pub(super) fn parse(text: &str) -> Result<Scenario> {
        let mut scenario = Scenario {
            title: String::new(),
            set: "ci".to_owned(),
            suites: Vec::new(),
            installed: true,
            steps: Vec::new(),
        };
        for (number, line) in text.lines().enumerate() {
            scenario
                .take(line)
                .with_context(|| format!("line {}: {line:?}", number + 1))?;
        }
        ensure!(!scenario.title.is_empty(), "no Title:");
        ensure!(!scenario.steps.is_empty(), "no steps");
        Ok(scenario)
    }

    fn take(&mut self, line: &str) -> Result<()> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(expected) = line.strip_prefix("    ") {
            let step = self.steps.last_mut().context("nothing was done yet")?;
            step.expected.push(Expectation::parse(expected));
            return Ok(());
        }
        let (within_s, rest) = match line
            .strip_prefix("within ")
            .and_then(|rest| rest.split_once(" s: "))
        {
            Some((seconds, rest)) => (Some(seconds.parse().context("how many seconds?")?), rest),
            None => (None, line),
        };
        if let Some(action) = Action::parse(rest)? {
            self.steps.push(Step {
                line: line.to_owned(),
                action,
                within_s,
                expected: Vec::new(),
            });
            return Ok(());
        }
        match rest.split_once(": ") {
            Some(("Title", title)) => self.title = title.to_owned(),
            Some(("Set", set @ ("ci" | "long" | "later"))) => self.set = set.to_owned(),
            Some(("Suites", suites)) => {
                self.suites = suites.split_whitespace().map(str::to_owned).collect()
            }
            Some(("Start", "with bursar")) => self.installed = true,
            Some(("Start", "without bursar")) => self.installed = false,
            _ => bail!(
                "neither a step nor what a step has to print, which is indented by four spaces"
            ),
        }
        Ok(())
    }
}

impl Action {
    fn parse(line: &str) -> Result<Option<Action>> {
        match line {
            "reboot" => return Ok(Some(Action::Reboot)),
            "power cut" => return Ok(Some(Action::PowerCut)),
            _ => {}
        }
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let prompted = first.strip_suffix('$').or(first.strip_suffix('#'));
        let session = prompted.unwrap_or(first);
        let is_session = session == "root"
            || session
                .split_once('@')
                .is_some_and(|(user, at)| !user.is_empty() && !at.is_empty());
        if !is_session {
            return Ok(None);
        }
        let session = session.to_owned();
        let (word, keys) = rest.split_once(' ').unwrap_or((rest, ""));
        Ok(Some(match (prompted, word) {
            (Some(_), "") => bail!("which command?"),
            (Some(_), _) => Action::Run {
                session,
                command: rest.to_owned(),
            },
            (None, "types") if !keys.is_empty() => Action::Type {
                session,
                keys: keys.to_owned(),
            },
            (None, _) if rest == "logs in" => Action::LogIn { session },
            (None, _) if rest == "sees" => Action::See { session },
            (None, _) if rest == "hangs up" => Action::HangUp { session },
            _ => bail!(
                "a session runs a command (`alice@ssh$ id`), logs in, sees, types KEYS or hangs up"
            ),
        }))
    }
}

impl Expectation {
    fn parse(text: &str) -> Expectation {
        let inside = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        match (inside, text.strip_prefix("! ")) {
            (Some("closed"), _) => Expectation::Closed,
            (Some(status), _) if status.parse::<u8>().is_ok() => {
                Expectation::Status(status.parse().unwrap_or(0))
            }
            (_, Some(absent)) => Expectation::NoLine(absent.to_owned()),
            _ => Expectation::Line(text.to_owned()),
        }
    }
}

impl Step {
    /// What is not as it has to be.
    pub(super) fn objection(&self, output: &str, status: Option<u8>) -> Option<String> {
        let mut lines = output.lines();
        let mut expected_status = Some(0);
        for expectation in &self.expected {
            match expectation {
                Expectation::Line(pattern) if !lines.any(|line| has(line, pattern)) => {
                    return Some(format!("no line (any more) with {pattern:?}"));
                }
                Expectation::NoLine(pattern) => {
                    if let Some(line) = output.lines().find(|line| has(line, pattern)) {
                        return Some(format!("{line:?} should not be there"));
                    }
                }
                Expectation::Line(_) => {}
                Expectation::Status(status) => expected_status = Some(*status),
                Expectation::Closed => expected_status = None,
            }
        }
        let shown = |status: Option<u8>| {
            status.map_or("the connection closed".to_owned(), |s| {
                format!("status {s}")
            })
        };
        let is_command = matches!(self.action, Action::Run { .. });
        (is_command && status != expected_status)
            .then(|| format!("{}, not {}", shown(status), shown(expected_status)))
    }
}

/// Whether a line has this in it, `*` standing for anything.
fn has(line: &str, pattern: &str) -> bool {
    let mut rest = line;
    pattern.split('*').all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# SPDX
Title: alice is told
Suites: trixie

# She has a limit.
root# bursar limit set alice 64M
    alice has a limit of 64M
alice@ssh$ python3 -c 'x = bytearray(80 << 20)'
    MemoryError
    ! Traceback (never
    [1]
within 20 s: root# bursar events alice
    refused*alice
alice@ssh types ^C
alice@ssh sees
reboot
";

    #[test]
    fn a_protocol_is_read_step_by_step() {
        let scenario = Scenario::parse(TEXT).unwrap();
        assert_eq!(
            (
                scenario.title.as_str(),
                scenario.set.as_str(),
                scenario.installed
            ),
            ("alice is told", "ci", true)
        );
        assert_eq!(scenario.suites, ["trixie"]);
        let actions: Vec<_> = scenario.steps.iter().map(|step| &step.action).collect();
        assert_eq!(
            *actions[0],
            Action::Run {
                session: "root".to_owned(),
                command: "bursar limit set alice 64M".to_owned()
            }
        );
        assert_eq!(
            scenario.steps[1].expected[1..],
            [
                Expectation::NoLine("Traceback (never".to_owned()),
                Expectation::Status(1)
            ]
        );
        assert_eq!(scenario.steps[2].within_s, Some(20));
        assert_eq!(
            *actions[3],
            Action::Type {
                session: "alice@ssh".to_owned(),
                keys: "^C".to_owned()
            }
        );
        assert_eq!(
            *actions[4],
            Action::See {
                session: "alice@ssh".to_owned()
            }
        );
        assert_eq!(*actions[5], Action::Reboot);
    }

    #[test]
    fn what_is_no_protocol_is_refused_with_its_line() {
        for (text, said) in [
            (
                "Title: x\nreboot\nalice@ssh dances\n",
                "line 3: \"alice@ssh dances\"",
            ),
            ("Title: x\n    output\n", "nothing was done yet"),
            ("Title: x\nroot#\n", "which command?"),
            ("Title: x\nSet: never\n", "line 2"),
            ("root# true\n", "no Title:"),
            ("Title: x\n", "no steps"),
        ] {
            let error = format!("{:#}", Scenario::parse(text).unwrap_err());
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn expectations_hold_in_order_and_the_status_is_0_unless_said() {
        let objects = |expected: &str, output: &str, status: Option<u8>| {
            let scenario = Scenario::parse(&format!("Title: x\nroot# x\n{expected}")).unwrap();
            scenario.steps[0].objection(output, status)
        };
        let output = "one 1\ntwo 22 2\nthree\n";
        for (expected, status, holds) in [
            ("    one\n    three\n", Some(0), true),
            ("    three\n    one\n", Some(0), false),
            ("    t*22*2\n", Some(0), true),
            ("    two*three\n", Some(0), false),
            ("    ! four\n", Some(0), true),
            ("    ! thr\n", Some(0), false),
            ("", Some(1), false),
            ("    [1]\n", Some(1), true),
            ("    [1]\n", Some(0), false),
            ("    [closed]\n", None, true),
            ("", None, false),
        ] {
            assert_eq!(
                objects(expected, output, status).is_none(),
                holds,
                "{expected:?} {status:?}"
            );
        }
    }
}
