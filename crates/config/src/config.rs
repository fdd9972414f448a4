// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursard can be told: `bursar.toml`. What each key is for, its unit, range and default stand
//! once in [`crate::key_reference`] and again, shorter, at the fields here.

use std::path::PathBuf;

use bursar_model::{Bytes, Measure, Mode, PageSize, Uid};

use crate::Watermarks;

/// At most so many ranges of uids can be exempt: the kernel half compares them one by one.
pub const MAX_EXEMPT: usize = 8;

/// What bursar.toml says; its defaults where it says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// Who decides that a limit is passed. Default: [`BackendChoice::Auto`].
    pub trigger: BackendChoice,
    /// Whether limits are enforced whose entries do not say so. Default: [`Mode::Enforce`].
    pub mode: Mode,
    /// What becomes of limits that would kill at once when they are read again. Default: [`ReloadChoice::Refuse`].
    pub reload: ReloadChoice,
    /// What becomes of the kernel half when bursard ends. Default: [`OnExit::Keep`].
    pub on_exit: OnExit,
    /// What counts as held memory. Default: [`Count::Memory`].
    pub count: Count,
    /// Where things are kept.
    pub paths: Paths,
    /// Which of the kernel half's triggers are on.
    pub triggers: Triggers,
    /// The bounds of the kernel half's memory.
    pub ledger: Ledger,
    /// Whom limits can concern.
    pub accounts: Accounts,
    /// Who is left alone.
    pub exempt: Exempt,
    /// What is refused at the barrier.
    pub gate: Gate,
    /// How users are told.
    pub tell: Tell,
    /// What users read besides what happened.
    pub messages: Messages,
    /// Whose death is helped.
    pub reap: Reap,
    /// What happens before the machine as a whole runs out.
    pub last_defence: OomScoreConfig,
    /// How much history is kept.
    pub events: Events,
    /// How much of what accounts held is kept.
    pub usage: Usage,
    /// What is logged.
    pub log: Log,
    /// How watermarks are watched and moved.
    pub watermarks: Watermarks,
}

/// Who decides that a limit is passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The kernel half where it can be loaded, else `trace`, else `poll`.
    #[default]
    Auto,
    /// The kernel half, or bursard does not start.
    Bpf,
    /// S1's notifier: the trace pipe of `kmem:rss_stat` (S1 section 4.2).
    Trace,
    /// A scan of /proc every 200 ms.
    Poll,
}

/// What becomes of the kernel half when bursard ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnExit {
    /// It stays: limits hold without bursard.
    #[default]
    Keep,
    /// It goes: nothing is limited any more.
    Release,
}

/// What becomes of limits that would kill at once when they are read again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReloadChoice {
    /// The old ones stay.
    #[default]
    Refuse,
    /// They hold, and the kills follow.
    Force,
}

/// What counts as held memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Count {
    /// What would come back if the account's processes went away (docs/explanation/accounting.md).
    #[default]
    Memory,
    /// S1's definition to the letter: resident memory with file pages, shared pages once per process.
    Rss,
}

/// Where things are kept. All are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The limits. Default: `/etc/bursar/limits.toml`.
    pub limits: PathBuf,
    /// The control socket's directory, at most 95 bytes long. Default: `/run/bursar`.
    pub runtime: PathBuf,
    /// The directory of the stored events. Default: `/var/lib/bursar`.
    pub state: PathBuf,
    /// Where the kernel half is pinned, on a BPF file system. Default: `/sys/fs/bpf/bursar`.
    pub pins: PathBuf,
    /// Whose subordinate uids are. Default: `/etc/subuid`.
    pub subuid: PathBuf,
}

/// Which of the kernel half's triggers are on; at least one is. Default: all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Triggers {
    /// The RSS event itself decides.
    pub event: bool,
    /// A kernel timer decides every 200 ms.
    pub timer: bool,
    /// bursard has the kernel half decide when its event tells of a change.
    pub notifier: bool,
}

/// The bounds of the kernel half's memory. What does not fit is counted, not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// Address spaces, 64 to 1,048,576. Default: 32,768.
    pub max_processes: u32,
    /// Accounts, 2 to 65,536. Default: 4,096.
    pub max_accounts: u32,
    /// Objects that beancounters are charged for, 1,024 to 16,777,216. Default: 262,144.
    pub max_objects: u32,
    /// The ring buffer of events: a power of two from 4 KiB to 64 MiB. Default: 256 KiB.
    pub events_bytes: Bytes,
}

/// Whom limits can concern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// Where ordinary users begin. Default: absent, UID_MIN of /etc/login.defs.
    pub uid_min: Option<Uid>,
    /// Whom `default` never concerns; at most [`MAX_EXEMPT`]. Default: 61184 to 65535.
    pub exempt: Vec<UidRange>,
}

/// An inclusive range of uids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    first: Uid,
    last: Uid,
}

/// Which processes are left alone, or for long. Default: none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exempt {
    /// Programs whose processes go after others; at most [`crate::MAX_SPARED`], absolute.
    pub programs: Vec<PathBuf>,
    /// Patterns of paths of control groups whose processes are nobody's; at most [`crate::MAX_CGROUPS`].
    pub cgroups: Vec<String>,
}

/// What is refused at the barrier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gate {
    /// Whether anything is. Default: [`GateChoice::Auto`].
    pub mode: GateChoice,
    /// What is compared with the barrier. Default: [`Measure::Resident`].
    pub measure: Measure,
    /// Users measured by what is committed all the same; at most [`MAX_EXEMPT`] ranges. Default: none.
    pub committed: Vec<UidRange>,
}

/// Whether requests are refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GateChoice {
    /// As well as the kernel allows.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// How users are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tell {
    /// Notices and kills are written to the user's own terminals. Default: true.
    pub tty: bool,
}

