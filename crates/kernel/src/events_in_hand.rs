// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events that bursard has taken from the ring and not recorded yet. The ring has released them, so a copy lies in a map
//! of the kernel half: when bursard is killed, the next one takes them from there and records each once. The ledger's
//! state says which events these are.

use std::mem::offset_of;
use std::ops::Range;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi::{abi_constant, ledger_state};
use crate::event_ring::{KernelEvent, decode};
use crate::{Error, mapped};

const ROOM: u64 = abi_constant::TAKEN_EVENTS.0 as u64;

/// How far events are recorded: so many, and perhaps one more. One word in the ledger's state, so that it is written whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// The lower half of how many.
    recorded: u32,
    /// The lower half of the number that the next one is being given in the history; 0: none.
    number: u32,
}

const fn low(count: u64) -> u32 {
    (count & 0xffff_ffff) as u32
}

impl Mark {
    const fn from_word(word: u64) -> Self {
        Self {
            recorded: low(word >> 32),
            number: low(word),
        }
    }

    const fn to_word(self) -> u64 {
        (self.recorded as u64) << 32 | self.number as u64
    }

    /// Of so many taken, those that are not recorded: never 2 billion. More recorded than taken: one could not be kept.
    const fn in_hand(self, taken: u64) -> u64 {
        match low(taken).wrapping_sub(self.recorded) {
            count if count < 1 << 31 => count as u64,
            _ => 0,
        }
    }
}

/// After so many ends of bursard while it recorded one event the event itself is suspect, and is left out.
const MOST_TRIES: u64 = 3;

/// What is to be done with the first event that the user half before us had in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Record,
    /// It is recorded.
    Done,
    GiveUp,
}

/// `begun`: the number that it was being given, 0 for none. `found`: the last one in the history.
const fn first(begun: u32, found: u64, tries: u64) -> First {
    // Numbers so far apart that this is wrong take 2 billion events.
    if begun != 0 && low(found).wrapping_sub(begun) < 1 << 31 {
        First::Done
    } else if tries >= MOST_TRIES {
        First::GiveUp
    } else {
        First::Record
    }
}

/// Keeps what is taken: for the thread that reads the ring.
#[derive(Debug)]
pub(crate) struct TakenEvents {
    state: MapHandle,
    events: MapHandle,
    taken: u64,
    /// Nothing has been taken yet: what the user half before us took last may lie in the ring still.
    is_first: bool,
}

impl TakenEvents {
    /// Keeps an event, before the ring lets it go. Whether it is a new one.
    pub(crate) fn keep(&mut self, event: &[u8]) -> Result<bool, Error> {
        let failed = || Error::io("keep an event that is not recorded yet");
        if std::mem::take(&mut self.is_first) && self.taken > 0 {
            let last = self.events.lookup(&place(self.taken - 1), MapFlags::ANY);
            if last.map_err(failed())?.is_some_and(|it| it == event) {
                return Ok(false);
            }
        }
        self.events
            .update(&place(self.taken), event, MapFlags::ANY)
            .map_err(failed())?;
        self.taken += 1;
        let at = offset_of!(ledger_state, events_taken);
        mapped::store(&self.state, at, self.taken)?;
        Ok(true)
    }
}

fn place(number: u64) -> [u8; 4] {
    u32::try_from(number % ROOM).unwrap_or(0).to_ne_bytes()
}

/// What the user half before us has left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Oldest first. The first of them may be recorded.
    pub(crate) events: Vec<KernelEvent>,
    /// It had begun to record the first.
    pub(crate) has_begun: bool,
    /// Events that nobody records any more.
    pub(crate) unrecorded: u64,
}

/// Words of the ledger's state, each written whole.
pub trait StateWords {
    /// Sets a word.
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    fn store(&self, at: usize, word: u64) -> Result<(), Error>;
    /// Adds to a word.
    ///
    /// # Errors
    /// As [`Self::store`].
    fn add(&self, at: usize, count: u64) -> Result<(), Error>;
}

