// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest: one command, run as root in a fresh machine with one of Debian's kernels.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use xtask::vm::{Cache, Guest, Suite};
//! let kernel = Cache::open()?.kernel(Suite::Trixie)?.expect("cargo xtask vm fetch");
//! let (report, output) = Guest::builder(&kernel).command(["uname", "-r"]).output()?;
//! assert_eq!((report.status(), output.out), (0, format!("{}\n", kernel.release()).into_bytes()));
//! # Ok(())
//! # }
//! ```

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use super::cache::Kernel;
use super::console::{complaints, has_panicked};
use super::image::{self, Wanted};
use super::interrupt;
use super::process::Qemu;
use super::program;
use super::qemu::{Accelerator, Machine, Wiring};
use super::report::{Ending, Report, death, lossy};
use super::session::{Course, Ports, Stream, follow};

/// What a guest is to be and do.
#[derive(Clone, Debug)]
pub struct Guest {
    kernel: Kernel,
    memory_mib: u32,
    cpus: u32,
    accelerator: Option<Accelerator>,
    append: Vec<String>,
    timeout: Duration,
    wanted: Wanted,
    /// Guest path, host path.
    out: Vec<(PathBuf, PathBuf)>,
    logs: PathBuf,
    complaints_fail: bool,
}

/// A command's output, kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: Vec<u8>,
}

/// Memory that the kernel and our /init need beside the files.
const BARE_MIB: u64 = 96;

/// So many runs of a suite keep their logs.
const KEPT_LOGS: usize = 30;

impl Guest {
    /// A guest with this kernel, 1 GiB, two processors and five minutes.
    pub fn builder(kernel: &Kernel) -> Guest {
        let mut wanted = Wanted::default();
        wanted
            .environment
            .insert("BURSAR_VM".to_owned(), kernel.suite().name().into());
        Guest {
            kernel: kernel.clone(),
            memory_mib: 1024,
            cpus: 2,
            accelerator: None,
            append: Vec::new(),
            timeout: Duration::from_secs(300),
            wanted,
            out: Vec::new(),
            logs: target_dir().join("vm"),
            complaints_fail: true,
        }
    }

    /// What to run, as root in /root, with nothing to read and pipes to write to.
    pub fn command<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Guest {
        self.wanted.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// Its memory.
    pub fn memory_mib(mut self, mib: u32) -> Guest {
        self.memory_mib = mib;
        self
    }

    /// Its processors.
    pub fn cpus(mut self, cpus: u32) -> Guest {
        self.cpus = cpus;
        self
    }

    /// What runs its instructions; the best that this machine has otherwise.
    pub fn accelerator(mut self, accelerator: Accelerator) -> Guest {
        self.accelerator = Some(accelerator);
        self
    }

    /// Kernel arguments, after ours.
    pub fn append(mut self, arguments: impl Into<String>) -> Guest {
        self.append.push(arguments.into());
        self
    }

    /// A kernel module to insert before the command starts, with what it needs:
    /// `null_blk`, or with parameters `null_blk nr_devices=4`.
    pub fn module(mut self, module: impl Into<String>) -> Guest {
        self.wanted.modules.push(module.into());
        self
    }

    /// A file or directory of this machine, with the libraries of all ELF files in it.
    pub fn file(mut self, host: impl Into<PathBuf>, guest: impl Into<PathBuf>) -> Guest {
        self.wanted.files.push((host.into(), guest.into()));
        self
    }

    /// A file to copy out when the command has ended.
    pub fn out(mut self, guest: impl Into<PathBuf>, host: impl Into<PathBuf>) -> Guest {
        self.out.push((guest.into(), host.into()));
        self
    }

    /// A variable of the command's environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Guest {
        self.wanted.environment.insert(name.into(), value.into());
        self
    }

    /// How long it may take, boot included.
    pub fn timeout(mut self, timeout: Duration) -> Guest {
        self.timeout = timeout;
        self
    }

    /// Mounts the BPF file system before the command starts.
    pub fn mount_bpffs(mut self, mount: bool) -> Guest {
        self.wanted.bpffs = mount;
        self
    }

    /// Mounts tracefs before the command starts.
    pub fn mount_tracefs(mut self, mount: bool) -> Guest {
        self.wanted.tracefs = mount;
        self
    }

    /// Whether a run passes although the kernel complained.
    pub fn allow_kernel_warnings(mut self, allow: bool) -> Guest {
        self.complaints_fail = !allow;
        self
    }

    /// Where logs go; `target/vm` otherwise.
    pub fn logs(mut self, dir: impl Into<PathBuf>) -> Guest {
        self.logs = dir.into();
        self
    }

    /// Runs it and keeps its output.
    pub fn output(self) -> Result<(Report, Output)> {
        let mut output = Output::default();
        let report = self.run(&mut |stream, line| match stream {
            Stream::Out => output.out.extend_from_slice(line),
            Stream::Err => output.err.extend_from_slice(line),
        })?;
        Ok((report, output))
    }

