// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `[events]`: the history, and who may read all of it.

use bursar_model::Bytes;

use super::Key;
use crate::value::{amount, line};

pub(super) const TABLE: (&str, &str) = (
    "events",
    "The history behind `bursar events` and `bursar why`, in the state directory.",
);

pub(super) static KEYS: [Key; 2] = [
    Key {
        table: "events",
        name: "keep_bytes",
        default: "\"16M\"",
        values: "64K to 32M, bytes",
        about: "The most that the stored events may take on disk, old files included; the oldest go \
                first. bursar events --since answers with all of it at once, hence the bound.",
        set: |config, value| {
            amount(value, Bytes::new(64 << 10), Some(Bytes::from_mib(32)))
                .map(|bytes| config.events.keep_bytes = bytes)
        },
    },
    Key {
        table: "events",
        name: "group",
        default: "\"bursar-events\"",
        values: "the name of a group in /etc/group, or \"\"",
        about: "Its members may read the events of all accounts by the socket events.sock, as bursar-notify does; \
                elsewhere they are users like others. Empty, or where there is no such group: root alone.",
        set: |config, value| line(value, 64).map(|group| config.events.group = group),
    },
];
