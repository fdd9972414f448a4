// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar check`: are the files right, before bursard reads them. Asks no daemon, but with `--live`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use bursar_config::{
    BackendChoice, Config, ConfigError, Finding, LAST_GOOD, Limits, Machine, Severity,
};
use bursar_host::{ExemptCgroups, Mounts, Proc, Users, uid_min};
use bursar_model::{Bytes, SizeSpec, Uid, Who};
use bursar_protocol::{LimitsText, Operation, Preview, Reply};
use clap::Args;
use rustix::system::sysinfo;
use serde::Serialize;

use crate::caller::{Caller, Form};
use crate::failure::{Code, Failure};
use crate::output;
use crate::view::preview::preview;
use crate::view::words::count;

/// What looking up users may take in all: apt and a reload wait for this. Who was not looked up gets no remark.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Check the configuration and the limits, or one file
///
/// Without FILE: /etc/bursar/bursar.toml and the file of limits that it names, each with its drop-ins.
/// Errors are shown as file:line: key: what is wrong; what to do. --live also asks bursard what limits would
/// change for those who are there now. Exit codes: 0 right, 2 errors; 1 with --live: somebody would be killed; 1 with
/// --reloaded: the limits are not in force.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// A file of limits, or a configuration; its drop-ins (FILE.d/*.toml) are read as well
    file: Option<PathBuf>,
    /// Also show whose limit would change and how, who would be over a bound, and who would be killed. With FILE: if it
    /// were limits.toml. Without FILE, with the one in use or with a drop-in of it: at a reload
    #[arg(long)]
    live: bool,
    /// With --live, after a reload: fail where it did not put the limits in force, whatever the reason
    #[arg(long, requires = "live", conflicts_with = "file")]
    reloaded: bool,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// The files that were read.
    files: Vec<PathBuf>,
    /// How many limits they hold; absent where no file of limits was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<usize>,
    errors: Vec<Place>,
    /// Worth knowing; each is one line.
    remarks: Vec<String>,
    /// What bursard says that limits would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<Preview>,
}

/// One error.
#[derive(Debug, Serialize)]
struct Place {
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: String,
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: String,
    /// All of it, for people.
    #[serde(skip)]
    text: String,
}

impl Check {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let mut report = Report::default();
        match &self.file {
            None => {
                let config = report.configuration(None)?;
                if !report.misses_limits(&config) {
                    report.limits(&config.paths.limits)?;
                }
            }
            Some(file) if is_limits(file)? => report.limits(file)?,
            Some(file) if self.live => {
                let message = format!("{file:?} is no file of limits: --live compares limits");
                return Err(Failure::usage(message));
            }
            Some(file) => {
                let config = report.configuration(Some(file))?;
                report.misses_limits(&config);
            }
        }
        if self.live && report.errors.is_empty() {
            report.live = Some(live(self.file.as_deref(), caller)?);
        }
        match caller.form {
            Form::Json => caller.answer(&report, |_| String::new())?,
            Form::People => {
                let text = report.for_people();
                let mut lines: Vec<String> =
                    text.iter().map(|line| caller.style.shown(line)).collect();
                let live = report.live.as_ref();
                lines.extend(live.map(|it| preview(it, &caller.style).trim_end().to_owned()));
                output::say(&lines.join("\n"))?;
            }
        }
        match (report.errors.is_empty(), report.live) {
            (false, _) => Err(Failure::Answer(Code::Usage)),
            (true, Some(live)) if live.refused => Err(Failure::Answer(Code::Failed)),
            (true, Some(live)) if self.reloaded && live.not_in_force.is_some() => {
                Err(Failure::Answer(Code::Failed))
            }
            (true, _) => Ok(()),
        }
    }
}

impl Report {
    /// Reads a configuration; where it is wrong, what the defaults are, so that the rest is checked.
    fn configuration(&mut self, path: Option<&Path>) -> Result<Config, Failure> {
        let Some(loaded) = self.unless_invalid(Config::load(path))? else {
            return Ok(Config::default());
        };
        self.files.extend(loaded.files);
        self.remarks.extend(loaded.remarks);
        let sysctl = |path: &str| number(&format!("/proc/sys/{path}"));
        self.remarks.extend(counterparts(&loaded.config, sysctl));
        self.remarks.extend(pins_elsewhere(&loaded.config));
        let (_, remarks) = bursar_config::programs(&loaded.config.exempt.programs);
        self.remarks.extend(remarks);
        match ExemptCgroups::new(&loaded.config.exempt.cgroups) {
            Ok(exempt) => self.remarks.extend(exempt.resolve().remarks),
            Err(error) => self.remarks.push(format!(
                "exempt.cgroups: not known where control groups are mounted: {error}"
            )),
        }
        Ok(loaded.config)
    }

