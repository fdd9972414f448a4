// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket's language.
//!
//! A client connects to `<runtime>/bursar.sock` (Unix stream), sends one line of JSON, a
//! [`Request`], and reads one line of JSON, a [`Reply`]; after `follow` further lines, one
//! [`bursar_model::Event`] each, until either side closes. Who asks is told by the kernel
//! (SO_PEERCRED), never by the client.

#![forbid(unsafe_code)]

mod client;
mod line;
mod message;

pub use client::{Client, ClientError};
pub use line::{LineBuffer, LineTooLong};
pub use message::{
    Ask, ErrorKind, LimitChange, LimitEntry, MAX_REPLY, MAX_REQUEST, Quota, Refusal, Reply,
    Request, VERSION,
};
