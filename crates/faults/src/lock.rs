// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Running an unmodified program with all its memory resident and locked: what has to be in its
//! environment, checked before it starts. crates/prefault does it, inside the program.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bursar_model::Bytes;

use crate::program::{Obstacle, check_preloadable, find};
use crate::{Capacity, Error};

/// Where distributions put it, after the folder of our own program.
const FOLDERS: [&str; 3] = ["/usr/lib/bursar", "/usr/local/lib/bursar", "/usr/lib"];
const LIBRARY: &str = "libprefault.so";

/// What to lock and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// malloc's arena is made this large and resident before main().
    pub heap: Bytes,
    /// The first thread's stack is made resident this deep.
    pub stack: Bytes,
    /// Pages are locked when they are first touched, not before.
    pub on_fault: bool,
    /// malloc gives memory back as usual.
    pub keep_malloc: bool,
    /// What the program starts is locked as well.
    pub children: bool,
}

impl LockRequest {
    /// What to set in the environment of `program` (a name as typed).
    ///
    /// # Errors
    /// When the library is not installed, cannot reach that program, or memory or RLIMIT_MEMLOCK are
    /// too small for the heap and stack asked for.
    pub fn environment(
        &self,
        program: &std::ffi::OsStr,
    ) -> Result<Vec<(OsString, OsString)>, Error> {
        let path = find(program).ok_or_else(|| Error::Unsuitable {
            program: PathBuf::from(program),
            reason: "there is no such program in PATH".to_owned(),
        })?;
        check_preloadable(&path).map_err(unsuitable)?;
        self.check(&Capacity::ours()?)?;
        let mut preload = library()?.into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let flags = u32::from(self.on_fault) | u32::from(self.keep_malloc) << 1;
        let request = format!(
            "heap={},stack={},flags={flags},children={}",
            self.heap.get(),
            self.stack.get(),
            u32::from(self.children)
        );
        let mut variables = vec![
            ("LD_PRELOAD".into(), preload),
            ("BURSAR_PREFAULT".into(), request.into()),
        ];
        // Python's own allocator maps and unmaps arenas behind malloc's back; with malloc its memory
        // comes from the arena that is kept.
        if !self.keep_malloc && env::var_os("PYTHONMALLOC").is_none() {
            variables.push(("PYTHONMALLOC".into(), "malloc".into()));
        }
        Ok(variables)
    }

    /// The part that can be known before the program runs; the library looks again from inside.
    fn check(&self, capacity: &Capacity) -> Result<(), Error> {
        let asked = self.heap.saturating_add(self.stack);
        if asked > capacity.available {
            return Err(Error::TooLarge(format!(
                "the machine's memory is too small: a heap and a stack of {asked} are to be resident, \
                 and {} can be had without hurting others; ask for a smaller --heap. Nothing is locked, \
                 the program was not started",
                capacity.available
            )));
        }
        match capacity.memlock {
            Some(Bytes::ZERO) => Err(Error::NotPermitted {
                what: "lock memory".to_owned(),
                reason: "RLIMIT_MEMLOCK is 0; raise ulimit -l or give CAP_IPC_LOCK".to_owned(),
            }),
            Some(limit) if asked > limit => Err(Error::TooLarge(format!(
                "a heap and a stack of {asked} are to be locked, and RLIMIT_MEMLOCK allows {limit}; raise \
                 ulimit -l, give CAP_IPC_LOCK, or ask for a smaller --heap. Nothing is locked, the program \
                 was not started"
            ))),
            _ => Ok(()),
        }
    }
}

fn unsuitable((program, obstacle): (PathBuf, Obstacle)) -> Error {
    let instead = match obstacle {
        Obstacle::OthersRights | Obstacle::Capabilities => "; let it lock itself with prefault.h",
        Obstacle::Musl | Obstacle::Static => {
            "; let it lock itself with prefault.h and libprefault.a"
        }
        Obstacle::Unreadable(_)
        | Obstacle::NoProgram
        | Obstacle::Foreign
        | Obstacle::Sanitizer(_)
        | Obstacle::Unknown
        | Obstacle::Circle => "",
    };
    Error::Unsuitable {
        program,
        reason: format!("{obstacle}{instead}"),
    }
}

fn library() -> Result<PathBuf, Error> {
    let own = env::current_exe()
        .ok()
        .and_then(|path| path.parent().map(Path::to_owned));
    let mut folders: Vec<PathBuf> = own.into_iter().collect();
    folders.extend(FOLDERS.map(PathBuf::from));
    let found = folders
        .iter()
        .map(|folder| folder.join(LIBRARY))
        .find(|path| path.is_file());
    let path = found.ok_or_else(|| Error::Unsuitable {
        program: LIBRARY.into(),
        reason: format!("it is not installed (looked in {folders:?})"),
    })?;
    // ld.so(8): both separate entries of LD_PRELOAD, and there is no way to quote them.
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| matches!(byte, b':' | b' '))
    {
        return Err(Error::Unsuitable {
            program: path,
            reason: "its path has a blank or a colon, which LD_PRELOAD cannot take; install it elsewhere"
                .to_owned(),
        });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_small_is_said_before_the_program_starts() {
        let request = LockRequest {
            heap: Bytes::from_mib(64),
            stack: Bytes::from_mib(1),
            on_fault: false,
            keep_malloc: false,
            children: false,
        };
        let table = [
            (1000, None, None),
            (1000, Some(100), None),
            (60, None, Some("memory is too small")),
            (1000, Some(64), Some("RLIMIT_MEMLOCK allows 64")),
            (1000, Some(0), Some("RLIMIT_MEMLOCK is 0")),
        ];
        for (available, memlock, reason) in table {
            let capacity = Capacity {
                available: Bytes::from_mib(available),
                memlock: memlock.map(Bytes::from_mib),
            };
            let said = request
                .check(&capacity)
                .err()
                .map(|error| error.to_string());
            assert_eq!(said.is_some(), reason.is_some());
            assert!(
                said.unwrap_or_default()
                    .contains(reason.unwrap_or_default())
            );
        }
    }
}
