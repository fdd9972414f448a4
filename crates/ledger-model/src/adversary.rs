// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user who may do anything, in any order, and what must not come of it.

use crate::ledger::{Ledger, Rules, Running};
use crate::moves::Move;
use crate::scripts::Script;
use crate::world::{CHUNK, Going, World};

/// The adversary's account, that of an honest pre-forking server, and two that help the adversary.
pub(crate) const ADVERSARY: usize = 0;
pub(crate) const HONEST: usize = 1;
pub(crate) const HELPERS: [usize; 2] = [2, 3];
const ACCOUNTS: usize = 4;

/// As many processes as an adversary has at once.
const MOST: usize = 24;

impl Script {
    /// What the ledger and the world have after each move, a line each.
    pub fn told<R: Rules>(&self) -> Vec<String> {
        let mut game = Game::<R>::new();
        let mut lines = Vec::new();
        let tail = std::iter::repeat_n(Move::Wait(10), 40);
        for it in self.0.iter().copied().chain(tail) {
            game.make(it);
            lines.push(game.line(it));
            if game.findings.breach.is_some() {
                break;
            }
        }
        lines
    }

    /// The same without moves that are not needed for a breach of the same kind.
    #[must_use]
    pub fn shrunk<R: Rules>(mut self) -> Self {
        let Some(kind) = play::<R>(&self).breach.map(|it| it.kind()) else {
            return self;
        };
        let mut at = 0;
        while at < self.0.len() {
            let mut shorter = self.clone();
            shorter.0.remove(at);
            if play::<R>(&shorter)
                .breach
                .is_some_and(|it| it.kind() == kind)
            {
                self = shorter;
            } else {
                at += 1;
            }
        }
        self
    }
}

/// What must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// More than 1.25 limits for so long, and how much at the end, MiB.
    TooLong(u32, i64),
    /// More than all credit and all latencies explain, MiB.
    TooMuch(i64),
    /// A process of an account within its limit was killed.
    Innocent,
    /// So much was taken to be counted twice for certain, MiB, and was not.
    NotTwice(i64),
}

impl Breach {
    fn kind(self) -> u8 {
        match self {
            Self::TooLong(..) => 0,
            Self::TooMuch(_) => 1,
            Self::Innocent => 2,
            Self::NotTwice(_) => 3,
        }
    }
}

/// What a sequence came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Findings {
    /// What must not be, if it was.
    pub breach: Option<Breach>,
    /// The most that the adversary held, MiB.
    pub most: i64,
    /// The longest time above 1.25 limits.
    pub longest_ms: u32,
    /// Processes killed in its account.
    pub kills: u32,
    /// So much more was held than the limit and what it had grown by since, MiB. Nothing may be.
    pub untold: i64,
    /// So much more was held than the level said, MiB.
    pub below: i64,
}

pub(crate) struct Game<R> {
    pub(crate) world: World,
    pub(crate) ledger: Ledger<R>,
    pub(crate) above_since_ms: Option<u32>,
    pub(crate) findings: Findings,
    next_worker_ms: u32,
    is_starving: bool,
    /// When chunks were written to files.
    pub(crate) written_ms: Vec<u32>,
}

/// Plays a sequence, and some time after it.
pub(crate) fn play<R: Rules>(script: &Script) -> Findings {
    let mut game = Game::<R>::new();
    for &it in &script.0 {
        game.make(it);
        if game.findings.breach.is_some() {
            return game.findings;
        }
    }
    game.end();
    game.findings.kills = game.ledger.accounts[ADVERSARY].kills;
    game.findings
}

impl Findings {
    /// Of a sequence of moves under these rules.
    pub fn of<R: Rules>(script: &Script) -> Self {
        play::<R>(script)
    }
}

