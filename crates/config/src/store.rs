// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `limits.toml` onto the disk: the old file or the new one, never half of either.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use crate::ConfigError;
use crate::limits::LimitsFile;
use crate::source::Source;

/// A temporary file older than this was left by a crash: writing one takes milliseconds.
const LEFT_BEHIND: Duration = Duration::from_secs(600);
const TEMP_SUFFIX: &str = ".bursar-new";
/// The kernel follows as many.
const MOST_LINKS: u32 = 40;

impl LimitsFile {
    /// Writes the limits to `path`, for everybody to read and its owner to write; a mode that is
    /// stricter stays. What it was read from is compared first: edits that nobody has read yet are
    /// not overwritten. Where it fails these limits still say what was set: change a clone, and keep it
    /// when it is stored.
    ///
    /// # Errors
    /// [`ConfigError::Changed`]; [`ConfigError::Unwritable`], [`ConfigError::Unreadable`]. The file is
    /// as it was before, except that after a failure to flush the directory it may already be the new
    /// one.
    pub(crate) fn store(&mut self, path: &Path) -> Result<(), ConfigError> {
        let target = target_of(path)?;
        if let Some(now) = now_on_disk(&target)?
            && self.on_disk.as_deref() != Some(now.as_str())
        {
            return Err(ConfigError::Changed {
                path: path.to_owned(),
            });
        }
        let text = self.to_text();
        write_atomically(&target, text.as_bytes())?;
        self.path = path.to_owned();
        self.on_disk = Some(text);
        Ok(())
    }

    /// Writes these limits over `later` ones, which were stored and cannot be put in force. Where there
    /// was no file there is an empty one.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub(crate) fn store_over(&mut self, later: &Self) -> Result<(), ConfigError> {
        self.on_disk.clone_from(&later.on_disk);
        self.store(&later.path)
    }
}

/// An administrator who keeps his files elsewhere linked this one: write there, also when there is nothing
/// yet. Where not even a directory is, something is not mounted or not deployed, and we make none. Links on the
/// way that are neither root's nor his lead where some user likes: root would make a file of his choice there.
fn target_of(path: &Path) -> Result<PathBuf, ConfigError> {
    let unwritable = |path: &Path, action, source| ConfigError::Unwritable {
        path: path.to_owned(),
        action,
        source,
    };
    let mut target = path.to_owned();
    let mut first_owner = None;
    let mut links = 0_u32;
    while let Ok(next) = fs::read_link(&target) {
        let owner = fs::symlink_metadata(&target).map(|link| link.uid());
        let owner = owner.map_err(|error| unwritable(&target, "follow the link", error))?;
        let first = *first_owner.get_or_insert(owner);
        if owner != 0 && owner != first {
            let source = io::ErrorKind::PermissionDenied.into();
            return Err(unwritable(&target, "follow another user's link", source));
        }
        target = target.parent().unwrap_or(Path::new("")).join(next);
        links = links.saturating_add(1);
        if links > MOST_LINKS {
            let source = fs::canonicalize(path).err();
            let source = source.unwrap_or_else(|| io::ErrorKind::InvalidInput.into());
            return Err(unwritable(path, "follow the link", source));
        }
    }
    if links == 0 {
        return Ok(fs::canonicalize(path).unwrap_or(target));
    }
    let name = target.file_name().unwrap_or_default();
    let directory = target.parent().unwrap_or(Path::new("/"));
    match fs::canonicalize(directory) {
        Ok(directory) => Ok(directory.join(name)),
        Err(source) => Err(unwritable(
            &target,
            "find its directory, where a link leads",
            source,
        )),
    }
}

/// The file's text; `None` when there is none. Text that is no TOML counts as a change by somebody.
fn now_on_disk(path: &Path) -> Result<Option<String>, ConfigError> {
    match Source::read(path) {
        Ok(source) => Ok(source.map(|source| source.text().to_owned())),
        Err(ConfigError::Invalid(_)) => Err(ConfigError::Changed {
            path: path.to_owned(),
        }),
        Err(error) => Err(error),
    }
}

/// A temporary file that goes away unless it is given its final name.
struct Temporary {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Temporary {
    /// `O_EXCL` neither opens what somebody else put there nor follows a link.
    fn create(directory: &Path, name: &[u8]) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..16 {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut temporary = vec![b'.'];
            temporary.extend_from_slice(name);
            temporary.extend_from_slice(format!(".{}-{number}", std::process::id()).as_bytes());
            temporary.extend_from_slice(TEMP_SUFFIX.as_bytes());
            let path = directory.join(std::ffi::OsString::from_vec(temporary));
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
            {
                Ok(file) => {
                    return Ok(Self {
                        path,
                        file,
                        renamed: false,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Nobody can be told; the next store removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), ConfigError> {
    let failed = |action| {
        move |source| ConfigError::Unwritable {
            path: path.to_owned(),
            action,
            source,
        }
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().as_bytes();
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(failed("make its directory"))?;
    remove_leftovers(directory, name);

    let mut temporary =
        Temporary::create(directory, name).map_err(failed("make a temporary file beside it"))?;
    temporary
        .file
        .write_all(bytes)
        .map_err(failed("write it"))?;
    let old = fs::metadata(path).ok();
    let mode = old
        .as_ref()
        .map_or(0o644, |old| (old.mode() & 0o644) | 0o600);
    temporary
        .file
        .set_permissions(Permissions::from_mode(mode))
        .map_err(failed("set its mode"))?;
    if let Some(old) = old {
        // With mode 0640 the group decides who may read it.
        std::os::unix::fs::fchown(&temporary.file, None, Some(old.gid()))
            .map_err(failed("set its group"))?;
    }
    temporary
        .file
        .sync_all()
        .map_err(failed("flush it to the disk"))?;
    fs::rename(&temporary.path, path).map_err(failed("put it in its place"))?;
    temporary.renamed = true;
    let handle = File::open(directory).map_err(failed("open its directory"))?;
    handle
        .sync_all()
        .map_err(failed("flush its directory to the disk"))
}

/// Removes temporary files of a store that never ended. Best effort: a leftover harms nobody.
fn remove_leftovers(directory: &Path, name: &[u8]) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let entry_name = entry.file_name();
        let inner = entry_name
            .as_bytes()
            .strip_prefix(b".")
            .and_then(|rest| rest.strip_prefix(name));
        if !inner
            .is_some_and(|rest| rest.starts_with(b".") && rest.ends_with(TEMP_SUFFIX.as_bytes()))
        {
            continue;
        }
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        if age.is_some_and(|age| age > LEFT_BEHIND) {
            // Does not follow a link.
            let _ = fs::remove_file(entry.path());
        }
    }
}