    /// Runs it; `sink` gets its output line by line as it comes. An error means that there was no
    /// run; what a run came to is in the report.
    pub fn run(self, sink: &mut dyn FnMut(Stream, &[u8])) -> Result<Report> {
        if self.wanted.command.is_empty() {
            bail!("no command to run in the guest");
        }
        let started = Instant::now();
        let deadline = started + self.timeout;
        let token = token()?;
        let (dir, initramfs) = self.initramfs(&token)?;
        let ports = Ports::listen(dir.path())?;
        let logs = self.new_log_dir()?;
        let console = logs.join("console.log");
        let arguments = self
            .machine(&initramfs, &console, Wiring::Ports(ports.wiring()))
            .arguments();
        interrupt::watch();
        let mut files = vec![logs.join("dmesg.log")];
        files.extend(self.out.iter().map(|(_, host)| host.clone()));
        let qemu = Qemu::start(&arguments, &logs.join("qemu.log"))?;
        let ended = follow(qemu, ports, &token, files, deadline, sink)?;
        let console = lossy(&console);
        let ending = match ended.course {
            Course::Exited(status) => Ending::Exited(status),
            Course::TimedOut => Ending::TimedOut(self.timeout),
            Course::Interrupted => Ending::Interrupted,
            Course::Gone(_) if has_panicked(&console) => Ending::Panicked,
            Course::Gone(status) => {
                Ending::Died(death(&console, &lossy(&logs.join("qemu.log")), status))
            }
            Course::Broken(why) => Ending::Died(why),
        };
        // Number 0 is the kernel log, which is a comfort and no demand.
        let missing = ended.missing.iter().filter_map(|number| {
            let (guest, _) = self.out.get(number.checked_sub(1)?)?;
            Some(guest.clone())
        });
        Ok(Report {
            suite: self.kernel.suite(),
            release: self.kernel.release().to_owned(),
            complaints: complaints(&(console + "\n" + &lossy(&logs.join("dmesg.log")))),
            complaints_fail: self.complaints_fail,
            missing: missing.collect(),
            boot: ended.boot,
            total: started.elapsed(),
            ending,
            logs,
        })
    }

    /// Runs an interactive shell, or the command, on this terminal.
    pub fn shell(mut self, rows: u16, columns: u16) -> Result<ExitStatus> {
        self.wanted.terminal = Some((rows, columns));
        if let Ok(term) = std::env::var("TERM") {
            self.wanted
                .environment
                .insert("TERM".to_owned(), term.into());
        }
        let (_dir, initramfs) = self.initramfs(&token()?)?;
        let logs = self.new_log_dir()?;
        let arguments = self
            .machine(&initramfs, &logs.join("console.log"), Wiring::Terminal)
            .arguments();
        interrupt::watch();
        Qemu::start_on_terminal(&arguments)?.wait()
    }

    /// Packs what the guest starts with, in a directory that goes when it is dropped.
    fn initramfs(&self, token: &str) -> Result<(tempfile::TempDir, PathBuf)> {
        program::ensure(program::FOR_BOOTING)?;
        let mut wanted = self.wanted.clone();
        wanted.out = self.out.iter().map(|(guest, _)| guest.clone()).collect();
        let tree = image::tree(&self.kernel, &wanted, token)?;
        // Once as an archive and once unpacked, and the unpacked half may fill half the memory.
        let needed_mib = 2 * (tree.size_bytes()? >> 20) + BARE_MIB;
        if u64::from(self.memory_mib) < needed_mib {
            bail!(
                "a guest of {} MiB is too small for its files; give it at least {needed_mib}",
                self.memory_mib
            );
        }
        let dir = scratch_dir()?;
        let (stage, archive) = (dir.path().join("stage"), dir.path().join("initramfs.cpio"));
        fs::create_dir(&stage).with_context(|| format!("create {stage:?}"))?;
        tree.pack(&stage, &archive)?;
        fs::remove_dir_all(&stage).with_context(|| format!("remove {stage:?}"))?;
        Ok((dir, archive))
    }

    fn machine<'a>(
        &'a self,
        initramfs: &'a Path,
        console: &'a Path,
        wiring: Wiring,
    ) -> Machine<'a> {
        Machine {
            accelerator: self.accelerator.unwrap_or_else(Accelerator::detect),
            kernel: self.kernel.vmlinuz(),
            initramfs,
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            append: &self.append,
            console,
            wiring,
        }
    }

    /// A directory of its own for every run, since runs of one suite may overlap.
    fn new_log_dir(&self) -> Result<PathBuf> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let suite = self.logs.join(self.kernel.suite().name());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("read the clock")?
            .as_millis();
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let dir = suite.join(format!("{now}-{}-{run}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("create {dir:?}"))?;
        let mut runs: Vec<PathBuf> = fs::read_dir(&suite)?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        runs.sort();
        for old in runs.iter().take(runs.len().saturating_sub(KEPT_LOGS)) {
            // Another run may be removing it too.
            let _ = fs::remove_dir_all(old);
        }
        Ok(dir)
    }
}

/// A directory that goes when it is dropped. What runs that were killed with SIGKILL left behind
/// goes now.
fn scratch_dir() -> Result<tempfile::TempDir> {
    const PREFIX: &str = "bursar-vm-";
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        if let Some((pid, _)) = pid
            && pid.bytes().all(|byte| byte.is_ascii_digit())
            && !Path::new("/proc").join(pid).exists()
        {
            // Another run may be removing it too, or it is another user's.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .context("create a directory")
}

/// What ends a guest's output: nothing its programs could print by chance.
fn token() -> Result<String> {
    let mut bytes = [0u8; 16];
    let mut random = fs::File::open("/dev/urandom").context("open /dev/urandom")?;
    random.read_exact(&mut bytes).context("read /dev/urandom")?;
    Ok(bytes
        .iter()
        .fold("bursar-vm-end-".to_owned(), |token, byte| {
            token + &format!("{byte:02x}")
        }))
}

/// cargo's target directory.
fn target_dir() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace.join(dir),
        None => workspace.join("target"),
    }
}
