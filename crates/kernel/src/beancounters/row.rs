// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows that the kernel half can refuse, and the programs that refuse each.

use std::borrow::Cow;

use bursar_model::Resource;

use self::Enforcement::{BestEffort, Strict};
use crate::skeleton::beancounters::types::{bill_row, row};

/// A row as the kernel half has it, in the resource's unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowReading {
    /// Charged now.
    pub held: u64,
    /// The most ever charged.
    pub maxheld: u64,
    /// Requests refused.
    pub failcnt: u64,
}

impl RowReading {
    pub(super) fn new(raw: &row) -> Self {
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        Self {
            held: count(raw.held),
            maxheld: count(raw.maxheld),
            failcnt: raw.failcnt,
        }
    }
}

/// What becomes of a limit on a row here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// No request passes the barrier unseen.
    Strict,
    /// Requests are refused, and some may slip through; the text says which.
    BestEffort(Cow<'static, str>),
    /// Nothing is refused; the text says why.
    None(String),
}

impl Enforcement {
    /// Whether anything is refused, and so charged.
    pub(super) const fn refuses(&self) -> bool {
        !matches!(self, Self::None(_))
    }
}

/// One BPF object with programs of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    /// What is counted in pieces, and kernel memory; with the bills.
    Rows,
    /// Network buffers of all sockets but TCP's.
    Buffers,
    /// Those of TCP sockets.
    Tcp,
}

