// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment said when the library was loaded. Later the program may change it, in another
//! thread and at any time: getenv(3) is not for use inside malloc.

use std::sync::OnceLock;

/// One byte more than bursard's socket can have, so that a path that is too long stays too long (unix(7)).
const LONGEST: usize = 108;

struct Environment {
    socket: [u8; LONGEST],
    length: usize,
    is_verbose: bool,
}

static FOUND: OnceLock<Environment> = OnceLock::new();

fn found() -> &'static Environment {
    FOUND.get_or_init(|| {
        let path = bursar_reserve::socket_path();
        let mut socket = [0; LONGEST];
        for (place, &byte) in socket.iter_mut().zip(path) {
            *place = byte;
        }
        Environment {
            socket,
            length: path.len().min(LONGEST),
            is_verbose: bursar_reserve::variable(c"TMALLOC_VERBOSE").is_some(),
        }
    })
}

/// Looks at it, in the constructor.
pub(crate) fn look() {
    found();
}

/// Where the daemon listens.
pub(crate) fn socket_path() -> &'static [u8] {
    let found = found();
    found.socket.get(..found.length).unwrap_or_default()
}

/// Whether somebody wants to hear that nobody answers.
pub(crate) fn is_verbose() -> bool {
    found().is_verbose
}
