// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that several accounts map, split among them (S5 section 3.2).
//!
//! S5's rule keeps every share a power of two, so that a page changes hands in constant time whatever the
//! number of accounts on it. The accounts of a page lie on a ring. Who comes takes half of the head's
//! share and both go to the ring's end; who goes leaves his share to one of those who have least, or to
//! two of them when he had more than they.
//!
//! A ring of n = 2^m + j accounts (0 ≤ j < 2^m) therefore always has, from its head on, 2^m − j shares of
//! 1/2^m and then 2j of 1/2^(m+1): the structure needs to know where the second kind begins, and no more.

use std::collections::HashMap;

/// A whole page, in parts: shares are counted in 1/2^24 of a page, as OpenVZ did.
pub const WHOLE_PAGE: u64 = 1 << 24;

/// Accounts on one page, at most: the smallest share is one part.
const MOST_SHARERS: u32 = 1 << 24;
/// No node.
const NONE: u32 = u32::MAX;

/// Who has a share of a page: an account, numbered by the caller. Below 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageOwner(u32);

/// Which page: its frame number, below 2^40 (4 EiB of 4 KiB pages).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(u64);

/// Why a share could not be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoShare {
    /// As many shares are out as there may be: memory is bounded.
    #[error("all {0} shares of pages are given out")]
    Full(u32),
}

/// What [`Fractions::map`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// Nobody else had the page: all of it.
    Alone,
    /// Somebody had: half of the head's share.
    Shared,
    /// This account had a share already.
    Already,
}

