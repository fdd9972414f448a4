// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The readers on what real kernels wrote (tests/fixtures/capture.sh), and on what none would.

use std::fs;
use std::path::{Path, PathBuf};

use bursar_host::{HostError, Mounts, Proc, StartTime};
use bursar_model::{Bytes, Pid, Uid};
use proptest::prelude::*;

const KERNELS: [&str; 4] = ["6.1", "6.12", "6.18", "7.2"];
const KERNEL_THREAD: Pid = Pid::new(2);
const HOSTILE: Pid = Pid::new(100);
const ZOMBIE: Pid = Pid::new(200);

fn fixture(kernel: &str) -> Proc {
    Proc::at(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(kernel),
    )
    .unwrap()
}

#[test]
fn processes_are_listed_and_nothing_else() {
    for kernel in KERNELS {
        let mut pids: Vec<u32> = fixture(kernel)
            .pids()
            .unwrap()
            .map(|pid| pid.unwrap().get())
            .collect();
        pids.sort_unstable();
        assert_eq!(pids, [2, 100, 200], "{kernel}");
    }
}

#[test]
fn a_hostile_name_forges_nothing_on_any_kernel() {
    for kernel in KERNELS {
        let proc = fixture(kernel);
        let stat = proc.stat(HOSTILE).unwrap().unwrap();
        let status = proc.status(HOSTILE).unwrap().unwrap();
        assert_eq!(stat.comm.as_bytes(), b"a) R 1\nUid:\t0", "{kernel}");
        assert_eq!(proc.comm(HOSTILE).unwrap().unwrap(), stat.comm, "{kernel}");
        assert_eq!(stat.comm.to_printable(), "a) R 1\\nUid:\\t0", "{kernel}");
        assert_eq!(
            (stat.state.letter(), stat.threads, status.threads),
            ('S', 1, 1),
            "{kernel}"
        );
        assert_eq!(status.uid, Uid::new(60_001), "{kernel}");
        assert!(
            !status.is_kill_pending && !status.is_dumping_core,
            "{kernel}"
        );
        assert!(
            stat.start > StartTime::new(0) && stat.parent.is_some(),
            "{kernel}"
        );
        let memory = status.memory.unwrap();
        assert!(
            memory.rss_anon > Bytes::ZERO && memory.page_tables > Bytes::ZERO,
            "{kernel}"
        );
        assert_eq!(memory.swap, Bytes::ZERO, "{kernel}");
    }
}

#[test]
fn a_kernel_thread_has_no_memory_no_session_and_no_terminal() {
    for kernel in KERNELS {
        let proc = fixture(kernel);
        let stat = proc.stat(KERNEL_THREAD).unwrap().unwrap();
        assert_eq!(
            (stat.parent, stat.session, stat.terminal),
            (None, None, None),
            "{kernel}"
        );
        assert_eq!(stat.comm.as_bytes(), b"kthreadd", "{kernel}");
        let status = proc.status(KERNEL_THREAD).unwrap().unwrap();
        assert_eq!((status.memory, status.uid), (None, Uid::new(0)), "{kernel}");
    }
}

#[test]
fn a_zombie_is_dead_and_holds_nothing() {
    for kernel in KERNELS {
        let proc = fixture(kernel);
        assert!(
            proc.stat(ZOMBIE).unwrap().unwrap().state.is_dead(),
            "{kernel}"
        );
        assert_eq!(
            proc.status(ZOMBIE).unwrap().unwrap().memory,
            None,
            "{kernel}"
        );
    }
}

#[test]
fn the_machine_is_read_on_any_kernel() {
    for kernel in KERNELS {
        let proc = fixture(kernel);
        let memory = proc.meminfo().unwrap();
        assert!(memory.total > Bytes::from_mib(500), "{kernel}");
        assert!(
            memory.free < memory.total && memory.available < memory.total,
            "{kernel}"
        );
        assert_eq!(memory.swap_total, Bytes::ZERO, "{kernel}");
        assert_eq!(proc.boot_id().unwrap().unwrap().len(), 36, "{kernel}");
        let mounts = Mounts::read(&proc).unwrap();
        assert!(mounts.is_bpffs(Path::new("/sys/fs/bpf/bursar")), "{kernel}");
        assert!(
            !mounts.is_bpffs(Path::new("/sys/kernel/tracing")),
            "{kernel}"
        );
    }
}

