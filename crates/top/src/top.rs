// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state: what is known, and what of it is looked at.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bursar_model::{AccountStatus, Uid, UsageSeries};

use crate::{Account, BillText, EventText, Input, Key, Machine, Order, Sample};

/// So many events are kept.
const MOST_EVENTS: usize = 500;
/// A longer filter names nobody.
const LONGEST_FILTER: usize = 64;

/// Who an account is: a name may change its uid, a uid its name.
type Identity = (String, Option<Uid>);

/// What is to be done after an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The screen may have changed.
    Draw,
    /// He has seen enough.
    Leave,
}

/// The state of `bursar top`: what was seen and what the user has chosen.
#[derive(Debug, Default)]
pub struct Top {
    accounts: BTreeMap<Identity, Account>,
    machine: Option<Machine>,
    /// When bursard answered last, for people.
    time: String,
    lost: Option<String>,
    events: VecDeque<EventText>,
    /// bursard has said which there were.
    knows_events: bool,
    bill: Option<BillText>,
    usage: Option<UsageSeries>,
    order: Order,
    filter: String,
    is_typing: bool,
    /// `None`: whoever is first.
    chosen: Option<Identity>,
    is_detailed: bool,
    is_helping: bool,
    hides_events: bool,
    /// Rows that the last screen had, for pages.
    pub(crate) page: usize,
}

impl Top {
    /// Takes in what happened.
    pub fn on(&mut self, input: Input) -> Next {
        match input {
            Input::Key(key) => return self.press(key),
            Input::Sample(sample) => self.sample(*sample),
            Input::Lost(why) => {
                for account in self.accounts.values_mut() {
                    account.pace.forget();
                }
                self.lost = Some(why);
            }
            Input::Events(past) => {
                self.events.clear();
                self.knows_events = true;
                past.into_iter().for_each(|event| self.keep(event));
            }
            Input::Event(event) => self.keep(event),
            Input::Bill(bill) => self.bill = Some(bill),
            Input::Usage(usage) => self.usage = Some(usage),
        }
        Next::Draw
    }

    fn sample(&mut self, sample: Sample) {
        let identity = |status: &AccountStatus| (status.account.clone(), status.uid);
        let mut known = std::mem::take(&mut self.accounts);
        for status in sample.accounts {
            let who = identity(&status);
            let account = match known.remove(&who) {
                Some(mut account) => {
                    account.note(sample.at, status);
                    account
                }
                None => Account::new(sample.at, status),
            };
            self.accounts.insert(who, account);
        }
        self.machine = Some(sample.machine);
        self.time = sample.time;
        self.lost = None;
    }

    fn keep(&mut self, event: EventText) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn press(&mut self, key: Key) -> Next {
        if key == Key::Interrupt {
            return Next::Leave;
        }
        if self.is_helping {
            self.is_helping = false;
            return Next::Draw;
        }
        if self.is_typing {
            self.type_in(key);
            return Next::Draw;
        }
        match key {
            Key::Character('q') => return Next::Leave,
            Key::Escape => return self.back(),
            Key::Character('?' | 'h') => self.is_helping = true,
            Key::Character('/') => self.is_typing = true,
            Key::Character('e') => self.hides_events = !self.hides_events,
            Key::Character(letter) => {
                if let Some(order) = Order::of(letter) {
                    self.order = order;
                }
            }
            Key::Enter => {
                self.is_detailed = !self.is_detailed;
                // Whose detail it is must not change by itself.
                self.step(0);
            }
            Key::Home => self.chosen = None,
            Key::End => self.step(isize::MAX),
            Key::Up => self.step(-1),
            Key::Down => self.step(1),
            Key::PageUp => self.step(0_isize.saturating_sub_unsigned(self.page.max(1))),
            Key::PageDown => self.step(0_isize.saturating_add_unsigned(self.page.max(1))),
            Key::Backspace | Key::Interrupt => {}
        }
        Next::Draw
    }

    /// Escape closes what is open last; with nothing open it leaves.
    fn back(&mut self) -> Next {
        if self.is_detailed {
            self.is_detailed = false;
        } else if self.filter.is_empty() {
            return Next::Leave;
        } else {
            self.filter.clear();
        }
        Next::Draw
    }