impl PageOwner {
    /// A number as this type; `None` when it is too large.
    pub const fn new(number: u32) -> Option<Self> {
        if number < MOST_SHARERS {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Frame {
    /// A frame number as this type; `None` when no machine has such a page.
    pub const fn new(number: u64) -> Option<Self> {
        if number < 1 << 40 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One account on one page.
#[derive(Debug, Clone, Copy)]
struct Node {
    frame: Frame,
    owner: PageOwner,
    /// On the ring; of a free node, `next` is the free one below it.
    next: u32,
    previous: u32,
    /// As of which round it was last seen.
    round: u32,
    /// Its share is WHOLE_PAGE >> shift.
    shift: u8,
    is_free: bool,
}

/// One page.
#[derive(Debug, Clone, Copy)]
struct Ring {
    head: u32,
    /// The first of those with half the head's share; NONE: all are equal.
    smaller: u32,
    sharers: u32,
}

/// The shares of all pages that were given to it.
#[derive(Debug, Clone)]
pub struct Fractions {
    nodes: Vec<Node>,
    free: u32,
    most: u32,
    rings: HashMap<Frame, Ring>,
    /// By frame and page owner, packed: what makes unmapping O(1).
    places: HashMap<u64, u32>,
    held: HashMap<PageOwner, u64>,
}

const fn place(frame: Frame, owner: PageOwner) -> u64 {
    frame.0 << 24 | owner.0 as u64
}

const fn share(shift: u8) -> u64 {
    WHOLE_PAGE >> shift
}

impl Fractions {
    /// Without pages; at most so many shares will be given out. One takes about a hundred bytes.
    pub fn new(most: u32) -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            most: most.min(NONE - 1),
            rings: HashMap::new(),
            places: HashMap::new(),
            held: HashMap::new(),
        }
    }

    /// A page comes to be mapped by an account. O(1).
    ///
    /// # Errors
    /// [`NoShare::Full`]: nothing has changed.
    pub fn map(&mut self, frame: Frame, owner: PageOwner) -> Result<Mapped, NoShare> {
        self.see(frame, owner, 0)
    }

    /// The same, and notes that this was seen in `round`. O(1).
    ///
    /// # Errors
    /// [`NoShare::Full`]: nothing has changed.
    pub fn see(&mut self, frame: Frame, owner: PageOwner, round: u32) -> Result<Mapped, NoShare> {
        if let Some(&at) = self.places.get(&place(frame, owner)) {
            self.node_mut(at).round = round;
            return Ok(Mapped::Already);
        }
        let at = self.take_node(frame, owner, round)?;
        self.places.insert(place(frame, owner), at);
        let Some(mut ring) = self.rings.get(&frame).copied() else {
            let ring = Ring {
                head: at,
                smaller: NONE,
                sharers: 1,
            };
            self.rings.insert(frame, ring);
            self.credit(owner, WHOLE_PAGE);
            return Ok(Mapped::Alone);
        };
        // Half of the head's share; then both are last, the newcomer before who gave.
        let giver = ring.head;
        let node = self.node_mut(giver);
        node.shift += 1;
        let (shift, giver_owner) = (node.shift, node.owner);
        self.debit(giver_owner, share(shift));
        self.node_mut(at).shift = shift;
        self.credit(owner, share(shift));
        self.link_before(at, giver);
        ring.head = self.node(giver).next;
        ring.sharers += 1;
        if ring.smaller == NONE {
            ring.smaller = at;
        }
        ring.forget_if_equal();
        self.rings.insert(frame, ring);
        Ok(Mapped::Shared)
    }

    /// An account maps a page no longer; false when it did not. O(1).
    pub fn unmap(&mut self, frame: Frame, owner: PageOwner) -> bool {
        let Some(at) = self.places.remove(&place(frame, owner)) else {
            return false;
        };
        let gone = *self.node(at);
        self.debit(owner, share(gone.shift));
        let Some(mut ring) = self.rings.get(&frame).copied() else {
            return false;
        };
        if ring.sharers == 1 {
            self.rings.remove(&frame);
            self.give_back(at);
            return true;
        }
        ring.sharers -= 1;
        if ring.head == at {
            ring.head = gone.next;
        }
        if ring.smaller == at {
            // the last of the smaller ones is followed by the head: but they are even in number
            ring.smaller = gone.next;
        }
        self.node_mut(gone.previous).next = gone.next;
        self.node_mut(gone.next).previous = gone.previous;
        if ring.smaller == NONE {
            // All are equal: one of them, the head, gets it; the others are the smaller ones now.
            self.double(ring.head);
            ring.smaller = self.node(ring.head).next;
        } else {
            let had_more = gone.shift < self.node(ring.smaller).shift;
            for _ in 0..=u32::from(had_more) {
                self.double(ring.smaller);
                ring.smaller = self.node(ring.smaller).next;
            }
        }
        ring.forget_if_equal();
        self.rings.insert(frame, ring);
        self.give_back(at);
        true
    }

    /// Unmaps whatever was not seen in `round`. Takes as long as there are shares.
    pub fn forget_unseen(&mut self, round: u32) {
        for at in 0..self.nodes.len() {
            let Some(&node) = self.nodes.get(at) else {
                return;
            };
            if !node.is_free && node.round != round {
                self.unmap(node.frame, node.owner);
            }
        }
    }

    /// What an account holds by S5's rule, in parts.
    pub fn held(&self, owner: PageOwner) -> u64 {
        self.held.get(&owner).copied().unwrap_or(0)
    }

    /// What one account has of one page by S5's rule, in parts: a power of two, or nothing.
    pub fn share_of(&self, frame: Frame, owner: PageOwner) -> Option<u64> {
        let &at = self.places.get(&place(frame, owner))?;
        Some(share(self.node(at).shift))
    }

    /// The accounts on a page with their shares in parts, from the ring's head on.
    pub fn sharers(&self, frame: Frame) -> Vec<(PageOwner, u64)> {
        let Some(ring) = self.rings.get(&frame) else {
            return Vec::new();
        };
        let mut at = ring.head;
        (0..ring.sharers)
            .map(|_| {
                let node = self.node(at);
                at = node.next;
                (node.owner, share(node.shift))
            })
            .collect()
    }

    /// What each account holds when a page of n accounts counts 1/n in each, in parts. What does not
    /// divide goes, a part each, to the first on the ring: every page is given out whole. Takes as
    /// long as there are shares.
    pub fn exact(&self) -> HashMap<PageOwner, u64> {
        let mut held = HashMap::new();
        for ring in self.rings.values() {
            let sharers = u64::from(ring.sharers);
            let (each, left) = (WHOLE_PAGE / sharers, WHOLE_PAGE % sharers);
            let mut at = ring.head;
            for turn in 0..sharers {
                let node = self.node(at);
                *held.entry(node.owner).or_insert(0) += each + u64::from(turn < left);
                at = node.next;
            }
        }
        held
    }

    /// Pages of which somebody has a share.
    pub fn pages(&self) -> usize {
        self.rings.len()
    }

    /// Shares given out.
    pub fn shares(&self) -> usize {
        self.places.len()
    }

    /// Whether somebody has a share of this page.
    pub fn is_known(&self, frame: Frame) -> bool {
        self.rings.contains_key(&frame)
    }

    fn take_node(&mut self, frame: Frame, owner: PageOwner, round: u32) -> Result<u32, NoShare> {
        let at = if self.free == NONE {
            let at = u32::try_from(self.nodes.len()).unwrap_or(NONE);
            if at >= self.most {
                return Err(NoShare::Full(self.most));
            }
            at
        } else {
            self.free
        };
        let fresh = Node {
            frame,
            owner,
            next: at,
            previous: at,
            round,
            shift: 0,
            is_free: false,
        };
        match self.nodes.get_mut(at as usize) {
            Some(node) => {
                self.free = node.next;
                *node = fresh;
            }
            None => self.nodes.push(fresh),
        }
        Ok(at)
    }

    fn give_back(&mut self, at: u32) {
        let free = self.free;
        let node = self.node_mut(at);
        node.is_free = true;
        node.next = free;
        self.free = at;
    }

    fn link_before(&mut self, at: u32, next: u32) {
        let previous = self.node(next).previous;
        self.node_mut(previous).next = at;
        self.node_mut(next).previous = at;
        let node = self.node_mut(at);
        node.previous = previous;
        node.next = next;
    }

    fn double(&mut self, at: u32) {
        let node = self.node_mut(at);
        let (owner, more) = (node.owner, share(node.shift));
        node.shift -= 1;
        self.credit(owner, more);
    }

    fn credit(&mut self, owner: PageOwner, parts: u64) {
        *self.held.entry(owner).or_insert(0) += parts;
    }

    fn debit(&mut self, owner: PageOwner, parts: u64) {
        if let Some(held) = self.held.get_mut(&owner) {
            *held -= parts;
            if *held == 0 {
                self.held.remove(&owner);
            }
        }
    }

    /// Places are handed out by `take_node` and are good until given back.
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }
}

impl Ring {
    /// With a power of two of accounts all shares are the same.
    fn forget_if_equal(&mut self) {
        if self.sharers.is_power_of_two() {
            self.smaller = NONE;
        }
    }
}
