// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU: which machine it shows, as fast as can be, and a process that ends with us.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::interrupt;

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// The processor
    Kvm,
    /// QEMU's translator, one thread for all virtual processors in turn
    Tcg,
    /// QEMU's translator, one thread for each; crashes where the kernel patches itself
    ///
    /// QEMU 7.2 loses a race when one processor runs into code that another is patching: in
    /// guests of two processors that forked all the time, switching tracepoints on and off ended
    /// in "Oops: int3" within two seconds on 6.12 and 7.2 and in a lockup on 6.1, every time, and
    /// now and then while booting. Attaching BPF programs patches code. One thread never did it,
    /// and boots only half a second later. For workloads that attach nothing while they run.
    TcgParallel,
    /// QEMU's translator, one thread, and a clock that counts: each instruction is a nanosecond
    ///
    /// For measurements that repeat to a fraction of a percent, whatever the host does beside. Time is
    /// instructions then, not cycles.
    TcgCounted,
}

impl Accelerator {
    /// The best one this user can have. A `/dev/kvm` alone is not enough: on a processor without
    /// virtualization (no vmx, no svm) it belongs to a software KVM such as PVM, which was tried
    /// and hangs in the unpacking code of Debian's kernels.
    pub(crate) fn detect() -> Accelerator {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
            Ok(_) if virtualizes(&processor) => Accelerator::Kvm,
            _ => Accelerator::Tcg,
        }
    }

    /// The accelerator, the processor, and what else belongs to it.
    fn arguments(self) -> [&'static [&'static str]; 3] {
        const COUNTED: &[&str] = &["-icount", "shift=0,sleep=off"];
        match self {
            Accelerator::Kvm => [&["-accel", "kvm"], &["host"], &[]],
            Accelerator::Tcg => [&["-accel", "tcg,thread=single"], &["max"], &[]],
            Accelerator::TcgParallel => [&["-accel", "tcg,thread=multi"], &["max"], &[]],
            Accelerator::TcgCounted => [&["-accel", "tcg,thread=single"], &["max"], COUNTED],
        }
    }

    /// TCG emulates `rep stos` and `rep movs` byte by byte: a kernel that does not know ERMS and
    /// REP_GOOD clears pages about four times faster. SMAP and SMEP cost at each page walk. And
    /// the patience of the watchdogs is raised, because a guest's second may be a slow one. (arm64 knows no
    /// `clearcpuid` and does not mind.)
    fn kernel_arguments(self) -> &'static str {
        match self {
            Accelerator::Kvm => "",
            Accelerator::Tcg | Accelerator::TcgParallel | Accelerator::TcgCounted => {
                " clearcpuid=erms,rep_good,fsrm,fsrs,fzrm,smap,smep watchdog_thresh=60 \
                 rcupdate.rcu_cpu_stall_timeout=60"
            }
        }
    }
}

/// A machine to start.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Another processor than this machine's.
    pub is_arm64: bool,
    pub accelerator: Option<Accelerator>,
    pub memory_mib: u32,
    pub cpus: u32,
    /// Processors that the guest's kernel believes may come.
    pub possible_cpus: Option<u32>,
    /// Kernel arguments, after ours.
    pub append: Vec<String>,
    /// QEMU's arguments, after ours.
    pub qemu: Vec<String>,
}

impl Machine {
    pub(crate) fn new(memory_mib: u32, cpus: u32) -> Machine {
        Machine {
            is_arm64: false,
            accelerator: None,
            memory_mib,
            cpus,
            possible_cpus: None,
            append: Vec::new(),
            qemu: Vec::new(),
        }
    }

    /// QEMU and its arguments for this machine; `devices` are its files and wires.
    pub(crate) fn command_line(
        &self,
        kernel: &Path,
        initramfs: &Path,
        log: &Path,
        devices: &[String],
    ) -> Vec<OsString> {
        let accelerator = match self.accelerator {
            None if self.is_arm64 => Accelerator::Tcg,
            chosen => chosen.unwrap_or_else(Accelerator::detect),
        };
        let [accel, processor, rest] = accelerator.arguments();
        let mut processor = processor.concat();
        let (mut machine, mut smp) = ("q35".to_owned(), self.cpus.to_string());
        let (mut program, mut console) = ("qemu-system-x86_64", "ttyS0");
        if self.is_arm64 {
            // Graviton 2's processor: `max` signs pointers, which TCG is slow at.
            (machine, processor) = ("virt,gic-version=3".to_owned(), "neoverse-n1".to_owned());
            (program, console) = ("qemu-system-aarch64", "ttyAMA0");
        }
        let mut smbios: &[&str] = &[];
        if let Some(possible) = self.possible_cpus {
            // Linux leaves out processors that may come unless it takes the machine for VMware's.
            smp.push_str(&format!(
                ",maxcpus={possible},sockets={possible},cores=1,threads=1"
            ));
            processor.push_str(",-hypervisor");
            machine.push_str(",vmport=on");
            smbios = &["-smbios", "type=1,serial=VMware-0"];
        }
        // Level 5 shows warnings, which `quiet` alone would hide from the console.
        let ours = "quiet loglevel=5 panic=-1 oops=panic mitigations=off nokaslr psi=1";
        let append: String = self.append.iter().map(|word| format!(" {word}")).collect();
        let append = format!(
            "console={console} {ours}{}{append}",
            accelerator.kernel_arguments()
        );
        let (kernel, initramfs) = (
            kernel.display().to_string(),
            initramfs.display().to_string(),
        );
        let console = format!("file,id=console,path={}", escaped(log));
        let memory = format!("{}M", self.memory_mib);
        [
            &[program],
            accel,
            rest,
            smbios,
            &[
                "-machine", &machine, "-cpu", &processor, "-smp", &smp, "-m", &memory,
            ],
            &[
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-monitor",
                "none",
            ],
            &[
                "-kernel", &kernel, "-initrd", &initramfs, "-append", &append,
            ],
            &["-chardev", &console, "-serial", "chardev:console"],
        ]
        .concat()
        .into_iter()
        .map(OsString::from)
        .chain(devices.iter().chain(&self.qemu).map(OsString::from))
        .collect()
    }
}

