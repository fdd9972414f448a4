// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every key of `bursar.toml`, once: how it is read, its default, and what the shipped file and
//! docs/reference/configuration.md say about it.

mod events;
mod exempt;
mod watermarks;

use bursar_model::{Bytes, Measure, SizeSpec, Uid};
use toml_edit::Value;

use crate::finding::Wrong;
use crate::value::{MODES, absolute_path, amount, boolean, integer, line, uid_ranges, word};
use crate::{
    BackendChoice, Config, Count, GateChoice, LastDefenceWhen, LogLevel, OnExit, ReloadChoice,
};

/// One key.
pub(crate) struct Key {
    /// Its table; empty for the keys before the first table.
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    /// As TOML; empty where the absence of the key means something no value says.
    pub(crate) default: &'static str,
    /// What can be written, with unit and range.
    pub(crate) values: &'static str,
    /// What it does, in sentences.
    pub(crate) about: &'static str,
    pub(crate) set: fn(&mut Config, &Value) -> Result<(), Wrong>,
}

impl Key {
    /// The name with its table: `ledger.max_processes`.
    pub(crate) fn dotted(&self) -> String {
        match self.table {
            "" => self.name.to_owned(),
            table => format!("{table}.{}", self.name),
        }
    }
}

/// The tables, in the order of the shipped file, and what each is about.
pub(crate) const TABLES: [(&str, &str); 15] = [
    ("", "What decides and what is counted."),
    (
        "paths",
        "Where things are. Several bursards on one machine need different ones each, but for subuid.",
    ),
    (
        "triggers",
        "Which triggers of the kernel half are on; at least one must be. While bursard runs each of them holds limits \
         alone. Without bursard event and timer do, the notifier alone does not.",
    ),
    (
        "ledger",
        "The kernel half's memory. What does not fit is not limited, and `bursar status` says so.",
    ),
    (
        "accounts",
        "Which users the limit `default` covers. A limit by name or by uid covers any user. `default` \
         never covers uids that root's containers have by the range (systemd-nspawn -U).",
    ),
    exempt::TABLE,
    (
        "gate",
        "What is refused at the barrier, where the kernel lets the gate be put up (`bursar doctor`).",
    ),
    ("tell", "How users are told."),
    ("messages", "What users read besides what happened."),
    (
        "reap",
        "Who is dying and is held back (starved, throttled, frozen, confined) is helped: its memory is taken at once.",
    ),
    (
        "last_defence",
        "When the machine as a whole runs out of memory, the kernel's own OOM killer chooses.",
    ),
    events::TABLE,
    (
        "usage",
        "What accounts held over time, kept in the state directory.",
    ),
    (
        "log",
        "What goes to the log (standard error, the journal under systemd). bursard does not wait for who \
         reads it: lines that find no room are counted, and the log says how many were lost.",
    ),
    watermarks::TABLE,
];

/// A path that names a socket has to fit, with a NUL, into the 108 bytes of `sockaddr_un`.
const LONGEST_RUNTIME: usize = 108 - "/bursar.sock\0".len();
/// PATH_MAX without its NUL, and room for the names we append.
const LONGEST_PATH: usize = 4095 - 255;

/// Every key, in the order of the shipped file.
pub(crate) fn keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter()
        .chain(&events::KEYS)
        .chain(&exempt::KEYS)
        .chain(&watermarks::KEYS)
}

