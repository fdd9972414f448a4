// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest: one command, run as root in a fresh machine with one of Debian's kernels.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use xtask::vm::{Cache, Guest, Suite};
//! let kernel = Cache::open()?.kernel(Suite::Trixie)?.expect("cargo xtask vm fetch");
//! let (report, output) = Guest::new(&kernel, &["uname", "-r"]).output()?;
//! assert_eq!((report.status(), output.out), (0, format!("{}\n", kernel.release()).into_bytes()));
//! # Ok(())
//! # }
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tempfile::TempDir;

use super::output::{End, Output, Stream, follow};
use super::report::{Ending, Report, death, lossy};
use crate::console::{complaints, has_panicked};
use crate::initramfs::{Initramfs, scratch_dir};
use crate::interrupt;
use crate::kernel::Kernel;
use crate::program;
use crate::qemu::{Boot, Machine, Qemu, escaped, target_dir};

/// What a guest is to be.
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Its machine.
    #[command(flatten)]
    pub machine: Machine,
    /// A kernel module to insert, with what it needs: "null_blk nr_devices=4"
    #[arg(long, value_name = "NAME")]
    pub module: Vec<String>,
    /// A file or directory to bring, with the libraries of the ELF files in it. Without GUEST an
    /// absolute path stays; of a relative one a program goes to /usr/local/bin, the rest to /root
    #[arg(long, value_name = "HOST[:GUEST]", value_parser = file_argument)]
    pub file: Vec<(PathBuf, PathBuf)>,
    /// A variable of the command's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_argument)]
    pub env: Vec<(String, String)>,
    /// Mount the BPF file system at /sys/fs/bpf
    #[arg(long)]
    pub bpffs: bool,
    /// Mount tracefs at /sys/kernel/tracing
    #[arg(long)]
    pub tracefs: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options::parse_from([""])
    }
}

/// A guest and what it is to do.
#[derive(Clone, Debug)]
pub struct Guest {
    /// What it runs.
    pub kernel: Kernel,
    /// What it has: its machine, modules, files and mounts.
    pub options: Options,
    /// What to run, as root in /root, with nothing to read and pipes to write to.
    pub command: Vec<String>,
    /// Guest path and host path of files to copy out when the command has ended.
    pub out: Vec<(PathBuf, PathBuf)>,
    /// How long it may take, boot included.
    pub timeout: Duration,
    /// Whether a run passes although the kernel complained.
    pub allow_kernel_warnings: bool,
}

const INIT: &str = include_str!("init.sh");

/// What carries output to the host; where the kernel has it built in, nothing is loaded.
const TRANSPORT: [&str; 2] = ["virtio_pci", "virtio_console"];

/// Memory that the kernel and our /init need beside the files.
const BARE_MIB: u64 = 96;

/// So many runs of a suite keep their logs.
const KEPT_LOGS: usize = 30;

