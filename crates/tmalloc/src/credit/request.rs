// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked of the daemon: more credit, less, and what is done about an answer that does not come.

use bursar_reserve::{Ask, Contact, Grant, Refused, Silence, now_ns};

use super::{Credit, Daemon, FIRST, trim, widen};
use crate::process::contact;
use crate::ranges::page;
use crate::{confined, environment, verbose};

/// Asked for at most. Each time so many times as much, so that only who allocates much has much; the daemon
/// gives a sixteenth of what is free and no more.
const MOST: usize = 64 << 20;
const TIMES: usize = 4;

/// How long an answer is waited for: the first time, and of a daemon that was silent lately.
const TIMEOUT_NS: u64 = 20_000_000;
const SHORT_TIMEOUT_NS: u64 = 2_000_000;
/// Who has no limit asks again after this; so does who found nobody to ask.
const PAUSE_NS: u64 = 1_000_000_000;
/// Who found nobody and had a limit before: until bursard is started anew it is killed at it, where it would get NULL.
const ABSENT_NS: u64 = 50_000_000;
/// In an account that is full, no answer means that many ask, if there was one no longer ago than this, or the
/// daemon was seen waiting for a processor.
const CROWDED_NS: u64 = 1_000_000_000;
/// Too many asked: again after this.
const BUSY_NS: u64 = 50_000_000;
/// Free memory is given back to the system at most so often: it walks the whole heap.
const TRIM_PAUSE_NS: u64 = 20_000_000;
/// A look for memory that can be used again may touch two pages; room for so many looks is asked for.
pub(super) const TRY_PAGES: usize = 2;
const TRIES: usize = 8;
/// A refusal stands for so long, the next one in a row for twice as long, unless the process shrinks.
const REFUSED_NS: u64 = 1_000_000;
const REFUSED_MOST_NS: u64 = 16_000_000;
/// More than this beyond what is needed is given back; by who also asks, at most so often.
const SURPLUS: usize = 16 << 20;
const SURPLUS_PAUSE_NS: u64 = 2_000_000;

/// An account that had no more to spare is asked for more again after this.
const GROW_PAUSE_NS: u64 = 1_000_000_000;

/// Why nothing was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The daemon says that there is none.
    Room,
    /// So many ask that it did not come to us: as if there were none.
    Answer,
    /// Nothing is to be reserved for the moment: malloc is glibc's.
    Promise,
}

/// Page tables and what else comes with memory: a page for each 512 and each level, and one for the
/// arena that a new thread gets.
const fn with_tables(pages: usize) -> usize {
    pages.saturating_add(pages / 512).saturating_add(4)
}

fn without_tables(pages: usize) -> usize {
    let pages = pages.saturating_sub(4);
    pages.saturating_sub(pages.div_ceil(512))
}

/// What was sent is heard, be the answer late: the daemon reads also who has hung up.
const fn was_sent(answer: Result<Grant, Refused>) -> bool {
    matches!(
        answer,
        Ok(_) | Err(Refused::Full { .. } | Refused::Silent(libc::ETIMEDOUT))
    )
}

impl Credit {
    /// Whether a refusal of as much stands, which the process has done nothing about since.
    fn is_refused(&mut self, cost: usize) -> bool {
        let stands = self.refused_ns > 0
            && cost >= self.refused_cost
            && now_ns().saturating_sub(self.refused_at) < self.refused_ns;
        stands && self.potential().is_some_and(|now| now >= self.refused_base)
    }

    /// Gets what is missing for `cost` bytes from the daemon, and more if there is plenty.
    pub(super) fn ask(&mut self, cost: usize) -> Result<(), Missing> {
        if self.free() < cost && self.is_refused(cost) {
            self.refusals = self.refusals.saturating_add(1);
            return Err(Missing::Room);
        }
        let now = now_ns();
        let may_trim = now.saturating_sub(self.trimmed_at) >= TRIM_PAUSE_NS;
        let has_more = may_trim || self.untouched.is_dear();
        let answer = self.renew(cost, has_more && self.free() < cost);
        match answer {
            Err(Missing::Room) if has_more && self.free() < cost => {
                // What has become resident meanwhile, or was freed, may be what is missing.
                if may_trim {
                    self.trimmed_at = now;
                    trim(0);
                }
                self.untouched.look_if(true);
                self.renew(cost, false)
            }
            answer => answer,
        }
    }

    /// Asks for more than is needed, for threads that come too often. Whether there is more changes nothing
    /// for what is there.
    pub(super) fn grow(&mut self, cost: usize) -> Result<(), Missing> {
        let (is_tight, next) = (self.is_tight, self.next);
        let answer = self.renew(cost, true);
        if self.is_scarce {
            (self.is_scarce, self.is_tight, self.next) = (false, is_tight, next);
            self.grow_again_at = now_ns().saturating_add(GROW_PAUSE_NS);
        }
        match answer {
            Err(Missing::Room) => Ok(()),
            answer => answer,
        }
    }