/// Whether `/proc/cpuinfo` tells of a processor that can virtualize.
fn virtualizes(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.any(|line| {
        line.split_whitespace()
            .any(|flag| matches!(flag, "vmx" | "svm"))
    })
}

/// A path in an option's value, which a comma would end.
pub(crate) fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// QEMU; it does not outlive this value, nor the thread that made it.
pub(crate) struct Qemu(pub(crate) Child);

impl Qemu {
    /// Starts it in a process group of its own, so that a terminal's Ctrl-C reaches us alone and we end
    /// it in order; should we be killed, the kernel kills it (`--pdeathsig`).
    pub(crate) fn start(command_line: &[OsString], out: Stdio, err: Stdio) -> Result<Qemu> {
        let mut command = command(command_line);
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        Ok(Qemu(command.spawn().context("start QEMU")?))
    }

    /// Runs it on our terminal.
    pub(crate) fn run_on_terminal(command_line: &[OsString]) -> Result<ExitStatus> {
        let mut qemu = Qemu(command(command_line).spawn().context("start QEMU")?);
        qemu.0.wait().context("wait for QEMU")
    }

    /// Waits for its end, but no longer than this.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait().ok().flatten() {
                return Some(status);
            }
            if Instant::now() >= deadline || interrupt::came() {
                return None;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Fails where it has ended already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(command_line: &[OsString]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .args(command_line);
    command
}

/// cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    workspace.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &Machine) -> String {
        let arguments = machine.command_line(
            Path::new("/k"),
            Path::new("/i"),
            Path::new("/log/a,b"),
            &["-x".to_owned()],
        );
        arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn what_the_caller_appends_comes_last_so_that_it_wins() {
        let mut machine = Machine::new(512, 2);
        machine.accelerator = Some(Accelerator::Tcg);
        machine.append = vec!["loglevel=7".to_owned()];
        machine.qemu = vec!["-numa".to_owned(), "node".to_owned()];
        let line = line(&machine);
        assert!(
            line.contains("clearcpuid=erms") && line.contains("timeout=60 loglevel=7 "),
            "{line}"
        );
        assert!(line.contains("file,id=console,path=/log/a,,b"), "{line}");
        assert!(
            line.contains("-cpu max -smp 2 -m 512M ") && line.ends_with(" -x -numa node"),
            "{line}"
        );
    }

    #[test]
    fn kvm_keeps_the_processor_as_it_is() {
        let mut machine = Machine::new(512, 2);
        machine.accelerator = Some(Accelerator::Kvm);
        let line = line(&machine);
        assert!(
            line.contains("-accel kvm ")
                && line.contains("-cpu host ")
                && !line.contains("clearcpuid"),
            "{line}"
        );
    }

    #[test]
    fn a_guest_is_made_to_believe_in_more_processors() {
        let mut machine = Machine::new(512, 1);
        machine.accelerator = Some(Accelerator::TcgCounted);
        machine.possible_cpus = Some(255);
        let line = line(&machine);
        assert!(
            line.contains("-smp 1,maxcpus=255,sockets=255,cores=1,threads=1 "),
            "{line}"
        );
        assert!(
            line.contains("-cpu max,-hypervisor ") && line.contains("q35,vmport=on "),
            "{line}"
        );
        assert!(
            line.contains("-icount shift=0,sleep=off ") && line.contains("serial=VMware-0"),
            "{line}"
        );
    }

    #[test]
    fn another_processor_has_its_own_board_and_console() {
        let mut machine = Machine::new(512, 2);
        machine.is_arm64 = true;
        let line = line(&machine);
        assert!(
            line.starts_with("qemu-system-aarch64 -accel tcg,"),
            "{line}"
        );
        assert!(
            line.contains("-machine virt,gic-version=3 -cpu neoverse-n1 ")
                && line.contains("console=ttyAMA0 "),
            "{line}"
        );
    }

    #[test]
    fn a_processor_that_cannot_virtualize_is_recognised() {
        assert!(virtualizes("processor : 0\nflags\t\t: fpu vmx sse\n"));
        assert!(!virtualizes(
            "flags\t\t: fpu sse\nvmx flags\t: vnmi\nmodel name : svm\n"
        ));
    }
}
