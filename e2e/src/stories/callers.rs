// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that call malloc and libbursar where it is awkward to be called: what their threads, signals
//! and other libraries may do, they still may with ours. In C, as such programs are.

mod conformance;
mod suites;
mod undisturbed;

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::runner::{Place, Story};
use crate::signal::send_to_group;
use crate::stories::ALICE;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) use self::conformance::STORIES as CONFORMANCE_STORIES;
pub(super) use self::suites::STORIES as SUITE_STORIES;
pub(super) use self::undisturbed::STORIES as UNDISTURBED_STORIES;

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_thread_cancelled_while_it_asks_for_memory_is_answered_and_leaves_nothing_locked",
        place: Place::Host,
        tell: cancelled,
    },
    Story {
        name: "whoever_forks_while_somebody_asks_for_memory_waits_for_nobody",
        place: Place::Host,
        tell: forks,
    },
    Story {
        name: "a_program_linked_with_another_allocator_allocates_by_tmalloc",
        place: Place::Host,
        tell: other_allocator,
    },
    Story {
        name: "a_program_with_rights_of_its_own_is_refused_what_a_preloaded_library_does",
        place: Place::Host,
        tell: own_rights,
    },
    Story {
        name: "tmalloc_asks_whom_the_environment_named_at_the_start_whatever_became_of_it",
        place: Place::Host,
        tell: cleared,
    },
];

/// Nobody listens there.
const NOBODY: &str = "/nonexistent/sock";

/// Where programs are built, and how they are run.
struct Workshop<'a> {
    world: World,
    binaries: &'a Binaries,
}

impl<'a> Workshop<'a> {
    fn new(binaries: &'a Binaries, name: &str) -> Result<Self> {
        let world = World::new(binaries, name, "")?;
        Ok(Self { world, binaries })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.directory().join(name)
    }

    /// Compiles C.
    fn build(&self, name: &str, source: &str, arguments: &[&Path]) -> Result<PathBuf> {
        let (code, result) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&code, source).context("write a program")?;
        let includes = ["libbursar", "prefault"].map(|library| {
            format!(
                "-I{}/../crates/{library}/include",
                env!("CARGO_MANIFEST_DIR")
            )
        });
        let built = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-O1"])
            .args(includes)
            .arg("-o")
            .args([&result, &code])
            .args(arguments)
            .output()
            .context("run cc")?;
        ensure!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        Ok(result)
    }

    /// A socket at which nobody ever answers.
    fn silence(&self) -> Result<String> {
        let path = self.path("silent.sock");
        let listener = UnixListener::bind(&path).context("listen")?;
        // Ends with us: stories are not many.
        std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok(client) = listener.accept() {
                open.push(client);
            }
        });
        Ok(path.display().to_string())
    }

    /// One of them, with tmalloc.
    fn command(&self, program: &Path, socket: &str) -> Result<Command> {
        let library = self.binaries.path("libtmalloc.so");
        let beside = library.parent().context("its directory")?;
        let libraries = env::join_paths([beside, self.world.directory()])?;
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("LD_PRELOAD", &library)
            .env("BURSAR_SOCKET", socket);
        Ok(command)
    }

    /// Runs it until it ends by itself, at the latest by its alarm(2), and its children with it.
    fn run(&self, program: &Path, way: &str, socket: &str) -> Result<()> {
        let mut command = self.command(program, socket)?;
        let mut child = command
            .arg(way)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {program:?}"))?;
        let pid = Pid::from_child(&child);
        let ended = until("a program to end", || {
            let leave = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            Ok(waitid(WaitId::Pid(pid), leave)?)
        });
        // Before it is waited for, while the group's number is surely its own.
        send_to_group(child.id(), libc::SIGKILL)?;
        let status = child.wait()?;
        ended?;
        ensure!(status.success(), "{program:?} {way}: {status}");
        Ok(())
    }

    /// The same for each way and its socket, at once: most of it is waiting.
    fn run_side_by_side(&self, program: &Path, ways: &[(&str, &str)]) -> Result<()> {
        std::thread::scope(|scope| {
            let start = |&(way, socket)| scope.spawn(move || self.run(program, way, socket));
            let running: Vec<_> = ways.iter().map(start).collect();
            let mut ends = running.into_iter().map(|it| it.join());
            ends.try_for_each(|it| it.unwrap_or_else(|_| bail!("a thread has panicked")))
        })
    }
}

