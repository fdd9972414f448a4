// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks bursard: once an interval over one connection, and is told events over another. Both are made
//! anew when bursard was away.

use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bursar_host::MemInfo;
use bursar_model::{AccountStatus, Event, UsageSeries, Who};
use bursar_protocol::{Client, Operation, Reply};
use bursar_top::{BillText, EventText, Input, Sample};
use jiff::SignedDuration;

use super::{Word, start};
use crate::caller::{Caller, heard};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::since::Since;
use crate::style::{Paint, Style};
use crate::view;

/// bursard is taken for away when it does not answer within this; keys are read meanwhile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// So often bursard is looked for when it is away, at most.
const SEEK: Duration = Duration::from_secs(1);
/// A look at all tasks and files is dear: the detail is asked for so often at most.
const BILL: Duration = Duration::from_secs(5);
/// Events of the last hour stand there at the beginning.
const PAST: SignedDuration = SignedDuration::from_hours(1);

/// A connection, when there is one.
pub(super) struct Poller {
    caller: Caller,
    client: Option<Client>,
    began: Instant,
}

impl Poller {
    pub(super) fn new(caller: &Caller) -> Self {
        Self {
            caller: plain(caller),
            client: None,
            began: Instant::now(),
        }
    }

    fn ask(&mut self, ask: Operation) -> Result<Reply, Failure> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.caller.connect_within(TIMEOUT)?,
        };
        let reply = heard(client.ask(ask)?)?;
        self.client = Some(client);
        Ok(reply)
    }

    /// What `bursar status` would say now.
    pub(super) fn status(&mut self) -> Result<Sample, Failure> {
        let Reply::Status(status) = self.ask(Operation::Status { who: None })? else {
            return Err(Failure::off_topic());
        };
        let at = self.began.elapsed();
        let clock = Clock::here();
        let information = fs::read("/proc/meminfo").ok();
        let information = information.and_then(|bytes| MemInfo::parse(&bytes).ok());
        let style = &self.caller.style;
        let mut machine = view::status::machine(&status, style);
        machine.available = information.map(|it| it.available);
        Ok(Sample {
            at,
            time: clock.time(&clock.now().to_string(), style.charset),
            machine,
            accounts: status.accounts,
        })
    }

    /// What an account held in the last hour; nothing where nothing is kept.
    fn usage(&mut self, account: &AccountStatus) -> Result<Option<UsageSeries>, Failure> {
        let since = Some(Since::Ago(PAST).as_of(&Clock::here()));
        let who = who(account);
        match self.ask(Operation::Usage { who, since }) {
            Ok(Reply::Usage(series)) => Ok(Some(*series)),
            Ok(_) => Err(Failure::off_topic()),
            Err(Failure::Wrong(..)) => Ok(None),
            Err(quiet) => Err(quiet),
        }
    }

    fn bill(&mut self, account: &AccountStatus) -> Result<BillText, Failure> {
        let who = who(account);
        let lines = match self.ask(Operation::Beancounters { who }) {
            Ok(Reply::Beancounters(found)) if found.is_looking && found.bills.is_empty() => {
                vec!["bursard is looking".to_owned()]
            }
            Ok(Reply::Beancounters(found)) => view::beancounters::table(&found, &self.caller.style)
                .lines()
                // Its name stands above already.
                .skip(1)
                .map(str::to_owned)
                .collect(),
            Ok(_) => return Err(Failure::off_topic()),
            // bursard answered; that it did not do it is no reason to lose it.
            Err(Failure::Wrong(_, why)) => vec![why],
            Err(quiet) => return Err(quiet),
        };
        Ok(BillText {
            account: account.account.clone(),
            lines,
        })
    }
}

fn who(account: &AccountStatus) -> Option<Who> {
    match account.uid {
        Some(uid) => Some(Who::Uid(uid)),
        None => account.account.parse().ok(),
    }
}

/// The same caller with lines of any length and no colours: the screen has its own.
fn plain(caller: &Caller) -> Caller {
    Caller {
        socket: caller.socket.clone(),
        form: caller.form,
        style: Style {
            width: None,
            paint: Paint::Plain,
            ..caller.style
        },
        clock: caller.clock.clone(),
        role: caller.role,
        uid: caller.uid,
    }
}

/// Sends answers and events from now on. `wanted` says whose detail is looked at.
pub(super) fn begin(
    caller: &Caller,
    interval: Duration,
    sender: &Sender<Word>,
    wanted: Receiver<Option<AccountStatus>>,
) {
    let mut poller = Poller::new(caller);
    let words = sender.clone();
    let follower = (plain(caller), sender.clone());
    let asking = start("poller", move || {
        ask_on(&mut poller, interval, &words, &wanted);
    });
    let following = start("events", move || follow(&follower.0, &follower.1));
    for failure in [asking, following].into_iter().filter_map(Result::err) {
        let _ = sender.send(Word::Input(Input::Lost(why(&failure))));
    }
}

fn ask_on(
    poller: &mut Poller,
    interval: Duration,
    words: &Sender<Word>,
    wanted: &Receiver<Option<AccountStatus>>,
) {
    let mut account: Option<AccountStatus> = None;
    let mut billed: Option<Instant> = None;
    let mut next = Instant::now();
    loop {
        let is_due = Instant::now() >= next;
        if is_due {
            next = Instant::now() + interval;
            let input = match poller.status() {
                Ok(sample) => Input::Sample(Box::new(sample)),
                Err(failure) => {
                    next = Instant::now() + interval.max(SEEK);
                    Input::Lost(why(&failure))
                }
            };
            if words.send(Word::Input(input)).is_err() {
                return;
            }
        }
        if let Some(account) = &account
            && billed.is_none_or(|then| then.elapsed() >= BILL)
        {
            billed = Some(Instant::now());
            let usage = poller.usage(account).ok().flatten().map(Input::Usage);
            let bill = poller.bill(account).ok().map(Input::Bill);
            for input in usage.into_iter().chain(bill) {
                if words.send(Word::Input(input)).is_err() {
                    return;
                }
            }
        }
        match wanted.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(other) => {
                // Who runs through the list wants the last one.
                account = wanted.try_iter().last().unwrap_or(other);
                billed = None;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn follow(caller: &Caller, words: &Sender<Word>) {
    loop {
        // That bursard is away, the other connection tells.
        let _ = follow_once(caller, words);
        sleep(SEEK);
    }
}

fn follow_once(caller: &Caller, words: &Sender<Word>) -> Result<(), Failure> {
    let clock = Clock::here();
    let text = |event: &Event| {
        let (text, tone) = view::event::event_short(event, &clock, &caller.style);
        EventText {
            account: event.account.clone(),
            text,
            tone,
        }
    };
    let mut client = caller.connect()?;
    let Reply::Events(past) = heard(client.ask(Operation::Events {
        since: Some(Since::Ago(PAST).as_of(&clock)),
        follow: true,
    })?)?
    else {
        return Err(Failure::off_topic());
    };
    let past = past.iter().map(text).collect();
    let _ = words.send(Word::Input(Input::Events(past)));
    while let Some(event) = client.next_event()? {
        let _ = words.send(Word::Input(Input::Event(text(&event))));
    }
    Ok(())
}

fn why(failure: &Failure) -> String {
    match failure {
        Failure::Wrong(_, message) => message.clone(),
        Failure::Answered | Failure::Unread | Failure::Answer(_) => {
            "bursard said nothing".to_owned()
        }
    }
}
