// SPDX-License-Identifier: Apache-2.0 OR MIT
//! BPF iterators over all threads.

use std::io::Read;

use libbpf_rs::{Iter, Link};

use crate::Error;
use crate::error::refused;

/// Runs the iterator's program for each thread; what the program wrote.
pub(crate) fn run(iterator: &Link) -> Result<Vec<u8>, Error> {
    const WHAT: &str = "iterate over all threads";
    let mut bytes = Vec::new();
    Iter::new(iterator)
        .map_err(refused(WHAT))?
        .read_to_end(&mut bytes)
        .map_err(Error::io(WHAT))?;
    Ok(bytes)
}
