// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is really there: processes, address spaces, files in memory, and what each of them holds. Memory comes in
//! chunks of a mebibyte; a chunk that several address spaces map is there once.

use std::collections::BTreeSet;

/// Pages of a chunk.
pub(crate) const CHUNK: i64 = 256;
/// The limit of each account, pages: 64 MiB.
pub const LIMIT: i64 = 64 * CHUNK;
/// A process's death takes so long where nobody keeps it up.
const DEATH_MS: u32 = 20;
/// And so long where its user starves it: until bursard's reapers have been there.
const REAPED_MS: u32 = 400;

pub(crate) type Pid = usize;
pub(crate) type SpaceId = usize;

/// How an address space goes once its process has been told to die or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Going {
    /// Not at all yet.
    Stays,
    /// At this time, at once.
    At(u32),
    /// A quarter of a chunk each second, for as long as its account has a process that keeps processors busy.
    Trickles,
}

#[derive(Debug, Clone)]
pub(crate) struct Space {
    pub(crate) account: usize,
    /// What it maps: numbers of chunks.
    pub(crate) chunks: Vec<u32>,
    /// The process that owns it; `None`: it has ended.
    pub(crate) owner: Option<Pid>,
    /// Who keeps it beside its owner (process_vm_readv(2) under way, an open /proc/PID/mem).
    pub(crate) keepers: Vec<Pid>,
    pub(crate) going: Going,
    /// Chunks that it was forked with; of what it shares by a fork, chunks copied since.
    pub(crate) inherited: i64,
    pub(crate) copies: i64,
    pub(crate) has_forked: bool,
    /// The next PSS scan cannot look at it.
    pub(crate) is_hidden: bool,
    pub(crate) is_gone: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) account: usize,
    pub(crate) space: SpaceId,
    pub(crate) is_alive: bool,
    pub(crate) files: Vec<usize>,
}

/// A memfd: no name, and gone with its last descriptor.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) account: usize,
    pub(crate) chunks: i64,
}

/// The machine as it really is: its processes, address spaces and files, and the time.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub(crate) now_ms: u32,
    pub(crate) processes: Vec<Process>,
    pub(crate) spaces: Vec<Space>,
    /// Those that are not gone.
    pub(crate) live: Vec<SpaceId>,
    /// Processes that are alive.
    pub(crate) alive: Vec<Pid>,
    pub(crate) files: Vec<File>,
    /// How many address spaces map each chunk.
    users: Vec<u16>,
    /// Chunks that somebody maps, by the account of who mapped them first.
    mapped: Vec<i64>,
    first: Vec<u8>,
}

impl World {
    /// A machine with so many accounts and nobody on it.
    pub fn new(accounts: usize) -> Self {
        Self {
            now_ms: 10_000,
            mapped: vec![0; accounts],
            ..Self::default()
        }
    }

    /// Pages that the account's processes and files take, each once.
    pub fn truth(&self, account: usize) -> i64 {
        (self.mapped[account] + self.kept_chunks(account)) * CHUNK
    }

    /// Of files that somebody keeps.
    pub(crate) fn kept_chunks(&self, account: usize) -> i64 {
        let kept = |file: usize| {
            self.alive
                .iter()
                .any(|&pid| self.processes[pid].files.contains(&file))
        };
        let files = self.files.iter().enumerate();
        files
            .filter(|&(file, it)| it.account == account && kept(file))
            .map(|(_, it)| it.chunks)
            .sum()
    }

    pub(crate) fn resident(&self, space: SpaceId) -> i64 {
        self.spaces[space].chunks.len() as i64 * CHUNK
    }

    /// Pages of it that others map, too: so much is counted elsewhere; and its share of them.
    pub(crate) fn duplicate(&self, space: SpaceId) -> i64 {
        self.spaces[space]
            .chunks
            .iter()
            .map(|&chunk| {
                let users = i64::from(self.users[chunk as usize]);
                // Rounded towards what keeps the limit, as what a PSS scan finds is.
                CHUNK - CHUNK.div_euclid(users) - i64::from(CHUNK % users > 0)
            })
            .sum()
    }

    /// Pages of it that others map, too, each in full.
    pub(crate) fn shared(&self, space: SpaceId) -> i64 {
        let chunks = self.spaces[space].chunks.iter();
        chunks
            .filter(|&&chunk| self.users[chunk as usize] > 1)
            .count() as i64
            * CHUNK
    }

    /// Pages that any of these address spaces map, each once.
    pub(crate) fn mapped_by(&self, spaces: impl Iterator<Item = SpaceId>) -> i64 {
        let chunks = spaces.flat_map(|space| &self.spaces[space].chunks);
        chunks.collect::<BTreeSet<_>>().len() as i64 * CHUNK
    }

