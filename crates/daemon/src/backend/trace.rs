// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace trigger: S1's notifier to the letter (section 4.2). It reads `kmem:rss_stat` from a trace
//! pipe of its own, keeps one sum an account in O(1) an event, and above the soft limit asks for the
//! killer at every tenth event (section 4.3), which runs once for all that were read together.
//!
//! The pipe loses events when it is read too slowly (25–30 % of them at full speed on 6.18), and
//! each costs the kernel an exact sum over all CPUs: it exists for machines without BPF and as the
//! comparison in the benchmarks. Sums only decide *when* the killer looks; it looks at /proc.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_config::Program;
use bursar_host::{ExemptCgroups, Timer};
use bursar_model::{AccountId, BackendKind, Bytes, KernelHalfStatus, Pid, Trigger, Uid};
use bursar_policy::Plan;
use bursar_protocol::LineBuffer;
use bursar_watchdog::TimedQuery;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::Backend;
use super::reading::Reading;
use super::scan::Scan;
use crate::fact::{Fact, Victim};
use crate::payers::Coverage;
use crate::reservations::Holdings;
use crate::trace_instance::TraceInstance;

/// S1 section 4.2: the cache of who pays for which process is flushed every so many events.
const FLUSH_EVERY: u64 = 10_000;
/// S1 section 3.3's interval: no line tells of who becomes somebody else without executing a program, nor of what a lost
/// line would have told.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The same while victims are awaited.
const LOOK_FOR_ENDS: Duration = Duration::from_millis(20);
/// Of many processes a look takes long. Between two that nothing asks for pass so many times what the last one took.
const PAUSE: u32 = 10;
/// S1 section 4.3: above the soft limit the killer runs every so many events.
const KILLER_EVERY: u32 = 10;
/// At most so much is read before the killer looks, if that is due, and control goes back to the daemon's loop. A look
/// at many processes takes longer than all of these events, and is as new as the last of them.
const BYTES_AT_ONCE: usize = 64 << 10;
/// For each CPU.
const BUFFER_KIB: u32 = 4096;
/// A line of the pipe is some 120 bytes.
const LONGEST_LINE: usize = 4096;

/// One line of the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RssEvent {
    pid: Pid,
    mm_id: u64,
    /// Whether the address space is the running process's own.
    is_own: bool,
    member: usize,
    bytes: u64,
}

/// What is known of an address space.
#[derive(Debug, Default)]
struct Space {
    account: Option<AccountId>,
    /// A process of its own has had an event in it.
    seen_own: bool,
    members: [u64; 4],
}

#[derive(Debug, Default)]
struct Sum {
    bytes: u64,
    events_above: u32,
}

/// S1's notifier.
#[derive(Debug)]
pub(crate) struct TraceBackend {
    scan: Scan,
    /// Readable where the pipe or the timer is.
    wake: OwnedFd,
    timer: Timer,
    pipe: File,
    /// After the pipe: what is open cannot be removed.
    _instance: TraceInstance,
    lines: LineBuffer,
    counts_files: bool,
    spaces: HashMap<u64, Space>,
    /// Which account a process pays into.
    paid_by: HashMap<Pid, Option<AccountId>>,
    sums: HashMap<AccountId, Sum>,
    events: u64,
    lost: u64,
    must_scan: bool,
}

impl TraceBackend {
    /// Makes an instance of its own below `tracefs`, so that nobody else's tracing is disturbed.
    pub(crate) fn start(
        coverage: Coverage,
        counts_files: bool,
        tracefs: &Path,
        query: TimedQuery,
        exempt: Arc<ExemptCgroups>,
    ) -> Result<Self> {
        let scan = Scan::new(coverage, counts_files, Trigger::Notifier, query, exempt)?;
        let instance = TraceInstance::make(tracefs, "rss", "kmem/rss_stat", BUFFER_KIB)?;
        let pipe = instance.listen()?;
        let timer = Timer::polled().context("make a timer")?;
        timer
            .set(COUNT_EVERY, Duration::ZERO)
            .context("set a timer")?;
        Ok(Self {
            scan,
            wake: either(&pipe, &timer).context("make an epoll")?,
            timer,
            pipe,
            _instance: instance,
            lines: LineBuffer::new(LONGEST_LINE),
            counts_files,
            spaces: HashMap::new(),
            paid_by: HashMap::new(),
            sums: HashMap::new(),
            events: 0,
            lost: 0,
            must_scan: false,
        })
    }

