// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar top`: brings keys, answers and events to `bursar_top`, and its screen to the terminal.
//!
//! Three threads wait, each for one thing (keys, bursard's answers, its events); this one sleeps until
//! one of them has something. Nobody looks again and again whether there is anything.

mod keys;
mod poller;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use bursar_model::printable;
use bursar_top::screen::{Pen, draw};
use bursar_top::{Input, Next, Top as State};
use clap::Args;
use jiff::Timestamp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::caller::{Caller, Form, json};
use crate::failure::Failure;
use crate::output;
use crate::style::Paint;
use poller::Poller;

/// Show live who holds what, who grows, and who is near the limit
///
/// The accounts, the fullest first, with what they hold of their limits, how fast they grow and when they
/// reach the limit at that rate; below, what happens. Enter shows an account in detail, / looks for
/// names, ? says what else there is. Nothing can be changed from here. An ordinary user sees his own
/// account. With --json one object a line, until it is interrupted.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Seconds between two looks, from 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "seconds, like 5 or 0.5".to_owned())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("between 0.1 and 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// What wakes us.
enum Word {
    Input(Input),
    /// The terminal has another size.
    Resized,
    /// Somebody ends us, or the terminal has gone.
    End,
}

impl Top {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match caller.form {
            Form::Json => self.lines(caller),
            Form::People => self.screen(caller),
        }
    }

    fn lines(&self, caller: &Caller) -> Result<(), Failure> {
        output::end_with_reader()?;
        let mut poller = Poller::new(caller);
        let mut state = State::default();
        loop {
            state.on(Input::Sample(Box::new(poller.status()?)));
            if let Some(record) = state.record(Timestamp::now().to_string()) {
                output::say(&json(&record)?)?;
            }
            thread::sleep(self.interval);
        }
    }

    fn screen(&self, caller: &Caller) -> Result<(), Failure> {
        insist_on_a_terminal()?;
        let (sender, words) = mpsc::channel();
        // Before the terminal is changed: whoever ends us meanwhile must not leave it so.
        watch_signals(sender.clone())?;
        let (wanted, asked) = mpsc::channel();
        let mut terminal = Screen::open()?;
        poller::begin(caller, self.interval, &sender, asked);
        keys::begin(sender);
        let pen = Pen {
            charset: caller.style.charset,
            has_colours: caller.style.paint == Paint::Colours,
        };
        let mut state = State::default();
        let mut bill = None;
        loop {
            terminal.show(&mut state, pen)?;
            let account = state.wanted_bill().map(|it| it.status.clone());
            let name = account.as_ref().map(|it| (it.account.clone(), it.uid));
            if bill != name {
                bill = name;
                // The poller ends only with us.
                let _ = wanted.send(account);
            }
            let Ok(first) = words.recv() else { break };
            // What came meanwhile is one change of the screen.
            for word in std::iter::once(first).chain(words.try_iter()) {
                match word {
                    Word::Input(input) => {
                        if state.on(input) == Next::Leave {
                            return terminal.close();
                        }
                    }
                    Word::Resized => {}
                    Word::End => return terminal.close(),
                }
            }
        }
        terminal.close()
    }
}

fn insist_on_a_terminal() -> Result<(), Failure> {
    let instead = "for programs there is bursar top --json, for a look bursar status";
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage(format!(
            "bursar top needs a terminal to draw on and keys to read; {instead}"
        )));
    }
    let kind = std::env::var_os("TERM").unwrap_or_default();
    if kind.is_empty() || kind == "dumb" {
        let kind = printable(kind.as_encoded_bytes(), 64);
        return Err(Failure::usage(format!(
            "bursar top cannot draw on a terminal that moves no cursor (TERM={kind}); {instead}"
        )));
    }
    Ok(())
}

fn watch_signals(sender: Sender<Word>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::failed(format!("cannot watch for signals: {error}")))?;
    start("signals", move || {
        if signals.forever().next().is_some() {
            let _ = sender.send(Word::End);
        }
    })
}

/// A thread that ends with the process.
fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started
        .map(|_| ())
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

/// The terminal while it is ours; given back at the end, whatever the end is. (A panic gives it back by
/// ratatui's hook, before its message is printed.)
struct Screen {
    terminal: ratatui::DefaultTerminal,
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        ratatui::try_init()
            .map(|terminal| Self { terminal })
            .map_err(|error| {
                ratatui::restore();
                unusable(&error)
            })
    }

    fn show(&mut self, state: &mut State, pen: Pen) -> Result<(), Failure> {
        self.terminal
            .draw(|frame| draw(state, pen, frame))
            .map(|_| ())
            .map_err(|error| unusable(&error))
    }

    fn close(self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // With the terminal gone there is nobody to give it back to.
        let _ = ratatui::try_restore();
    }
}

fn unusable(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot draw on this terminal: {error}"))
}
