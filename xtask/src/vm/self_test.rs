// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm self-test`: whether the harness tells the truth, tried on every cached kernel. Not part of
//! `cargo test`, which boots nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::cache::{Cache, Kernel};
use super::fetch::{Fetch, fetch};
use super::guest::{Guest, Output};
use super::interrupt;
use super::program;
use super::report::{Ending, Report};
use super::suite::{Suite, Suites};

type Test = fn(&Kernel, &Path) -> Result<Report>;

const TESTS: [(&str, Test); 7] = [
    (
        "a guest is what it should be, and its files arrive both ways",
        whole_guest,
    ),
    ("the command's own exit status comes back", exit_status),
    ("a kernel warning fails a run that passed", kernel_warning),
    ("a command that does not end is timed out", timeout),
    ("a panic is told from other deaths", panic),
    (
        "what a command leaves running does not hold the guest",
        left_running,
    ),
    ("a kernel that patches itself under load survives", patching),
];

pub(super) fn self_test(cache: &Cache, suites: Option<&Suites>) -> Result<ExitCode> {
    let mut kernels = Vec::new();
    for suite in Suite::ALL {
        match suites {
            Some(suites) if suites.as_slice().contains(&suite) => {
                kernels.push(fetch(cache, suite, &Fetch::default())?);
            }
            Some(_) => {}
            None => match cache.kernel(suite)? {
                Some(kernel) => kernels.push(kernel),
                None => println!("left out: {suite} is not cached"),
            },
        }
    }
    if kernels.is_empty() {
        bail!("no kernel is cached; cargo xtask vm fetch --suite all");
    }
    let (mut passed, mut failed) = (0, 0);
    for kernel in &kernels {
        for (name, test) in TESTS {
            if interrupt::came() {
                bail!("interrupted");
            }
            let dir = tempfile::tempdir().context("create a directory")?;
            let suite = kernel.suite();
            match test(kernel, dir.path()) {
                Ok(report) => {
                    passed += 1;
                    println!(
                        "ok      {suite}: {name} ({:.1} s)",
                        report.total.as_secs_f64()
                    );
                }
                Err(error) => {
                    failed += 1;
                    println!("FAILED  {suite}: {name}: {error:#}");
                }
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

/// What a person needs to see when a guest did something else than expected.
fn told(report: &Report, output: &Output) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.out),
        String::from_utf8_lossy(&output.err),
    );
    format!(
        "{}\nstdout: {out}\nstderr: {err}",
        report.story().join("\n")
    )
}

fn whole_guest(kernel: &Kernel, dir: &Path) -> Result<Report> {
    // Every byte value, and larger than any buffer on the way.
    let bytes: Vec<u8> = (0..300_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let (there, back) = (dir.join("there"), dir.join("back"));
    fs::write(&there, &bytes).with_context(|| format!("write {there:?}"))?;
    // A program with libraries, of a name that busybox has too.
    let id: PathBuf = program::find("id").ok_or_else(|| anyhow!("no id on this machine"))?;
    let script = "set -e\n\
        uname -r\n\
        test \"$BURSAR_TEST\" = \"it's $ 5\"\n\
        id --version | grep -q GNU\n\
        test \"$(id -u u60009)\" = 60009\n\
        id -nG u60003 | grep -qw crew\n\
        su u60003 -c 'test $(id -u) = 60003 && test -w $HOME && test -w /tmp && test -w /dev/shm'\n\
        test -b /dev/nullb2\n\
        test ! -e /dev/nullb3\n\
        grep -q memory /sys/fs/cgroup/cgroup.controllers\n\
        grep -qw bpf /sys/kernel/security/lsm\n\
        test -s /sys/kernel/btf/vmlinux\n\
        grep -q some /proc/pressure/memory\n\
        for fs in bpf tracefs debugfs; do if grep -q \" $fs \" /proc/mounts; then exit 9; fi; done\n\
        ping -c 1 -w 5 127.0.0.1 >/dev/null\n\
        cmp /root/there /root/again\n\
        cp /root/there /root/back\n\
        echo on stderr >&2\n";
    let (report, output) = Guest::builder(kernel)
        .file(id, "/usr/bin/id")
        .file(&there, "/root/there")
        .file(&there, "/root/again")
        .out("/root/back", &back)
        .module("null_blk nr_devices=3")
        .env("BURSAR_TEST", "it's $ 5")
        .command(["sh", "-xc", script])
        .output()?;
    ensure!(report.status() == 0, told(&report, &output));
    ensure!(
        output.out == format!("{}\n", kernel.release()).as_bytes(),
        told(&report, &output)
    );
    ensure!(output.err.ends_with(b"on stderr\n"), told(&report, &output));
    ensure!(
        fs::read(&back).with_context(|| format!("read {back:?}"))? == bytes,
        "the file came back changed"
    );
    Ok(report)
}

fn exit_status(kernel: &Kernel, dir: &Path) -> Result<Report> {
    let (report, output) = Guest::builder(kernel)
        .out("/no/such/file", dir.join("x"))
        .command(["sh", "-c", "printf unfinished; exit 7"])
        .output()?;
    ensure!(
        report.status() == 7 && output.out == b"unfinished",
        told(&report, &output)
    );
    ensure!(
        report.missing == [Path::new("/no/such/file")],
        told(&report, &output)
    );
    Ok(report)
}

fn kernel_warning(kernel: &Kernel, _: &Path) -> Result<Report> {
    let (report, output) = Guest::builder(kernel)
        .command([
            "sh",
            "-c",
            "echo '<4>WARNING: CPU: 0 PID: 1 at self-test' >/dev/kmsg",
        ])
        .output()?;
    ensure!(
        report.ending == Ending::Exited(0) && report.status() == 125,
        told(&report, &output)
    );
    ensure!(
        report.complaints == ["WARNING: CPU: 0 PID: 1 at self-test"],
        told(&report, &output)
    );
    Ok(report)
}

fn timeout(kernel: &Kernel, _: &Path) -> Result<Report> {
    let limit = Duration::from_secs(12);
    let (report, output) = Guest::builder(kernel)
        .timeout(limit)
        .command(["sh", "-c", "echo before; sleep 1000"])
        .output()?;
    ensure!(
        report.status() == 124 && output.out == b"before\n",
        told(&report, &output)
    );
    ensure!(
        report.total < limit + Duration::from_secs(5),
        told(&report, &output)
    );
    Ok(report)
}

fn panic(kernel: &Kernel, _: &Path) -> Result<Report> {
    let (report, output) = Guest::builder(kernel)
        .command(["sh", "-c", "echo c >/proc/sysrq-trigger; sleep 100"])
        .output()?;
    ensure!(
        report.ending == Ending::Panicked && report.status() == 125,
        told(&report, &output)
    );
    Ok(report)
}

fn left_running(kernel: &Kernel, _: &Path) -> Result<Report> {
    let (report, output) = Guest::builder(kernel)
        .timeout(Duration::from_secs(60))
        .command([
            "sh",
            "-c",
            "(trap '' TERM HUP; while :; do sleep 1; done) & setsid sleep 1000 & echo $?",
        ])
        .output()?;
    ensure!(
        report.status() == 0 && output.out == b"0\n",
        told(&report, &output)
    );
    Ok(report)
}

/// Attaching BPF programs patches kernel code. See [`super::qemu::Accelerator`]: this is what QEMU
/// can get wrong.
fn patching(kernel: &Kernel, _: &Path) -> Result<Report> {
    let script = "cd /sys/kernel/tracing/events\n\
        for load in 1 2; do (while :; do /bin/true; done) & done\n\
        n=0\n\
        while [ $n -lt 2 ]; do\n\
            echo 1 >kmem/enable; echo 0 >kmem/enable; n=$((n + 1))\n\
        done\n";
    let (report, output) = Guest::builder(kernel)
        .mount_tracefs(true)
        .command(["sh", "-ec", script])
        .output()?;
    ensure!(report.status() == 0, told(&report, &output));
    Ok(report)
}
