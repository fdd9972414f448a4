// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How QEMU is called: fast where the machine has KVM, and as fast as can be where it has not.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

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
    pub(super) fn detect() -> Accelerator {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        match kvm {
            Ok(_) if virtualizes(&processor) => Accelerator::Kvm,
            _ => Accelerator::Tcg,
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Accelerator::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Accelerator::Tcg => &["-accel", "tcg,thread=single", "-cpu", "max"],
            Accelerator::TcgParallel => &["-accel", "tcg,thread=multi", "-cpu", "max"],
            Accelerator::TcgCounted => &[
                "-accel",
                "tcg,thread=single",
                "-cpu",
                "max",
                "-icount",
                "shift=0,sleep=off",
            ],
        }
    }

    /// TCG emulates `rep stos` and `rep movs` byte by byte: a kernel that does not know ERMS and
    /// REP_GOOD clears pages about four times faster. SMAP and SMEP cost at each page walk. And
    /// the patience of the watchdogs is raised, because a guest's second may be a slow one.
    fn kernel_arguments(self) -> &'static str {
        match self {
            Accelerator::Kvm => "",
            Accelerator::Tcg | Accelerator::TcgParallel | Accelerator::TcgCounted => {
                "clearcpuid=erms,rep_good,fsrm,fsrs,fzrm,smap,smep watchdog_thresh=60 \
                 rcupdate.rcu_cpu_stall_timeout=60"
            }
        }
    }
}

/// What a guest's second serial port and its ports to the host are.
#[derive(Clone, Debug)]
pub(super) enum Wiring {
    /// virtio ports by name, each a Unix socket somebody already listens on.
    Ports(Vec<(&'static str, PathBuf)>),
    /// The second serial port is this terminal.
    Terminal,
}

/// A machine to start.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    /// What runs it.
    pub accelerator: Accelerator,
    /// The kernel image.
    pub kernel: PathBuf,
    /// The cpio archive.
    pub initramfs: &'a Path,
    /// Memory.
    pub memory_mib: u32,
    /// Processors.
    pub cpus: u32,
    /// Further kernel arguments.
    pub append: &'a [String],
    /// Where the kernel's console goes.
    pub console: &'a Path,
    /// The rest.
    pub wiring: Wiring,
}

impl Machine<'_> {
    /// QEMU's arguments.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-machine", "q35"]);
        add(self.accelerator.arguments());
        add(&[
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &format!("{}M", self.memory_mib),
        ]);
        add(&[
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
        ]);
        add(&[
            "-kernel",
            &text(&self.kernel),
            "-initrd",
            &text(self.initramfs),
        ]);
        add(&["-append", &self.kernel_arguments()]);
        add(&[
            "-chardev",
            &format!("file,id=console,path={}", escaped(self.console)),
        ]);
        add(&["-serial", "chardev:console"]);
        match &self.wiring {
            Wiring::Ports(ports) => {
                add(&["-device", "virtio-serial-pci"]);
                for (name, socket) in ports {
                    add(&[
                        "-chardev",
                        &format!("socket,id={name},path={}", escaped(socket)),
                    ]);
                    add(&[
                        "-device",
                        &format!("virtserialport,chardev={name},name=bursar.{name}"),
                    ]);
                }
            }
            Wiring::Terminal => {
                add(&[
                    "-chardev",
                    "stdio,id=terminal,mux=on,signal=off",
                    "-serial",
                    "chardev:terminal",
                ]);
            }
        }
        arguments
    }

    /// Level 5 shows warnings, which `quiet` alone would hide from the console.
    fn kernel_arguments(&self) -> String {
        let mut words = vec![
            "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic mitigations=off nokaslr psi=1",
            self.accelerator.kernel_arguments(),
        ];
        words.extend(self.append.iter().map(String::as_str));
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }
}

/// Whether `/proc/cpuinfo` tells of a processor that can virtualize.
fn virtualizes(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| {
            line.split_whitespace()
                .any(|flag| matches!(flag, "vmx" | "svm"))
        })
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A comma would end the value.
fn escaped(path: &Path) -> String {
    text(path).replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine<'a>(accelerator: Accelerator, append: &'a [String], wiring: Wiring) -> Machine<'a> {
        Machine {
            accelerator,
            kernel: PathBuf::from("/k"),
            initramfs: Path::new("/i"),
            memory_mib: 512,
            cpus: 2,
            append,
            console: Path::new("/log/a,b"),
            wiring,
        }
    }

    fn joined(machine: &Machine) -> String {
        machine
            .arguments()
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn what_the_caller_appends_comes_last_so_that_it_wins() {
        let append = ["loglevel=7".to_owned()];
        let machine = machine(Accelerator::Tcg, &append, Wiring::Ports(Vec::new()));
        let line = machine.kernel_arguments();
        assert!(
            line.ends_with(" loglevel=7") && line.contains("clearcpuid=erms"),
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

    #[test]
    fn kvm_keeps_the_processor_as_it_is() {
        let machine = machine(Accelerator::Kvm, &[], Wiring::Terminal);
        assert!(!machine.kernel_arguments().contains("clearcpuid"));
        assert!(joined(&machine).contains("-accel kvm -cpu host"));
    }

    #[test]
    fn ports_are_wired_by_name_and_commas_in_paths_survive() {
        let ports = vec![("out", PathBuf::from("/t/o,1"))];
        let line = joined(&machine(Accelerator::Tcg, &[], Wiring::Ports(ports)));
        assert!(line.contains("socket,id=out,path=/t/o,,1"), "{line}");
        assert!(
            line.contains("virtserialport,chardev=out,name=bursar.out"),
            "{line}"
        );
        assert!(line.contains("file,id=console,path=/log/a,,b"), "{line}");
    }
}
