// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm self-test`: whether the harness tells the truth, tried on every cached kernel. Not part of
//! `cargo test`, which boots nothing.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::guest::Guest;
use super::output::Output;
use super::report::{Ending, Report};
use crate::archive::Fetch;
use crate::interrupt;
use crate::kernel::{Cache, fetch};
use crate::program;
use crate::suite::{Suite, Suites};

/// A guest, and what has to come of it.
struct Test {
    name: &'static str,
    script: &'static str,
    change: fn(&mut Guest, &Path) -> Result<()>,
    right: fn(&Report, &Output, &Path) -> bool,
}

fn as_it_is(_: &mut Guest, _: &Path) -> Result<()> {
    Ok(())
}

const TESTS: &[Test] = &[
    Test {
        name: "a guest is what it should be, and its files arrive both ways",
        script: "set -e; uname -r; test \"$BURSAR_TEST\" = \"it's $ 5\"; id --version | grep -q GNU
            test \"$(id -u u60009)\" = 60009; id -nG u60003 | grep -qw crew
            su u60003 -c 'test $(id -u) = 60003 && test -w $HOME && test -w /tmp && test -w /dev/shm'
            test -b /dev/nullb2; test ! -e /dev/nullb3; test -s /sys/kernel/btf/vmlinux
            grep -q memory /sys/fs/cgroup/cgroup.controllers; grep -qw bpf /sys/kernel/security/lsm
            grep -q some /proc/pressure/memory; ping -c 1 -w 5 127.0.0.1 >/dev/null
            for fs in bpf tracefs debugfs; do if grep -q \" $fs \" /proc/mounts; then exit 9; fi; done
            cmp /root/there /root/again; cp /root/there /root/back; echo on stderr >&2",
        change: |guest, dir| {
            // Every byte value, and larger than any buffer on the way.
            let byte = |n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8;
            let there = dir.join("there");
            fs::write(&there, (0..300_000).map(byte).collect::<Vec<u8>>()).context("write a file")?;
            guest.out = vec![("/root/back".into(), dir.join("back"))];
            let options = &mut guest.options;
            options.env = vec![("BURSAR_TEST".to_owned(), "it's $ 5".to_owned())];
            options.module = vec!["null_blk nr_devices=3".to_owned()];
            // A program with libraries, of a name that busybox has too.
            options.file = vec![(program::find("id")?, "/usr/bin/id".into())];
            options.file.push((there.clone(), "/root/there".into()));
            options.file.push((there, "/root/again".into()));
            Ok(())
        },
        right: |report, output, dir| {
            let read = |name: &str| fs::read(dir.join(name)).ok();
            report.status() == 0
                && output.out == format!("{}\n", report.release).as_bytes()
                && output.err == b"on stderr\n"
                && read("back").is_some()
                && read("back") == read("there")
        },
    },
    Test {
        name: "the command's own exit status comes back",
        script: "printf unfinished; exit 7",
        change: |guest, dir| {
            guest.out = vec![("/no/such/file".into(), dir.join("x"))];
            Ok(())
        },
        right: |report, output, _| {
            let missing = report.missing == [Path::new("/no/such/file")];
            missing && report.status() == 7 && output.out == b"unfinished"
        },
    },
    Test {
        name: "a kernel warning fails a run that passed",
        script: "echo '<4>WARNING: CPU: 0 PID: 1 at self-test' >/dev/kmsg",
        change: as_it_is,
        right: |report, _, _| {
            let complaint = report.complaints == ["WARNING: CPU: 0 PID: 1 at self-test"];
            complaint && report.ending == Ending::Exited(0) && report.status() == 125
        },
    },
    Test {
        name: "a command that does not end is timed out",
        script: "echo before; sleep 1000",
        change: |guest, _| {
            guest.timeout = Duration::from_secs(40);
            Ok(())
        },
        right: |report, output, _| {
            let in_time = report.total < Duration::from_secs(45);
            in_time && report.status() == 124 && output.out == b"before\n"
        },
    },
    Test {
        name: "a panic is told from other deaths",
        script: "echo c >/proc/sysrq-trigger; sleep 100",
        change: as_it_is,
        right: |report, _, _| report.ending == Ending::Panicked && report.status() == 125,
    },
    Test {
        name: "what a command leaves running does not hold the guest",
        script: "(trap '' TERM HUP; while :; do sleep 1; done) & setsid sleep 1000 & echo $?",
        change: as_it_is,
        right: |report, output, _| report.status() == 0 && output.out == b"0\n",
    },
    // Attaching BPF programs patches kernel code: [`crate::qemu::Accelerator`] says what QEMU gets wrong.
    Test {
        name: "a kernel that patches itself under load survives",
        script: "set -e; cd /sys/kernel/tracing/events
            for load in 1 2; do (while :; do /bin/true; done) & done
            for turn in 1 2; do echo 1 >kmem/enable; echo 0 >kmem/enable; done",
        change: |guest, _| {
            guest.options.tracefs = true;
            Ok(())
        },
        right: |report, _, _| report.status() == 0,
    },
];

pub(super) fn self_test(cache: &Cache, suites: Option<&Suites>) -> Result<ExitCode> {
    let mut kernels = Vec::new();
    for &suite in Suite::value_variants() {
        match suites {
            Some(suites) if suites.as_slice().contains(&suite) => {
                kernels.push(fetch(cache, suite, &Fetch::default())?);
            }
            Some(_) => {}
            None => kernels.extend(cache.kernel(suite)?),
        }
    }
    ensure!(
        !kernels.is_empty(),
        "no kernel is cached; cargo xtask vm fetch --suite all"
    );
    let (mut passed, mut failed) = (0, 0);
    for kernel in &kernels {
        for test in TESTS {
            if interrupt::came() {
                bail!("interrupted");
            }
            let (suite, name) = (kernel.suite(), test.name);
            let dir = tempfile::tempdir().context("create a directory")?;
            let mut guest = Guest::new(kernel, &["sh", "-c", test.script]);
            (test.change)(&mut guest, dir.path())?;
            let (report, output) = guest.output()?;
            if (test.right)(&report, &output, dir.path()) {
                passed += 1;
                println!(
                    "ok      {suite}: {name} ({:.1} s)",
                    report.total.as_secs_f64()
                );
            } else {
                failed += 1;
                let [out, err] =
                    [&output.out, &output.err].map(|text| String::from_utf8_lossy(text));
                println!("FAILED  {suite}: {name}: {}", report.story().join("\n"));
                println!("stdout: {out}\nstderr: {err}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
