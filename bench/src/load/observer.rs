// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The witness of kills: see bpf/observer.bpf.c.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapHandle};

use crate::board::Board;
use crate::bpf::observer;

/// An attached observer and its board.
pub(crate) struct Observer {
    _link: Link,
    map: MapHandle,
    board: &'static Board,
}

impl Observer {
    pub(crate) fn attach() -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let open = observer::ObserverSkelBuilder::default()
            .open(&mut storage)
            .context("open observer")?;
        let loaded = open.load().context("load the observer of kills")?;
        let link = loaded
            .progs
            .bench_observer
            .attach()
            .context("attach the observer of kills")?;
        let map = MapHandle::try_from(&loaded.maps.boards).context("keep the board")?;
        let board = Board::map(map.as_fd()).context("map the board")?;
        Ok(Self {
            _link: link,
            map,
            board,
        })
    }

    /// The board, wiped.
    pub(crate) fn fresh_board(&self, limit_pages: u64) -> &'static Board {
        let board = self.board;
        for slot in &board.slots {
            slot.pid.store(0, SeqCst);
            slot.pages.store(0, SeqCst);
            slot.is_dead.store(0, SeqCst);
        }
        board.go.store(0, SeqCst);
        board.crossed_ns.store(0, SeqCst);
        board.kills.store(0, SeqCst);
        board.limit_pages.store(limit_pages, SeqCst);
        board
    }

    /// For a process that is to have it as its standard input.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        self.map
            .as_fd()
            .try_clone_to_owned()
            .context("copy the board's descriptor")
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use crate::board::{Board, Killed, Slot};
    use crate::bpf::observer::types;

    #[test]
    fn the_board_is_the_same_in_c() {
        assert_eq!(size_of::<Board>(), size_of::<types::board>());
        assert_eq!(offset_of!(Board, slots), offset_of!(types::board, slots));
        assert_eq!(offset_of!(Board, killed), offset_of!(types::board, killed));
        assert_eq!(
            offset_of!(Board, crossed_ns),
            offset_of!(types::board, crossed_ns)
        );
        assert_eq!(offset_of!(Slot, is_dead), offset_of!(types::slot, is_dead));
        assert_eq!(size_of::<Slot>(), size_of::<types::slot>());
        assert_eq!(
            offset_of!(Killed, held_pages),
            offset_of!(types::killed, held_pages)
        );
        assert_eq!(size_of::<Killed>(), size_of::<types::killed>());
    }
}