    fn take(&mut self, event: RssEvent) {
        self.events = self.events.saturating_add(1);
        if self.events.is_multiple_of(FLUSH_EVERY) {
            self.count_anew();
        }
        if event.member == 0 && !self.counts_files {
            return;
        }
        let space = self.spaces.entry(event.mm_id).or_default();
        if event.is_own {
            if !std::mem::replace(&mut space.seen_own, true) {
                // A fresh image: what the process was before its exec says nothing.
                self.paid_by.remove(&event.pid);
            }
            let scan = &mut self.scan;
            let account = *self
                .paid_by
                .entry(event.pid)
                .or_insert_with(|| scan.account_of(event.pid));
            if account != space.account {
                let whole: u64 = space.members.iter().sum();
                if let Some(sum) = space.account.and_then(|id| self.sums.get_mut(&id)) {
                    sum.bytes = sum.bytes.saturating_sub(whole);
                }
                if let Some(id) = account {
                    let sum = self.sums.entry(id).or_default();
                    sum.bytes = sum.bytes.saturating_add(whole);
                }
                space.account = account;
            }
        }
        let Some(member) = space.members.get_mut(event.member) else {
            return;
        };
        let before = std::mem::replace(member, event.bytes);
        let account = space.account;
        if space.members.iter().all(|&bytes| bytes == 0) {
            self.spaces.remove(&event.mm_id);
        }
        let Some(id) = account else { return };
        let sum = self.sums.entry(id).or_default();
        sum.bytes = sum.bytes.saturating_add(event.bytes).saturating_sub(before);
        let soft = self.scan.bounds_of(id).notice();
        if soft.is_none_or(|soft| Bytes::new(sum.bytes) < soft) {
            sum.events_above = 0;
            return;
        }
        sum.events_above += 1;
        // At once, too: huge pages cross in one event and send no nine others.
        if sum.events_above % KILLER_EVERY == 1 {
            self.must_scan = true;
        }
    }

    fn count_anew(&mut self) {
        self.paid_by.clear();
        self.must_scan = true;
    }

    /// The killer looks; and again after a while, whatever comes.
    fn look(&mut self) -> Result<Vec<Fact>> {
        let began = Instant::now();
        let facts = self.scan.run();
        self.correct();
        let pause = match self.scan.awaits_ends() {
            true => LOOK_FOR_ENDS,
            false => COUNT_EVERY,
        };
        let pause = pause.max(began.elapsed().saturating_mul(PAUSE));
        self.timer
            .set(pause, Duration::ZERO)
            .context("set a timer")?;
        facts
    }

    /// The killer has just counted everything: sums that lost events are right again.
    fn correct(&mut self) {
        for reading in self.scan.readings() {
            self.sums.entry(reading.id).or_default().bytes = reading.held.get();
        }
    }
}

/// A descriptor that is readable as long as one of these is.
fn either(pipe: &File, timer: &Timer) -> io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&both, pipe, EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&both, timer, EventData::new_u64(1), EventFlags::IN)?;
    Ok(both)
}