    /// Asks the daemon: what is granted and not resident stays reserved, what has become resident needs no
    /// promise any more, and for what is to come more is wanted.
    fn renew(&mut self, cost: usize, is_tentative: bool) -> Result<(), Missing> {
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        if user != self.user {
            self.user = user;
            self.forget();
        }
        self.hear_overdue(0);
        self.untouched.look_if(false);
        // Before the daemon looks: what comes between counts twice, not never.
        let potential = self.potential();
        self.measure(potential);
        let potential = potential.unwrap_or(usize::MAX);
        let free = self.free();
        let keep = self.needed(free);
        let missing = cost.saturating_sub(free).div_ceil(page());
        // What there is suffices after all: whether there is more is not the program's to hear, and counts nowhere.
        let is_tentative = is_tentative || missing == 0;
        let least = match missing {
            0 => 1,
            missing if self.is_scarce => with_tables(missing + TRIES * TRY_PAGES),
            missing => with_tables(missing),
        };
        let wanted = least.max(self.next / page());
        let granted = self.say(Ask::Renew {
            keep: widen(keep),
            untouched: widen(self.untouched.pages()),
            pages: widen(wanted),
            at_least: widen(least),
            is_tentative,
            refused: self.refusals,
        });
        match granted {
            Ok(granted) => {
                self.refused_ns = 0;
                self.has_grown = true;
                let fresh = without_tables(granted).max(missing).saturating_mul(page());
                self.settle(potential, free.saturating_add(fresh));
                self.reserved = keep.saturating_add(granted).saturating_mul(page());
                let is_plenty = granted >= wanted;
                self.is_scarce = !is_plenty;
                self.is_tight = !is_plenty && granted < FIRST / page();
                self.next = if is_plenty {
                    self.next.saturating_mul(TIMES).min(MOST)
                } else {
                    FIRST
                };
                Ok(())
            }
            Err(Missing::Room) => {
                let (potential, free, keep) = self.cut(potential, free, keep);
                self.settle(potential, free);
                self.reserved = keep.saturating_mul(page());
                self.is_scarce = true;
                self.is_tight = true;
                self.next = FIRST;
                if !is_tentative && free < cost {
                    self.refused_at = now_ns();
                    self.refused_ns = self
                        .refused_ns
                        .saturating_mul(2)
                        .clamp(REFUSED_NS, REFUSED_MOST_NS);
                    self.refused_cost = cost;
                    self.refused_base = potential;
                }
                Err(Missing::Room)
            }
            Err(Missing::Answer) => Err(Missing::Answer),
            Err(Missing::Promise) => {
                match self.has_limit {
                    true => self.suspend(),
                    false => self.forget(),
                }
                Err(Missing::Promise)
            }
        }
    }

    /// The daemon may keep less for us than we have said: it was started anew, say, and others came before. Where it is
    /// more than what has become resident meanwhile, we may use as much less. What the program was granted stays granted.
    fn cut(&mut self, potential: usize, free: usize, keep: usize) -> (usize, usize, usize) {
        let kept = self.kept;
        if !std::mem::take(&mut self.is_cut) || kept >= keep {
            return (potential, free, keep);
        }
        self.untouched.look_if(true);
        let potential = self.potential().unwrap_or(usize::MAX);
        let missing = self.needed(free).saturating_sub(kept);
        let free = free.saturating_sub(missing.saturating_mul(page()));
        (potential, free, kept)
    }

    /// Pages that have to stay reserved when `free` bytes of the credit are kept.
    fn needed(&self, free: usize) -> usize {
        let credit = self.slices.saturating_add(free).div_ceil(page());
        match credit.saturating_add(self.untouched.pages()) {
            0 => 0,
            pages => with_tables(pages),
        }
    }