    /// Whether the file of limits that the configuration names is not there, and says so. At the usual
    /// place it comes into being with the first limit; another place was named by somebody, and where
    /// he has made a slip every limit is gone.
    fn misses_limits(&mut self, config: &Config) -> bool {
        let path = &config.paths.limits;
        let is_missing =
            fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // Whoever keeps his limits in drop-ins alone needs no other file.
        if !is_missing || !matches!(Limits::load(path), Ok(None)) {
            return false;
        }
        let is_usual = *path == Config::default().paths.limits;
        let (severity, holds, remedy) =
            match Limits::kept(&config.paths.state.join(LAST_GOOD), path) {
                Some(_) => (
                    Severity::Error,
                    "the limits hold that were last in force",
                    "put it back, or make an empty file there to clear all limits",
                ),
                None if is_usual => (
                    Severity::Remark,
                    "nobody has a limit",
                    "`bursar limit set` makes it",
                ),
                None => (
                    Severity::Error,
                    "nobody has a limit",
                    "correct paths.limits in bursar.toml, or make an empty file there",
                ),
            };
        let finding = Finding {
            severity,
            path: path.clone(),
            line: None,
            key: String::new(),
            message: format!("the file that paths.limits names does not exist: {holds}"),
            remedy: remedy.into(),
        };
        self.add(&finding);
        true
    }

    fn limits(&mut self, path: &Path) -> Result<(), Failure> {
        let Some(limits) = self.unless_invalid(Limits::load(path))?.flatten() else {
            return Ok(());
        };
        self.files.extend(limits.files().map(Path::to_owned));
        self.limits = Some(limits.len());
        let machine = Machine {
            ram: ram(),
            swap: swap(),
            threads: number("/proc/sys/kernel/threads-max"),
            files: number("/proc/sys/fs/file-max"),
        };
        let mut findings = bursar_config::check(&limits, machine.ram);
        findings.extend(bursar_config::consistency(&limits, &machine));
        findings.extend(bursar_config::overrides(&limits));
        findings.extend(bursar_config::ended(&limits));
        findings.extend(on_system_accounts(&limits));
        findings.iter().for_each(|finding| self.add(finding));
        Ok(())
    }

    fn add(&mut self, finding: &Finding) {
        match finding.severity {
            Severity::Error => self.errors.push(Place::from(finding)),
            Severity::Remark => self.remarks.push(finding.to_string()),
        }
    }

    /// What was read; `None` when what it says is wrong, which then is part of the report.
    fn unless_invalid<T>(&mut self, read: Result<T, ConfigError>) -> Result<Option<T>, Failure> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(ConfigError::Invalid(findings)) => {
                self.errors.extend(findings.iter().map(Place::from));
                Ok(None)
            }
            Err(error) => Err(unreadable(&error)),
        }
    }

    fn for_people(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.errors.iter().map(|error| error.text.clone()).collect();
        lines.extend(self.remarks.iter().map(|remark| format!("note: {remark}")));
        let limits = self.limits.map_or_else(String::new, |limits| {
            format!(", with {}", count(limits as u64, "limit", "limits"))
        });
        let files: Vec<String> = self
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        lines.push(match (self.errors.len(), files.as_slice()) {
            (0, []) => "there is no file to check: everything is default".into(),
            (0, files) => format!("{}: right{limits}", files.join(", ")),
            (errors, _) => count(errors as u64, "error", "errors"),
        });
        lines
    }
}

/// What becomes of a kernel half that could not be pinned.
fn pins_elsewhere(config: &Config) -> Option<String> {
    let pins = &config.paths.pins;
    let are_wanted = matches!(config.trigger, BackendChoice::Auto | BackendChoice::Bpf);
    // There bursard mounts it.
    if !are_wanted || pins.starts_with("/sys/fs/bpf") {
        return None;
    }
    let mounts = Proc::host().and_then(|proc| Mounts::read(&proc)).ok()?;
    (!mounts.is_bpffs(pins)).then(|| {
        format!(
            "paths.pins = {pins:?} does not lie on a BPF file system: there is no kernel half, and no limit without \
             bursard; mount one there (mount -t bpf bpf DIRECTORY) or use a directory below /sys/fs/bpf"
        )
    })
}