impl Guest {
    /// A guest with this kernel, 1 GiB, two processors and five minutes.
    pub fn new(kernel: &Kernel, command: &[&str]) -> Guest {
        Guest {
            kernel: kernel.clone(),
            options: Options::default(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            out: Vec::new(),
            timeout: Duration::from_secs(300),
            allow_kernel_warnings: false,
        }
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
        ensure!(!self.command.is_empty(), "no command to run in the guest");
        let started = Instant::now();
        let deadline = started + self.timeout;
        let dir = scratch_dir()?;
        let token = token(&dir);
        let at = |name: &str| dir.path().join(name);
        self.pack(Some(&token), &at("initramfs"))?;
        let logs = self.new_log_dir()?;
        let console = logs.join("console.log");
        let mut qemu = self.qemu(&at("initramfs"), &console);
        qemu.args(["-device", "virtio-serial-pci"]);
        // What QEMU opens as its own standard output and error are our pipes.
        for (name, path) in [
            ("out", "/dev/stdout".into()),
            ("err", "/dev/stderr".into()),
            ("files", at("files.tar")),
        ] {
            let path = escaped(&path);
            qemu.args(["-chardev", &format!("file,id={name},path={path}")]);
            let port = format!("virtserialport,chardev={name},name=bursar.{name}");
            qemu.args(["-device", &port]);
        }
        interrupt::watch();
        let qemu = Qemu::start(qemu, Stdio::piped(), Stdio::piped())?;
        let followed = follow(qemu, &token, deadline, &logs.join("qemu.log"), sink)?;
        let mut missing = Vec::new();
        let ending = match followed.end {
            End::Exited(status) => {
                match self.receive(&at("files.tar"), &at("files"), &logs.join("dmesg.log")) {
                    Ok(lacking) => {
                        missing = lacking;
                        Ending::Exited(status)
                    }
                    Err(error) => Ending::Died(format!("{error:#}")),
                }
            }
            End::TimedOut => Ending::TimedOut(self.timeout),
            End::Interrupted => Ending::Interrupted,
            End::Gone(_) if has_panicked(&lossy(&console)) => Ending::Panicked,
            End::Gone(status) => {
                let (console, qemu) = (lossy(&console), lossy(&logs.join("qemu.log")));
                Ending::Died(death(&console, &qemu, status))
            }
        };
        Ok(Report {
            suite: self.kernel.suite(),
            release: self.kernel.release().to_owned(),
            complaints: complaints(&(lossy(&console) + "\n" + &lossy(&logs.join("dmesg.log")))),
            complaints_fail: !self.allow_kernel_warnings,
            missing,
            boot: followed.boot,
            total: started.elapsed(),
            ending,
            logs,
        })
    }

    /// Runs an interactive shell on this terminal.
    pub(super) fn shell(mut self) -> Result<ExitStatus> {
        let mut stty = Command::new("stty");
        let size = program::text(stty.arg("size").stdin(Stdio::inherit()))?;
        let term = std::env::var("TERM").unwrap_or_default();
        for (name, value) in [("SIZE", size.trim_end().to_owned()), ("TERM", term)] {
            self.options.env.push((name.to_owned(), value));
        }
        let dir = scratch_dir()?;
        let initramfs = dir.path().join("initramfs");
        self.pack(None, &initramfs)?;
        let mut qemu = self.qemu(&initramfs, &self.new_log_dir()?.join("console.log"));
        qemu.args(["-chardev", "stdio,id=terminal,mux=on,signal=off"])
            .args(["-serial", "chardev:terminal"]);
        interrupt::watch();
        qemu.status().context("run QEMU")
    }

    /// QEMU for it, without what carries its output.
    fn qemu(&self, initramfs: &Path, log: &Path) -> Command {
        let mut qemu = self.options.machine.command(&Boot {
            suite: self.kernel.suite(),
            kernel: &self.kernel.vmlinuz(),
            initramfs,
            log,
        });
        qemu.arg("-no-reboot");
        qemu
    }

    /// Packs what the guest starts with: our /init, this machine's shell, the files asked for, busybox
    /// for everything else, the modules, and the command as a small script. On another processor the files
    /// asked for have the shell, busybox and the libraries. Without a token it is a shell on the second serial port.
    fn pack(&self, token: Option<&str>, archive: &Path) -> Result<()> {
        program::provide("guests")?;
        // busybox' shell prefers its applets to programs of the same name, so that a `ps` brought along
        // would never run.
        let mut files = self.options.file.clone();
        if !self.kernel.suite().is_arm64() {
            let shell = fs::canonicalize("/bin/sh").context("find /bin/sh")?;
            files.insert(0, (shell, PathBuf::from("/usr/bin/sh")));
            // Libraries outside the loader's own directories are found as on this machine.
            let cache = PathBuf::from("/etc/ld.so.cache");
            if cache.is_file() {
                files.insert(1, (cache.clone(), cache));
            }
        }
        let mut modules = TRANSPORT.to_vec();
        modules.extend(self.options.module.iter().map(String::as_str));
        let settings = format!(
            "TOKEN={}\nBPFFS={}\nTRACEFS={}\n",
            token.unwrap_or_default(),
            u8::from(self.options.bpffs),
            u8::from(self.options.tracefs),
        );
        let mut wanted = String::new();
        for (guest, _) in &self.out {
            let path = guest.display().to_string();
            ensure!(
                !path.contains('\n'),
                "guest path {guest:?} has a line break in it"
            );
            wanted.push_str(&format!("{path}\n"));
        }
        let suite = ("BURSAR_VM".to_owned(), self.kernel.suite().name());
        let env = [&[suite], self.options.env.as_slice()].concat();
        let settings = [
            ("settings", settings),
            ("wanted", wanted),
            ("command", script(&env, &self.command)),
        ];
        let initramfs = Initramfs {
            kernel: &self.kernel,
            init: INIT,
            files: &files,
            modules: &modules,
            settings: &settings,
        };
        initramfs.pack(archive)?;
        // Once as an archive and once unpacked, and the unpacked half may fill half the memory.
        let meta = fs::metadata(archive).with_context(|| format!("look at {archive:?}"))?;
        let given = u64::from(self.options.machine.mem);
        let needed = 2 * (meta.len() >> 20) + BARE_MIB;
        ensure!(
            given >= needed,
            "a guest of {given} MiB is too small for its files; give it at least {needed}"
        );
        Ok(())
    }

    /// Puts the files that came where they belong, each whole or not at all, and names those that the
    /// guest does not have. The kernel log is a comfort and no demand.
    fn receive(&self, archive: &Path, dir: &Path, dmesg: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir(dir).with_context(|| format!("create {dir:?}"))?;
        let mut tar = Command::new("tar");
        tar.args(["--no-same-owner", "--no-same-permissions", "-C"]);
        program::run(tar.arg(dir).arg("-xf").arg(archive))
            .context("read the files that the guest sent")?;
        let _ = fs::copy(dir.join("0"), dmesg);
        let mut missing = Vec::new();
        for (number, (guest, host)) in self.out.iter().enumerate() {
            let came = dir.join((number + 1).to_string());
            if !came.is_file() {
                missing.push(guest.clone());
                continue;
            }
            if let Some(parent) = host.parent() {
                fs::create_dir_all(parent).with_context(|| format!("create {parent:?}"))?;
            }
            // Beside its place first: whole or not at all.
            let part = host.with_extension("part");
            fs::copy(&came, &part).with_context(|| format!("write {part:?}"))?;
            fs::rename(&part, host).with_context(|| format!("write {host:?}"))?;
        }
        Ok(missing)
    }

    /// A directory of its own for every run, since runs of one suite may overlap.
    fn new_log_dir(&self) -> Result<PathBuf> {
        let suite = target_dir().join("vm").join(self.kernel.suite().name());
        fs::create_dir_all(&suite).with_context(|| format!("create {suite:?}"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.context("read the clock")?.as_millis();
        let dir = tempfile::Builder::new()
            .prefix(&format!("{now}-"))
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(&suite)
            .with_context(|| format!("create a directory in {suite:?}"))?
            .keep();
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

/// The command as a script, every word of it quoted.
fn script(environment: &[(String, String)], command: &[String]) -> String {
    let mut script = "export HOME=/root USER=root LOGNAME=root SHELL=/bin/sh\n".to_owned();
    for (name, value) in environment {
        script.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    let Some((program, arguments)) = command.split_first() else {
        return script + "stty rows ${SIZE% *} cols ${SIZE#* }\nexec busybox sh -l\n";
    };
    script.push_str(&format!("name={}\n", quoted(program)));
    script.push_str(
        "program=$(which \"$name\") || {\n\
         \techo \"vm: no program $name in the guest; bring it with --file\" >&2\n\
         \texit 127\n}\nexec \"$program\"",
    );
    for argument in arguments {
        script.push(' ');
        script.push_str(&quoted(argument));
    }
    script + "\n"
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// `HOST[:GUEST]`. Without GUEST an absolute path stays what it is; of a relative one a program
/// goes to /usr/local/bin and anything else to /root.
fn file_argument(text: &str) -> Result<(PathBuf, PathBuf)> {
    if let Some(at) = text.rfind(":/") {
        return Ok((PathBuf::from(&text[..at]), PathBuf::from(&text[at + 1..])));
    }
    let host = PathBuf::from(text);
    if host.is_absolute() {
        return Ok((host.clone(), host));
    }
    let meta = fs::metadata(&host).with_context(|| format!("look at {host:?}"))?;
    let name = host
        .file_name()
        .with_context(|| format!("{host:?} has no name"))?;
    let program = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    let guest = Path::new(if program { "/usr/local/bin" } else { "/root" }).join(name);
    Ok((host, guest))
}

/// `NAME=VALUE`.
fn env_argument(text: &str) -> Result<(String, String)> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) => Ok((name.to_owned(), value.to_owned())),
        _ => bail!("{text:?} is not NAME=VALUE"),
    }
}

/// What begins the marks in a guest's output: a name made up for this run, which nothing prints by chance.
fn token(scratch: &TempDir) -> String {
    let name = scratch.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> std::process::Output {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), script).unwrap();
        Command::new("sh")
            .arg(file.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    #[test]
    fn arguments_and_environment_reach_the_program_as_they_are() {
        let hostile = "a b'c\"d$(id)`id`\\e\n*;&|<>\u{e9}";
        let environment = [("VALUE".to_owned(), hostile.to_owned())];
        let command = [
            "sh",
            "-c",
            "printf '%s|%s' \"$1\" \"$VALUE\"",
            "sh",
            hostile,
        ]
        .map(str::to_owned);
        let output = run(&script(&environment, &command));
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("{hostile}|{hostile}")
        );
        let output = run(&script(&[], &["nonesuch-program".to_owned()]));
        assert_eq!(output.status.code(), Some(127));
        assert!(
            String::from_utf8(output.stderr)
                .unwrap()
                .contains("nonesuch-program")
        );
    }

    #[test]
    fn the_init_script_is_one_a_shell_can_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), INIT).unwrap();
        assert!(
            Command::new("sh")
                .arg("-n")
                .arg(file.path())
                .status()
                .unwrap()
                .success()
        );
    }

    #[test]
    fn file_and_environment_arguments_are_read() {
        let file = |text: &str| file_argument(text).unwrap();
        assert_eq!(file("a/b:/usr/bin/b"), ("a/b".into(), "/usr/bin/b".into()));
        assert_eq!(file("/bin/env"), ("/bin/env".into(), "/bin/env".into()));
        // Tests run in the package's directory.
        assert_eq!(
            file("Cargo.toml"),
            ("Cargo.toml".into(), "/root/Cargo.toml".into())
        );
        assert!(file_argument("no/such/file").is_err());
        assert_eq!(
            env_argument("A_1=x=y").unwrap(),
            ("A_1".to_owned(), "x=y".to_owned())
        );
        for text in ["A", "1A=x", "A B=x", "=x"] {
            assert!(env_argument(text).is_err(), "{text}");
        }
    }
}