    /// Asks, and sees to who does not answer.
    fn say(&mut self, ask: Ask) -> Result<usize, Missing> {
        let socket = environment::socket_path();
        let mut silence = None;
        if self.daemon != Daemon::Reserves {
            if self.daemon == Daemon::Unknown && confined::is_confined_from_the_start() {
                return Err(self.pause(PAUSE_NS));
            }
            let known = Silence::look(socket);
            if let Some(rest) = known.rest_ns() {
                return Err(self.pause(rest));
            }
            silence = Some(known);
        }
        let timeout = match &silence {
            Some(silence) if silence.is_recent() => SHORT_TIMEOUT_NS,
            _ => TIMEOUT_NS,
        };
        // Where there is hardly any room, the next request follows soon.
        let keeps_open = self.is_tight;
        let was_overdue = self.contact().overdue().is_some();
        let answer = self.contact().ask(socket, ask, timeout, keeps_open);
        if !was_overdue && was_sent(answer) {
            self.refusals = 0;
        }
        let is_alive = match answer {
            Err(Refused::Busy) => true,
            Err(Refused::Silent(libc::ETIMEDOUT)) => self.contact().waits_for_processor(),
            _ => false,
        };
        if self.is_tight && is_alive {
            // As good as an answer: it comes when the daemon has a processor.
            self.answered_at = now_ns();
        }
        match answer {
            Ok(grant) => {
                self.answered_at = now_ns();
                if let Some(silence) = silence {
                    silence.end();
                }
                self.has_limit = !grant.is_unlimited;
                if grant.is_unlimited {
                    return Err(self.pause(PAUSE_NS));
                }
                self.daemon = Daemon::Reserves;
                Ok(usize::try_from(grant.pages).unwrap_or(0))
            }
            Err(Refused::Full { kept }) => {
                self.is_cut = kept.is_some();
                self.kept = usize::try_from(kept.unwrap_or(0)).unwrap_or(usize::MAX);
                self.has_limit = true;
                self.answered_at = now_ns();
                self.daemon = Daemon::Reserves;
                Err(Missing::Room)
            }
            // Too many ask, and each has to wait: without an answer there is no room.
            Err(Refused::Busy | Refused::Silent(libc::ETIMEDOUT | libc::EAGAIN))
                if self.is_tight && now_ns().saturating_sub(self.answered_at) < CROWDED_NS =>
            {
                self.refusals = self.refusals.saturating_add(1);
                Err(Missing::Answer)
            }
            Err(refused @ Refused::Silent(libc::ETIMEDOUT | libc::EAGAIN)) => {
                self.contact().close();
                let silence = silence.unwrap_or_else(|| Silence::look(socket));
                let pause = silence.begin();
                verbose::say_once(refused.errno());
                Err(self.pause(pause))
            }
            Err(Refused::Busy) => {
                verbose::say_once(libc::EAGAIN);
                Err(self.pause(BUSY_NS))
            }
            Err(refused) => {
                verbose::say_once(refused.errno());
                let pause = if self.has_limit { ABSENT_NS } else { PAUSE_NS };
                Err(self.pause(pause))
            }
        }
    }

    /// An answer that came too late: a refusal that the daemon has counted is not counted by us.
    pub(super) fn hear_overdue(&mut self, timeout_ns: u64) {
        if let Some((
            Ask::Renew {
                is_tentative: false,
                ..
            },
            Err(Refused::Full { .. }),
        )) = self.contact().overdue_answer(timeout_ns)
        {
            self.refusals = self.refusals.saturating_sub(1);
        }
    }

    pub(super) fn contact(&mut self) -> &'static mut Contact {
        // SAFETY: whoever has us has the lock, and the reference ends before the next one.
        let contact = unsafe { contact() };
        if !self.has_contact {
            contact.close();
            self.has_contact = true;
        }
        contact
    }

    fn pause(&mut self, pause_ns: u64) -> Missing {
        self.daemon = Daemon::Paused;
        self.paused_until = now_ns().saturating_add(pause_ns);
        Missing::Promise
    }

    /// Gives back what is reserved far beyond need: others find it sooner than when this process asks again.
    pub(super) fn give_back_surplus(&mut self) {
        let free = self.free();
        let surplus = self
            .reserved
            .saturating_sub(self.needed(free).saturating_mul(page()))
            .saturating_add(free.saturating_sub(MOST));
        if self.daemon != Daemon::Reserves || surplus <= SURPLUS {
            return;
        }
        // Who only frees gives back a quarter of it each time: that is seldom, and the last one leaves little.
        let now = now_ns();
        let is_due = now.saturating_sub(self.told_at) >= SURPLUS_PAUSE_NS;
        let is_falling = !self.has_grown && surplus >= self.reserved / 4;
        if !is_due && !is_falling {
            return;
        }
        self.told_at = now;
        self.has_grown = false;
        self.untouched.look_if(false);
        let Some(potential) = self.potential() else {
            return;
        };
        let free = free.min(MOST);
        let keep = self.needed(free);
        let (socket, report) = (environment::socket_path(), self.report(keep));
        let told = self.contact().tell(socket, report);
        if told.is_ok() {
            self.refusals = 0;
            self.settle(potential, free);
            self.reserved = keep.saturating_mul(page());
        }
    }

    /// Says how many pages stay reserved, and what was refused.
    pub(super) fn report(&self, keep: usize) -> Ask {
        Ask::Renew {
            keep: widen(keep),
            untouched: widen(self.untouched.pages().min(keep)),
            pages: 0,
            at_least: 0,
            is_tentative: false,
            refused: self.refusals,
        }
    }
}