/// Entries of users below UID_MIN. Root's are found without asking who is there.
fn on_system_accounts(limits: &Limits) -> Vec<Finding> {
    let uid_min = uid_min(Path::new("/etc/login.defs")).uid;
    let limiting = limits.iter().filter(|it| {
        let by_memory = it.memory.is_some_and(|it| it.limit != SizeSpec::None);
        by_memory || it.rows.values().any(|it| !it.is_unlimited())
    });
    let limiting: Vec<_> = limiting.collect();
    let names = limiting.iter().filter_map(|it| match &it.who {
        Who::User(name) => Some(name.clone()),
        Who::Uid(_) | Who::Group(_) | Who::Shared(_) | Who::Default => None,
    });
    let names: Vec<String> = names.collect();
    let mut users = Users::new(names.len()).with_timeout(LOOK_UP_TIMEOUT);
    let look_up = move |name: &str| users.by_name(name).found().map(|it| it.uid);
    let uids = uids_of(names, LOOK_UP_TIMEOUT, look_up);
    let is_system = |who: &Who| {
        let uid = match who {
            Who::Uid(uid) => Some(*uid),
            Who::User(name) => uids.get(name).copied(),
            Who::Group(_) | Who::Shared(_) | Who::Default => None,
        };
        uid.is_some_and(|uid| uid.get() > 0 && uid < uid_min)
    };
    let found = limiting.iter().filter(|it| is_system(&it.who));
    let finding = found.map(|it| Finding {
        severity: Severity::Remark,
        path: it.path.to_path_buf(),
        line: Some(it.line),
        key: format!("limits.{}", it.who),
        message: format!("a limit on a user below UID_MIN ({uid_min}) can kill system services"),
        remedy: "limit ordinary users instead".into(),
    });
    finding.collect()
}

/// The numbers of users, as far as they are found in time.
fn uids_of(
    names: Vec<String>,
    timeout: Duration,
    mut look_up: impl FnMut(&str) -> Option<Uid> + Send + 'static,
) -> HashMap<String, Uid> {
    let deadline = Instant::now() + timeout;
    let (found, uids) = channel();
    let look_up_all = move || {
        for name in names {
            if Instant::now() >= deadline {
                return;
            }
            if let Some(uid) = look_up(&name)
                && found.send((name, uid)).is_err()
            {
                return;
            }
        }
    };
    // One name alone may take a directory's time-out. The thread ends with the command.
    let thread = thread::Builder::new().spawn(look_up_all);
    let left = || deadline.saturating_duration_since(Instant::now());
    let known = std::iter::from_fn(|| uids.recv_timeout(left()).ok());
    thread.map_or_else(|_| HashMap::new(), |_| known.collect())
}

/// What bursard says of a file that is right.
fn live(file: Option<&Path>, caller: &Caller) -> Result<Preview, Failure> {
    let text = |path: &Path| {
        let failed = |error: io::Error| Failure::failed(format!("cannot read {path:?}: {error}"));
        Ok::<_, Failure>(LimitsText {
            path: std::path::absolute(path)
                .map_err(failed)?
                .display()
                .to_string(),
            text: bursar_config::read_text(path)
                .map_err(|error| unreadable(&error))?
                .ok_or_else(|| Failure::usage(format!("{path:?} does not exist")))?,
        })
    };
    let file = file.map(text).transpose()?;
    match caller.ask(Operation::Preview { file })? {
        Reply::Preview(preview) => Ok(*preview),
        _ => Err(Failure::off_topic()),
    }
}

impl From<&Finding> for Place {
    fn from(finding: &Finding) -> Self {
        Self {
            file: finding.path.clone(),
            line: finding.line,
            key: finding.key.clone(),
            message: finding.message.clone(),
            remedy: finding.remedy.clone(),
            text: finding.to_string(),
        }
    }
}

