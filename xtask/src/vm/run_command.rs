// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm run`: one command in one guest, or in a guest of every kernel.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use super::argument::{env_argument, file_argument, out_argument};
use super::cache::{Cache, Kernel};
use super::fetch::{Fetch, fetch};
use super::guest::Guest;
use super::interrupt;
use super::qemu::Accelerator;
use super::report::Report;
use super::session::Stream;
use super::suite::Suites;

#[derive(Args)]
pub(super) struct RunArgs {
    /// bookworm, trixie, newest, several with commas, or all
    #[arg(long)]
    suite: Suites,
    #[command(flatten)]
    guest: GuestArgs,
    /// A guest file to copy out when the command has ended; {suite} in HOST is replaced
    #[arg(long, value_name = "GUEST:HOST", value_parser = out_argument)]
    out: Vec<(PathBuf, PathBuf)>,
    /// How long it may take, boot included
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Guests at once, when there are several suites
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Pass although the kernel complained
    #[arg(long)]
    allow_kernel_warnings: bool,
    /// How much each suite's guest is to do of what need be done once, in their order; alike otherwise
    #[arg(long, value_name = "N", value_delimiter = ',')]
    shares: Vec<u32>,
    /// The command, run as root in /root; {share} in it is replaced by what each guest is to do of what need
    /// be done once: of three guests 0..1/3, 1..2/3 and 2..3/3, with --shares 2,1,1 0..2/4, 2..3/4 and 3..4/4
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// So many lines of a guest that failed are printed again, behind everything.
const LAST_LINES: usize = 24;
/// So much of each, in bytes.
const LAST_LINE_LEN: usize = 600;

/// What a command and a shell have in common.
#[derive(Args)]
pub(super) struct GuestArgs {
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    mem: u32,
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 2)]
    smp: u32,
    /// What runs the guest's instructions; the best this machine has otherwise
    #[arg(long, value_enum)]
    accel: Option<Accelerator>,
    /// Further kernel arguments
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    append: Vec<String>,
    /// A kernel module to insert, with what it needs: "null_blk nr_devices=4"
    #[arg(long, value_name = "NAME")]
    module: Vec<String>,
    /// A file or directory to bring, with the libraries of the ELF files in it. Without GUEST an
    /// absolute path stays; of a relative one a program goes to /usr/local/bin, the rest to /root
    #[arg(long, value_name = "HOST[:GUEST]", value_parser = file_argument)]
    file: Vec<(PathBuf, PathBuf)>,
    /// A variable of the command's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_argument)]
    env: Vec<(String, String)>,
    /// Mount the BPF file system at /sys/fs/bpf
    #[arg(long)]
    bpffs: bool,
    /// Mount tracefs at /sys/kernel/tracing
    #[arg(long)]
    tracefs: bool,
}

impl GuestArgs {
    pub(super) fn guest(&self, kernel: &Kernel) -> Guest {
        let mut guest = Guest::builder(kernel)
            .memory_mib(self.mem)
            .cpus(self.smp)
            .mount_bpffs(self.bpffs)
            .mount_tracefs(self.tracefs);
        if let Some(accelerator) = self.accel {
            guest = guest.accelerator(accelerator);
        }
        for arguments in &self.append {
            guest = guest.append(arguments);
        }
        for module in &self.module {
            guest = guest.module(module);
        }
        for (host, at) in &self.file {
            guest = guest.file(host, at);
        }
        for (name, value) in &self.env {
            guest = guest.env(name, value);
        }
        guest
    }
}

pub(super) fn run(cache: &Cache, args: &RunArgs) -> Result<ExitCode> {
    let mut guests = Vec::new();
    let suites = args.suite.as_slice();
    let shares = shares(suites.len(), &args.shares)?;
    for (&suite, share) in suites.iter().zip(&shares) {
        let command: Vec<String> = args
            .command
            .iter()
            .map(|word| word.replace("{share}", share))
            .collect();
        let kernel = fetch(cache, suite, &Fetch::default())?;
        let mut guest = args
            .guest
            .guest(&kernel)
            .command(&command)
            .timeout(Duration::from_secs(args.timeout))
            .allow_kernel_warnings(args.allow_kernel_warnings);
        for (from, to) in &args.out {
            guest = guest.out(
                from,
                to.display().to_string().replace("{suite}", suite.name()),
            );
        }
        guests.push(guest.run_printing(if suites.len() > 1 { suite.name() } else { "" }));
    }
    let runs = side_by_side(guests, args.jobs)?;
    let mut status = 0;
    for (report, _) in &runs {
        for line in report.story() {
            eprintln!("vm: {line}");
        }
        if status == 0 {
            status = report.status();
        }
    }
    // Who reads only the end of a log, as CI's readers do, finds there why it failed.
    for (report, last) in runs.iter().filter(|(report, _)| report.status() != 0) {
        eprintln!("vm: the last lines of {}:", report.suite);
        for line in last {
            eprintln!("vm: | {}", String::from_utf8_lossy(line));
        }
    }
    Ok(ExitCode::from(status))
}

