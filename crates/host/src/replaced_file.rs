// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small files of ours that another one takes the place of.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Has a file say this. Whoever reads it meanwhile, or after a power failure, reads all of it, or of the one before.
/// Waits for the disk.
///
/// # Errors
/// When it, or `PATH.new` beside it, cannot be written.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let mut fresh = OsString::from(path);
    fresh.push(".new");
    let mut file = File::create(&fresh)?;
    file.write_all(text.as_bytes())?;
    // The new name may be on the disk before what the file says: after a power failure it would be empty.
    file.sync_data()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_it_was_last_to_say_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.toml");
        for text in ["a longer one\n", "short\n"] {
            replace_file(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace_file(folder.path(), "a directory").is_err());
    }
}
