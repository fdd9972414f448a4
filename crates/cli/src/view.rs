// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an answer to text for people. Pure: what is shown depends on the answer, the [`crate::look`]
//! and the [`crate::clock`] that are passed in, and the snapshots beside the tests say how.

pub(crate) mod abilities;
pub(crate) mod beancounters;
pub(crate) mod brief;
pub(crate) mod candidates;
pub(crate) mod commit;
pub(crate) mod dirty;
pub(crate) mod event;
pub(crate) mod explanation;
pub(crate) mod faults;
pub(crate) mod history;
pub(crate) mod ledger;
pub(crate) mod limit_changes;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod physpages;
pub(crate) mod preview;
pub(crate) mod quota;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod watermarks;

pub(crate) use bursar_text::{bar, paragraph, words};