    pub(crate) fn living(&self, account: usize) -> impl Iterator<Item = Pid> + '_ {
        let alive = self.alive.iter().copied();
        alive.filter(move |&pid| self.processes[pid].account == account)
    }

    pub(crate) fn spawn(&mut self, account: usize, chunks: i64) -> Pid {
        let space = self.spaces.len();
        self.live.push(space);
        self.alive.push(self.processes.len());
        self.spaces.push(Space {
            account,
            chunks: Vec::new(),
            owner: Some(self.processes.len()),
            keepers: Vec::new(),
            going: Going::Stays,
            inherited: 0,
            copies: 0,
            has_forked: false,
            is_hidden: false,
            is_gone: false,
        });
        self.processes.push(Process {
            account,
            space,
            is_alive: true,
            files: Vec::new(),
        });
        for _ in 0..chunks {
            self.fault(space);
        }
        self.processes.len() - 1
    }

    /// A new chunk, by whomever.
    pub(crate) fn fault(&mut self, space: SpaceId) {
        let account = self.spaces[space].account;
        self.users.push(1);
        self.first.push(account as u8);
        self.mapped[account] += 1;
        self.spaces[space].chunks.push(self.users.len() as u32 - 1);
    }

    pub(crate) fn fork(&mut self, parent: Pid) -> Pid {
        let chunks = self.spaces[self.processes[parent].space].chunks.clone();
        let child = self.spawn(self.processes[parent].account, 0);
        for &chunk in &chunks {
            self.users[chunk as usize] += 1;
        }
        let space = self.processes[child].space;
        self.spaces[space].inherited = chunks.len() as i64;
        self.spaces[space].chunks = chunks;
        self.processes[child].files = self.processes[parent].files.clone();
        child
    }

    /// A shared chunk becomes one of its own. Whether there was one.
    pub(crate) fn copy(&mut self, space: SpaceId) -> bool {
        let shared = self.spaces[space]
            .chunks
            .iter()
            .position(|&chunk| self.users[chunk as usize] > 1);
        let Some(place) = shared else { return false };
        self.unmap(space, place);
        self.fault(space);
        true
    }

    pub(crate) fn unmap(&mut self, space: SpaceId, place: usize) {
        let chunk = self.spaces[space].chunks.swap_remove(place) as usize;
        self.users[chunk] -= 1;
        if self.users[chunk] == 0 {
            self.mapped[self.first[chunk] as usize] -= 1;
        }
    }

    /// It has SIGKILL, or has ended: how its memory goes.
    pub(crate) fn die(&mut self, pid: Pid, is_starved: bool) {
        if !self.processes[pid].is_alive {
            return;
        }
        self.processes[pid].is_alive = false;
        self.alive.retain(|&it| it != pid);
        let space = self.processes[pid].space;
        for &other in &self.live {
            self.spaces[other].keepers.retain(|&keeper| keeper != pid);
        }
        self.spaces[space].going = if is_starved {
            Going::Trickles
        } else {
            Going::At(self.now_ms + DEATH_MS)
        };
    }

    /// A process that was killed by bursar is reaped, however starved.
    pub(crate) fn reap(&mut self, pid: Pid) {
        let space = self.processes[pid].space;
        if self.spaces[space].going == Going::Trickles {
            self.spaces[space].going = Going::At(self.now_ms + REAPED_MS);
        }
    }

    /// Time goes by. Returns the address spaces that have changed.
    pub(crate) fn pass(&mut self, ms: u32) -> Vec<SpaceId> {
        self.now_ms += ms;
        let mut changed = Vec::new();
        for at in 0..self.live.len() {
            let space = self.live[at];
            let (going, account) = (self.spaces[space].going, self.spaces[space].account);
            if going == Going::Stays {
                continue;
            }
            let is_due = match going {
                Going::At(at) => self.now_ms >= at,
                // Nobody keeps the processors from it any more.
                Going::Trickles => self.living(account).next().is_none(),
                Going::Stays => false,
            };
            if is_due {
                self.spaces[space].owner = None;
                if self.spaces[space].keepers.is_empty() {
                    while !self.spaces[space].chunks.is_empty() {
                        self.unmap(space, 0);
                    }
                    self.spaces[space].is_gone = true;
                }
                changed.push(space);
            } else if going == Going::Trickles
                && self.now_ms % 1000 < ms
                && !self.spaces[space].chunks.is_empty()
            {
                self.unmap(space, 0);
                changed.push(space);
            }
        }
        let spaces = &self.spaces;
        self.live.retain(|&space| !spaces[space].is_gone);
        changed
    }
}
