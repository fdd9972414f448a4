// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small files of ours that another one takes the place of.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Has a file say this. Whoever reads it meanwhile, or after a power failure, reads all of it, or of the one before.
/// Waits for the disk. The file has this `mode`, but for what the umask takes away.
///
/// # Errors
/// When it, or `PATH.new` beside it, cannot be written.
pub fn replace_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut fresh = OsString::from(path);
    fresh.push(".new");
    // Whatever lies there may be somebody else's link, or have another mode: it is not written to.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&fresh)?;
    file.write_all(text.as_bytes())?;
    // The new name may be on the disk before what the file says: after a power failure it would be empty.
    file.sync_data()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_says_what_it_was_last_to_say_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.toml");
        for text in ["a longer one\n", "short\n"] {
            replace_file(&path, text, 0o640).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace_file(folder.path(), "a directory", 0o640).is_err());
    }

    #[test]
    fn what_lies_at_the_other_name_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (
            folder.path().join("oom_scores"),
            folder.path().join("other"),
        );
        fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("oom_scores.new")).unwrap();
        replace_file(&path, "ours", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
}
