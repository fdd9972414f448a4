// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU: which machine it shows, as fast as can be, and a process that ends with us.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;

use crate::interrupt;
use crate::suite::Suite;

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

    /// The accelerator's arguments, and its processor.
    fn arguments(self) -> (&'static str, &'static str) {
        match self {
            Accelerator::Kvm => ("-accel kvm", "host"),
            Accelerator::Tcg => ("-accel tcg,thread=single", "max"),
            Accelerator::TcgParallel => ("-accel tcg,thread=multi", "max"),
            Accelerator::TcgCounted => {
                ("-accel tcg,thread=single -icount shift=0,sleep=off", "max")
            }
        }
    }

    /// TCG emulates `rep stos` and `rep movs` byte by byte: a kernel that does not know ERMS and
    /// REP_GOOD clears pages about four times faster. SMAP and SMEP cost at each page walk. And
    /// the timeouts of the watchdogs are raised, because a guest's second may be a slow one. (arm64 knows no
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
#[derive(Clone, Debug, clap::Parser)]
pub struct Machine {
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub mem: u32,
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub smp: u32,
    /// Processors that its kernel is to believe may come: it keeps so many of what it keeps for each
    #[arg(long, value_name = "N")]
    pub possible_cpus: Option<u32>,
    /// What runs the guest's instructions; the best this machine has otherwise
    #[arg(long, value_enum)]
    pub accel: Option<Accelerator>,
    /// Further kernel arguments
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// Further words of QEMU's command line: "-numa node,cpus=0 -numa node,cpus=1"
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub qemu: Vec<String>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::parse_from([""])
    }
}

impl Machine {
    /// QEMU for this machine, killed when the thread that starts it ends; its devices are missing yet.
    pub(crate) fn command(&self, boot: &Boot<'_>) -> Command {
        let accelerator = match self.accel {
            None if boot.suite.is_arm64() => Accelerator::Tcg,
            chosen => chosen.unwrap_or_else(Accelerator::detect),
        };
        let (accel, own_processor) = accelerator.arguments();
        // Graviton 2's processor: `max` signs pointers, which TCG is slow at.
        let (program, board, console, processor) = if boot.suite.is_arm64() {
            let board = "virt,gic-version=3";
            ("qemu-system-aarch64", board, "ttyAMA0", "neoverse-n1")
        } else {
            ("qemu-system-x86_64", "q35", "ttyS0", own_processor)
        };
        // Level 5 shows warnings, which `quiet` alone would hide from the console.
        let ours = "quiet loglevel=5 panic=-1 oops=panic mitigations=off nokaslr psi=1";
        let theirs = self.append.join(" ");
        let tuning = accelerator.kernel_arguments();
        let append = format!("console={console} {ours}{tuning} {theirs}");
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "--", program])
            .args(accel.split(' '))
            .args("-nodefaults -no-user-config -display none -monitor none".split(' '));
        // Linux leaves out processors that may come unless it takes the machine for VMware's.
        match self.possible_cpus {
            None => qemu
                .args(["-machine", board, "-cpu", processor, "-smp"])
                .arg(self.smp.to_string()),
            Some(possible) => qemu
                .args(["-smbios", "type=1,serial=VMware-0"])
                .args(["-machine", &format!("{board},vmport=on")])
                .args(["-cpu", &format!("{processor},-hypervisor"), "-smp"])
                .arg(format!(
                    "{},maxcpus={possible},sockets={possible},cores=1,threads=1",
                    self.smp
                )),
        };
        qemu.args(["-m", &format!("{}M", self.mem), "-append", &append])
            .arg("-kernel")
            .arg(boot.kernel)
            .arg("-initrd")
            .arg(boot.initramfs)
            .arg("-chardev")
            .arg(format!("file,id=console,path={}", escaped(boot.log)))
            .args(["-serial", "chardev:console"])
            .args(self.qemu.iter().flat_map(|words| words.split_whitespace()));
        qemu
    }
}

/// What a machine boots.
pub(crate) struct Boot<'a> {
    pub suite: Suite,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    /// Where the kernel's console goes.
    pub log: &'a Path,
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
    pub(crate) fn start(mut command: Command, out: Stdio, err: Stdio) -> Result<Qemu> {
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        Ok(Qemu(command.spawn().context("start QEMU")?))
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

    fn line(suite: Suite, machine: &Machine) -> String {
        let command = machine.command(&Boot {
            suite,
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            log: Path::new("/log/a,b"),
        });
        let words = command.get_args().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    fn has(line: &str, parts: &[&str]) {
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn what_the_caller_appends_comes_last_so_that_it_wins() {
        let line = line(
            Suite::Trixie,
            &Machine {
                accel: Some(Accelerator::Tcg),
                append: vec!["loglevel=7".to_owned()],
                qemu: vec!["-numa node".to_owned()],
                ..Machine::default()
            },
        );
        has(&line, &["clearcpuid=erms", "timeout=60 loglevel=7 "]);
        has(&line, &["file,id=console,path=/log/a,,b", "-kernel /k"]);
        has(&line, &["-cpu max -smp 2 -m 1024M "]);
        assert!(line.ends_with(" -numa node"), "{line}");
    }

    #[test]
    fn kvm_keeps_the_processor_as_it_is() {
        let machine = Machine {
            accel: Some(Accelerator::Kvm),
            ..Machine::default()
        };
        let line = line(Suite::Trixie, &machine);
        has(&line, &["-accel kvm ", "-cpu host "]);
        assert!(!line.contains("clearcpuid"), "{line}");
    }

    #[test]
    fn a_guest_is_made_to_believe_in_more_processors() {
        let machine = Machine {
            smp: 1,
            accel: Some(Accelerator::TcgCounted),
            possible_cpus: Some(255),
            ..Machine::default()
        };
        let line = line(Suite::Trixie, &machine);
        has(
            &line,
            &["-smp 1,maxcpus=255,sockets=255,cores=1,threads=1 "],
        );
        has(&line, &["-cpu max,-hypervisor ", "q35,vmport=on "]);
        has(&line, &["-icount shift=0,sleep=off ", "serial=VMware-0"]);
    }

    #[test]
    fn another_processor_has_its_own_board_and_console() {
        let line = line(Suite::TrixieArm64, &Machine::default());
        has(&line, &["-- qemu-system-aarch64 -accel tcg,"]);
        has(&line, &["-machine virt,gic-version=3 -cpu neoverse-n1 "]);
        has(&line, &["console=ttyAMA0 "]);
    }

    #[test]
    fn a_processor_that_cannot_virtualize_is_recognised() {
        assert!(virtualizes("processor : 0\nflags\t\t: fpu vmx sse\n"));
        assert!(!virtualizes(
            "flags\t\t: fpu sse\nvmx flags\t: vnmi\nmodel name : svm\n"
        ));
    }
}
