// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What takes root to try: other users' processes and terminals, mounts, another /etc. Uids 60000 to
//! 60999 are nobody's.

mod children;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bursar_host::{
    Adjusted, Errno, HostError, Lookup, Mounted, Mounts, Notified, PageFlags, Patient, Pidfd, Proc,
    Signal, Terminals, Users, mount_bpffs, mount_tracefs,
};
use bursar_model::{Bytes, Pid, Uid};
use children::{Forked, Spawned};
use rustix::fs::{Gid as FsGid, Uid as FsUid};

/// A terminal with a process of some user on it.
struct Session {
    master: fs::File,
    path: PathBuf,
    _slave: OwnedFd,
    _child: Spawned,
}

impl Session {
    fn new(process_uid: u32, owner: u32) -> Self {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: two integers are written; no name, settings or size are given.
        let done = unsafe {
            libc::openpty(
                &mut master,
                &mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        assert_eq!(done, 0);
        // SAFETY: openpty has just opened it for us alone.
        let master = unsafe { OwnedFd::from_raw_fd(master) };
        // SAFETY: openpty has just opened it for us alone.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        rustix::fs::fchown(&slave, Some(FsUid::from_raw(owner)), None::<FsGid>).unwrap();
        rustix::io::ioctl_fionbio(&master, true).unwrap();
        let path = fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd())).unwrap();
        let terminal = slave.as_raw_fd();
        let mut command = Command::new("sleep");
        command.arg("1000").uid(process_uid);
        // SAFETY: two system calls and no allocation between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                libc::ioctl(terminal, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = Spawned::of(&mut command);
        Self {
            master: master.into(),
            path,
            _slave: slave,
            _child: child,
        }
    }