/// Each guest's part of everything, as a half-open range of so many.
fn shares(guests: usize, sizes: &[u32]) -> Result<Vec<String>> {
    let sizes = if sizes.is_empty() {
        vec![1; guests]
    } else {
        sizes.to_vec()
    };
    ensure!(
        sizes.len() == guests,
        "--shares has {} numbers for {guests} suites; write one for each",
        sizes.len()
    );
    let total: u32 = sizes.iter().sum();
    let mut from = 0;
    let share = |size| {
        let part = format!("{from}..{}/{total}", from + size);
        from += size;
        part
    };
    Ok(sizes.into_iter().map(share).collect())
}

impl Guest {
    /// A run whose output is ours, behind its name if it has one, in which case its last lines come with
    /// the report: alone it has the end of the log to itself.
    fn run_printing<'a>(
        self,
        name: &'a str,
    ) -> impl FnOnce() -> Result<(Report, VecDeque<Vec<u8>>)> + Send + 'a {
        move || {
            let mut last = VecDeque::new();
            let report = self.run(&mut |stream, line| {
                if !name.is_empty() {
                    keep(&mut last, line);
                }
                // Who reads us may have gone; the guest runs on, its status counts.
                let _ = match stream {
                    Stream::Out => print(&mut std::io::stdout().lock(), name, line),
                    Stream::Err => print(&mut std::io::stderr().lock(), name, line),
                };
            })?;
            Ok((report, last))
        }
    }
}

/// One more of the last lines, and the first of them gone when they are too many.
fn keep(last: &mut VecDeque<Vec<u8>>, line: &[u8]) {
    let line = line.trim_ascii_end();
    if line.is_empty() {
        return;
    }
    if last.len() == LAST_LINES {
        last.pop_front();
    }
    last.push_back(line[..line.len().min(LAST_LINE_LEN)].to_vec());
}

fn print(to: &mut impl Write, name: &str, line: &[u8]) -> std::io::Result<()> {
    if !name.is_empty() {
        write!(to, "{name:9}| ")?;
    }
    to.write_all(line)?;
    // Beside another guest's lines an unfinished one would be glued to them.
    if !name.is_empty() && !line.ends_with(b"\n") {
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Runs all, so many at once, and gives their results in order.
fn side_by_side<T: Send>(
    runs: Vec<impl FnOnce() -> Result<T> + Send>,
    jobs: usize,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let runs: Vec<_> = runs
        .into_iter()
        .map(|run| Mutex::new((Some(run), None)))
        .collect();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, runs.len().max(1)) {
            scope.spawn(|| {
                while let Some(slot) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Nobody else takes this slot: its number was given to us alone.
                    if let Ok(mut slot) = slot.lock()
                        && let Some(run) = slot.0.take()
                        && !interrupt::came()
                    {
                        slot.1 = Some(run());
                    }
                }
            });
        }
    });
    runs.into_iter()
        .map(|slot| {
            let (_, result) = slot.into_inner().map_err(|_| anyhow!("a run panicked"))?;
            result.context("interrupted before this run began")?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_keep_their_order_whatever_ends_first() {
        for jobs in [1, 2, 9] {
            let runs: Vec<_> = (0..5).map(|number| move || Ok(number)).collect();
            assert_eq!(
                side_by_side(runs, jobs).unwrap(),
                [0, 1, 2, 3, 4],
                "{jobs} jobs"
            );
        }
    }

    #[test]
    fn the_last_lines_are_kept_and_cut() {
        let mut last = VecDeque::new();
        for number in 0..LAST_LINES + 5 {
            keep(&mut last, format!("{number}\n").as_bytes());
        }
        keep(&mut last, b"\n");
        keep(&mut last, &[b'x'; LAST_LINE_LEN + 1]);
        assert_eq!(last.len(), LAST_LINES);
        assert_eq!(last[0], b"6");
        assert_eq!(last[LAST_LINES - 1], [b'x'; LAST_LINE_LEN]);
    }

    #[test]
    fn lines_of_several_guests_carry_their_names() {
        let mut printed = Vec::new();
        print(&mut printed, "", b"alone").unwrap();
        print(&mut printed, "trixie", b"unfinished").unwrap();
        assert_eq!(
            String::from_utf8(printed).unwrap(),
            "alonetrixie   | unfinished\n"
        );
    }
}