/// `  comm-123  [001] ..... 12.345678: rss_stat: mm_id=12 curr=1 type=MM_ANONPAGES size=4096B`
fn parse(line: &[u8]) -> Option<RssEvent> {
    // The comm may contain anything, also bytes that are no text; what follows the last marker is the kernel's, and
    // what stands between comm and marker is ASCII.
    let line = String::from_utf8_lossy(line);
    let (head, fields) = line.rsplit_once(": rss_stat: ")?;
    let pid = head
        .rsplit_once(" [")?
        .0
        .trim_end()
        .rsplit_once('-')?
        .1
        .parse()
        .ok()?;
    let field = |name: &str| {
        fields
            .split(' ')
            .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let member = match field("type").or_else(|| field("member"))? {
        "MM_FILEPAGES" | "0" => 0,
        "MM_ANONPAGES" | "1" => 1,
        "MM_SWAPENTS" | "2" => 2,
        "MM_SHMEMPAGES" | "3" => 3,
        _ => return None,
    };
    // A counter that other CPUs have not settled yet may be below zero for a moment.
    let bytes: i64 = field("size")?.strip_suffix('B')?.parse().ok()?;
    Some(RssEvent {
        pid: Pid::new(pid),
        mm_id: field("mm_id")?.parse().ok()?,
        is_own: field("curr")? == "1",
        member,
        bytes: u64::try_from(bytes).unwrap_or(0),
    })
}

/// `CPU:1 [LOST 123 EVENTS]`
fn lost(line: &[u8]) -> Option<u64> {
    let text = str::from_utf8(line).ok()?;
    text.split_once("[LOST ")?
        .1
        .split_once(" EVENTS]")?
        .0
        .parse()
        .ok()
}

impl Holdings for TraceBackend {
    /// What the pipe has told is behind what happened: a promise needs a look of its own.
    fn held_now(&mut self, id: AccountId) -> Result<Bytes> {
        self.scan.held_of(id)
    }

    fn slack(&self) -> Bytes {
        Bytes::ZERO
    }
}

impl Backend for TraceBackend {
    fn apply(&mut self, plan: &Plan) -> Result<()> {
        self.scan.apply(plan);
        // Who pays may have changed; sums begin anew from what is there.
        self.spaces.clear();
        self.sums.clear();
        self.paid_by.clear();
        Ok(())
    }

    fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn drain(&mut self) -> Result<Vec<Fact>> {
        let mut facts = Vec::new();
        let mut piece = [0; BYTES_AT_ONCE];
        let mut taken = 0;
        if self.timer.take_expiry().is_ok() {
            self.count_anew();
        }
        while taken < BYTES_AT_ONCE {
            let count = match self.pipe.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("read the trace pipe"),
            };
            taken += count;
            self.lines.push(piece.get(..count).unwrap_or_default());
            while let Some(line) = self.lines.next_line().context("read the trace pipe")? {
                if let Some(event) = parse(&line) {
                    self.take(event);
                } else if let Some(count) = lost(&line) {
                    self.lost = self.lost.saturating_add(count);
                }
            }
        }
        if std::mem::take(&mut self.must_scan) {
            facts.extend(self.look()?);
        }
        Ok(facts)
    }

    fn readings(&self) -> Vec<Reading> {
        self.scan.readings()
    }

    fn spare(&mut self, programs: &[Program]) -> Result<()> {
        self.scan.spare(programs);
        Ok(())
    }

    fn kill_failed(&mut self, victim: &Victim) {
        self.scan.kill_failed(victim);
    }

    fn subuids_met(&self) -> Result<BTreeSet<Uid>> {
        Ok(self.scan.subuids_met())
    }

    fn recount(&mut self) -> Result<()> {
        self.must_scan = true;
        Ok(())
    }

    fn measure(
        &mut self,
        projections: &BTreeMap<AccountId, BTreeSet<Uid>>,
        _closing: &BTreeSet<AccountId>,
    ) -> Result<BTreeMap<AccountId, Bytes>> {
        self.scan.measure(projections)
    }

    fn status(&self) -> KernelHalfStatus {
        KernelHalfStatus {
            events_lost: self.lost,
            ..self.scan.status(BackendKind::Trace)
        }
    }

    fn error_bound(&self) -> Bytes {
        // What is allocated between an event and its line being read is bounded by nothing.
        Bytes::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_pipe_are_read_whatever_the_comm_says() {
        let line = b"  a-1 [: rss_stat: -777   [001] .....    42.000001: rss_stat: mm_id=4294967295 curr=1 type=MM_ANONPAGES size=8192B";
        assert_eq!(
            parse(line),
            Some(RssEvent {
                pid: Pid::new(777),
                mm_id: 4_294_967_295,
                is_own: true,
                member: 1,
                bytes: 8192
            })
        );
        assert_eq!(parse(b"# tracer: nop"), None);
        let names: [&[u8]; 4] = [
            b"\xff\xfe\x80",
            b"\xc3",
            b"\xf0\x9f-1 [9] ",
            b"a\r: rss_stat: ",
        ];
        for name in names {
            let mut line = name.to_vec();
            line.extend(b"-9 [000] .. 1.0: rss_stat: mm_id=1 curr=1 type=MM_ANONPAGES size=4096B");
            let event = parse(&line).unwrap();
            assert_eq!((event.pid.get(), event.bytes), (9, 4096), "{name:?}");
        }
        assert_eq!(
            parse(b"x-1 [000] .. 1.0: rss_stat: mm_id=1 curr=0 type=MM_ANONPAGES size=-4096B")
                .unwrap()
                .bytes,
            0
        );
    }

    #[test]
    fn lost_events_are_counted() {
        assert_eq!(lost(b"CPU:1 [LOST 123 EVENTS]"), Some(123));
        assert_eq!(lost(b"x-1 [000] .. 1.0: rss_stat: mm_id=1"), None);
    }
}
