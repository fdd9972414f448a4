// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/status (proc_pid_status(5)).

use bursar_model::{Bytes, Pid, Uid};

use crate::Malformed;
use crate::bytes::{kilobytes_of, number, number_of, required, value_of, words};
use crate::machine::count_cpus;

/// Signal 9's bit in a mask of signals.
const SIGKILL_BIT: u64 = 1 << 8;

/// A process as /proc/PID/status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its real user.
    pub uid: Uid,
    /// The process; equal to the pid asked for unless that was a thread's.
    pub tgid: Pid,
    /// The thread of which this is.
    pub tid: Pid,
    /// The number that it has in its own pid namespace; `None` where that is ours.
    pub namespace_pid: Option<Pid>,
    /// Its threads.
    pub threads: u32,
    /// Whether it, or the thread asked for, has ended and is only waited for.
    pub is_dead: bool,
    /// Its memory; `None` for kernel threads, for zombies, and for a thread that has ended while others live (their
    /// memory is there, only not shown here).
    pub memory: Option<Memory>,
    /// Who traces it.
    pub tracer: Option<Pid>,
    /// How many CPUs it may run on; `None` where the kernel does not say.
    pub cpus: Option<u32>,
    /// Whether a core is being dumped: it holds its memory until that is done.
    pub is_dumping_core: bool,
    /// Whether SIGKILL has been sent and not arrived yet.
    pub is_kill_pending: bool,
}

/// What a process has in memory. The kernel's counters are per CPU since 6.2: each may be off by some
/// pages per CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident and private to it.
    pub rss_anon: Bytes,
    /// Resident pages of files.
    pub rss_file: Bytes,
    /// Resident shared memory: tmpfs, memfd, SysV.
    pub rss_shmem: Bytes,
    /// Swapped out, shared memory aside.
    pub swap: Bytes,
    /// Page tables.
    pub page_tables: Bytes,
    /// Pages of the hugetlb pool, in no other part.
    pub hugetlb: Bytes,
    /// Locked into memory (mlock), of any kind.
    pub locked: Bytes,
    /// Private and writable, resident or not, without stacks: what RLIMIT_DATA is compared with.
    pub data: Bytes,
}

impl Memory {
    /// What comes back when the process ends: what is private to it, in huge pages too.
    pub fn comes_back(self) -> Bytes {
        self.rss_anon
            .saturating_add(self.swap)
            .saturating_add(self.hugetlb)
    }
}

impl Status {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// When a key that every kernel from 6.1 on writes is missing or its value makes no sense.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let uids = required(value_of(bytes, "Uid"), "Uid")?;
        let real = words(uids).next().and_then(number);
        let uid = Uid::new(real.ok_or_else(|| Malformed::new("Uid is no uid"))?);
        let tgid = Pid::new(required(number_of(bytes, "Tgid")?, "Tgid")?);
        let tid = Pid::new(required(number_of(bytes, "Pid")?, "Pid")?);
        let threads = required(number_of(bytes, "Threads")?, "Threads")?;
        let mut is_kill_pending = false;
        for key in ["SigPnd", "ShdPnd"] {
            let mask = str::from_utf8(required(value_of(bytes, key), key)?).unwrap_or_default();
            let mask = u64::from_str_radix(mask, 16)
                .map_err(|_| Malformed::new(format!("{key} is no mask of signals")))?;
            is_kill_pending |= mask & SIGKILL_BIT != 0;
        }
        let is_dumping_core =
            number_of::<u8>(bytes, "CoreDumping")?.is_some_and(|value| value != 0);
        let tracer = number_of::<u32>(bytes, "TracerPid")?.filter(|&pid| pid != 0);
        let cpus = value_of(bytes, "Cpus_allowed_list").and_then(|list| count_cpus(list).ok());
        let state = value_of(bytes, "State").and_then(|state| words(state).next());
        let numbers = value_of(bytes, "NStgid").map(|list| words(list).collect::<Vec<_>>());
        let namespace_pid = numbers
            .filter(|list| list.len() > 1)
            .and_then(|list| number(list.last()?))
            .map(Pid::new);
        Ok(Self {
            uid,
            tgid,
            tid,
            namespace_pid,
            threads,
            is_dead: matches!(state, Some(b"Z" | b"X")),
            tracer: tracer.map(Pid::new),
            cpus,
            memory: Memory::parse(bytes)?,
            is_dumping_core,
            is_kill_pending,
        })
    }
}

