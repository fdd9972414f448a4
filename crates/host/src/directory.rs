// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directories with the mode they are published with, whatever the umask is.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Of directories above the one that is wanted.
const PARENT: u32 = 0o755;

/// Makes a directory, and those above it that are missing. One that is there keeps its mode: an administrator may have
/// chosen it.
///
/// # Errors
/// When it cannot be made, or something else has its name.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => set_permissions(path, Permissions::from_mode(mode)),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // In some file systems nothing can be made, also not below what is there (/proc).
            let missing = path
                .parent()
                .filter(|it| !it.as_os_str().is_empty() && !it.is_dir());
            make_directory(missing.ok_or(error)?, PARENT)?;
            make_directory(path, mode)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;
    use rustix::process::umask;

    use super::*;

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let mode_of = |name: &str| {
            let metadata = folder.path().join(name).metadata().unwrap();
            metadata.permissions().mode() & 0o7777
        };
        // The umask is the whole process's: a file of another test may get it for this moment.
        for (name, mask) in [("open", 0o000), ("usual", 0o022), ("closed", 0o077)] {
            let before = umask(Mode::from_raw_mode(mask));
            let made = make_directory(&folder.path().join(name).join("state"), 0o750);
            umask(before);
            made.unwrap();
            assert_eq!(mode_of(name), 0o755, "umask {mask:o}");
            assert_eq!(mode_of(&format!("{name}/state")), 0o750, "umask {mask:o}");
        }
    }

    #[test]
    fn what_is_there_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        make_directory(&path, 0o700).unwrap();
        make_directory(&path, 0o755).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(make_directory(&folder.path().join("file"), 0o755).is_err());
        assert!(make_directory(&folder.path().join("file/below"), 0o755).is_err());
        for nowhere in ["/proc/bursar", "/proc/bursar/state", ""] {
            assert!(
                make_directory(Path::new(nowhere), 0o755).is_err(),
                "{nowhere}"
            );
        }
    }
}