    /// What has been written to the terminal so far.
    fn seen(&mut self) -> String {
        let mut bytes = vec![0; 64 << 10];
        let count = self.master.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

fn told(written: u32, failed: u32) -> Notified {
    Notified { written, failed }
}

#[test]
fn a_user_is_told_on_each_terminal_once_and_commanded_nothing() {
    let proc = Proc::host().unwrap();
    let mut first = Session::new(60_001, 60_001);
    let mut second = Session::new(60_001, 60_001);
    let mut other = Session::new(60_002, 60_002);
    let terminals = Terminals::host(&proc);
    let users = BTreeSet::from([60_001, 60_002].map(Uid::new));
    // One look for all of them.
    let by_user = terminals.of_users(&users, &mut Patient(&proc)).unwrap();
    let paths = |uid: u32| -> BTreeSet<PathBuf> {
        let devices = &by_user[&Uid::new(uid)].terminals;
        devices
            .iter()
            .filter_map(|&it| terminals.path_of(it))
            .collect()
    };
    let expected = [first.path.clone(), second.path.clone()];
    assert_eq!(paths(60_001), BTreeSet::from(expected));
    assert_eq!(paths(60_002), BTreeSet::from([other.path.clone()]));
    assert_eq!(by_user[&Uid::new(60_001)].processes.len(), 2);

    let done = terminals.tell(
        Uid::new(60_001),
        &by_user[&Uid::new(60_001)],
        "bursar: killed \"x\x1b[2J\n\"",
    );

    assert_eq!(done, told(2, 0));
    for session in [&mut first, &mut second] {
        // The terminal itself turns \n into \r\n.
        assert_eq!(
            session.seen(),
            "\r\r\nbursar: killed \"x\\x1b[2J\\n\"\r\r\n"
        );
    }
    assert_eq!(other.seen(), "");
}

#[test]
fn nobody_is_told_on_somebody_elses_terminal() {
    let proc = Proc::host().unwrap();
    // As after `su`: the process is his, the terminal is not.
    let mut session = Session::new(60_003, 60_004);
    let terminals = Terminals::host(&proc);
    let users = BTreeSet::from([60_003, 60_004].map(Uid::new));
    let by_user = terminals.of_users(&users, &mut Patient(&proc)).unwrap();
    let his = &by_user[&Uid::new(60_003)];
    let paths: Vec<PathBuf> = his
        .terminals
        .iter()
        .filter_map(|&it| terminals.path_of(it))
        .collect();
    assert_eq!(paths, [session.path.clone()]);
    assert_eq!(terminals.tell(Uid::new(60_003), his, "secret"), told(0, 1));
    assert_eq!(by_user.get(&Uid::new(60_004)), None);
    assert_eq!(session.seen(), "");
}

#[test]
fn a_stopped_terminal_is_not_waited_for() {
    let proc = Proc::host().unwrap();
    let session = Session::new(60_005, 60_005);
    let terminals = Terminals::host(&proc);
    let user = Uid::new(60_005);
    let by_user = terminals.of_users(&BTreeSet::from([user]), &mut Patient(&proc));
    let user_terminals = &by_user.unwrap()[&user];
    let mut done = told(1, 0);
    // Nobody reads: after some lines the terminal is full.
    for _ in 0..10_000 {
        done = terminals.tell(user, user_terminals, &"x".repeat(400));
        if done.failed > 0 {
            break;
        }
    }
    assert_eq!(done, told(0, 1));
    drop(session);
}

#[test]
fn what_stands_in_a_terminals_place_is_not_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let pts = directory.path().join("dev/pts");
    fs::create_dir_all(&pts).unwrap();
    let owner = FsUid::from_raw(60_006);
    for (number, kind) in ["file", "link", "fifo", "directory", "null"]
        .into_iter()
        .enumerate()
    {
        let path = pts.join(number.to_string());
        match kind {
            "file" => fs::write(&path, "").unwrap(),
            "link" => std::os::unix::fs::symlink(pts.join("0"), &path).unwrap(),
            "directory" => fs::create_dir(&path).unwrap(),
            "fifo" => mknod(&path, libc::S_IFIFO, 0),
            _ => mknod(&path, libc::S_IFCHR, libc::makedev(1, 3)),
        }
        rustix::fs::chownat(
            rustix::fs::CWD,
            &path,
            Some(owner),
            None,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        let process = directory
            .path()
            .join("proc")
            .join((number + 10).to_string());
        fs::create_dir_all(&process).unwrap();
        let stat = format!(
            "1 (a) S 1 1 1 {} 1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0",
            34_816 + number
        );
        fs::write(process.join("stat"), stat).unwrap();
        let status =
            "Tgid:\t1\nPid:\t1\nUid:\t60006\t0\t0\t0\nThreads:\t1\nSigPnd:\t0\nShdPnd:\t0\n";
        fs::write(process.join("status"), status).unwrap();
    }
    let proc = Proc::at(&directory.path().join("proc")).unwrap();
    let terminals = Terminals::at(&proc, &directory.path().join("dev"), Path::new("/sys"));
    let user = Uid::new(60_006);
    let by_user = terminals.of_users(&BTreeSet::from([user]), &mut Patient(&proc));
    let user_terminals = &by_user.unwrap()[&user];
    assert_eq!(user_terminals.terminals.len(), 5);
    assert_eq!(terminals.tell(user, user_terminals, "x"), told(0, 5));
    assert_eq!(fs::read(pts.join("0")).unwrap(), b"");
}

fn mknod(path: &Path, kind: libc::mode_t, device: libc::dev_t) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a NUL and outlives the call.
    let done = unsafe { libc::mknod(path.as_ptr(), kind | 0o600, device) };
    assert_eq!(done, 0);
}

#[test]
fn what_we_may_not_do_is_a_fact_and_not_a_failure() {
    let victim = Spawned::of(Command::new("sleep").arg("1000"));
    let pid = victim.pid();
    let child = Forked::of(|| {
        // SAFETY: an integer; the whole forked child becomes another user.
        assert_eq!(unsafe { libc::setresuid(60_007, 60_007, 60_007) }, 0);
        let proc = Proc::host().unwrap();
        let process = proc.process(pid).unwrap().unwrap();
        assert_eq!(process.set_oom_score_adj(500), Ok(Adjusted::Denied));
        let pidfd = Pidfd::open(pid).unwrap().unwrap();
        assert!(matches!(
            pidfd.send(Signal::KILL),
            Err(HostError::Denied {
                source: Errno::PERM,
                ..
            })
        ));
        let denied = mount_bpffs(Path::new("/tmp")).unwrap_err();
        assert!(matches!(denied, HostError::Denied { .. }), "{denied}");
    });
    assert_eq!(child.exit_code(), Some(0));
}

/// Unmounts whatever a test mounted.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn what_is_mounted_once_is_not_mounted_over() {
    type Mount = fn(&Path) -> Result<Mounted, HostError>;
    let table: [(&str, Mount); 2] = [("bpf", mount_bpffs), ("tracefs", mount_tracefs)];
    for (filesystem, mount) in table {
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().join("a b\\c");
        fs::create_dir(&point).unwrap();
        let missing = mount(&directory.path().join("missing")).unwrap_err();
        assert!(
            missing
                .to_string()
                .ends_with("No such file or directory (os error 2)"),
            "{missing}"
        );
        let unmount = Unmount(point.clone());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&point, &link).unwrap();