impl Memory {
    /// All of its parts, or none for a process without memory.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let Some(rss_anon) = kilobytes_of(bytes, "RssAnon")? else {
            return Ok(None);
        };
        let part = |key| required(kilobytes_of(bytes, key)?, key);
        Ok(Some(Self {
            rss_anon,
            rss_file: part("RssFile")?,
            rss_shmem: part("RssShmem")?,
            swap: part("VmSwap")?,
            page_tables: part("VmPTE")?,
            hugetlb: kilobytes_of(bytes, "HugetlbPages")?.unwrap_or_default(),
            locked: kilobytes_of(bytes, "VmLck")?.unwrap_or_default(),
            data: kilobytes_of(bytes, "VmData")?.unwrap_or_default(),
        }))
    }

    /// What counts of it where pages of files do not (docs/explanation/accounting.md). Saturates.
    pub fn held(&self) -> Bytes {
        [
            self.rss_anon,
            self.rss_shmem,
            self.swap,
            self.page_tables,
            self.hugetlb,
        ]
        .into_iter()
        .fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Resident pages of all kinds: S1's RSS. Saturates.
    pub fn rss(&self) -> Bytes {
        self.rss_anon
            .saturating_add(self.rss_file)
            .saturating_add(self.rss_shmem)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: &str = "Name:\tx\nTgid:\t7\nPid:\t7\nUid:\t1000\t0\t0\t0\nThreads:\t2\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";

    #[test]
    fn a_process_without_memory_has_none() {
        let status = Status::parse(SMALL.as_bytes()).unwrap();
        assert_eq!(
            (status.uid, status.tgid, status.threads),
            (Uid::new(1000), Pid::new(7), 2)
        );
        assert_eq!(status.memory, None);
        assert!(status.is_kill_pending && !status.is_dumping_core);
    }

    #[test]
    fn only_signal_nine_is_a_kill() {
        for (mask, pending) in [
            ("0000000000000080", false),
            ("0000000000000100", true),
            ("0000000000000200", false),
            ("fffffffffffffeff", false),
        ] {
            let text = SMALL.replace("0000000000000100", mask);
            assert_eq!(
                Status::parse(text.as_bytes()).unwrap().is_kill_pending,
                pending,
                "{mask}"
            );
        }
    }

    #[test]
    fn what_is_missing_or_absurd_is_refused_by_name() {
        let table = [
            ("Uid:\t1000\t0\t0\t0\n", "", "no key Uid"),
            ("Uid:\t1000\t0", "Uid:\tx\t0", "Uid is no uid"),
            (
                "Tgid:\t7\n",
                "Tgid:\t99999999999\n",
                "Tgid is no number that fits",
            ),
            (
                "Threads:\t2",
                "Threads:\t-2",
                "Threads is no number that fits",
            ),
            ("0000000000000100", "hello", "ShdPnd is no mask of signals"),
            (
                "Threads",
                "RssAnon:\t5 MB\nThreads",
                "RssAnon is no number of kB",
            ),
            ("Threads", "RssAnon:\t5 kB\nThreads", "no key RssFile"),
            (
                "Threads",
                "CoreDumping:\t\nThreads",
                "CoreDumping is no number that fits",
            ),
        ];
        for (old, new, reason) in table {
            let error = Status::parse(SMALL.replacen(old, new, 1).as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[test]
    fn sums_do_not_overflow() {
        let text = format!(
            "{SMALL}RssAnon:\t18446744073709551615 kB\nRssFile:\t1 kB\nRssShmem:\t0 kB\nVmSwap:\t0 kB\nVmPTE:\t0 kB\n"
        );
        let memory = Status::parse(text.as_bytes()).unwrap().memory.unwrap();
        assert_eq!(memory.rss(), Bytes::new(u64::MAX));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Status::parse(&bytes);
        }

        #[test]
        fn no_values_panic(values in prop::collection::vec("[-0-9a-fkB \t]{0,24}", 12)) {
            let keys = ["Uid", "Tgid", "Threads", "SigPnd", "ShdPnd", "CoreDumping", "RssAnon", "RssFile", "RssShmem", "VmSwap", "VmPTE", "Unknown"];
            let text: String = keys.iter().zip(values).map(|(key, value)| format!("{key}:\t{value}\n")).collect();
            let _ = Status::parse(text.as_bytes());
        }
    }
}