/// What users read besides what happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// What to do, in the administrator's words: one printable line. Default: none.
    pub hint: Option<String>,
}

/// Whose death is helped (S2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reap {
    /// Processes of accounts that bursar has not killed, if they hold so much; `None`: none of them. Default: 64 MiB.
    pub others_from: Option<Bytes>,
}

/// What happens before the machine as a whole runs out (S1 section 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomScoreConfig {
    /// Processes of limited accounts are offered to the kernel's OOM killer first. Default: true.
    pub enabled: bool,
    /// When they are. Default: [`LastDefenceWhen::Shortage`].
    pub when: LastDefenceWhen,
    /// By this score, 1 to 1,000. Default: 900.
    pub oom_score_adj: i16,
}

/// When processes of limited accounts are offered first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastDefenceWhen {
    /// While the machine itself is short of memory.
    Shortage,
    /// At all times.
    Always,
}

/// How much history is kept, and who reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// The group whose members may read the events of all by events.sock; `None`: root alone. Default:
    /// `bursar-events`.
    pub group: Option<String>,
    /// All stored events together, what is being rotated out included; 64 KiB or more. Default: 16 MiB.
    pub keep_bytes: Bytes,
}

/// How much of what accounts held is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All of it together; zero: nothing is kept. Otherwise 1 MiB or more. Default: 512 MiB.
    pub keep_bytes: Bytes,
}

/// What is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Log {
    /// The least important line that is still logged. Default: [`LogLevel::Info`].
    pub level: LogLevel,
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something works worse than it should.
    Warn,
    /// What an administrator wants to read: kills, notices, changes.
    #[default]
    Info,
    /// What a developer wants to read.
    Debug,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            limits: "/etc/bursar/limits.toml".into(),
            runtime: "/run/bursar".into(),
            state: "/var/lib/bursar".into(),
            pins: "/sys/fs/bpf/bursar".into(),
            subuid: "/etc/subuid".into(),
        }
    }
}

impl Default for Triggers {
    fn default() -> Self {
        Self {
            event: true,
            timer: true,
            notifier: true,
        }
    }
}

impl Triggers {
    /// Whether the kernel half decides without bursard.
    pub const fn holds_alone(self) -> bool {
        self.event || self.timer
    }

    /// Whether any is on.
    pub const fn is_any(self) -> bool {
        self.event || self.timer || self.notifier
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            max_processes: 32_768,
            max_accounts: 4_096,
            max_objects: 262_144,
            events_bytes: Bytes::new(256 << 10),
        }
    }
}

impl Ledger {
    /// The ring buffer's size on a machine with such pages: the kernel wants a power of two of whole
    /// pages, so a size below one page becomes one page.
    pub fn events_bytes_for(&self, page: PageSize) -> Bytes {
        self.events_bytes.max(Bytes::new(1 << page.shift()))
    }
}

impl Default for Accounts {
    /// 61184–65519 are the numbers that systemd gives to `DynamicUser=` services and takes back
    /// (systemd.io/UIDS-GIDS): no person, and tomorrow another service. 65534 is `nobody`, whom every
    /// unmapped owner looks like; 65535 is the (uid_t)−1 of 16-bit interfaces.
    fn default() -> Self {
        let exempt = UidRange {
            first: Uid::new(61_184),
            last: Uid::new(65_535),
        };
        Self {
            uid_min: None,
            exempt: vec![exempt],
        }
    }
}

impl Accounts {
    /// Whether `default` leaves this user alone.
    pub fn is_exempt(&self, uid: Uid) -> bool {
        self.exempt.iter().any(|range| range.contains(uid))
    }
}

impl UidRange {
    /// From `first` to `last`, both included; `None` when `last` comes first.
    pub fn new(first: Uid, last: Uid) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// The smallest uid in it.
    pub const fn first(self) -> Uid {
        self.first
    }

    /// The largest uid in it.
    pub const fn last(self) -> Uid {
        self.last
    }

    /// Whether `uid` lies in it.
    pub fn contains(self, uid: Uid) -> bool {
        (self.first..=self.last).contains(&uid)
    }
}

impl Default for Tell {
    fn default() -> Self {
        Self { tty: true }
    }
}

impl Default for Reap {
    /// A normal death of so much takes 5 ms.
    fn default() -> Self {
        Self {
            others_from: Some(Bytes::from_mib(64)),
        }
    }
}

impl Default for OomScoreConfig {
    /// 900 leaves room above it for the order that each user wants among his own.
    fn default() -> Self {
        Self {
            enabled: true,
            when: LastDefenceWhen::Shortage,
            oom_score_adj: 900,
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self {
            group: Some("bursar-events".to_owned()),
            keep_bytes: Bytes::from_mib(16),
        }
    }
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            keep_bytes: Bytes::from_mib(512),
        }
    }
}

impl LogLevel {
    /// As written in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_leaves_dynamic_users_and_nobody_alone() {
        let accounts = Accounts::default();
        for (uid, exempt) in [
            (1000, false),
            (61_183, false),
            (61_184, true),
            (65_534, true),
            (65_536, false),
        ] {
            assert_eq!(accounts.is_exempt(Uid::new(uid)), exempt, "{uid}");
        }
    }

    #[test]
    fn the_ring_buffer_is_never_smaller_than_a_page() {
        let ledger = Ledger {
            events_bytes: Bytes::new(4096),
            ..Ledger::default()
        };
        assert_eq!(
            ledger.events_bytes_for(PageSize::new(4096).unwrap()),
            Bytes::new(4096)
        );
        assert_eq!(
            ledger.events_bytes_for(PageSize::new(65_536).unwrap()),
            Bytes::new(65_536)
        );
    }
}
