// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel half that may be of another version: what can be known of it all the same.

use bursar_model::AccountId;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi::{self, abi_constant, account_flag, account_history, ledger_state};
use crate::account::History;
use crate::events_in_hand::{Left, RecordedEvents};
use crate::pins::Pins;

/// Its state, if it was ever finished.
fn state(pins: &Pins) -> Option<Vec<u8>> {
    let found = pins
        .map("state")
        .ok()?
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
    Some(found.ok().flatten().unwrap_or_default())
}

/// Whether it tells events as we do. Every version's state begins with its number (abi.h).
pub(crate) fn has_our_abi(pins: &Pins) -> bool {
    version(pins) == Some(abi_constant::ABI_VERSION.0)
}

/// Its version.
fn version(pins: &Pins) -> Option<u32> {
    let version = state(pins).and_then(|bytes| bytes.first_chunk().copied());
    version.map(u32::from_ne_bytes)
}

/// Before it accounts had a number only.
const FIRST_WITH_KINDS: u32 = 7;

/// Whether somebody may have entered an account there; what of another version's state says it nobody knows.
pub(crate) fn may_have_members(pins: &Pins) -> bool {
    state(pins).is_some_and(|bytes| {
        let state = abi::read::<ledger_state>(&bytes);
        state.is_none_or(|it| it.abi_version != abi_constant::ABI_VERSION.0 || it.entered != 0)
    })
}

/// What its user half took and did not record; nothing where it is of another build, whose state does not say.
pub(crate) fn events_left(pins: &Pins) -> Left {
    let known = state(pins).and_then(|bytes| abi::read::<ledger_state>(&bytes));
    let ours = known.filter(|it| it.abi_version == abi_constant::ABI_VERSION.0);
    let maps = pins
        .map("state")
        .and_then(|state| Ok((state, pins.map("taken_events")?)));
    let (Some(known), Ok((state, events))) = (ours, maps) else {
        return Left::default();
    };
    let resumed = RecordedEvents::new(&state).and_then(|mut it| it.resume(&known, &events));
    match resumed {
        Ok((_, left)) => left,
        Err(error) => {
            tracing::warn!(%error, "what a bursard before had in its hands is lost");
            Left::default()
        }
    }
}

/// Events that did not fit its ring and are not recorded as lost, by its state; none where it is of another build, whose
/// state does not say.
pub(crate) fn losses(state: &MapHandle) -> u64 {
    let found = state.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
    let bytes = found.ok().flatten().unwrap_or_default();
    let known = abi::read::<ledger_state>(&bytes);
    known.map_or(0, |it| it.events_lost.saturating_sub(it.events_lost_told))
}

/// What struct account begins with in all versions (abi.h).
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    history: account_history,
    number: u32,
    flags: u32,
    /// From version 7 on.
    id: u64,
}
// SAFETY: integers only.
unsafe impl abi::Pod for Head {}

impl Head {
    const fn has(&self, flag: account_flag) -> bool {
        self.flags & flag.0 != 0
    }
}

/// The accounts of a kernel half of any version, that of the template first.
fn account_heads(pins: &Pins) -> impl Iterator<Item = Head> {
    let accounts = pins.map("accounts").ok();
    let slots = accounts.as_ref().map_or(0, MapCore::max_entries);
    (0..slots).filter_map(move |slot| {
        let found = accounts
            .as_ref()?
            .lookup(&slot.to_ne_bytes(), MapFlags::ANY);
        abi::read::<Head>(&found.ok().flatten()?)
    })
}

/// The history of every account of a kernel half of any version.
pub(crate) fn read_histories(pins: &Pins) -> Vec<(AccountId, History)> {
    let has_kinds = version(pins).is_some_and(|it| it >= FIRST_WITH_KINDS);
    let id = |head: &Head| match has_kinds {
        true => AccountId::new(head.id),
        false => AccountId::of_former(head.number),
    };
    account_heads(pins)
        .skip(1)
        .filter(|head| head.has(account_flag::ACCOUNT_USED))
        .map(|head| (id(&head), History::new(&head.history)))
        .collect()
}

/// Whether a kernel half of any version decides about any account; not while another one is in charge.
pub(crate) fn has_accounts_in_force(pins: &Pins) -> bool {
    account_heads(pins)
        .any(|head| head.has(account_flag::ACCOUNT_USED) && !head.has(account_flag::ACCOUNT_PAUSED))
}