fn cancelled(binaries: &Binaries) -> Result<()> {
    let workshop = Workshop::new(binaries, "cancelled")?;
    let program = workshop.build(
        "cancelled",
        include_str!("callers/cancelled.c"),
        &[&binaries.path("libbursar.so")],
    )?;
    let silence = workshop.silence()?;
    // Waits half a minute for an answer; connecting is a cancellation point as well.
    let ways = [
        ("malloc", &*silence),
        ("reserve", &silence),
        ("account", NOBODY),
    ];
    workshop.run_side_by_side(&program, &ways)
}

fn forks(binaries: &Binaries) -> Result<()> {
    let workshop = Workshop::new(binaries, "forks")?;
    let shared = ["-shared", "-fPIC"].map(Path::new);
    let handlers = workshop.build(
        "libhandlers.so",
        include_str!("callers/handlers.c"),
        &shared,
    )?;
    let program = workshop.build(
        "forks",
        include_str!("callers/forks.c"),
        &[&handlers, &binaries.path("libbursar.so")],
    )?;
    workshop.run(&program, "handlers", NOBODY)?;
    let silence = workshop.silence()?;
    let ways = ["meanwhile", "malloc", "reserve"].map(|way| (way, &*silence));
    workshop.run_side_by_side(&program, &ways)
}

fn other_allocator(binaries: &Binaries) -> Result<()> {
    let workshop = Workshop::new(binaries, "allocator")?;
    // Or the compiler, who knows what malloc does, makes calloc a call of itself.
    let as_written = ["-shared", "-fPIC", "-fno-builtin"].map(Path::new);
    let allocator = workshop.build(
        "liballocator.so",
        include_str!("callers/allocator.c"),
        &as_written,
    )?;
    let program = workshop.build(
        "allocates",
        include_str!("callers/allocates.c"),
        &[Path::new("-fno-builtin"), &allocator],
    )?;
    let alone = workshop
        .command(&program, NOBODY)?
        .env_remove("LD_PRELOAD")
        .status()?;
    ensure!(alone.success(), "with its own allocator: {alone}");
    workshop.run(&program, "", NOBODY)
}

fn own_rights(binaries: &Binaries) -> Result<()> {
    /// capabilities(7), struct vfs_cap_data: revision 2, effective, cap_net_bind_service permitted.
    const MAY_BIND: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let workshop = Workshop::new(binaries, "rights")?;
    let copy = |name: &str| -> Result<PathBuf> {
        let path = workshop.path(name);
        fs::copy("/bin/true", &path).context("copy true")?;
        Ok(path)
    };
    let (plain, setuid, capable) = (copy("plain")?, copy("setuid")?, copy("capable")?);
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755))?;
    setxattr(
        &capable,
        c"security.capability",
        &MAY_BIND,
        XattrFlags::empty(),
    )
    .context("give it a capability")?;
    let table = [
        (&plain, ALICE, None),
        (&setuid, ALICE, Some("with its owner's rights")),
        (&setuid, 0, None),
        (&capable, ALICE, Some("it has capabilities of its own")),
        (&capable, 0, None),
    ];
    for (program, uid, refusal) in table {
        for words in [&["faults", "lock", "--dry-run"][..], &["run", "--tmalloc"]] {
            let done = workshop
                .world
                .bursar(words)
                .arg("--")
                .arg(program)
                .uid(uid)
                .gid(uid)
                .output()?;
            let said = String::from_utf8_lossy(&done.stderr);
            ensure!(
                done.status.success() == refusal.is_none()
                    && said.contains(refusal.unwrap_or_default()),
                "{words:?} {program:?} by {uid}: {} {said}",
                done.status
            );
        }
    }
    Ok(())
}

fn cleared(binaries: &Binaries) -> Result<()> {
    let workshop = Workshop::new(binaries, "cleared")?;
    let program = workshop.build("clears", include_str!("callers/clears.c"), &[])?;
    let path = workshop.path("heard.sock");
    let listener = UnixListener::bind(&path).context("listen")?;
    listener.set_nonblocking(true)?;
    workshop.run(&program, "", &path.display().to_string())?;
    listener
        .accept()
        .context("hear from a program that has cleared its environment")?;
    let told = workshop
        .command(&program, NOBODY)?
        .env("TMALLOC_VERBOSE", "1")
        .output()?;
    let told = String::from_utf8_lossy(&told.stderr);
    ensure!(told.contains("bursard does not run"), "said {told:?}");
    Ok(())
}
