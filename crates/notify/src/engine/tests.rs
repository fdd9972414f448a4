// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that are away, on a clock that the tests set.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use bursar_model::{Bytes, Event, EventKind, Uid};

use super::*;
use crate::config::{ExecRule, Via, Who};

fn rule(gather: Seconds) -> Rule {
    Rule {
        name: "each".to_owned(),
        kinds: vec![EventKind::Kill],
        who: Who::Administrators,
        gather,
        at_most_per_day: 0,
        give_up_after: 259_200,
        via: Via::Exec(ExecRule {
            command: Vec::new(),
            time_limit: 1,
        }),
    }
}

fn at(second: Seconds) -> Moment {
    Moment {
        wall: second,
        steady: Duration::from_secs(second.unsigned_abs()),
    }
}

#[test]
fn a_rule_pauses_when_nobody_is_reached_and_not_for_what_one_delivery_was_answered() {
    let mut worker = RuleWorker {
        rule: rule(0),
        jobs: sync_channel(1).0,
        is_busy: false,
        failures: 0,
        resumes: None,
    };
    for _ in 0..10 {
        worker.note(&Outcome::later("status 503".to_owned()), at(5));
        assert!(worker.rest(at(5)).is_zero());
    }
    for _ in 0..10 {
        worker.note(&Outcome::Unreached("no connection".to_owned()), at(5));
    }
    assert_eq!(worker.rest(at(5)), LONGEST_WORKER_PAUSE);
    assert_eq!(worker.rest(at(65)), Duration::ZERO);
    worker.note(&Outcome::later("status 503".to_owned()), at(5));
    assert!(worker.rest(at(5)).is_zero());
}

/// The numbers of its events, and when it came.
type Got = (Vec<u64>, Seconds);

/// A server, and what it got, by the id of the delivery.
#[derive(Clone, Default)]
struct Server {
    clock: Arc<AtomicI64>,
    got: Arc<Mutex<BTreeMap<String, Got>>>,
}

/// When it is away: nobody answers at first, then it is in trouble.
const AWAY: std::ops::Range<Seconds> = 300..2_100;
const IN_TROUBLE: std::ops::Range<Seconds> = 1_200..2_100;

impl Tell for Server {
    fn tell(&mut self, job: &Job) -> Outcome {
        let now = self.clock.load(Ordering::Relaxed);
        if IN_TROUBLE.contains(&now) {
            return Outcome::later("status 503".to_owned());
        }
        if AWAY.contains(&now) {
            return Outcome::Unreached("refused".to_owned());
        }
        let numbers = job.delivery.events.iter().filter_map(|it| it.number);
        let it = (numbers.collect(), now);
        let before = self.got.lock().unwrap().insert(job.id.clone(), it);
        assert_eq!(before, None, "{} came twice", job.id);
        Outcome::Delivered
    }
}

fn kill(number: u64) -> Event {
    let mut event = Event::new(EventKind::Kill);
    event.number = Some(number);
    event.uid = Some(Uid::new(1_000 + (number % 50) as u32));
    event.account = Some(format!("user{}", number % 50));
    event
}

/// An engine on the server's clock, and where it is told of events.
fn engine(state: &Path, server: &Server) -> (Engine, SyncSender<StreamItem>) {
    let queue = Queue::open(state, Bytes::from_mib(16)).unwrap();
    let ((told, waiting), (back, inbox)) = (sync_channel(READ_AHEAD), channel());
    let ways: Vec<(Rule, Box<dyn Tell>)> = vec![(rule(0), Box::new(server.clone()))];
    let mut engine = Engine::new(ways, queue, waiting, inbox, &back).unwrap();
    let clock = Arc::clone(&server.clock);
    engine.clock = Box::new(move || at(clock.load(Ordering::Relaxed)));
    (engine, told)
}

/// Has all done that is due now. Returns for how long nothing is.
fn settle_all(engine: &mut Engine) -> Seconds {
    loop {
        engine.turn().unwrap();
        if !engine.workers.iter().any(|it| it.is_busy) {
            break;
        }
        while engine.workers.iter().any(|it| it.is_busy) {
            match engine.inbox.recv().unwrap() {
                Message::Settled(worker, id, outcome) => engine.settle(worker, id, outcome),
                other => panic!("{other:?}"),
            }
        }
        if !engine.sleep().is_zero() {
            break;
        }
    }
    (engine.sleep().as_secs() as Seconds).max(1)
}

#[test]
fn a_server_that_is_away_for_thirty_minutes_gets_each_event_once_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::default();
    let (mut engine, mut told) = self::engine(directory.path(), &server);
    told.send(StreamItem::Begins(0)).unwrap();
    let (mut now, mut number, mut attempts) = (0, 0, 0);
    while now < 4_000 {
        server.clock.store(now, Ordering::Relaxed);
        // One event every five seconds, until it is back.
        while number < u64::try_from(now.min(AWAY.end) / 5).unwrap() {
            number += 1;
            told.send(StreamItem::Event(Box::new(kill(number)), 0))
                .unwrap();
            engine.turn().unwrap();
        }
        let next = now + settle_all(&mut engine).min(if now < AWAY.end { 5 } else { 900 });
        attempts += u32::from(IN_TROUBLE.contains(&now));
        // It is ended, or killed, every seven minutes.
        if next / 420 > now / 420 {
            drop(engine);
            (engine, told) = self::engine(directory.path(), &server);
        }
        now = next;
    }
    let got = server.got.lock().unwrap();
    let mut numbers: Vec<u64> = got
        .values()
        .flat_map(|(it, _)| it.iter().copied())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=number).collect::<Vec<_>>());
    // Whatever was tried in between waits for a quarter of an hour at most.
    let last = got.values().map(|(_, at)| *at).max().unwrap();
    assert!(last <= AWAY.end + 900, "{last}");
    let counts = &engine.queue.state().counts;
    let its = &counts.rules["each"];
    assert_eq!(
        (its.delivered, its.matched, counts.missed),
        (number, number, 0)
    );
    assert!(
        its.dropped.is_empty() && its.repeated == 0 && attempts > 0,
        "{counts:?}"
    );
}