impl StateWords for MapHandle {
    fn store(&self, at: usize, word: u64) -> Result<(), Error> {
        mapped::store(self, at, word)
    }

    fn add(&self, at: usize, count: u64) -> Result<(), Error> {
        mapped::add(self, at, count)
    }
}

/// What of the events is recorded: for the thread that records them.
#[derive(Debug)]
pub struct RecordedEvents<W = MapHandle> {
    state: W,
    recorded: u32,
    /// The number that the first of them was being given when the user half before us ended.
    begun: u32,
    tries: u64,
    /// The next one is recorded, or given up: it is counted among the recorded already.
    leaves_out_next: bool,
    /// So many of those that are recorded next were not taken from this kernel half's ring.
    others: u64,
    waiting: u64,
    lost_told: u64,
}

impl RecordedEvents {
    pub(crate) fn new(state: &MapHandle) -> Result<Self, Error> {
        Ok(Self::of(share(state)?))
    }

    /// Goes on where the user half before us ended.
    pub(crate) fn resume(
        &mut self,
        state: &ledger_state,
        events: &MapHandle,
    ) -> Result<(TakenEvents, Left), Error> {
        let (in_hand, unrecorded) = self.resume_marks(state)?;
        let mut left = Left {
            has_begun: self.begun != 0,
            unrecorded,
            ..Left::default()
        };
        for number in in_hand {
            let found = events.lookup(&place(number), MapFlags::ANY);
            let found = found.map_err(Error::io("read an event that is not recorded yet"))?;
            left.events.extend(found.and_then(|it| decode(&it)));
        }
        let taken = TakenEvents {
            state: share(&self.state)?,
            events: share(events)?,
            taken: state.events_taken,
            is_first: true,
        };
        Ok((taken, left))
    }
}

impl<W: StateWords> RecordedEvents<W> {
    const fn of(state: W) -> Self {
        Self {
            state,
            recorded: 0,
            begun: 0,
            tries: 0,
            leaves_out_next: false,
            others: 0,
            waiting: 0,
            lost_told: 0,
        }
    }

    /// Which of those taken are in hand, and how many nobody records any more.
    fn resume_marks(&mut self, state: &ledger_state) -> Result<(Range<u64>, u64), Error> {
        let mark = Mark::from_word(state.events_mark);
        let in_hand = mark.in_hand(state.events_taken);
        // One more may be half written: over the oldest, where all places were taken.
        let overwritten = in_hand.saturating_sub(ROOM - 1);
        let unrecorded = overwritten.saturating_add(state.events_waiting);
        let first = state.events_taken - (in_hand - overwritten);
        self.recorded = low(first);
        self.begun = match (in_hand, overwritten) {
            (1.., 0) => mark.number,
            _ => 0,
        };
        self.tries = if self.begun == 0 {
            0
        } else {
            state.events_tries
        };
        self.store(offset_of!(ledger_state, events_tries), self.tries)?;
        // First: who is killed here counts them twice, and not never.
        self.count_unrecorded(unrecorded)?;
        self.store_mark(self.begun)?;
        self.lost_told = state.events_lost_told;
        self.waiting = state.events_waiting;
        self.note_waiting(0)?;
        Ok((first..state.events_taken, unrecorded))
    }

    /// Settles what became of the event that the user half before us had begun to record, by `found`: the last number in
    /// the history as it was opened. To be called before anything else is recorded, which takes numbers, too.
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    pub fn end_interrupted(&mut self, found: u64) -> Result<(), Error> {
        let begun = std::mem::take(&mut self.begun);
        if begun == 0 {
            return Ok(());
        }
        match first(begun, found, self.tries) {
            First::Record => {
                self.tries = self.tries.saturating_add(1);
                self.store(offset_of!(ledger_state, events_tries), self.tries)?;
                return self.store_mark(0);
            }
            First::Done => {}
            First::GiveUp => {
                tracing::error!(
                    "bursard ended again and again while it recorded an event: it is left out"
                );
                self.count_unrecorded(1)?;
            }
        }
        self.leaves_out_next = true;
        self.recorded = self.recorded.wrapping_add(1);
        self.store_mark(0)
    }