impl<R: Rules> Game<R> {
    fn new() -> Self {
        let world = World::new(ACCOUNTS);
        let ledger = Ledger::new(ACCOUNTS, world.now_ms);
        let mut game = Self {
            next_worker_ms: world.now_ms + 300,
            world,
            ledger,
            above_since_ms: None,
            findings: Findings::default(),
            is_starving: false,
            written_ms: Vec::new(),
        };
        // 40 MiB in one process that four workers share: 200 MiB by the sum of resident sets.
        let parent = game.world.spawn(HONEST, 40);
        game.seen(parent, Running::Grew(parent));
        for _ in 0..4 {
            game.fork(parent);
        }
        for helper in HELPERS {
            let parent = game.world.spawn(helper, 30);
            game.seen(parent, Running::Grew(parent));
            for _ in 0..3 {
                game.fork(parent);
            }
        }
        let first = game.world.spawn(ADVERSARY, 4);
        game.seen(first, Running::Grew(first));
        game
    }

    fn seen(&mut self, pid: usize, running: Running) {
        let space = self.world.processes[pid].space;
        self.ledger
            .event(&mut self.world, space, running, self.is_starving);
    }

    fn fork(&mut self, parent: usize) {
        let child = self.world.fork(parent);
        let [parent, space] = [parent, child].map(|pid| self.world.processes[pid].space);
        self.ledger.forks(&mut self.world, parent, space);
        self.seen(child, Running::Grew(child));
    }

    /// The `n`th of the adversary's living processes.
    fn pick(&self, n: u8) -> Option<usize> {
        let living: Vec<usize> = self.world.living(ADVERSARY).collect();
        (!living.is_empty()).then(|| living[n as usize % living.len()])
    }

    fn orphan(&self, keeper: usize) -> Option<usize> {
        self.world.live.iter().copied().find(|&space| {
            let it = &self.world.spaces[space];
            it.owner.is_none() && it.keepers.contains(&keeper)
        })
    }

    fn make(&mut self, it: Move) {
        match it {
            Move::Spawn => {
                if self.world.living(ADVERSARY).count() < MOST {
                    let pid = self.world.spawn(ADVERSARY, 1);
                    self.seen(pid, Running::Grew(pid));
                }
                self.wait(5);
            }
            Move::Dear(tens) => {
                for account in [ADVERSARY].into_iter().chain(HELPERS) {
                    self.ledger.accounts[account].dear_ms = u32::from(tens) * 10;
                }
            }
            Move::Wait(tens) => self.wait(u32::from(tens) * 10),
            _ => self.act(it),
        }
        self.look();
    }

    fn act(&mut self, it: Move) {
        let (Move::Grow(n, count)
        | Move::Copy(n, count)
        | Move::Unmap(n, count)
        | Move::WriteOrphan(n, count)
        | Move::WriteFile(n, count)
        | Move::Keep(n, count)
        | Move::Pass(n, count)) = it
        else {
            return self.act_alone(it);
        };
        let Some(pid) = self.pick(n) else { return };
        let space = self.world.processes[pid].space;
        match it {
            Move::Keep(..) => {
                let kept = self.pick(count).filter(|&other| other != pid);
                let Some(other) = kept else { return };
                let other = self.world.processes[other].space;
                if !self.world.spaces[other].keepers.contains(&pid) {
                    self.world.spaces[other].keepers.push(pid);
                }
                return;
            }
            Move::Pass(..) => {
                let Some(other) = self.pick(count) else {
                    return;
                };
                for file in self.world.processes[pid].files.clone() {
                    if !self.world.processes[other].files.contains(&file) {
                        self.world.processes[other].files.push(file);
                    }
                }
                return;
            }
            _ => {}
        }
        for _ in 0..count {
            if !self.world.processes[pid].is_alive {
                return;
            }
            match it {
                Move::Grow(..) => {
                    self.world.fault(space);
                    self.seen(pid, Running::Grew(pid));
                }
                Move::Copy(..) => {
                    if !self.world.copy(space) {
                        return;
                    }
                    self.world.spaces[space].copies += 1;
                    self.ledger.sync(&self.world, space);
                    self.ledger
                        .copied(&self.world, space, ADVERSARY, CHUNK, self.world.now_ms);
                    self.seen(pid, Running::Grew(pid));
                }
                Move::Unmap(..) => {
                    if !self.world.spaces[space].chunks.is_empty() {
                        self.world.unmap(space, 0);
                        self.seen(pid, Running::Other);
                    }
                }
                Move::WriteOrphan(..) => {
                    let Some(orphan) = self.orphan(pid) else {
                        return;
                    };
                    self.world.fault(orphan);
                    self.ledger.event(
                        &mut self.world,
                        orphan,
                        Running::Writer(pid),
                        self.is_starving,
                    );
                }
                _ => {
                    let file = match self.world.processes[pid].files.first() {
                        Some(&file) => file,
                        None => {
                            self.world.files.push(crate::world::File {
                                account: ADVERSARY,
                                chunks: 0,
                            });
                            self.world.processes[pid]
                                .files
                                .push(self.world.files.len() - 1);
                            self.world.files.len() - 1
                        }
                    };
                    self.world.files[file].chunks += 1;
                    self.written_ms.push(self.world.now_ms);
                }
            }
            self.wait(1);
        }
    }