    fn type_in(&mut self, key: Key) {
        match key {
            Key::Character(letter)
                if self.filter.chars().count() < LONGEST_FILTER && !letter.is_control() =>
            {
                self.filter.push(letter);
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Up => self.step(-1),
            Key::Down => self.step(1),
            _ => {}
        }
    }

    fn step(&mut self, by: isize) {
        let shown = self.shown();
        let now = self.position(&shown);
        let last = shown.len().saturating_sub(1);
        let next = now.saturating_add_signed(by).min(last);
        let chosen = shown
            .get(next)
            .map(|it| (it.name().to_owned(), it.status.uid));
        self.chosen = chosen;
    }

    /// The accounts that the filter lets through, in order.
    pub fn shown(&self) -> Vec<&Account> {
        let wanted = self.filter.to_lowercase();
        let mut shown: Vec<&Account> = self
            .accounts
            .values()
            .filter(|account| account.name().to_lowercase().contains(&wanted))
            .collect();
        shown.sort_by(|one, other| self.order.compare(one, other));
        shown
    }

    /// Which of them is chosen.
    pub(crate) fn position(&self, shown: &[&Account]) -> usize {
        let is_chosen = |account: &&Account| {
            self.chosen.as_ref().is_some_and(|(name, uid)| {
                (name.as_str(), *uid) == (account.name(), account.status.uid)
            })
        };
        shown.iter().position(is_chosen).unwrap_or(0)
    }

    /// All accounts, by name.
    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.accounts.values()
    }

    /// The account whose beancounters the screen has room for now.
    pub fn wanted_bill(&self) -> Option<&Account> {
        if !self.is_detailed {
            return None;
        }
        let shown = self.shown();
        shown.get(self.position(&shown)).copied()
    }

    /// The machine as bursard said it last.
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// Why bursard does not answer, if it does not.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    pub(crate) fn time(&self) -> &str {
        &self.time
    }

    pub(crate) const fn order(&self) -> Order {
        self.order
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    pub(crate) const fn is_typing(&self) -> bool {
        self.is_typing
    }

    pub(crate) const fn is_detailed(&self) -> bool {
        self.is_detailed
    }

    pub(crate) const fn is_helping(&self) -> bool {
        self.is_helping
    }

    pub(crate) const fn shows_events(&self) -> bool {
        !self.hides_events
    }

    pub(crate) const fn events(&self) -> &VecDeque<EventText> {
        &self.events
    }

    pub(crate) const fn knows_events(&self) -> bool {
        self.knows_events
    }

    /// The last hour of `account`, if it is here.
    pub(crate) fn usage(&self, account: &Account) -> Option<&UsageSeries> {
        let is_its = |it: &&UsageSeries| {
            (&it.account, it.uid) == (&account.status.account, account.status.uid)
        };
        self.usage.as_ref().filter(is_its)
    }

    /// The beancounters of `account`, if they are here.
    pub(crate) fn bill(&self, account: &str) -> Option<&BillText> {
        self.bill.as_ref().filter(|bill| bill.account == account)
    }
}

