// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overcommit, shown for what it is: what was promised to each user against what there is (S3 "Things
//! to know about overcommit"; Documentation/mm/overcommit-accounting.rst).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bursar_host::{HostError, Proc};
use bursar_model::{Bytes, Uid};
use serde::Serialize;

use crate::Error;

/// What one user's processes were promised and have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Promise {
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
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The machine.
    pub machine: Machine,
    /// By user.
    pub accounts: BTreeMap<u32, Promise>,
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

impl Promise {
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
pub fn survey(only: Option<Uid>) -> Result<Survey, Error> {
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
    };
    let mut accounts: BTreeMap<u32, Promise> = BTreeMap::new();
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
    Ok(Survey {
        machine,
        accounts,
        meaning,
        advice,
    })
}

/// What the settings mean on this machine.
fn meaning(machine: &Machine) -> String {
    let all = machine.ram_bytes.saturating_add(machine.swap_bytes);
    match machine.overcommit_memory {
        1 => format!(
            "vm.overcommit_memory is 1: every request is granted, whatever is left. {} have been promised \
             and there are {all}; when pages that do not exist are touched, the OOM killer comes",
            machine.committed_bytes
        ),
        2 => {
            let limit = if machine.overcommit_kbytes > 0 {
                format!(
                    "vm.overcommit_kbytes, {}",
                    Bytes::new(machine.overcommit_kbytes << 10)
                )
            } else {
                format!("{} % of RAM, and swap", machine.overcommit_ratio)
            };
            format!(
                "vm.overcommit_memory is 2: no more than {} ({limit}) is promised, {} are; beyond that \
                 malloc fails even while memory is free",
                machine.commit_limit_bytes, machine.committed_bytes
            )
        }
        _ => format!(
            "vm.overcommit_memory is 0: a single request larger than all memory ({all}) is refused, any \
             other is granted; {} have been promised. vm.overcommit_ratio ({} %) does not matter in this \
             mode. malloc hardly ever fails, and the OOM killer comes instead",
            machine.committed_bytes, machine.overcommit_ratio
        ),
    }
}

fn advice(machine: &Machine, accounts: &BTreeMap<u32, Promise>) -> Vec<String> {
    let all = machine.ram_bytes.saturating_add(machine.swap_bytes);
    let mut advice = Vec::new();
    if machine.overcommit_memory != 2 && machine.committed_bytes > all {
        advice.push(
            "more has been promised than there is: limit those who hold most of it (bursar limit set), so \
             that one user's touch does not become another's OOM kill"
                .to_owned(),
        );
    }
    if machine.overcommit_memory == 2
        && machine.committed_bytes.get() > machine.commit_limit_bytes.scaled(9, 10).get()
    {
        advice.push(
            "nearly all that may be promised is: raise vm.overcommit_ratio, or requests fail soon"
                .to_owned(),
        );
    }
    let locked = accounts
        .values()
        .fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.locked_bytes));
    if locked > machine.ram_bytes.scaled(1, 2) {
        advice.push(format!(
            "{locked} are locked, more than half of RAM: what is locked is nobody else's in need"
        ));
    }
    advice.push(
        "a program that must answer in time needs no change here: lock its memory (bursar run --lock), \
         whatever the machine promises to others"
            .to_owned(),
    );
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_added_up() {
        let mut promise = Promise::default();
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

    #[test]
    fn each_mode_is_explained() {
        let mut machine = Machine {
            ram_bytes: Bytes::from_mib(1000),
            swap_bytes: Bytes::ZERO,
            committed_bytes: Bytes::from_mib(1200),
            commit_limit_bytes: Bytes::from_mib(500),
            overcommit_memory: 0,
            overcommit_ratio: 50,
            overcommit_kbytes: 0,
        };
        for (mode, word) in [
            (0, "single request"),
            (1, "every request"),
            (2, "malloc fails"),
        ] {
            machine.overcommit_memory = mode;
            assert!(meaning(&machine).contains(word));
            assert_eq!(advice(&machine, &BTreeMap::new()).len(), 2);
        }
    }
}
