// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/stat (proc_pid_stat(5); fs/proc/array.c do_task_stat).

use bursar_model::{Nanos, Pid};

use crate::bytes::{number, words};
use crate::{Comm, Malformed};

/// include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;
const PF_EXITING: u32 = 0x0000_0004;
const PF_SIGNALED: u32 = 0x0000_0400;

/// A process as /proc/PID/stat shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Its command name.
    pub comm: Comm,
    /// What its first thread does. A first thread that has ended while others live is a zombie, too:
    /// see [`Self::threads`].
    pub state: State,
    /// Its parent; `None` for those the kernel began.
    pub parent: Option<Pid>,
    /// The session it belongs to; `None` for kernel threads, and for a process that is just gone.
    pub session: Option<Pid>,
    /// Its controlling terminal.
    pub terminal: Option<Device>,
    /// A thread of the kernel, which has no memory of its own and cannot be killed.
    pub is_kernel_thread: bool,
    /// Its first thread is on its way out.
    pub is_exiting: bool,
    /// A signal has put an end to it.
    pub is_killed: bool,
    /// Minor faults: a page was mapped without reading a disk.
    pub minor_faults: u64,
    /// Major faults: a disk was read.
    pub major_faults: u64,
    /// Time in user mode, clock ticks (1/100 s as seen by user space).
    pub user_ticks: u64,
    /// Time in kernel mode, clock ticks.
    pub system_ticks: u64,
    /// Its threads, 0 when it is ending.
    pub threads: u32,
    /// When it began.
    pub start: StartTime,
}

/// When a process began, clock ticks since boot. With its pid it names a process for as long as the
/// machine runs: a pid does not come round within 10 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StartTime(u64);

/// What a thread does, as the kernel's letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(u8);

/// The number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    major: u32,
    minor: u32,
}

/// /proc counts in hundredths of a second whatever the kernel's own HZ (include/linux/jiffies.h USER_HZ).
const TICK_NS: u64 = 10_000_000;

impl StartTime {
    /// `ticks` clock ticks after boot.
    pub const fn new(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Of a process that began so long after boot (CLOCK_BOOTTIME).
    pub const fn after_boot(nanos: Nanos) -> Self {
        Self(nanos.get() / TICK_NS)
    }

    /// How long after boot, as far as /proc says.
    pub const fn since_boot(self) -> Nanos {
        Nanos::new(self.0.saturating_mul(TICK_NS))
    }

    /// Clock ticks since boot.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl State {
    /// The kernel's letter: R, S, D, T, t, Z, X, I and what may come.
    pub const fn letter(self) -> char {
        self.0 as char
    }

    /// Whether it waits for something that not even SIGKILL interrupts (or is frozen by a cgroup of
    /// version 1, which looks the same).
    pub const fn is_uninterruptible(self) -> bool {
        self.0 == b'D'
    }

    /// Whether a signal or a debugger has stopped it.
    pub const fn is_stopped(self) -> bool {
        matches!(self.0, b'T' | b't')
    }

    /// Whether it has ended and waits for its parent or for its threads.
    pub const fn is_dead(self) -> bool {
        matches!(self.0, b'Z' | b'X' | b'x')
    }
}

impl Device {
    /// The device with these numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Out of the kernel's new_encode_dev(); `None` for 0, no device.
    pub const fn decode(number: u32) -> Option<Self> {
        if number == 0 {
            return None;
        }
        let minor = (number & 0xff) | ((number >> 12) & 0xf_ff00);
        Some(Self {
            major: (number >> 8) & 0xfff,
            minor,
        })
    }

    /// The driver.
    pub const fn major(self) -> u32 {
        self.major
    }

    /// The driver's device.
    pub const fn minor(self) -> u32 {
        self.minor
    }
}

impl Stat {
    /// Reads the content of the file.
    ///
    /// The name stands in parentheses as it is, and may itself contain parentheses, blanks and
    /// newlines; behind the last closing one are numbers only.
    ///
    /// # Errors
    /// When a field is missing or no number.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let open = bytes.iter().position(|&byte| byte == b'(');
        let close = bytes.iter().rposition(|&byte| byte == b')');
        let (Some(open), Some(close)) = (open, close) else {
            return Err(Malformed::new("no name in parentheses"));
        };
        let comm = bytes.get(open.saturating_add(1)..close);
        let comm =
            comm.ok_or_else(|| Malformed::new("the name's parentheses are the wrong way round"))?;
        let mut fields = Fields {
            rest: words(
                bytes
                    .get(close..)
                    .unwrap_or_default()
                    .strip_prefix(b")")
                    .unwrap_or_default(),
            ),
            // Numbered from 1 as in proc_pid_stat(5); the name was field 2.
            last: 2,
        };
        let state = match fields.take(3)? {
            [letter] if letter.is_ascii_alphabetic() => State(*letter),
            _ => return Err(Malformed::new("field 3 is no state")),
        };
        let flags: u32;
        Ok(Self {
            comm: Comm::new(comm),
            state,
            parent: pid(fields.number(4)?),
            // −1 for a process that is being forgotten while we look (fs/proc/array.c, do_task_stat).
            session: u32::try_from(fields.number::<i32>(6)?).ok().and_then(pid),
            // Printed as a signed number.
            terminal: Device::decode(fields.number::<i32>(7)?.cast_unsigned()),
            is_kernel_thread: {
                flags = fields.number(9)?;
                flags & PF_KTHREAD != 0
            },
            is_exiting: flags & PF_EXITING != 0,
            is_killed: flags & PF_SIGNALED != 0,
            minor_faults: fields.number(10)?,
            major_faults: fields.number(12)?,
            user_ticks: fields.number(14)?,
            system_ticks: fields.number(15)?,
            threads: fields.number(20)?,
            start: StartTime(fields.number(22)?),
        })
    }
}