/// How long for people, at most six columns: `45 s`, `12 min`, `3 h`, `4 d`.
pub(crate) fn wait(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => "< 1 s".to_owned(),
        1..120 => format!("{seconds} s"),
        120..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3_600),
        172_800..86_400_000 => format!("{} d", seconds / 86_400),
        _ => "years".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{account, sample, with_kills};

    fn names(top: &Top) -> Vec<&str> {
        top.shown().iter().map(|it| it.name()).collect()
    }

    fn keys(top: &mut Top, text: &str) {
        for letter in text.chars() {
            top.on(Input::Key(Key::Character(letter)));
        }
    }

    fn filled() -> Top {
        let mut top = Top::default();
        let before = vec![
            account("alice", 1000, 400, Some(512)),
            account("bob", 1001, 90, None),
            with_kills(account("carol", 1002, 10, Some(8192)), 2),
            account("=render", 0, 7900, Some(8192)),
        ];
        top.on(Input::Sample(Box::new(sample(0, before))));
        let now = vec![
            account("alice", 1000, 380, Some(512)),
            account("bob", 1001, 90, None),
            with_kills(account("carol", 1002, 610, Some(8192)), 3),
            account("=render", 0, 7910, Some(8192)),
        ];
        top.on(Input::Sample(Box::new(sample(2, now))));
        top
    }

    #[test]
    fn each_key_has_its_order() {
        let mut top = filled();
        let table = [
            ("f", ["=render", "alice", "carol", "bob"]),
            ("m", ["=render", "carol", "alice", "bob"]),
            ("g", ["carol", "=render", "bob", "alice"]),
            ("n", ["=render", "alice", "bob", "carol"]),
            ("k", ["carol", "=render", "alice", "bob"]),
        ];
        assert_eq!(names(&top), table[0].1, "by default");
        for (key, order) in table {
            keys(&mut top, key);
            assert_eq!(names(&top), order, "{key}");
        }
    }

    #[test]
    fn the_filter_is_typed_kept_and_taken_back() {
        let mut top = filled();
        keys(&mut top, "/O");
        assert_eq!(names(&top), ["carol", "bob"]);
        keys(&mut top, "q");
        assert!(names(&top).is_empty(), "q is a letter there");
        top.on(Input::Key(Key::Backspace));
        top.on(Input::Key(Key::Enter));
        assert_eq!(names(&top), ["carol", "bob"]);
        assert_eq!(top.on(Input::Key(Key::Escape)), Next::Draw);
        assert_eq!(names(&top).len(), 4);
        assert_eq!(top.on(Input::Key(Key::Escape)), Next::Leave);
    }

    #[test]
    fn the_choice_follows_its_account_and_home_gives_it_back() {
        let mut top = filled();
        top.on(Input::Key(Key::Down));
        let chosen = |top: &Top| {
            let shown = top.shown();
            shown[top.position(&shown)].name().to_owned()
        };
        assert_eq!(chosen(&top), "alice");
        keys(&mut top, "n");
        assert_eq!(chosen(&top), "alice");
        top.on(Input::Key(Key::End));
        assert_eq!(chosen(&top), "carol");
        top.on(Input::Key(Key::PageUp));
        assert_eq!(chosen(&top), "bob");
        top.on(Input::Key(Key::Home));
        keys(&mut top, "f");
        assert_eq!(chosen(&top), "=render");
    }

    #[test]
    fn who_is_gone_is_not_shown_and_what_is_new_since_the_start_is_counted() {
        let mut top = filled();
        let carol = |top: &Top| {
            let shown = top.shown();
            let carol = shown.iter().find(|it| it.name() == "carol");
            carol.map(|it| it.new_kills())
        };
        assert_eq!(carol(&top), Some(1));
        // A kernel half loaded anew.
        let again = with_kills(account("carol", 1002, 610, None), 0);
        top.on(Input::Sample(Box::new(sample(3, vec![again]))));
        assert_eq!((names(&top), carol(&top)), (vec!["carol"], Some(0)));
        let more = with_kills(account("carol", 1002, 610, None), 2);
        top.on(Input::Sample(Box::new(sample(4, vec![more]))));
        assert_eq!(carol(&top), Some(2));
    }

    #[test]
    fn while_bursard_is_away_nobody_grows_and_nothing_is_forgotten() {
        let mut top = filled();
        top.on(Input::Lost("no such file".into()));
        assert_eq!(top.lost(), Some("no such file"));
        assert_eq!(names(&top).len(), 4);
        assert!(top.accounts().all(|it| it.pace.rate().is_none()));
        let back = vec![account("alice", 1000, 10, Some(512))];
        top.on(Input::Sample(Box::new(sample(60, back))));
        assert_eq!((top.lost(), names(&top)), (None, vec!["alice"]));
        assert!(top.accounts().all(|it| it.pace.rate().is_none()));
    }

    #[test]
    fn events_are_bounded() {
        let mut top = Top::default();
        for number in 0..MOST_EVENTS + 3 {
            top.on(Input::Event(EventText {
                account: None,
                text: number.to_string(),
                tone: None,
            }));
        }
        assert_eq!(top.events().len(), MOST_EVENTS);
        assert_eq!(top.events().front().map(|it| it.text.as_str()), Some("3"));
    }

    #[test]
    fn waits_fit_six_columns() {
        let table = [
            (0, "< 1 s"),
            (119, "119 s"),
            (120, "2 min"),
            (5_999, "99 min"),
            (7_200, "2 h"),
            (86_399_999, "999 d"),
            (u64::MAX, "years"),
        ];
        for (seconds, text) in table {
            assert_eq!(wait(Duration::from_secs(seconds)), text);
        }
    }
}