        assert_eq!(mount(&point), Ok(Mounted::Now));
        assert_eq!(mount(&point), Ok(Mounted::Before));
        assert_eq!(mount(&link), Ok(Mounted::Before));

        let mounts = Mounts::read(&Proc::host().unwrap()).unwrap();
        assert_eq!(mounts.at(&point).unwrap().filesystem, filesystem);
        assert_eq!(
            mounts.iter().filter(|mount| mount.point == point).count(),
            1
        );
        drop(unmount);
    }
}

/// Runs the test that calls it once more, in a process whose /etc has only these files; true in there.
fn is_in_own_etc(test: &str, files: &[(&str, &str)]) -> bool {
    if std::env::var_os("BURSAR_OWN_ETC").is_some() {
        return true;
    }
    let etc = tempfile::tempdir().unwrap();
    fs::set_permissions(
        etc.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    for (name, content) in files {
        fs::write(etc.path().join(name), content).unwrap();
    }
    let output = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            r#"mount --bind "$1" /etc && exec "$2" --exact "$3""#,
            "sh",
        ])
        .arg(etc.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env("BURSAR_OWN_ETC", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

#[test]
fn a_source_of_names_that_is_down_is_not_taken_for_nobody() {
    let files = [("nsswitch.conf", "passwd: files\ngroup: files\n")];
    if is_in_own_etc(
        "a_source_of_names_that_is_down_is_not_taken_for_nobody",
        &files,
    ) {
        let mut users = Users::new(16);
        assert_eq!(users.by_name("root"), Lookup::Unavailable(Errno::NOENT));
        assert_eq!(users.by_uid(Uid::new(0)), Lookup::Unavailable(Errno::NOENT));
        assert_eq!(users.group("root"), Lookup::Unavailable(Errno::NOENT));
        // It comes back, and is asked again.
        fs::write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        assert_eq!(users.by_name("root").found().unwrap().uid, Uid::new(0));
        assert_eq!(users.by_name("alice"), Lookup::Absent);
    }
}

#[test]
fn members_are_those_listed_and_those_at_home_in_the_group() {
    let many: String = (0..300).map(|n| format!("student{n:04},")).collect();
    let passwd = "root:x:0:0::/:/bin/sh\nalice:x:60100:60200::/:/bin/sh\nbob:x:60101:60201::/:/bin/sh\n\
                  eve:x:60102:60200::/:/bin/sh\ntwin:x:60101:60201::/:/bin/sh\n";
    let group = format!(
        "root:x:0:\nlab:x:60200:bob,ghost,bob\nempty:x:60202:\ncrowd:x:60203:{many}alice\n"
    );
    let files = [
        (
            "nsswitch.conf",
            "passwd: files nosuchservice\ngroup: files\n",
        ),
        ("passwd", passwd),
        ("group", &group),
    ];
    if is_in_own_etc(
        "members_are_those_listed_and_those_at_home_in_the_group",
        &files,
    ) {
        let mut users = Users::new(1000);
        let uids = |list: &[u32]| list.iter().map(|&uid| Uid::new(uid)).collect();
        let lab = users.members("lab").found().unwrap();
        assert_eq!(lab.uids, uids(&[60_100, 60_101, 60_102]));
        assert_eq!(
            (lab.unknown, lab.incomplete, lab.is_cut_off),
            (vec!["ghost".to_owned()], None, false)
        );
        assert_eq!(users.members("empty").found().unwrap().uids, uids(&[]));
        let crowd = users.members("crowd").found().unwrap();
        assert_eq!((crowd.uids, crowd.unknown.len()), (uids(&[60_100]), 300));
        assert_eq!(users.members("none"), Lookup::Absent);
        assert_eq!(users.by_uid(Uid::new(60_101)).found().unwrap().name, "bob");
        // Remembered until told otherwise.
        fs::write("/etc/passwd", "root:x:0:0::/:/bin/sh\n").unwrap();
        assert_eq!(
            users.by_name("alice").found().unwrap().uid,
            Uid::new(60_100)
        );
        users.forget();
        assert_eq!(users.by_name("alice"), Lookup::Absent);
    }
}

#[test]
fn a_process_that_ends_while_we_look_is_none() {
    let proc = Proc::host().unwrap();
    // Pids of short-lived processes of another user, read while they come and go.
    let mut session = Command::new("sh");
    session
        .args(["-c", "while :; do true & wait; done"])
        .uid(60_008);
    let child = Spawned::of(&mut session);
    let deadline = std::time::Instant::now() + Duration::from_millis(500);
    let mut met = 0;
    while std::time::Instant::now() < deadline {
        for pid in proc.pids().unwrap() {
            let pid: Pid = pid.unwrap();
            proc.stat(pid).unwrap();
            proc.status(pid).unwrap();
            met += 1;
        }
    }
    assert!(met > 0);
    drop(child);
}

/// What was given back with MADV_FREE is taken, and nothing else.
#[test]
fn pages_given_back_are_taken_and_no_others() {
    let script = "import mmap,sys\n\
        def take(mib):\n m=mmap.mmap(-1,mib<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n \
        for i in range(0,mib<<20,4096): m[i]=1\n return m\n\
        kept=take(24)\ngiven=take(48)\ngiven.madvise(mmap.MADV_FREE)\n\
        print('there',flush=True)\nsys.stdin.read()\n";
    let mut child = std::process::Command::new("/usr/bin/python3")
        .args(["-I", "-S", "-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let pid = Pid::new(child.id());
    let proc = Proc::host().unwrap();
    let flags = PageFlags::open(&proc).unwrap();
    let before = proc.rollup(pid).unwrap().unwrap();
    assert!(before.lazy_free >= Bytes::from_mib(47), "{before:?}");
    let taken = proc.take_given_back(pid, &flags).unwrap().unwrap();
    let after = proc.rollup(pid).unwrap().unwrap();
    child.stdin.take();
    child.wait().unwrap();
    assert!(taken >= Bytes::from_mib(47), "{taken:?}");
    assert!(after.lazy_free <= Bytes::from_mib(1), "{after:?}");
    assert!(after.anonymous >= Bytes::from_mib(24), "{after:?}");
    assert!(
        after.anonymous.get() + (46 << 20) <= before.anonymous.get(),
        "{before:?} {after:?}"
    );
}