#[test]
fn what_has_vanished_is_none() {
    let proc = fixture("6.18");
    let gone = Pid::new(999);
    assert_eq!(proc.stat(gone), Ok(None));
    assert_eq!(proc.status(gone), Ok(None));
    assert_eq!(proc.comm(gone), Ok(None));
    assert!(proc.process(gone).unwrap().is_none());
}

#[test]
fn a_process_is_held_by_its_directory() {
    let proc = fixture("6.18");
    let process = proc.process(HOSTILE).unwrap().unwrap();
    assert_eq!(process.pid(), HOSTILE);
    assert_eq!(process.oom_score_adj(), Ok(Some(0)));
    assert_eq!(process.status().unwrap().unwrap().uid, Uid::new(60_001));
}

/// A /proc of one process, made of the 6.18 one and changed.
struct Changed {
    root: tempfile::TempDir,
}

impl Changed {
    fn new(name: &str, content: &[u8]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let pid = root.path().join("100");
        fs::create_dir(&pid).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/6.18/100");
        for file in ["stat", "status", "comm", "oom_score_adj"] {
            fs::copy(source.join(file), pid.join(file)).unwrap();
        }
        fs::write(root.path().join(name), content).unwrap();
        Self { root }
    }

    fn proc(&self) -> Proc {
        Proc::at(self.root.path()).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }
}

#[test]
fn keys_that_nobody_knows_yet_are_passed_over() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/6.18/100/status");
    let known = fs::read_to_string(&source).unwrap();
    let newer = known.replace(
        "VmRSS",
        "VmNew:\t 9 kB\nRssAnonHuge:\t 7 kB\nUids:\t5\nVmRSS",
    );
    let changed = Changed::new("100/status", format!("{newer}Future:\tyes no\n").as_bytes());
    assert_eq!(
        changed.proc().status(HOSTILE),
        fixture("6.18").status(HOSTILE)
    );
}

#[test]
fn what_is_absurd_is_refused_with_the_file_and_the_reason() {
    let table: [(&str, &[u8], &str); 6] = [
        ("100/stat", b"", "no name in parentheses"),
        ("100/stat", b"100 (a) S 1 1", "it ends before field 6"),
        ("100/status", b"", "no key Uid"),
        ("100/status", b"Uid:\t1\t1\t1\t1\n", "no key Tgid"),
        ("meminfo", b"MemTotal: 5 kB\n", "no key MemFree"),
        (
            "meminfo",
            b"MemTotal: lots\n",
            "MemTotal is no number of kB",
        ),
    ];
    for (name, content, reason) in table {
        let changed = Changed::new(name, content);
        let proc = changed.proc();
        let error = match name {
            "100/stat" => proc.stat(HOSTILE).unwrap_err(),
            "100/status" => proc.status(HOSTILE).unwrap_err(),
            _ => proc.meminfo().unwrap_err(),
        };
        let text = format!("cannot understand {:?}: {reason}; ", changed.path(name));
        assert!(error.to_string().starts_with(&text), "{error}");
    }
}

#[test]
fn a_file_without_end_is_read_to_a_bound() {
    let mut endless = b"Uid:\t1\t1\t1\t1\n".to_vec();
    endless.resize(8 << 20, b'x');
    let changed = Changed::new("100/status", &endless);
    assert!(matches!(
        changed.proc().status(HOSTILE),
        Err(HostError::Malformed { .. })
    ));
}

#[test]
fn a_machine_without_meminfo_is_an_error() {
    let empty = tempfile::tempdir().unwrap();
    let error = Proc::at(empty.path()).unwrap().meminfo().unwrap_err();
    assert!(error.to_string().starts_with("cannot read "), "{error}");
    assert!(Proc::at(Path::new("/nonexistent")).is_err());
}

proptest! {
    /// Any byte of a real file changed, or the file cut off anywhere: an answer or an error.
    #[test]
    fn damaged_files_are_answered_or_refused(
        kernel in prop::sample::select(&KERNELS[..]),
        name in prop::sample::select(&["100/stat", "100/status", "meminfo", "self/mountinfo"][..]),
        at: prop::sample::Index,
        byte: u8,
        is_cut: bool,
    ) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kernel).join(name);
        let mut content = fs::read(path).unwrap();
        let at = at.index(content.len());
        if is_cut { content.truncate(at) } else { content[at] = byte }
        match name {
            "100/stat" => drop(bursar_host::Stat::parse(&content)),
            "100/status" => drop(bursar_host::Status::parse(&content)),
            "meminfo" => drop(bursar_host::MemInfo::parse(&content)),
            _ => drop(Mounts::parse(&content)),
        }
    }
}
