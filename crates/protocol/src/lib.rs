// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket's language.
//!
//! A client connects to `<runtime>/bursar.sock` (Unix stream), sends one line of JSON, a
//! [`Request`], and reads one line of JSON, a [`Reply`]; after `follow` further lines, one
//! [`bursar_model::Event`] each, until either side closes. Who asks is told by the kernel
//! (SO_PEERCRED), never by the client.

#![forbid(unsafe_code)]

mod brief;
mod check;
mod client;
mod dirty;
mod limits;
mod line;
mod message;
mod physpages;
mod preview;
mod request_line;
mod watermarks;

pub use brief::Brief;
pub use check::{AccountCheck, LedgerCheck, Verdict};
pub use client::{Client, ClientError, events_socket, root_socket};
pub use dirty::{DirtyKnown, DirtyReport, DirtyRow};
pub use limits::{Applied, Apply, EntryChange, EntryOrigin, LimitEntry, Terms};
pub use line::{LineBuffer, LineTooLong};
pub use message::{
    Beancounters, ErrorKind, EventPage, Granted, LimitAndRowsChange, LimitChange, MAX_REPLY,
    MAX_REQUEST, MAX_ROOT_REQUEST, Operation, Quota, Reached, Refusal, Renew, Reply, Request,
    Reserve, ReserveBound, RowsChange, UtilisationReport, VERSION,
};
pub use physpages::{PARTS_OF_A_PAGE, Physpages, PhyspagesMachine, PhyspagesReply, PhyspagesRow};
pub use preview::{AccountPreview, LimitsText, Over, Preview, PreviewBound};
pub use watermarks::{
    DecisionReport, ForecastReport, NodeReport, RestoreReport, StallReport, StallTimes,
    TurnedReport, UserStalls, WatermarksReport,
};
