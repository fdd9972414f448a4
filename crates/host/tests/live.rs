// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The readers and pidfds on this machine, with real processes. Needs no root.

mod children;

use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use bursar_host::{
    Adjusted, HostError, Lookup, Pidfd, Proc, Release, Sent, Signal, StartTime, Users,
};
use bursar_model::{Bytes, Gid, Pid, Uid};
use children::{Forked, Spawned, pause, until};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn sleeper() -> Spawned {
    Spawned::of(Command::new("sleep").arg("1000"))
}

#[test]
fn we_find_ourselves() {
    let proc = Proc::host().unwrap();
    let me = Pid::new(std::process::id());
    assert!(proc.pids().unwrap().any(|pid| pid == Ok(me)));
    let stat = proc.stat(me).unwrap().unwrap();
    assert!(stat.threads >= 1 && stat.start > StartTime::new(0) && stat.minor_faults > 0);
    assert_eq!(proc.comm(me).unwrap().unwrap(), stat.comm);
    let status = proc.status(me).unwrap().unwrap();
    assert_eq!(
        (status.tgid, status.uid.get()),
        (me, rustix::process::getuid().as_raw())
    );
    assert!(status.memory.unwrap().rss() > Bytes::new(100 << 10));
    assert!(proc.meminfo().unwrap().total > Bytes::from_mib(64));
    assert!(proc.boot_id().unwrap().is_some());
}

#[test]
fn a_name_with_newlines_and_parentheses_forges_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"x) R 1\n(\xff\x1b[2J");
    let program = directory.path().join(name);
    // Not a copy: a child that another test begins meanwhile has that open for writing until its exec (ETXTBSY).
    symlink(which("sleep"), &program).unwrap();
    let child = Spawned::of(Command::new(&program).arg("1000"));
    let proc = Proc::host().unwrap();
    // exec lets the parent go on before it has given the child its new name.
    until(|| proc.comm(child.pid()).unwrap().unwrap().as_bytes() == name.as_bytes());

    let stat = proc.stat(child.pid()).unwrap().unwrap();

    assert_eq!(stat.comm.as_bytes(), name.as_bytes());
    assert_eq!(stat.parent, Some(Pid::new(std::process::id())));
    assert_eq!(proc.comm(child.pid()).unwrap().unwrap(), stat.comm);
    assert_eq!(stat.comm.to_printable(), "x) R 1\\n(\\xff\\x1b[2J");
    let status = proc.status(child.pid()).unwrap().unwrap();
    assert_eq!((status.tgid, status.threads), (child.pid(), 1));
}

fn which(program: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|p| p.exists());
    // A link to busybox or coreutils goes by the name it is called with.
    fs::canonicalize(found.unwrap()).unwrap()
}

#[test]
fn a_zombie_shows_no_memory_and_is_gone_when_reaped() {
    let proc = Proc::host().unwrap();
    let mut child = sleeper();
    let process = proc.process(child.pid()).unwrap().unwrap();
    let pidfd = Pidfd::open(child.pid()).unwrap().unwrap();
    assert_eq!(pidfd.send(Signal::KILL), Ok(Sent::Done));
    assert_eq!(pidfd.wait_readable(TIMEOUT), Ok(true));

    assert!(process.stat().unwrap().unwrap().state.is_dead());
    assert_eq!(process.status().unwrap().unwrap().memory, None);

    child.reap();
    assert_eq!(process.stat(), Ok(None));
    assert_eq!(process.set_oom_score_adj(500), Ok(Adjusted::Gone));
    assert_eq!(pidfd.send(Signal::KILL), Ok(Sent::Gone));
    assert_eq!(pidfd.release_memory(), Ok(Release::Gone));
    assert!(Pidfd::open(child.pid()).unwrap().is_none());
    assert!(proc.process(child.pid()).unwrap().is_none());
}

#[test]
fn a_first_thread_that_has_ended_does_not_end_its_process() {
    let proc = Proc::host().unwrap();
    let child = Forked::of(|| {
        std::thread::spawn(pause);
        children::end_this_thread();
    });
    until(|| proc.stat(child.pid()).unwrap().unwrap().state.is_dead());

    let status = proc.status(child.pid()).unwrap().unwrap();
    assert_eq!((status.tgid, status.threads), (child.pid(), 2));
    assert!(status.memory.is_some() && !status.is_dead && status.tid != child.pid());
    let pidfd = Pidfd::open(child.pid()).unwrap().unwrap();
    assert_eq!(
        pidfd.wait_readable(Some(Duration::from_millis(20))),
        Ok(false)
    );
    assert_eq!(pidfd.send(Signal::KILL), Ok(Sent::Done));
    assert_eq!(pidfd.wait_readable(TIMEOUT), Ok(true));
}

#[test]
fn a_thread_is_no_process() {
    let (send, receive) = std::sync::mpsc::channel();
    let (release, hold) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        send.send(rustix::thread::gettid()).unwrap();
        let _ = hold.recv();
    });
    let tid = receive
        .recv()
        .unwrap()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    assert!(Pidfd::open(Pid::new(tid)).unwrap().is_none());
    drop(release);
    thread.join().unwrap();
}

