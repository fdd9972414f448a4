// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small files of ours that another one takes the place of.

use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

/// Has a file say this. Whoever reads it meanwhile reads all of it, or of the one before.
///
/// # Errors
/// When it, or `PATH.new` beside it, cannot be written.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let mut fresh = OsString::from(path);
    fresh.push(".new");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, path)
}