    fn act_alone(&mut self, it: Move) {
        match it {
            Move::Fork(n) => {
                let Some(parent) = self.pick(n) else { return };
                if self.world.living(ADVERSARY).count() < MOST {
                    self.fork(parent);
                }
                self.wait(2);
            }
            Move::Exit(n, is_starved) => {
                let Some(pid) = self.pick(n) else { return };
                self.is_starving = is_starved;
                self.world.die(pid, is_starved);
                let space = self.world.processes[pid].space;
                // Who is starved has not even ended; who is not leaves its memory to whoever keeps it.
                if !is_starved {
                    self.world.spaces[space].going = Going::At(self.world.now_ms);
                }
                self.ledger.sync(&self.world, space);
                self.wait(2);
            }
            Move::Hide(n) => {
                let Some(pid) = self.pick(n) else { return };
                let space = self.world.processes[pid].space;
                self.world.spaces[space].is_hidden = true;
            }
            Move::Stall => self.ledger.is_stalling = true,
            Move::GoOn => self.ledger.go_on(),
            Move::Release(n) => {
                let Some(pid) = self.pick(n) else { return };
                for &space in &self.world.live {
                    self.world.spaces[space]
                        .keepers
                        .retain(|&keeper| keeper != pid);
                }
                self.wait(1);
            }
            _ => {}
        }
    }

    /// Nothing more is done: what is left is looked at until it is within bounds, and stays so for a while.
    fn end(&mut self) {
        self.ledger.go_on();
        let mut calm_ms = 0;
        while calm_ms < 600 && self.findings.breach.is_none() {
            self.pass(100, 25);
            calm_ms = if self.above_since_ms.is_some() {
                0
            } else {
                calm_ms + 100
            };
        }
    }

    fn wait(&mut self, ms: u32) {
        self.pass(ms, 20);
    }

    fn pass(&mut self, ms: u32, at_once_ms: u32) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(at_once_ms);
            left -= step;
            for space in self.world.pass(step) {
                self.ledger.sync(&self.world, space);
            }
            self.live_honestly();
            self.ledger.pass(&mut self.world, self.is_starving);
            self.look();
            if self.findings.breach.is_some() {
                return;
            }
        }
    }

    /// The server replaces a worker from time to time; the helpers are always near their limit.
    fn live_honestly(&mut self) {
        if self.world.now_ms < self.next_worker_ms {
            return;
        }
        self.next_worker_ms = self.world.now_ms + 300;
        for account in [HONEST].into_iter().chain(HELPERS) {
            let living: Vec<usize> = self.world.living(account).collect();
            if let [parent, worker, ..] = living[..] {
                self.fork(parent);
                self.world.die(worker, false);
            }
        }
    }

    fn line(&self, it: Move) -> String {
        let (level, total) = self.ledger.level(&self.world, ADVERSARY);
        let account = &self.ledger.accounts[ADVERSARY];
        format!(
            "{:>6} ms  there {:>4}  level {:>4}  grown {:>4}  total {:>4}  files {:>3} credited {:>3}  living {:>2}  kills {:>2}  \
             {:?}  {it:?}{}",
            self.world.now_ms,
            self.world.truth(ADVERSARY) / CHUNK,
            level / CHUNK,
            self.ledger.growth(&self.world, ADVERSARY) / CHUNK,
            total / CHUNK,
            account.sure_pages / CHUNK,
            account.files_credit / CHUNK,
            self.world.living(ADVERSARY).count(),
            account.kills,
            account.patience,
            self.findings
                .breach
                .map_or(String::new(), |it| format!("  {it:?}")),
        )
    }
}