/// Those of the tables that have no file of their own.
static KEYS: [Key; 30] = [
    Key {
        table: "",
        name: "trigger",
        default: "\"auto\"",
        values: "\"auto\", \"bpf\", \"trace\" or \"poll\"",
        about: "Who decides that a limit is passed: bpf, the kernel half; trace, bursard reading the \
                kernel's trace pipe; poll, bursard reading /proc every 200 ms. auto takes the first of \
                them that works; the others make bursard refuse to start without it. `bursar doctor` \
                says what each costs here.",
        set: |config, value| {
            let words = [
                ("auto", BackendChoice::Auto),
                ("bpf", BackendChoice::Bpf),
                ("trace", BackendChoice::Trace),
                ("poll", BackendChoice::Poll),
            ];
            word(value, &words).map(|choice| config.trigger = choice)
        },
    },
    Key {
        table: "",
        name: "on_exit",
        default: "\"keep\"",
        values: "\"keep\" or \"release\"",
        about: "What becomes of the kernel half when bursard is stopped: keep, limits go on holding \
                without it; release, nothing is limited any more.",
        set: |config, value| {
            let words = [("keep", OnExit::Keep), ("release", OnExit::Release)];
            word(value, &words).map(|choice| config.on_exit = choice)
        },
    },
    Key {
        table: "",
        name: "mode",
        default: "\"enforce\"",
        values: "\"enforce\" or \"observe\"",
        about: "The mode of limits that have no mode = of their own in limits.toml. enforce: limits hold. observe: \
                nobody is told, refused or killed; the events would_notice, would_refuse and would_kill say what \
                enforcing would do. Read at a start: when it becomes enforce, users who are over a limit then lose \
                processes.",
        set: |config, value| word(value, &MODES).map(|mode| config.mode = mode),
    },
    Key {
        table: "",
        name: "reload",
        default: "\"refuse\"",
        values: "\"refuse\" or \"force\"",
        about: "What becomes of files of limits that would have somebody killed at once when they are read again: \
                refuse, the old limits stay, and `bursar status` says why; force, they hold, and the kills follow. \
                `bursar check --live` says beforehand who it would be.",
        set: |config, value| {
            let words = [
                ("refuse", ReloadChoice::Refuse),
                ("force", ReloadChoice::Force),
            ];
            word(value, &words).map(|choice| config.reload = choice)
        },
    },
    Key {
        table: "",
        name: "count",
        default: "\"memory\"",
        values: "\"memory\" or \"rss\"",
        about: "What a user holds: memory, anonymous and shared memory, swap and page tables, shared \
                pages once; rss, plain resident memory with file pages and with shared pages once for \
                each process, which overstates programs that fork.",
        set: |config, value| {
            let words = [("memory", Count::Memory), ("rss", Count::Rss)];
            word(value, &words).map(|choice| config.count = choice)
        },
    },
    Key {
        table: "paths",
        name: "limits",
        default: "\"/etc/bursar/limits.toml\"",
        values: "an absolute path",
        about: "The limits. Written by `bursar limit`; may be edited by hand, then reload bursard. Drop-ins beside it, in this path with .d behind it, are read after it.",
        set: |config, value| {
            absolute_path(value, LONGEST_PATH).map(|path| config.paths.limits = path)
        },
    },
    Key {
        table: "paths",
        name: "runtime",
        default: "\"/run/bursar\"",
        values: "an absolute path of at most 95 bytes",
        about: "The directory of the control socket, bursar.sock.",
        set: |config, value| {
            absolute_path(value, LONGEST_RUNTIME).map(|path| config.paths.runtime = path)
        },
    },
    Key {
        table: "paths",
        name: "state",
        default: "\"/var/lib/bursar\"",
        values: "an absolute path",
        about: "The directory of the stored events.",
        set: |config, value| {
            absolute_path(value, LONGEST_PATH).map(|path| config.paths.state = path)
        },
    },
    Key {
        table: "paths",
        name: "pins",
        default: "\"/sys/fs/bpf/bursar\"",
        values: "an absolute path on a BPF file system",
        about: "Where the kernel half is pinned, so that it outlives bursard. Elsewhere than on a BPF file system there \
                is none: trigger bpf refuses to start, auto goes on with trace or poll and says so in the log and in \
                `bursar status`.",
        set: |config, value| {
            absolute_path(value, LONGEST_PATH).map(|path| config.paths.pins = path)
        },
    },
    Key {
        table: "paths",
        name: "subuid",
        default: "\"/etc/subuid\"",
        values: "an absolute path",
        about: "Which user owns which subordinate uids, in the form of subuid(5): what they hold counts for that user, \
                files in memory above all. Read again whenever it changes. Without the file nobody has any.",
        set: |config, value| {
            absolute_path(value, LONGEST_PATH).map(|path| config.paths.subuid = path)
        },
    },
    Key {
        table: "triggers",
        name: "event",
        default: "true",
        values: "true or false",
        about: "The memory event itself decides: within microseconds. Also without bursard.",
        set: |config, value| boolean(value).map(|on| config.triggers.event = on),
    },
    Key {
        table: "triggers",
        name: "timer",
        default: "true",
        values: "true or false",
        about: "A timer in the kernel decides, every 200 ms; it also repairs the ledger. Also without bursard.",
        set: |config, value| boolean(value).map(|on| config.triggers.timer = on),
    },
    Key {
        table: "triggers",
        name: "notifier",
        default: "true",
        values: "true or false",
        about: "Where the event does not decide it tells bursard, which has the kernel half choose and kill: within \
                milliseconds. Not without bursard.",
        set: |config, value| boolean(value).map(|on| config.triggers.notifier = on),
    },
    Key {
        table: "ledger",
        name: "max_processes",
        default: "32768",
        values: "64 to 1048576 processes",
        about: "How many processes are counted. Takes effect when the kernel half is loaded anew.",
        set: |config, value| {
            integer(value, 64..=1_048_576).map(|count| config.ledger.max_processes = count)
        },
    },
    Key {
        table: "ledger",
        name: "max_accounts",
        default: "4096",
        values: "2 to 65536 accounts",
        about: "How many users and shared accounts are counted. Takes effect when the kernel half is \
                loaded anew.",
        set: |config, value| {
            integer(value, 2..=65_536).map(|count| config.ledger.max_accounts = count)
        },
    },
    Key {
        table: "ledger",
        name: "max_objects",
        default: "262144",
        values: "1024 to 16777216 objects",
        about: "How many files, sockets, processes and other objects of accounts with limits on them \
                (beancounters) are counted, of all accounts together. Takes effect when the kernel half \
                is loaded anew.",
        set: |config, value| {
            integer(value, 1_024..=16_777_216).map(|count| config.ledger.max_objects = count)
        },
    },
    Key {
        table: "ledger",
        name: "events_bytes",
        default: "\"256K\"",
        values: "a power of two from 4K to 64M, bytes",
        about: "The buffer of events between the kernel half and bursard; at least one page. Events \
                that do not fit are counted and lost, kills are not. Takes effect when the kernel half \
                is loaded anew.",
        set: |config, value| {
            let bytes = amount(value, Bytes::new(4096), Some(Bytes::from_mib(64)))?;
            if !bytes.get().is_power_of_two() {
                let below = 1_u64 << bytes.get().ilog2();
                let (below, above) = (size_text(below), size_text(below.saturating_mul(2)));
                let message = format!("{} is not a power of two", size_text(bytes.get()));
                return Err(Wrong::new(
                    message,
                    format!("write \"{below}\" or \"{above}\""),
                ));
            }
            config.ledger.events_bytes = bytes;
            Ok(())
        },
    },
    Key {
        table: "accounts",
        name: "uid_min",
        default: "",
        values: "0 to 4294967294, a uid",
        about: "Where ordinary users begin: `default` concerns them from here on. Absent: UID_MIN of \
                /etc/login.defs, or 1000.",
        set: |config, value| {
            let uid = integer(value, 0..=u32::MAX - 1)?;
            config.accounts.uid_min = Some(Uid::new(uid));
            Ok(())
        },
    },
    Key {
        table: "accounts",
        name: "exempt",
        default: "[\"61184-65535\"]",
        values: "at most 8 uids or inclusive ranges of uids",
        about: "Uids from uid_min on that `default` leaves alone. 61184-65519 are handed \
                out to services and taken back by systemd (DynamicUser=), 65534 is nobody.",
        set: |config, value| uid_ranges(value).map(|ranges| config.accounts.exempt = ranges),
    },
    Key {
        table: "gate",
        name: "mode",
        default: "\"auto\"",
        values: "\"auto\" or \"off\"",
        about: "auto, requests that would pass the barrier are refused as reliably as this kernel allows; \
                off, nothing is refused and the notice is followed by the limit. Takes effect when bursard \
                is restarted.",
        set: |config, value| {
            let words = [("auto", GateChoice::Auto), ("off", GateChoice::Off)];
            word(value, &words).map(|choice| config.gate.mode = choice)
        },
    },
    Key {
        table: "gate",
        name: "measure",
        default: "\"resident\"",
        values: "\"resident\" or \"committed\"",
        about: "What must stay within the barrier: resident, what is held and reserved with the request on \
                top, which leaves alone programs that map much and touch little; committed, all private \
                writable memory, touched or not, so that nobody passes his limit and nobody is killed.",
        set: |config, value| {
            let words = [
                ("resident", Measure::Resident),
                ("committed", Measure::Committed),
            ];
            word(value, &words).map(|measure| config.gate.measure = measure)
        },
    },
    Key {
        table: "gate",
        name: "committed",
        default: "[]",
        values: "at most 8 uids or inclusive ranges of uids",
        about: "Whose accounts are measured by what is committed, whatever measure says.",
        set: |config, value| uid_ranges(value).map(|ranges| config.gate.committed = ranges),
    },
    Key {
        table: "tell",
        name: "tty",
        default: "true",
        values: "true or false",
        about: "Notices and kills are written to the terminals the user is logged in on.",
        set: |config, value| boolean(value).map(|on| config.tell.tty = on),
    },
    Key {
        table: "messages",
        name: "hint",
        default: "\"\"",
        values: "one line of at most 200 characters; \"\": none",
        about: "Stands at the end of what users read of notices, refusals and kills, in `bursar why` and `bursar quota`: \
                \"for larger jobs use sbatch: https://wiki.example.org\". Takes effect at a reload, too.",
        set: |config, value| line(value, 200).map(|hint| config.messages.hint = hint),
    },
    Key {
        table: "reap",
        name: "others_from",
        default: "\"64M\"",
        values: "1M or more, bytes, or \"none\"",
        about: "Processes of limited users that bursar has not killed (a user's kill, an end of their own) are \
                helped if they hold so much. none: bursar's own victims alone. Deaths of less cost nothing.",
        set: |config, value| {
            config.reap.others_from = match value.as_str() {
                Some("none") => None,
                _ => Some(amount(value, Bytes::from_mib(1), None)?),
            };
            Ok(())
        },
    },
    Key {
        table: "last_defence",
        name: "enabled",
        default: "true",
        values: "true or false",
        about: "It is made to choose among processes of limited users first.",
        set: |config, value| boolean(value).map(|on| config.last_defence.enabled = on),
    },
    Key {
        table: "last_defence",
        name: "when",
        default: "\"shortage\"",
        values: "\"shortage\" or \"always\"",
        about: "shortage, while the machine itself is short of memory (less than a sixteenth of it is available, \
                but 512M, or a quarter where that is less, at least, and 16G at most); always, at all times: then a memory cgroup that is full kills \
                processes of limited users first, too.",
        set: |config, value| {
            let words = [
                ("shortage", LastDefenceWhen::Shortage),
                ("always", LastDefenceWhen::Always),
            ];
            word(value, &words).map(|when| config.last_defence.when = when)
        },
    },
    Key {
        table: "last_defence",
        name: "oom_score_adj",
        default: "900",
        values: "1 to 1000, parts per thousand of memory",
        about: "How far in front they are put. What a user has given to his own processes keeps their order \
                between this and 1000.",
        set: |config, value| {
            let score = integer(value, 1..=1000)?;
            config.last_defence.oom_score_adj = i16::try_from(score).unwrap_or(1000);
            Ok(())
        },
    },
    Key {
        table: "usage",
        name: "keep_bytes",
        default: "\"512M\"",
        values: "1M or more, bytes, or 0",
        about: "The most that it may take on disk; the oldest goes first, of what takes most. An account that \
                holds something all the time takes 340K. 0: nothing is kept. Takes effect when bursard is \
                restarted.",
        set: |config, value| {
            config.usage.keep_bytes = match value.as_integer() {
                Some(0) => Bytes::ZERO,
                _ => amount(value, Bytes::from_mib(1), None)?,
            };
            Ok(())
        },
    },
    Key {
        table: "log",
        name: "level",
        default: "\"info\"",
        values: "\"error\", \"warn\", \"info\" or \"debug\"",
        about: "The least important line that is still logged. Who changed which limit is logged at every level. \
                Takes effect at a reload, too.",
        set: |config, value| {
            let levels = [
                LogLevel::Error,
                LogLevel::Warn,
                LogLevel::Info,
                LogLevel::Debug,
            ];
            word(value, &levels.map(|level| (level.name(), level)))
                .map(|level| config.log.level = level)
        },
    },
];

fn size_text(count: u64) -> String {
    SizeSpec::Bytes(Bytes::new(count)).to_string()
}

/// Whether `name` is a table.
pub(crate) fn is_table(name: &str) -> bool {
    !name.is_empty() && TABLES.iter().any(|(table, _)| *table == name)
}

/// The key with this dotted name.
pub(crate) fn key(dotted: &str) -> Option<&'static Key> {
    keys().find(|key| key.dotted() == dotted)
}