/// A row that the kernel half can refuse.
pub(super) struct Row {
    pub(super) resource: Resource,
    /// Which of a bill's rows it is.
    pub(super) index: bill_row,
    /// What has its programs.
    pub(super) object: Object,
    /// Its programs, in the order of attaching: what ends a charge before what makes one. The first set that
    /// this kernel takes is used.
    pub(super) sets: &'static [(&'static [&'static str], Enforcement)],
}

pub(super) static ROWS: [Row; 14] = [
    Row {
        resource: Resource::Numproc,
        index: bill_row::BILL_NUMPROC,
        object: Object::Rows,
        sets: &[
            (
                &[
                    "bill_task_free",
                    "bill_task_gone",
                    "bill_fork",
                    "bill_setuid",
                ],
                Strict,
            ),
            (&["bill_task_free", "bill_fork", "bill_setuid"], Strict),
        ],
    },
    Row {
        resource: Resource::Numfile,
        index: bill_row::BILL_NUMFILE,
        object: Object::Rows,
        sets: &[
            (&["bill_file_free", "bill_file"], Strict),
            (
                &["bill_file_free", "bill_file_try"],
                BestEffort(Cow::Borrowed(
                    "a file may slip through where another call was preempted; it is counted at the \
                     next scan",
                )),
            ),
        ],
    },
    Row {
        resource: Resource::Numtcpsock,
        index: bill_row::BILL_NUMTCPSOCK,
        object: Object::Rows,
        sets: SOCKETS,
    },
    Row {
        resource: Resource::Numothersock,
        index: bill_row::BILL_NUMOTHERSOCK,
        object: Object::Rows,
        sets: SOCKETS,
    },
    Row {
        resource: Resource::Numflock,
        index: bill_row::BILL_NUMFLOCK,
        object: Object::Rows,
        sets: &[(&["bill_file_free", "bill_lock"], Strict)],
    },
    Row {
        resource: Resource::Numpty,
        index: bill_row::BILL_NUMPTY,
        object: Object::Rows,
        sets: &[
            (&["bill_terminal_gone", "bill_terminal"], Strict),
            (&["bill_terminal"], Strict),
        ],
    },
    Row {
        resource: Resource::Numsiginfo,
        index: bill_row::BILL_NUMSIGINFO,
        object: Object::Rows,
        sets: &[(&["bill_signal", "bill_signal_of_file"], Strict)],
    },
    Row {
        resource: Resource::Shmpages,
        index: bill_row::BILL_SHMPAGES,
        object: Object::Rows,
        sets: &[
            (&["bill_file_free", "bill_file"], Strict),
            (
                &[
                    "bill_shared_free",
                    "bill_shared",
                    "bill_mapping",
                    "bill_segment_ask",
                ],
                Strict,
            ),
        ],
    },
    Row {
        resource: Resource::Lockedpages,
        index: bill_row::BILL_LOCKEDPAGES,
        object: Object::Rows,
        sets: &[(
            &["bill_mapping"],
            BestEffort(Cow::Borrowed(
                "mmap(MAP_LOCKED) is refused; mlock(2) asks nobody but RLIMIT_MEMLOCK, which holds for \
                 each process by itself",
            )),
        )],
    },
    Row {
        resource: Resource::Kmemsize,
        index: bill_row::BILL_KMEMSIZE,
        object: Object::Rows,
        sets: &[
            (
                &[
                    "bill_user_namespace",
                    "bill_own_namespace",
                    "bill_socket_option",
                    "bill_netlink",
                    "bill_socket",
                    "bill_fork",
                    "bill_file",
                    "bill_mount",
                ],
                KERNEL_MEMORY,
            ),
            (
                &[
                    "bill_user_namespace",
                    "bill_own_namespace",
                    "bill_socket_option",
                    "bill_netlink",
                    "bill_socket",
                    "bill_fork",
                    "bill_file_try",
                    "bill_mount",
                ],
                KERNEL_MEMORY,
            ),
        ],
    },
    Row {
        resource: Resource::Othersockbuf,
        index: bill_row::BILL_OTHERSOCKBUF,
        object: Object::Buffers,
        sets: &[
            (
                &[
                    "buffers_free",
                    "buffers_gone",
                    "buffers_made",
                    "buffers_unix_accepted",
                    "buffers_sent",
                    "buffers_sending",
                ],
                SENT,
            ),
            (
                &[
                    "buffers_free",
                    "buffers_made",
                    "buffers_unix_accepted",
                    "buffers_sent",
                    "buffers_sending",
                ],
                SENT,
            ),
        ],
    },
    Row {
        resource: Resource::Dgramrcvbuf,
        index: bill_row::BILL_DGRAMRCVBUF,
        object: Object::Buffers,
        sets: &[
            (
                &[
                    "buffers_free",
                    "buffers_gone",
                    "buffers_made",
                    "buffers_read",
                    "buffers_sending",
                    "buffers_received",
                ],
                RECEIVED,
            ),
            (
                &[
                    "buffers_free",
                    "buffers_made",
                    "buffers_read",
                    "buffers_sending",
                    "buffers_received",
                ],
                RECEIVED,
            ),
        ],
    },
    Row {
        resource: Resource::Tcpsndbuf,
        index: bill_row::BILL_TCPSNDBUF,
        object: Object::Tcp,
        sets: &[(
            &[
                "tcp_free",
                "tcp_accepted",
                "tcp_made",
                "tcp_option",
                "tcp_events",
            ],
            TCP,
        )],
    },
    Row {
        resource: Resource::Tcprcvbuf,
        index: bill_row::BILL_TCPRCVBUF,
        object: Object::Tcp,
        sets: &[(
            &[
                "tcp_free",
                "tcp_accepted",
                "tcp_made",
                "tcp_option",
                "tcp_events",
                "tcp_received",
            ],
            TCP,
        )],
    },
];

const TCP: Enforcement = BestEffort(Cow::Borrowed(
    "each socket keeps 4.5 KiB and one packet of up to 64 KiB beyond: set numtcpsock too; connections older than the limit, \
     and those of MPTCP and SMC, keep their buffers",
));

const SENT: Enforcement = BestEffort(Cow::Borrowed(
    "before Linux 6.5 what splice(2) and sendfile(2) put into a socket is counted later, and not refused",
));

const RECEIVED: Enforcement = BestEffort(Cow::Borrowed(
    "what packet sockets (AF_PACKET) receive is counted later, and not dropped",
));

const KERNEL_MEMORY: Enforcement = BestEffort(Cow::Borrowed(
    "namespaces are counted at once, what is put into them approximately, all else every 10 s: set \
     numproc and numfile too",
));

const SOCKETS: &[(&[&str], Enforcement)] = &[
    (
        &[
            "bill_socket_free",
            "bill_socket_gone",
            "bill_accepted",
            "bill_socket",
            "bill_connection",
            "bill_unix_accepted",
        ],
        Strict,
    ),
    (
        &[
            "bill_socket_free",
            "bill_accepted",
            "bill_socket",
            "bill_connection",
            "bill_unix_accepted",
        ],
        Strict,
    ),
];

pub(super) fn row_of(resource: Resource) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.resource == resource)
}

/// Which resource a row of the kernel half is.
pub(crate) fn resource_of(index: u32) -> Option<Resource> {
    if index == bill_row::BILL_PRIVVMPAGES.0 {
        return Some(Resource::Privvmpages);
    }
    let found = ROWS.iter().find(|row| row.index.0 == index)?;
    Some(found.resource)
}
