// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overcommit, shown for what it is: what was promised to each user against what there is (S3 "Things
//! to know about overcommit"; Documentation/mm/overcommit-accounting.rst).

mod advice;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bursar_host::{HostError, Proc};
use bursar_model::{Bytes, Uid};
use serde::Serialize;

use self::advice::{advice, meaning};
use crate::Error;

/// What one user's processes were promised and have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Committed {
    /// Processes.
    pub processes: u64,
    /// All that is mapped (VSZ); a page that several map counts for each.
    pub virtual_bytes: Bytes,
    /// Private writable memory (VmData + VmStk): what may have to be found one day. The kernel's
    /// Committed_AS counts nearly this, and shared memory.
    pub committed_bytes: Bytes,
    /// What is there (RSS); shared pages count for each who maps them.
    pub resident_bytes: Bytes,
    /// Locked: it cannot be taken back (VmLck).
    pub locked_bytes: Bytes,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// RAM.
    pub ram_bytes: Bytes,
    /// Swap.
    pub swap_bytes: Bytes,
    /// Committed_AS: all that was promised.
    pub committed_bytes: Bytes,
    /// CommitLimit: binds only with overcommit_memory 2.
    pub commit_limit_bytes: Bytes,
    /// vm.overcommit_memory: 0, 1 or 2.
    pub overcommit_memory: u64,
    /// vm.overcommit_ratio, percent of RAM.
    pub overcommit_ratio: u64,
    /// vm.overcommit_kbytes; 0: the ratio counts.
    pub overcommit_kbytes: u64,
    /// RAM set aside as huge pages, of which nothing is promised by the ratio.
    pub huge_page_bytes: Bytes,
}

impl Machine {
    /// The least vm.overcommit_ratio with which so much may be promised (mm/util.c vm_commit_limit());
    /// `None` of a machine without RAM.
    pub fn ratio_for(&self, promised: Bytes) -> Option<u64> {
        let base = self.ram_bytes.saturating_sub(self.huge_page_bytes).get();
        let by_ratio = promised.saturating_sub(self.swap_bytes).get();
        let percent = (u128::from(by_ratio) * 100).div_ceil(u128::from(base).max(1));
        (base > 0).then(|| u64::try_from(percent).unwrap_or(u64::MAX))
    }
}

/// How much memory is promised, to which users, and what the settings of overcommit make of that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overcommit {
    /// The machine.
    pub machine: Machine,
    /// The least vm.overcommit_ratio with which today's promises could be made.
    pub least_ratio: Option<u64>,
    /// By user.
    pub accounts: BTreeMap<u32, Committed>,
    /// What the settings mean here.
    pub meaning: String,
    /// What to do.
    pub advice: Vec<String>,
}

/// The number of kibibytes behind `key`, as bytes.
fn kib(text: &str, key: &str) -> Bytes {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Bytes::new(number.unwrap_or(0).saturating_mul(1024))
}

impl Committed {
    fn add_process(&mut self, status: &str) {
        // Kernel threads have no memory.
        if !status.contains("\nVmSize:") {
            return;
        }
        self.processes = self.processes.saturating_add(1);
        let committed = kib(status, "VmData").saturating_add(kib(status, "VmStk"));
        for (sum, more) in [
            (&mut self.virtual_bytes, kib(status, "VmSize")),
            (&mut self.committed_bytes, committed),
            (&mut self.resident_bytes, kib(status, "VmRSS")),
            (&mut self.locked_bytes, kib(status, "VmLck")),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

fn uid_of(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Looks at the machine and its processes; `only` at one user's.
///
/// # Errors
/// When /proc cannot be read.
pub fn overcommit(only: Option<Uid>) -> Result<Overcommit, Error> {
    let proc = Path::new("/proc");
    let read = |name: &str| {
        fs::read_to_string(proc.join(name)).map_err(Error::io(format!("read /proc/{name}")))
    };
    let setting = |name: &str| -> Result<u64, Error> {
        Ok(read(&format!("sys/vm/{name}"))?.trim().parse().unwrap_or(0))
    };
    let meminfo = read("meminfo")?;
    let machine = Machine {
        ram_bytes: kib(&meminfo, "MemTotal"),
        swap_bytes: kib(&meminfo, "SwapTotal"),
        committed_bytes: kib(&meminfo, "Committed_AS"),
        commit_limit_bytes: kib(&meminfo, "CommitLimit"),
        overcommit_memory: setting("overcommit_memory")?,
        overcommit_ratio: setting("overcommit_ratio")?,
        overcommit_kbytes: setting("overcommit_kbytes")?,
        huge_page_bytes: kib(&meminfo, "Hugetlb"),
    };
    let mut accounts: BTreeMap<u32, Committed> = BTreeMap::new();
    for pid in Proc::host()?.pids()? {
        let pid = match pid {
            Ok(pid) => pid,
            Err(HostError::Denied { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        // One that is gone meanwhile, or another's where /proc hides them.
        let Ok(status) = fs::read(proc.join(pid.to_string()).join("status")) else {
            continue;
        };
        let status = String::from_utf8_lossy(&status);
        let Some(uid) = uid_of(&status) else { continue };
        if only.is_none_or(|only| only.get() == uid) {
            accounts.entry(uid).or_default().add_process(&status);
        }
    }
    accounts.retain(|_, promise| promise.processes > 0);
    let meaning = meaning(&machine);
    let advice = advice(&machine, &accounts);
    Ok(Overcommit {
        least_ratio: machine.ratio_for(machine.committed_bytes),
        machine,
        accounts,
        meaning,
        advice,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_added_up() {
        let mut promise = Committed::default();
        let status = "Name:\tx\nVmSize:\t  100 kB\nVmLck:\t 8 kB\nVmRSS:\t 20 kB\nVmData:\t 40 kB\nVmStk:\t 12 kB\nUid:\t7\t8\t8\t8\n";
        promise.add_process(status);
        promise.add_process("Name:\tkthreadd\nUid:\t0\n");
        assert_eq!(uid_of(status), Some(7));
        assert_eq!(promise.processes, 1);
        assert_eq!(promise.virtual_bytes, Bytes::new(100 << 10));
        assert_eq!(promise.committed_bytes, Bytes::new(52 << 10));
        assert_eq!(
            (promise.resident_bytes, promise.locked_bytes),
            (Bytes::new(20 << 10), Bytes::new(8 << 10))
        );
    }
}
