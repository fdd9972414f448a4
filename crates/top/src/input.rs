// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All that can change the state: keys, answers, events. Times are since the start, on one clock.

use std::time::Duration;

use bursar_model::{AccountStatus, Bytes, UsageSeries};
use bursar_text::Tone;

/// Something happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// Somebody pressed a key.
    Key(Key),
    /// bursard answered.
    Sample(Box<Sample>),
    /// It did not, and why, for people.
    Lost(String),
    /// Past events, oldest first, in place of all known.
    Events(Vec<EventText>),
    /// One more.
    Event(EventText),
    /// An account's beancounters.
    Bill(BillText),
    /// What it held in the last hour.
    Usage(UsageSeries),
}

/// A key, as far as it means something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Character(char),
    /// One line up.
    Up,
    /// One line down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first line.
    Home,
    /// To the last.
    End,
    /// Yes.
    Enter,
    /// Back, or away.
    Escape,
    /// Takes a character back.
    Backspace,
    /// Ctrl-C: away from anywhere.
    Interrupt,
}

/// What bursard answered, and the machine beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// When bursard answered, since the start.
    pub at: Duration,
    /// The same for people: `06:12:03`.
    pub time: String,
    /// The machine.
    pub machine: Machine,
    /// The accounts.
    pub accounts: Vec<AccountStatus>,
}

/// The machine's line. Texts are one line each and harmless.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its memory.
    pub ram: Bytes,
    /// What can be had of it; absent where the kernel does not say.
    pub available: Option<Bytes>,
    /// Whether limits hold, and by what.
    pub state: String,
    /// How good that is.
    pub tone: Option<Tone>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// An event as it is shown; harmless text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventText {
    /// Of which account.
    pub account: Option<String>,
    /// One line.
    pub text: String,
    /// How good that is.
    pub tone: Option<Tone>,
}

/// An account's beancounters as they are shown; harmless text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BillText {
    /// The account's name.
    pub account: String,
    /// The lines, or why there are none.
    pub lines: Vec<String>,
}