#[test]
fn numbers_that_no_process_can_have_are_nobody() {
    for pid in [0, u32::MAX, 1 << 31, i32::MAX as u32] {
        assert!(Pidfd::open(Pid::new(pid)).unwrap().is_none());
        assert_eq!(Proc::host().unwrap().stat(Pid::new(pid)), Ok(None));
    }
}

#[test]
fn a_process_is_verified_by_when_it_began() {
    let proc = Proc::host().unwrap();
    let child = sleeper();
    let start = proc.stat(child.pid()).unwrap().unwrap().start;
    assert!(
        Pidfd::open_verified(&proc, child.pid(), start)
            .unwrap()
            .is_some()
    );
    let other = StartTime::new(start.get() - 1);
    assert!(
        Pidfd::open_verified(&proc, child.pid(), other)
            .unwrap()
            .is_none()
    );
    // One that has ended counts as gone, also before it is reaped.
    Pidfd::open(child.pid())
        .unwrap()
        .unwrap()
        .send(Signal::KILL)
        .unwrap();
    until(|| proc.stat(child.pid()).unwrap().unwrap().state.is_dead());
    until(|| {
        Pidfd::open_verified(&proc, child.pid(), start)
            .unwrap()
            .is_none()
    });
}

#[test]
fn a_process_is_known_by_its_number_in_pidfs() {
    let child = sleeper();
    let pid = child.pid();
    let held = Pidfd::open(pid).unwrap().unwrap();
    let Some(number) = held.number().unwrap() else {
        let number = NonZeroU64::MIN;
        let refused = Pidfd::open_numbered(pid, number).unwrap_err();
        assert!(
            matches!(refused, HostError::Unsupported { .. }),
            "{refused}"
        );
        return;
    };
    let open = |number| Pidfd::open_numbered(pid, number).unwrap();
    assert!(open(number).is_some());
    assert!(open(number.checked_add(1).unwrap()).is_none());
    let own = Pid::new(std::process::id());
    assert!(Pidfd::open_numbered(own, number).unwrap().is_none());
    // One that has ended counts as gone, also before it is reaped.
    held.send(Signal::KILL).unwrap();
    until(|| open(number).is_none());
}

#[test]
fn only_a_dying_process_gives_its_memory_back() {
    let proc = Proc::host().unwrap();
    let child = Forked::of(|| {
        // Ignored, so that it is a signal and not death.
        children::ignore(Signal::TERM);
        let memory = vec![1_u8; 64 << 20];
        std::hint::black_box(&memory);
        pause();
    });
    let held = || {
        proc.status(child.pid())
            .unwrap()
            .unwrap()
            .memory
            .map(|memory| memory.rss_anon)
    };
    until(|| held() >= Some(Bytes::from_mib(64)));
    let pidfd = Pidfd::open(child.pid()).unwrap().unwrap();

    assert_eq!(pidfd.release_memory(), Ok(Release::NotDying));
    pidfd.send(Signal::TERM).unwrap();
    assert_eq!(pidfd.release_memory(), Ok(Release::NotDying));
    assert!(held() >= Some(Bytes::from_mib(64)));
    pidfd.send(Signal::KILL).unwrap();
    let released = pidfd.release_memory().unwrap();

    assert!(
        matches!(released, Release::Freed | Release::Gone | Release::Busy),
        "{released:?}"
    );
    assert_eq!(pidfd.wait_readable(TIMEOUT), Ok(true));
    assert_eq!(pidfd.release_memory(), Ok(Release::Gone));
    assert_eq!(held(), None);
}

#[test]
fn a_score_is_raised_and_lowered_again() {
    let proc = Proc::host().unwrap();
    let child = sleeper();
    let process = proc.process(child.pid()).unwrap().unwrap();
    let before = process.oom_score_adj().unwrap().unwrap();
    assert_eq!(process.set_oom_score_adj(998), Ok(Adjusted::Done));
    assert_eq!(process.oom_score_adj(), Ok(Some(998)));
    assert_eq!(process.set_oom_score_adj(before.max(0)), Ok(Adjusted::Done));
    let error = process.set_oom_score_adj(1001).unwrap_err().to_string();
    assert!(
        error.ends_with("oom_score_adj\": Invalid argument (os error 22)"),
        "{error}"
    );
}

#[test]
fn users_and_groups_are_known_by_name_and_number() {
    let mut users = Users::new(16);
    let root = users.by_name("root").found().unwrap();
    assert_eq!((root.uid, root.gid), (Uid::new(0), Gid::new(0)));
    assert_eq!(users.by_uid(Uid::new(0)), Lookup::Found(root));
    assert_eq!(users.by_name("no-such-user"), Lookup::Absent);
    assert_eq!(users.by_name("a\0b"), Lookup::Absent);
    assert_eq!(users.by_uid(Uid::new(60_999)), Lookup::Absent);
    assert_eq!(users.group("no-such-group"), Lookup::Absent);
    let members = users.members("root").found().unwrap();
    assert!(members.uids.contains(&Uid::new(0)), "his primary group");
    assert_eq!(members.incomplete, None);
}
