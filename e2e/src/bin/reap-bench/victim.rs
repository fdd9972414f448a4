// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes of the benchmark: one that holds memory, and loops that want a CPU.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use bursar_host::sched::{self, Changed};
use clap::{Args, ValueEnum};

use crate::group::Group;
use crate::sessions::part;

/// Of what pages the memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PageKind {
    /// The smallest.
    #[value(name = "4k")]
    Small,
    /// Transparent huge pages.
    Huge,
}

/// What a victim does once it holds its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pastime {
    /// Sleeps.
    Sleep,
    /// Uses up whatever CPU time it gets.
    Spin,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Hold {
    #[arg(long)]
    pub(crate) mib: usize,
    #[arg(long, value_enum)]
    pub(crate) pages: PageKind,
    #[arg(long, value_enum, default_value = "sleep")]
    pub(crate) pastime: Pastime,
    /// More threads than the first one
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// More processes that share the memory
    #[arg(long, default_value_t = 0)]
    pub(crate) twins: usize,
    /// In a session of its own
    #[arg(long)]
    pub(crate) apart: bool,
}

fn idle() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

extern "C" fn be_twin(_: *mut libc::c_void) -> libc::c_int {
    idle()
}

impl Hold {
    /// Waits for a line, maps and touches, says so, waits to be killed.
    pub(crate) fn run(self) -> Result<()> {
        if self.apart {
            part()?;
        }
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line)?;
        const HUGE: usize = 2 << 20;
        let length = self.mib << 20;
        // SAFETY: a fresh anonymous mapping wherever the kernel likes.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length + HUGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_ANONYMOUS | libc::MAP_PRIVATE,
                -1,
                0,
            )
        };
        ensure!(
            at != libc::MAP_FAILED,
            "mmap: {}",
            std::io::Error::last_os_error()
        );
        let at = at.cast::<u8>();
        let at = at.wrapping_add(at.align_offset(HUGE));
        let advice = if self.pages == PageKind::Huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // SAFETY: the mapping is ours and that long from its first huge page on.
        unsafe { libc::madvise(at.cast(), length, advice) };
        for offset in (0..length).step_by(4096) {
            // SAFETY: inside the mapping.
            unsafe { at.add(offset).write_volatile(1) };
        }
        for _ in 0..self.threads {
            std::thread::spawn(|| idle());
        }
        for _ in 0..self.twins {
            let stack = Box::leak(vec![0_u8; 64 << 10].into_boxed_slice());
            // SAFETY: the stack is never freed; the twin only waits.
            let pid = unsafe {
                let top = stack.as_mut_ptr().add(stack.len()).cast();
                libc::clone(
                    be_twin,
                    top,
                    libc::CLONE_VM | libc::SIGCHLD,
                    std::ptr::null_mut(),
                )
            };
            ensure!(pid > 0, "clone: {}", std::io::Error::last_os_error());
            println!("twin {pid}");
        }
        println!("there");
        std::io::stdout().flush()?;
        match self.pastime {
            Pastime::Sleep => idle(),
            Pastime::Spin => loop {
                std::hint::spin_loop();
            },
        }
    }
}

/// Wants one CPU for itself, for ever.
pub(crate) fn spin(cpu: usize, apart: bool) -> Result<()> {
    if apart {
        part()?;
    }
    let pinned = sched::allow_cpu(sched::own_thread(), cpu);
    ensure!(pinned == Changed::Done, "cannot stay on CPU {cpu}");
    loop {
        std::hint::spin_loop();
    }
}

/// A process of ours; killed and waited for when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) twins: Vec<u32>,
}

impl Process {
    /// A victim in a group of its own that holds all its memory.
    pub(crate) fn victim(hold: Hold, group: &Group, throttled: bool) -> Result<Self> {
        let me = std::env::current_exe()?;
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value()
                .map(|it| it.get_name().to_owned())
                .unwrap_or_default()
        };
        let mut child = Command::new(me)
            .args(["victim", "--mib", &hold.mib.to_string()])
            .args(["--pages", &name(&|| hold.pages.to_possible_value())])
            .args(["--pastime", &name(&|| hold.pastime.to_possible_value())])
            .args([
                "--threads",
                &hold.threads.to_string(),
                "--twins",
                &hold.twins.to_string(),
            ])
            .args(hold.apart.then_some("--apart"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a victim")?;
        let output = child.stdout.take().context("its output")?;
        let mut input = child.stdin.take().context("its input")?;
        let mut process = Self {
            child,
            twins: Vec::new(),
        };
        group.take_in(process.pid(), throttled)?;
        writeln!(input)?;
        let mut output = BufReader::new(output);
        loop {
            let mut line = String::new();
            if output.by_ref().read_line(&mut line)? == 0 {
                bail!("the victim ended before it was ready");
            }
            match line.trim().strip_prefix("twin ") {
                Some(pid) => process.twins.push(pid.parse()?),
                None => return Ok(process),
            }
        }
    }

    pub(crate) fn busy(cpu: usize, apart: bool) -> Result<Self> {
        let me = std::env::current_exe()?;
        let child = Command::new(me)
            .args(["loop", &cpu.to_string()])
            .args(apart.then_some("--apart"))
            .spawn()
            .context("start a loop")?;
        Ok(Self {
            child,
            twins: Vec::new(),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Itself and whoever shares its memory.
    pub(crate) fn all(&self) -> Vec<u32> {
        std::iter::once(self.pid())
            .chain(self.twins.iter().copied())
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for twin in &self.twins {
            if let Ok(pid) = i32::try_from(*twin) {
                // SAFETY: a child of our child, which waits for nobody: the number is still its own.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
