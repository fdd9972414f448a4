// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half as bursard loads it, without bursard: between decisions bursard sleeps.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bursar_host::{machine, mount_bpffs};
use bursar_kernel::{History, KernelHalf, Options, PageBounds, Settings, Slot};
use bursar_model::{AccountId, Bytes, Measure, Mode, Pages, Uid};
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{LinkInfoIter, ProgInfoIter};

use super::footprint::program_id;
use super::{FAR_BYTES, Stage, User};

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "bursar-bench-";
/// Of an account that is only observed: an allocator passes it at its first page.
const OBSERVED_BYTES: u64 = 64 << 10;

/// Takes away what a bench left that was killed: its number is in the name, and nobody has it any more.
pub(crate) fn sweep() -> Result<()> {
    let Ok(entries) = std::fs::read_dir(BPFFS) else {
        return Ok(());
    };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(pid) = name
            .to_string_lossy()
            .strip_prefix(PREFIX)
            .map(str::to_owned)
        else {
            continue;
        };
        if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(&pid).exists() {
            KernelHalf::release(&entry.path()).context("release what an earlier run left")?;
            eprintln!("released the kernel half that run {pid} left");
        }
    }
    Ok(())
}

/// A kernel half of our own.
pub(crate) struct Loaded {
    kernel_half: Option<KernelHalf>,
    options: Options,
    root: PathBuf,
}

/// The defaults of bursar.toml.
pub(crate) fn options(max_processes: u32, max_accounts: u32) -> Result<Options> {
    Ok(Options {
        max_processes,
        max_accounts,
        max_objects: 262_144,
        events_bytes: 256 << 10,
        possible_cpus: machine::possible_cpus(Path::new("/sys"))?,
        page_size: machine::page_size(),
        count_file: false,
        event_trigger: true,
        timer_trigger: true,
        notifier_trigger: false,
        gate: false, // measured by itself
    })
}

pub(crate) fn pages(bytes: u64) -> Pages {
    machine::page_size().pages_within(Bytes::new(bytes))
}

/// Bounds that no measurement of cost ever comes near.
pub(crate) fn far_bounds(measure: Measure) -> PageBounds {
    PageBounds {
        notice: Some(pages(FAR_BYTES / 10 * 9)),
        barrier: Some(pages(FAR_BYTES / 20 * 19)),
        limit: Some(pages(FAR_BYTES)),
        private: None,
        private_mode: Mode::Enforce,
        measure,
        mode: Mode::Enforce,
    }
}

/// Bounds that everybody passes at once, and that are only observed.
fn observed_bounds() -> PageBounds {
    let bound = Some(pages(OBSERVED_BYTES));
    PageBounds {
        notice: bound,
        barrier: bound,
        limit: bound,
        private: None,
        private_mode: Mode::Enforce,
        measure: Measure::Resident,
        mode: Mode::Observe,
    }
}

impl Loaded {
    /// With the accounts of [`User::Far`], [`User::Near`] and [`User::Observed`]; what brings one near is
    /// [`super::Ballast`].
    pub(crate) fn for_cost(stage: &Stage) -> Result<Self> {
        let mut kernel_half = Self::load(options(32_768, 4096)?)?;
        let far = far_bounds(Measure::Resident);
        kernel_half.open_account(stage.uid(User::Far), far)?;
        kernel_half.open_account(stage.uid(User::Near), PageBounds::default())?;
        kernel_half.open_account(stage.uid(User::Observed), observed_bounds())?;
        kernel_half.take_charge()?;
        Ok(kernel_half)
    }

    /// Without accounts; limits hold after [`Self::take_charge`].
    pub(crate) fn load(options: Options) -> Result<Self> {
        mount_bpffs(Path::new(BPFFS)).context("mount the BPF file system")?;
        let root = Path::new(BPFFS).join(format!("{PREFIX}{}", std::process::id()));
        let (kernel_half, _) =
            KernelHalf::start(&root, &options).context("load the kernel half")?;
        let kernel_half = Self {
            kernel_half: Some(kernel_half),
            options,
            root,
        };
        kernel_half.get().configure(&Self::settings())?;
        Ok(kernel_half)
    }

    fn settings() -> Settings {
        // `default` covers nobody: only accounts opened by us.
        Settings {
            exempts_cgroups: false,
            deaths_from: None,
            uid_min: Uid::new(u32::MAX - 1),
            exempt: Vec::new(),
            committed: Vec::new(),
            raised_adj: None,
            short_below: None,
        }
    }

    pub(crate) fn take_charge(&mut self) -> Result<()> {
        let kernel_half = self
            .kernel_half
            .as_mut()
            .context("the kernel half is gone")?;
        kernel_half
            .take_charge(&Self::settings())
            .context("take charge")
    }

    pub(super) const fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn get(&self) -> &KernelHalf {
        self.kernel_half.as_ref().expect("only drop takes it")
    }

    pub(crate) fn open_account(&mut self, uid: u32, bounds: PageBounds) -> Result<Slot> {
        let accounts = self.get().accounts();
        let id = AccountId::of(Uid::new(uid));
        let slot = accounts.open_account(id, false, true, History::default())?;
        accounts.set_bounds(slot, bounds)?;
        Ok(slot)
    }

    /// Its directory of pins.
    pub(super) fn pins(&self) -> Result<PathBuf> {
        let mut found = std::fs::read_dir(&self.root).context("list the pins")?;
        Ok(found.next().context("no pins")??.path())
    }

    /// What the event trigger takes while `work` goes on, nanoseconds a run: the kernel's own statistics,
    /// with its two readings of the clock in them.
    pub(crate) fn event_ns(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let _statistics = enable_statistics()?;
        let id = self.program_id()?;
        let runs = || {
            ProgInfoIter::default()
                .find(|program| program.id == id)
                .map(|program| (program.run_time_ns, program.run_cnt))
                .context("the event trigger is gone")
        };
        let (time, count) = runs()?;
        work()?;
        let (time_after, count_after) = runs()?;
        ensure!(count_after > count, "no RSS event was met");
        Ok((time_after - time) as f64 / (count_after - count) as f64)
    }

    fn program_id(&self) -> Result<u32> {
        program_id(&self.pins()?.join("on_rss_stat"))
    }
}

/// Counted as long as what is returned lives.
fn enable_statistics() -> Result<OwnedFd> {
    // SAFETY: a plain number.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        bail!(
            "the kernel counts no run times: {}",
            std::io::Error::from_raw_os_error(-fd)
        );
    }
    // SAFETY: a descriptor that the kernel just gave us and nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let program = self.program_id();
        self.kernel_half = None;
        if let Err(error) = KernelHalf::release(&self.root) {
            eprintln!("the kernel half could not be released: {error}");
        }
        // A removed pin detaches some milliseconds later; what is measured next must not see it.
        if let Err(error) = program.and_then(await_end) {
            eprintln!("{error:#}");
        }
    }
}

fn await_end(program: u32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while LinkInfoIter::default().any(|link| link.prog_id == program) {
        if Instant::now() > deadline {
            bail!("the kernel half is still attached after five seconds");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Programs that anybody has attached to the RSS event: what is measured as "nothing" has them too.
pub(crate) fn programs_on_rss_stat() -> Vec<u32> {
    let ids: Vec<u32> = ProgInfoIter::default()
        .filter(|program| program.name.to_string_lossy().contains("rss_stat"))
        .map(|program| program.id)
        .collect();
    LinkInfoIter::default()
        .map(|link| link.prog_id)
        .filter(|id| ids.contains(id))
        .collect()
}
