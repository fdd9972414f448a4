// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenario files: the protocol of an administrator, who writes down what was typed where and what had
//! to come of it. Pure.

use anyhow::{Context, Result, bail, ensure};

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub title: String,
    /// When it is played: `ci` always, `long` on demand.
    pub set: String,
    /// Releases that it is for; all when there are none.
    pub suites: Vec<String>,
    pub steps: Vec<Step>,
}

/// One thing that is done, and what has to come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// As it stands in the file.
    pub line: String,
    /// root's control line, or somebody's session.
    pub session: String,
    pub action: Action,
    /// Done again and again for so many seconds until the expectations hold.
    pub within_s: u64,
    pub expected: Vec<Expectation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A command in a shell; a session begins with its first.
    Run(String),
    /// A session begins.
    LogIn,
    /// A session is closed as when a lid is shut.
    HangUp,
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
}

impl Scenario {
    pub(super) fn parse(text: &str) -> Result<Scenario> {
        let mut scenario = Scenario {
            title: String::new(),
            set: "ci".to_owned(),
            suites: Vec::new(),
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
            Some((seconds, rest)) => (seconds.parse().context("how many seconds?")?, rest),
            None => (0, line),
        };
        if let Some((session, action)) = Action::parse(rest)? {
            self.steps.push(Step {
                line: line.to_owned(),
                session: session.to_owned(),
                action,
                within_s,
                expected: Vec::new(),
            });
            return Ok(());
        }
        match rest.split_once(": ") {
            Some(("Title", title)) => self.title = title.to_owned(),
            Some(("Set", set @ ("ci" | "long"))) => self.set = set.to_owned(),
            Some(("Suites", suites)) => {
                self.suites = suites.split_whitespace().map(str::to_owned).collect()
            }
            _ => bail!(
                "neither a step nor what a step has to print, which is indented by four spaces"
            ),
        }
        Ok(())
    }
}

impl Action {
    /// In which session, and what; `None` where the line is no step.
    fn parse(line: &str) -> Result<Option<(&str, Action)>> {
        match line {
            "reboot" => return Ok(Some(("root", Action::Reboot))),
            "power cut" => return Ok(Some(("root", Action::PowerCut))),
            _ => {}
        }
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let session = first.trim_end_matches(['$', '#']);
        let is_user = |(user, at): (&str, &str)| !user.is_empty() && !at.is_empty();
        if session != "root" && !session.split_once('@').is_some_and(is_user) {
            return Ok(None);
        }
        let action = match rest {
            "" => bail!("which command?"),
            _ if session != first => Action::Run(rest.to_owned()),
            "logs in" => Action::LogIn,
            "hangs up" => Action::HangUp,
            _ => bail!("a session runs a command (`alice@ssh$ id`), logs in or hangs up"),
        };
        Ok(Some((session, action)))
    }
}

impl Expectation {
    fn parse(text: &str) -> Expectation {
        let inside = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Some(Ok(status)) = inside.map(str::parse) {
            return Expectation::Status(status);
        }
        match text.strip_prefix("! ") {
            Some(absent) => Expectation::NoLine(absent.to_owned()),
            None => Expectation::Line(text.to_owned()),
        }
    }
}

impl Step {
    /// What is not as it has to be.
    pub(super) fn objection(&self, output: &str, status: Option<u8>) -> Option<String> {
        let mut lines = output.lines();
        let mut expected_status = 0;
        for expectation in &self.expected {
            match expectation {
                Expectation::Line(pattern) => {
                    if !lines.any(|line| has(line, pattern)) {
                        return Some(format!("no line (any more) with {pattern:?}"));
                    }
                }
                Expectation::NoLine(pattern) => {
                    if let Some(line) = output.lines().find(|line| has(line, pattern)) {
                        return Some(format!("{line:?} should not be there"));
                    }
                }
                Expectation::Status(status) => expected_status = *status,
            }
        }
        match (&self.action, status) {
            (Action::Run(_), None) => Some("the connection closed".to_owned()),
            (Action::Run(_), Some(status)) if status != expected_status => {
                Some(format!("status {status}, not {expected_status}"))
            }
            _ => None,
        }
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
alice@ssh hangs up
reboot
";

    #[test]
    fn a_protocol_is_read_step_by_step() {
        let scenario = Scenario::parse(TEXT).unwrap();
        assert_eq!(scenario.title, "alice is told");
        assert_eq!(scenario.set, "ci");
        assert_eq!(scenario.suites, ["trixie"]);
        let steps = scenario.steps;
        let command = "bursar limit set alice 64M".to_owned();
        assert_eq!(steps[0].action, Action::Run(command));
        assert_eq!(
            steps[1].expected[1..],
            [
                Expectation::NoLine("Traceback (never".to_owned()),
                Expectation::Status(1)
            ]
        );
        assert_eq!(steps[2].within_s, 20);
        assert_eq!(
            (steps[3].session.as_str(), &steps[3].action),
            ("alice@ssh", &Action::HangUp)
        );
        assert_eq!(steps[4].action, Action::Reboot);
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