/// Whether `file` holds limits rather than a configuration: by what it says, and where that is
/// nothing yet, by its name.
fn is_limits(file: &Path) -> Result<bool, Failure> {
    match Limits::load(file) {
        Ok(Some(limits)) if !limits.is_empty() => return Ok(true),
        Ok(Some(_)) | Err(ConfigError::Invalid(_)) => {}
        Ok(None) => return Err(Failure::usage(format!("{file:?} does not exist"))),
        Err(error) => return Err(unreadable(&error)),
    }
    // Never by itself: a FIFO is invalid as well, and would be waited for, and /dev/zero has no end. What has
    // no text is told of whatever it was meant to be.
    let text = bursar_config::read_text(file).ok().flatten();
    let has_table = text.unwrap_or_default().lines().any(|line| {
        let bare: String = line
            .chars()
            .filter(|character| !character.is_whitespace())
            .collect();
        let starts = [
            "[limits]",
            "[limits.",
            "limits.",
            "limits={",
            "[temporary]",
            "[temporary.",
            "temporary.",
            "temporary={",
        ];
        starts.iter().any(|start| bare.starts_with(start))
    });
    let is_called = |path: &Path, name| path.file_name().is_some_and(|it| it == name);
    let is_drop_in = file
        .parent()
        .is_some_and(|it| is_called(it, "limits.toml.d"));
    Ok(has_table || is_drop_in || is_called(file, "limits.toml"))
}

fn unreadable(error: &ConfigError) -> Failure {
    let code = match error {
        ConfigError::Unreadable { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            Code::NotPermitted
        }
        _ => Code::Usage,
    };
    Failure::Wrong(code, error.to_string())
}

fn swap() -> Bytes {
    let info = sysinfo();
    Bytes::new(info.totalswap.saturating_mul(u64::from(info.mem_unit)))
}

/// A sysctl; `None` where there is none.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Settings of `watermarks.sysctls` and `sysctls_while` that bursard will not make, because their counterpart is set.
fn counterparts(config: &Config, sysctl: impl Fn(&str) -> Option<u64>) -> Vec<String> {
    let always = config.watermarks.sysctls.iter();
    let always = always.map(|(sysctl, _)| ("sysctls", *sysctl));
    let rules = config.watermarks.sysctls_while.iter();
    let rules = rules.map(|rule| ("sysctls_while", rule.sysctl));
    let remarks = always.chain(rules).filter_map(|(key, it)| {
        let counterpart = it.counterpart()?;
        let value = sysctl(counterpart.path).filter(|value| *value != 0)?;
        let obstacle = counterpart.obstacle(i64::try_from(value).unwrap_or(i64::MAX));
        Some(format!(
            "watermarks.{key}: {} will not be set: {obstacle}",
            it.name()
        ))
    });
    remarks.collect()
}

/// The machine's memory, as MemTotal has it and bursard reckons shares of it.
pub(crate) fn ram() -> Bytes {
    let info = sysinfo();
    Bytes::new(info.totalram.saturating_mul(u64::from(info.mem_unit)))
}

#[cfg(test)]
mod tests {
    use bursar_config::Sysctl;

    use super::*;

    #[test]
    fn a_directory_that_hangs_costs_a_remark_and_not_the_command() {
        let (_hangs, gate) = channel::<()>();
        let look_up = move |name: &str| match name {
            "bin" => Some(Uid::new(2)),
            _ => gate.recv().map(|()| Uid::new(3)).ok(),
        };
        let names = ["bin", "slow", "sys"].map(str::to_owned).to_vec();
        let begun = Instant::now();
        let uids = uids_of(names, Duration::from_millis(50), look_up);
        assert_eq!(uids, HashMap::from([("bin".to_owned(), Uid::new(2))]));
        assert!(begun.elapsed() < Duration::from_secs(20));
        let uids = uids_of(vec!["bin".to_owned()], Duration::from_secs(3600), |_| None);
        assert!(uids.is_empty() && begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_ratio_whose_twin_is_set_is_remarked() {
        let mut config = Config::default();
        config.watermarks.sysctls = vec![(Sysctl::DirtyRatio, 10), (Sysctl::Swappiness, 10)];
        let remarks = counterparts(&config, |path| (path == "vm/dirty_bytes").then_some(4096));
        assert_eq!(
            remarks,
            [
                "watermarks.sysctls: vm.dirty_ratio will not be set: vm.dirty_bytes is 4096, and the kernel \
                 would make that 0; keep one of the two"
            ]
        );
        assert!(counterparts(&config, |_| Some(0)).is_empty());
    }
}
