// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bursard with paths of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use bursar_model::{AccountStatus, DaemonStatus, Event, EventKind, Resource, Row, Uid, Who};
use bursar_protocol::{Client, LimitChange, Operation, Reply, Terms};

use crate::proc;
use crate::signal::send;
use crate::unit;
use crate::wait::until;

/// A running bursard.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    binary: PathBuf,
    directory: PathBuf,
    arguments: Vec<String>,
    under_unit: bool,
}

impl Daemon {
    /// `under_unit`: with what the unit that is shipped leaves it.
    pub(crate) fn new(binary: &Path, directory: &Path, under_unit: bool) -> Self {
        Self {
            child: None,
            under_unit,
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            arguments: Vec::new(),
        }
    }

    /// Further arguments for the next start.
    pub fn with_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&it| it.to_owned()).collect();
    }

    /// Its configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.directory.join("bursar.toml")
    }

    /// Its limits file.
    pub fn limits_path(&self) -> PathBuf {
        self.directory.join("limits.toml")
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("run/bursar.sock")
    }

    /// Everything it has said on stderr since the story began.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        fs::read_to_string(self.directory.join("log")).context("read bursard's log")
    }

    /// A bursard that is not started yet, with the log as its stderr.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub fn command(&self) -> Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.join("log"));
        let mut command = Command::new(&self.binary);
        command
            .arg("--config")
            .arg(self.config_path())
            .args(&self.arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.context("open a log")?);
        command
            .env("RUST_BACKTRACE", "1")
            .env_remove("JOURNAL_STREAM");
        Ok(command)
    }

    /// Starts it and waits until limits are enforced.
    ///
    /// # Errors
    /// When it ends instead.
    pub fn start(&mut self) -> Result<()> {
        let mut command = self.command()?;
        self.start_as(&mut command)
    }

    /// Starts it by a command made from [`Self::command`].
    ///
    /// # Errors
    /// When it ends instead.
    pub fn start_as(&mut self, command: &mut Command) -> Result<()> {
        let ready = |log: &str| log.matches("bursard: ready").count();
        let before = self.log().map_or(0, |log| ready(&log));
        if self.under_unit {
            unit::confine(command)?;
        }
        let mut child = command.spawn().context("start bursard")?;
        let started = until("bursard: ready", || {
            if let Some(status) = child.try_wait()? {
                bail!("bursard ended at once: {status}\n{}", self.log()?);
            }
            Ok((ready(&self.log()?) > before).then_some(()))
        });
        self.child = Some(child);
        started
    }

    /// Its process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("bursard does not run")?.id())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, signal: i32) -> Result<()> {
        send(self.pid()?, signal).context("signal bursard")
    }

    /// Has it read the limits again, and waits until that is done.
    ///
    /// # Errors
    /// When it is not done in time.
    pub fn reload(&self) -> Result<()> {
        let count = || Ok::<_, anyhow::Error>(self.events_of(EventKind::Reloaded)?.len());
        let before = count()?;
        self.signal(libc::SIGHUP)?;
        until("the limits being read again", || {
            Ok((count()? > before).then_some(()))
        })
    }

    /// Sends it a signal and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(&mut self, signal: i32) -> Result<ExitStatus> {
        self.signal(signal)?;
        self.await_end()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn await_end(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("bursard does not run")?;
        let ended = until("bursard's end", || Ok(child.try_wait()?));
        if ended.is_err() {
            self.child = Some(child);
        }
        ended
    }

    /// Takes the kernel half away.
    ///
    /// # Errors
    /// When it says it cannot.
    pub fn release(&self) -> Result<()> {
        let mut command = Command::new(&self.binary);
        command
            .arg("--config")
            .arg(self.config_path())
            .arg("--release")
            .stderr(Stdio::null());
        let status = command.status().context("run bursard --release")?;
        if !status.success() {
            bail!("bursard --release: {status}");
        }
        Ok(())
    }

    /// Asks over the socket, as root.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn ask(&self, ask: Operation) -> Result<Reply> {
        Ok(Client::connect(&self.socket())?.ask(ask)?)
    }

    /// All of `bursar status --json`.
    ///
    /// # Errors
    /// When there is another answer.
    pub fn status(&self) -> Result<DaemonStatus> {
        match self.ask(Operation::Status { who: None })? {
            Reply::Status(status) => Ok(*status),
            other => bail!("status answered {other:?}"),
        }
    }

    /// The account with this name, or of the user with this number: a guest has names for some.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn account(&self, name: &str) -> Result<Option<AccountStatus>> {
        let uid = name.parse().ok().map(Uid::new);
        let is_it = |account: &AccountStatus| {
            account.account == name || (uid.is_some() && account.uid == uid)
        };
        Ok(self.status()?.accounts.into_iter().find(is_it))
    }

    /// The memory row of the account with this name.
    ///
    /// # Errors
    /// When there is no such account.
    pub fn memory(&self, name: &str) -> Result<Row> {
        let account = self
            .account(name)?
            .with_context(|| format!("account {name}"))?;
        account
            .resources
            .get(&Resource::Memory)
            .copied()
            .context("its memory row")
    }

    /// Waits until a user holds so many bytes at most.
    ///
    /// # Errors
    /// When that does not come.
    pub(crate) fn until_holds_at_most(&self, name: &str, bytes: u64) -> Result<()> {
        self.until_account("less being held", name, |account| {
            account
                .resources
                .get(&Resource::Memory)
                .is_some_and(|row| row.held.get() <= bytes)
        })
    }

    /// Waits until a user's account is empty: see [`is_empty`].
    ///
    /// # Errors
    /// When that does not come: with what the account says, and what the kernel says of the user.
    pub fn until_empty(&self, uid: u32) -> Result<()> {
        self.until_account("nothing being held", &uid.to_string(), is_empty)
    }

    fn until_account(
        &self,
        what: &str,
        name: &str,
        is_so: impl Fn(&AccountStatus) -> bool,
    ) -> Result<()> {
        let mut last = None;
        until(what, || {
            let account = self.account(name)?.context("the account")?;
            let found = is_so(&account).then_some(());
            last = Some(account);
            Ok(found)
        })
        .with_context(|| {
            let there = last
                .as_ref()
                .and_then(|account| account.uid)
                .map(|uid| proc::described_of(uid.get()));
            let half = self.status().map(|status| status.kernel_half);
            format!("{last:#?}, {half:#?}, processes: {there:#?}")
        })
    }

    /// Sets a limit.
    ///
    /// # Errors
    /// When it is refused.
    pub fn limit(&self, who: &str, size: &str) -> Result<Vec<String>> {
        match self.try_limit(who, size, false)? {
            Reply::Changed { remarks, .. } => Ok(remarks),
            other => bail!("limit set {who} {size} answered {other:?}"),
        }
    }

    /// Tries to set a limit.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn try_limit(&self, who: &str, size: &str, force: bool) -> Result<Reply> {
        let who: Who = who.parse()?;
        let memory = bursar_model::BoundsSpec::of_limit(size.parse()?);
        self.ask(Operation::SetLimit(LimitChange {
            who,
            memory,
            force,
            terms: Terms::default(),
        }))
    }

    /// All events that it remembers.
    ///
    /// # Errors
    /// When there is another answer.
    pub fn events(&self) -> Result<Vec<Event>> {
        match self.ask(Operation::Events {
            since: None,
            follow: false,
        })? {
            Reply::Events(events) => Ok(events),
            other => bail!("events answered {other:?}"),
        }
    }

    /// The events of one kind.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn events_of(&self, kind: EventKind) -> Result<Vec<Event>> {
        Ok(self
            .events()?
            .into_iter()
            .filter(|event| event.event == kind)
            .collect())
    }

    /// Waits for an event of this kind about this process.
    ///
    /// # Errors
    /// When it does not come.
    pub fn await_event(&self, kind: EventKind, pid: u32) -> Result<Event> {
        until(&format!("a {kind:?} event of process {pid}"), || {
            let found = self.events_of(kind)?;
            Ok(found
                .into_iter()
                .find(|event| event.pid.is_some_and(|it| it.get() == pid)))
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.is_some() {
            let ended = self.end(libc::SIGTERM);
            if let (Err(_), Some(child)) = (ended, &mut self.child) {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if let Err(error) = self.release() {
            eprintln!("the stage could not be cleared: {error:#}");
        }
    }
}

/// Whether it holds and is charged nothing and has no process, dying or not.
pub(crate) fn is_empty(account: &AccountStatus) -> bool {
    account.processes == 0
        && account.dying.get() == 0
        && account.reserved.get() == 0
        && account.committed.is_none_or(|it| it.get() == 0)
        && account.resources.contains_key(&Resource::Memory)
        && account.resources.values().all(|row| row.held.get() == 0)
}
