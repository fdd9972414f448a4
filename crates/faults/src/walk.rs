// SPDX-License-Identifier: Apache-2.0 OR MIT
//! BPF iterators over all threads.

use std::io::Read;

use libbpf_rs::{Iter, Link};

use crate::Error;
use crate::error::refused;

/// Walks all threads, and returns what is written on the way.
pub(crate) fn walk(iterator: &Link) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    Iter::new(iterator)
        .map_err(refused("walk all threads"))?
        .read_to_end(&mut bytes)
        .map_err(Error::io("walk all threads"))?;
    Ok(bytes)
}
