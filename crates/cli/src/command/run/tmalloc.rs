// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar run --tmalloc`: the command's malloc is libtmalloc's (crates/tmalloc/include/tmalloc.h).

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use bursar_faults::program::{self, Obstacle};
use bursar_model::printable;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::launch::Launch;

const LIBRARY: &str = "libtmalloc.so";

/// Adds the library to what the command is loaded with, before what the user loads himself.
pub(crate) fn prepare(launch: &mut Launch, caller: &Caller) -> Result<(), Failure> {
    launch.insist()?;
    check(launch.program())?;
    let library = find()?;
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    launch.set(vec![
        ("LD_PRELOAD".into(), preload),
        ("BURSAR_SOCKET".into(), OsString::from(&caller.socket)),
    ]);
    Ok(())
}

/// Refuses a program that would run with plain malloc, without a word. One that cannot be found or looked at
/// is left to execve(2), which may know it and says it best.
fn check(program: &OsStr) -> Result<(), Failure> {
    let Some(path) = program::find(program) else {
        return Ok(());
    };
    match program::check_preloadable(&path) {
        Ok(()) | Err((_, Obstacle::Unreadable(_))) => Ok(()),
        Err((program, obstacle)) => Err(Failure::failed(format!(
            "cannot make {:?} allocate by tmalloc: {obstacle}; run it without --tmalloc, or let it reserve over \
             bursard's socket (bursar.h)",
            printable(program.as_os_str().as_encoded_bytes(), 256)
        ))),
    }
}

/// Beside us (a build), below our prefix, or where the loader finds it.
fn find() -> Result<PathBuf, Failure> {
    let own = env::current_exe().ok();
    let directory = own.as_deref().and_then(Path::parent);
    let prefix = directory.and_then(Path::parent);
    let places = [
        directory.map(|it| it.join(LIBRARY)),
        prefix.map(|it| it.join("lib/bursar").join(LIBRARY)),
        prefix.map(|it| it.join("lib").join(LIBRARY)),
    ];
    let found = places.into_iter().flatten().find(|path| path.is_file());
    let path = found.ok_or_else(|| {
        Failure::failed(format!(
            "cannot find {LIBRARY} beside bursar, in ../lib/bursar or ../lib; is bursar installed whole? (make install)"
        ))
    })?;
    // ld.so splits at both, and has no way to write them.
    if path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b" :".contains(byte))
    {
        return Err(Failure::failed(format!(
            "cannot load {path:?}: the dynamic loader takes no path with a blank or a colon; install bursar elsewhere"
        )));
    }
    Ok(path)
}