/// 0 stands for nobody, also for a parent outside our pid namespace.
fn pid(number: u32) -> Option<Pid> {
    (number != 0).then(|| Pid::new(number))
}

struct Fields<I> {
    rest: I,
    last: usize,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Fields<I> {
    /// The field with this number; numbers have to grow.
    fn take(&mut self, wanted: usize) -> Result<&'a [u8], Malformed> {
        let skipped = wanted.saturating_sub(self.last).saturating_sub(1);
        self.last = wanted;
        self.rest
            .nth(skipped)
            .ok_or_else(|| Malformed::new(format!("it ends before field {wanted}")))
    }

    fn number<T: std::str::FromStr>(&mut self, wanted: usize) -> Result<T, Malformed> {
        number(self.take(wanted)?)
            .ok_or_else(|| Malformed::new(format!("field {wanted} is no number that fits")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(comm: &[u8]) -> Vec<u8> {
        let mut line = b"812 (".to_vec();
        line.extend_from_slice(comm);
        line.extend_from_slice(
            b") S 1 812 800 34817 812 4194304 100 7 5 8 11 12 0 0 20 0 3 0 375454 3133440 380 18446744073709551615",
        );
        line
    }

    #[test]
    fn a_process_that_is_being_forgotten_has_no_session() {
        let text = String::from_utf8(line(b"bash")).unwrap();
        let gone = text.replacen(" 800 ", " -1 ", 1);
        assert_ne!(text, gone);
        assert_eq!(Stat::parse(gone.as_bytes()).unwrap().session, None);
    }

    #[test]
    fn every_field_is_read_from_its_place() {
        let stat = Stat::parse(&line(b"bash")).unwrap();
        assert_eq!(stat.comm.as_bytes(), b"bash");
        assert_eq!(stat.state.letter(), 'S');
        assert_eq!(
            (stat.parent, stat.session),
            (Some(Pid::new(1)), Some(Pid::new(800)))
        );
        assert_eq!(stat.terminal, Some(Device::new(136, 1)));
        assert_eq!((stat.minor_faults, stat.major_faults), (100, 5));
        assert_eq!((stat.user_ticks, stat.system_ticks), (11, 12));
        assert_eq!((stat.threads, stat.start), (3, StartTime::new(375_454)));
    }

    #[test]
    fn a_hostile_name_shifts_nothing() {
        for comm in [
            &b"a) R 1 1 1"[..],
            b"(",
            b")",
            b") (",
            b"a\nb",
            b"a b",
            b"",
            b"\xff\xfe",
            b"((()))",
        ] {
            let stat = Stat::parse(&line(comm)).unwrap();
            assert_eq!(stat.comm.as_bytes(), comm);
            assert_eq!((stat.state.letter(), stat.threads), ('S', 3));
        }
    }

    #[test]
    fn device_numbers_are_split_as_the_kernel_joins_them() {
        let table = [
            (34_816, Device::new(136, 0)),
            (1025, Device::new(4, 1)),
            (34_816 + (1 << 20), Device::new(136, 256)),
            (u32::MAX, Device::new(0xfff, 0xf_ffff)),
        ];
        for (number, device) in table {
            assert_eq!(Device::decode(number), Some(device));
        }
        assert_eq!(Device::decode(0), None);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let whole = line(b"bash");
        let enough = whole.windows(6).position(|part| part == b"375454").unwrap() + 6;
        for end in 0..enough - 6 {
            assert!(Stat::parse(&whole[..end]).is_err(), "{end}");
        }
        assert_eq!(Stat::parse(&whole[..enough]), Stat::parse(&whole));
        for absurd in [
            &b")("[..],
            b"1 (a) 7 1",
            b"1 (a) S x",
            b"1 (a) S 99999999999999999999 1 1 1",
        ] {
            assert!(Stat::parse(absurd).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Stat::parse(&bytes);
        }

        #[test]
        fn no_tail_panics(tail in "[0-9 )(RSZ+-]{0,200}") {
            let _ = Stat::parse(format!("1 (a) {tail}").as_bytes());
        }

        #[test]
        fn every_name_comes_out_as_it_went_in(comm in prop::collection::vec(any::<u8>(), 0..64)) {
            let stat = Stat::parse(&line(&comm)).unwrap();
            prop_assert_eq!(stat.comm.as_bytes(), &comm[..]);
            prop_assert_eq!(stat.start, StartTime::new(375_454));
        }
    }
}