    /// So many that come next are of a kernel half that is gone: nothing keeps them.
    pub fn expect_others(&mut self, count: u64) {
        self.others = self.others.saturating_add(count);
    }

    /// The next one is about to be recorded, and is given this number. Whether it is to be left out: see
    /// [`Self::end_interrupted`].
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    pub fn begin(&mut self, number: u64) -> Result<bool, Error> {
        if self.others > 0 {
            return Ok(false);
        }
        if self.leaves_out_next {
            return Ok(true);
        }
        self.store_mark(low(number))?;
        Ok(false)
    }

    /// It is recorded, or was left out.
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    pub fn end(&mut self) -> Result<(), Error> {
        if self.others > 0 {
            self.others -= 1;
            return Ok(());
        }
        if std::mem::take(&mut self.leaves_out_next) {
            return Ok(());
        }
        self.recorded = self.recorded.wrapping_add(1);
        self.store_mark(0)?;
        if std::mem::take(&mut self.tries) > 0 {
            self.store(offset_of!(ledger_state, events_tries), 0)?;
        }
        Ok(())
    }

    /// So many are recorded in memory only.
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    pub fn note_waiting(&mut self, count: u64) -> Result<(), Error> {
        // Nothing keeps these, either.
        let count = count.saturating_add(self.others);
        if self.waiting == count {
            return Ok(());
        }
        self.waiting = count;
        self.store(offset_of!(ledger_state, events_waiting), count)
    }

    /// Of the events that did not fit the ring buffer so many are recorded as lost, by us or a user half before us.
    pub const fn lost_told(&self) -> u64 {
        self.lost_told
    }

    /// So many are by now.
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    pub fn note_lost_told(&mut self, count: u64) -> Result<(), Error> {
        self.lost_told = count;
        self.store(offset_of!(ledger_state, events_lost_told), count)
    }

    /// So many happened, and nobody can record them.
    ///
    /// # Errors
    /// When the ledger's state cannot be written.
    pub fn count_unrecorded(&self, count: u64) -> Result<(), Error> {
        let at = offset_of!(ledger_state, events_unrecorded);
        self.state.add(at, count)
    }

    fn store_mark(&self, number: u32) -> Result<(), Error> {
        let mark = Mark {
            recorded: self.recorded,
            number,
        };
        self.store(offset_of!(ledger_state, events_mark), mark.to_word())
    }

    fn store(&self, at: usize, word: u64) -> Result<(), Error> {
        self.state.store(at, word)
    }
}

