// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may not know which frames are mapped hears so, instead of that nothing is. Needs root.

use std::thread;

use bursar_host::{HostError, Patient, Proc};
use bursar_model::AccountId;
use bursar_pagemap_scan::{Count, Pace, PagemapScanner};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

fn count() -> Result<Count, HostError> {
    let proc = Proc::host().unwrap();
    let mut scanner = PagemapScanner::new(Proc::host().unwrap());
    scanner.count(Pace::QUARTER, &mut Patient(&proc), |_, process| {
        Some(AccountId::of(process.uid))
    })
}

/// Capabilities are each thread's own.
fn count_without_sys_admin() -> Result<Count, HostError> {
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::SYS_ADMIN);
    set_capabilities(None, own).unwrap();
    count()
}

#[test]
fn hidden_frame_numbers_are_an_error_and_not_an_empty_machine() {
    assert!(count().unwrap().mapped_pages > 0);
    let hidden = thread::spawn(count_without_sys_admin).join().unwrap();
    let error = hidden.unwrap_err();
    assert!(matches!(error, HostError::FramesHidden { .. }), "{error:?}");
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
}