fn share(map: &MapHandle) -> Result<MapHandle, Error> {
    MapHandle::try_from(map).map_err(Error::io("share a map"))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn what_is_in_hand_is_known_also_when_the_lower_halves_have_come_round() {
        for (recorded, taken) in [(0, 0), (0, 12), (u64::from(u32::MAX), (1 << 32) + 7)] {
            let mark = Mark {
                recorded: low(recorded),
                number: 7,
            };
            let read = Mark::from_word(mark.to_word());
            assert_eq!((read, read.in_hand(taken)), (mark, taken - recorded));
        }
        assert_eq!(Mark::from_word(9 << 32).in_hand(7), 0);
    }

    #[test]
    fn an_event_is_recorded_once_and_given_up_when_it_ends_who_records_it() {
        let cases = [
            (0, 9, 0, First::Record),
            (10, 9, 1, First::Record),
            (10, 10, 1, First::Done),
            (10, 12, 3, First::Done),
            (10, 9, 3, First::GiveUp),
            (3, (1 << 32) + 1, 1, First::Record),
            (u32::MAX, 1 << 32, 1, First::Done),
        ];
        for (begun, found, tries, expected) in cases {
            assert_eq!(
                first(begun, found, tries),
                expected,
                "{begun} {found} {tries}"
            );
        }
    }

    /// A ledger's state, a ring that has been read, and a history on disk: what outlives a bursard.
    #[derive(Default)]
    struct World {
        state: RefCell<ledger_state>,
        /// So many more steps until bursard gets SIGKILL.
        steps: Cell<u64>,
        history: RefCell<Vec<(u64, &'static str)>>,
        given: Cell<u64>,
    }

    impl World {
        fn step(&self) -> Result<(), Error> {
            let left = self.steps.get().checked_sub(1);
            self.steps.set(left.ok_or(Error::Io {
                what: "go on",
                source: std::io::ErrorKind::Interrupted.into(),
            })?);
            Ok(())
        }

        fn give(&self) -> Result<u64, Error> {
            self.step()?;
            self.given.set(self.given.get() + 1);
            Ok(self.given.get())
        }

        fn write(&self, number: u64, what: &'static str) -> Result<(), Error> {
            self.step()?;
            self.history.borrow_mut().push((number, what));
            Ok(())
        }

        /// A bursard from its start on, with one event in its hands.
        fn run(&self) -> Result<(), Error> {
            let mut events = RecordedEvents::of(self);
            let state = *self.state.borrow();
            let (in_hand, _) = events.resume_marks(&state)?;
            let newest = self.history.borrow().iter().map(|it| it.0).max();
            events.end_interrupted(newest.unwrap_or(0))?;
            self.write(self.give()?, "attached")?;
            for _ in in_hand {
                if !events.begin(self.given.get() + 1)? {
                    self.write(self.give()?, "kill")?;
                }
                events.end()?;
            }
            Ok(())
        }
    }

    impl StateWords for &World {
        fn store(&self, at: usize, word: u64) -> Result<(), Error> {
            self.step()?;
            let mut state = self.state.borrow_mut();
            match at {
                _ if at == offset_of!(ledger_state, events_mark) => state.events_mark = word,
                _ if at == offset_of!(ledger_state, events_tries) => state.events_tries = word,
                _ if at == offset_of!(ledger_state, events_lost_told) => {
                    state.events_lost_told = word;
                }
                _ => state.events_waiting = word,
            }
            Ok(())
        }

        fn add(&self, _at: usize, count: u64) -> Result<(), Error> {
            self.step()?;
            self.state.borrow_mut().events_unrecorded += count;
            Ok(())
        }
    }

    #[test]
    fn how_many_losses_are_told_outlives_a_bursard() {
        let world = World::default();
        world.steps.set(100);
        world.state.borrow_mut().events_lost = 7;
        let resumed = || {
            let mut events = RecordedEvents::of(&world);
            let state = *world.state.borrow();
            events.resume_marks(&state).unwrap();
            events
        };
        let mut first = resumed();
        assert_eq!(first.lost_told(), 0);
        first.note_lost_told(7).unwrap();
        assert_eq!(first.lost_told(), 7);
        assert_eq!(resumed().lost_told(), 7);
    }

    #[test]
    fn an_event_is_recorded_once_wherever_bursard_is_killed_twice() {
        const ENOUGH: u64 = 20;
        for (first, second) in (0..ENOUGH).flat_map(|it| (0..ENOUGH).map(move |other| (it, other)))
        {
            let world = World::default();
            world.state.borrow_mut().events_taken = 1;
            for steps in [first, second, 100] {
                world.steps.set(steps);
                let _ = world.run();
            }
            let kills = world
                .history
                .borrow()
                .iter()
                .filter(|it| it.1 == "kill")
                .count();
            let unrecorded = world.state.borrow().events_unrecorded;
            assert_eq!(
                (kills, unrecorded),
                (1, 0),
                "killed after {first} and {second} steps"
            );
        }
    }
}
