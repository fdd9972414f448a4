// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a queue keeps through crashes, damage and too much.

use std::fs;
use std::os::unix::fs::MetadataExt;

use bursar_model::EventKind;
use proptest::prelude::*;

use super::*;
use crate::config::{ExecRule, Via};

const MOST: Bytes = Bytes::from_mib(1);

fn rule(name: &str, who: Who, gather: Seconds) -> Rule {
    Rule {
        name: name.to_owned(),
        kinds: vec![EventKind::Kill, EventKind::Notice],
        who,
        gather,
        at_most_per_day: 0,
        give_up_after: 100,
        via: Via::Exec(ExecRule {
            command: Vec::new(),
            time_limit: 1,
        }),
    }
}

fn kill(number: u64, uid: u32) -> Event {
    let mut event = Event::new(EventKind::Kill);
    event.number = Some(number);
    event.uid = Some(Uid::new(uid));
    event.time = format!("2026-11-26T07:00:00.{number:06}Z");
    event
}

/// Of each rule, whether what was matched is delivered, dropped or waits.
fn adds_up(queue: &Queue) -> bool {
    let state = queue.state();
    state.counts.rules.iter().all(|(name, counts)| {
        let its = state.waiting.values().filter(|it| it.rule == *name);
        let waiting: u64 = its.map(Delivery::count).sum();
        let dropped: u64 = counts.dropped.values().sum();
        counts.matched == counts.delivered + dropped + waiting
    })
}

fn deliver_all(queue: &mut Queue, rule: &Rule, now: Seconds) -> Vec<Delivery> {
    let mut told = Vec::new();
    while let Some(id) = queue.due_of(rule, now) {
        told.extend(queue.begin(id, rule, now).unwrap());
        queue.settle(id, Outcome::Delivered, rule, now);
    }
    told
}

#[test]
fn a_crash_at_any_byte_leaves_each_event_read_and_counted_or_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [
        rule("each", Who::User, 0),
        rule("digest", Who::Administrators, 60),
    ];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue.begin_at(100).unwrap();
    for number in 101..=112 {
        let missed = u64::from(number == 105) * 2;
        queue.take(&kill(number, 1000), &rules, missed, 10).unwrap();
        if number % 3 == 0 {
            let id = queue.due_of(&rules[0], 10).unwrap();
            queue.begin(id, &rules[0], 10).unwrap();
            let outcome = match number % 2 {
                0 => Outcome::Delivered,
                _ => Outcome::later("not now".to_owned()),
            };
            queue.settle(id, outcome, &rules[0], 10);
        }
    }
    drop(queue);
    let whole = fs::read(directory.path().join("queue")).unwrap();
    for length in 0..=whole.len() {
        let crashed = tempfile::tempdir().unwrap();
        fs::write(crashed.path().join("queue"), &whole[..length]).unwrap();
        let queue = Queue::open(crashed.path(), MOST).unwrap();
        let state = queue.state();
        let read = state.cursor.as_ref().map_or(100, |it| it.number);
        assert!(
            adds_up(&queue) && !crashed.path().join("queue.damaged").exists(),
            "{length}"
        );
        for counts in state.counts.rules.values() {
            assert_eq!(counts.matched, read - 100, "{length}");
        }
        assert!(state.waiting.values().all(|it| !it.is_begun), "{length}");
        // What the others find is what this one left.
        let before = queue.state().clone();
        drop(queue);
        assert_eq!(
            Queue::open(crashed.path(), MOST).unwrap().state(),
            &before,
            "{length}"
        );
    }
}

#[test]
fn an_attempt_of_which_nobody_knows_is_made_again_under_its_number() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("each", Who::User, 0)];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue.take(&kill(1, 1000), &rules, 0, 10).unwrap();
    let id = queue.due_of(&rules[0], 10).unwrap();
    assert!(!queue.begin(id, &rules[0], 10).unwrap().unwrap().may_repeat);
    drop(queue);
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    assert_eq!(queue.due_of(&rules[0], 10), Some(id));
    let again = queue.begin(id, &rules[0], 10).unwrap().unwrap();
    assert_eq!((again.attempts, again.may_repeat), (2, true));
    assert_eq!(queue.state().counts.rules["each"].repeated, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_queue_is_put_aside_and_what_waited_is_counted(at in 0.0..1.0_f64, flip in 1_u8..=255) {
        let directory = tempfile::tempdir().unwrap();
        let rules = [rule("each", Who::User, 0)];
        let mut queue = Queue::open(directory.path(), MOST).unwrap();
        for number in 1..=20 {
            queue.take(&kill(number, 1000), &rules, 0, 10).unwrap();
        }
        drop(queue);
        let path = directory.path().join("queue");
        let mut bytes = fs::read(&path).unwrap();
        let at = ((bytes.len() - 1) as f64 * at) as usize;
        bytes[at] ^= flip;
        fs::write(&path, bytes).unwrap();
        let queue = Queue::open(directory.path(), MOST).unwrap();
        let aside = directory.path().join("queue.damaged");
        prop_assert!(aside.exists());
        prop_assert!(adds_up(&queue) && queue.state().waiting.is_empty());
        let counts = queue.state().counts.rules.get("each").cloned().unwrap_or_default();
        prop_assert!(counts.dropped[DAMAGED] >= 18);
        prop_assert!(queue.state().cursor.as_ref().unwrap().number >= 19);
        prop_assert!(!queue.state().instance.is_empty());
    }
}

#[test]
fn two_hundred_users_in_ten_minutes_get_a_digest_each_and_administrators_one() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [
        rule("users", Who::User, 900),
        rule("admins", Who::Administrators, 900),
    ];
    let mut queue = Queue::open(directory.path(), Bytes::from_mib(16)).unwrap();
    let mut number = 0;
    for second in (0..600).step_by(20) {
        for uid in 1000..1200 {
            number += 1;
            queue.take(&kill(number, uid), &rules, 0, second).unwrap();
        }
        for rule in &rules {
            assert_eq!(deliver_all(&mut queue, rule, second), []);
        }
        if number % 100 == 0 {
            queue.tidy().unwrap();
        }
    }
    let users = deliver_all(&mut queue, &rules[0], 900);
    assert_eq!(users.len(), 200);
    for digest in &users {
        assert_eq!(
            (digest.count(), digest.events.len(), digest.beyond()),
            (30, 20, 10)
        );
    }
    let administrators = deliver_all(&mut queue, &rules[1], 900);
    assert_eq!(administrators.len(), 1);
    assert_eq!(administrators[0].count(), 6_000);
    assert!(adds_up(&queue) && queue.next_due(&rules[0], 900).is_none());
}

#[test]
fn more_messages_than_a_day_may_have_are_gathered_into_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut rule = rule("users", Who::User, 10);
    rule.at_most_per_day = 3;
    let rules = [rule];
    let mut told = Vec::new();
    for second in (0..DAY).step_by(60) {
        // Across restarts.
        let mut queue = Queue::open(directory.path(), MOST).unwrap();
        let number = second.unsigned_abs() + 1;
        queue.take(&kill(number, 1000), &rules, 0, second).unwrap();
        told.extend(deliver_all(&mut queue, &rules[0], second + 10));
    }
    let counts: Vec<u64> = told.iter().map(Delivery::count).collect();
    assert_eq!(counts, [1, 1, 1]);
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    assert_eq!(queue.next_due(&rules[0], DAY), Some(DAY + 10));
    let rest = deliver_all(&mut queue, &rules[0], DAY + 10);
    assert_eq!((rest.len(), rest[0].count()), (1, 1437));
}

#[test]
fn what_finds_no_room_is_counted_and_the_file_stays_small() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("each", Who::User, 0)];
    let mut queue = Queue::open(directory.path(), Bytes::new(64 << 10)).unwrap();
    for number in 1..=20_000 {
        let uid = 1000 + number as u32 / 10;
        queue.take(&kill(number, uid), &rules, 0, 10).unwrap();
        if number % 100 == 0 {
            queue.tidy().unwrap();
        }
    }
    let counts = &queue.state().counts.rules["each"];
    let no_room = counts.dropped[super::state::NO_ROOM];
    assert!(
        adds_up(&queue) && no_room > 19_000 && no_room < 20_000,
        "{counts:?}"
    );
    let length = fs::metadata(directory.path().join("queue")).unwrap().len();
    assert!(length < 3 << 20, "{length}");
}

#[test]
fn what_fills_the_share_of_one_rule_takes_nothing_from_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut digest = rule("digest", Who::Administrators, 900);
    digest.kinds = vec![EventKind::Notice];
    let rules = [rule("each", Who::User, 0), digest];
    let mut queue = Queue::open(directory.path(), Bytes::new(64 << 10)).unwrap();
    for number in 1..=1_000 {
        let uid = 1000 + number as u32;
        queue.take(&kill(number, uid), &rules, 0, 10).unwrap();
    }
    let mut notice = kill(1_001, 1000);
    notice.event = EventKind::Notice;
    // Of this one the first rule has no room.
    queue.take(&notice, &rules, 0, 10).unwrap();
    assert!(queue.state().counts.rules["digest"].dropped.is_empty());
    assert!(adds_up(&queue) && queue.state().counts.rules["each"].dropped[state::NO_ROOM] > 1);
    // Room is there again as soon as something is told, and what a restart finds is the same.
    deliver_all(&mut queue, &rules[0], 10);
    assert_eq!(queue.sizes["each"], 0);
    let digest = queue.sizes["digest"];
    drop(queue);
    let queue = Queue::open(directory.path(), MOST).unwrap();
    assert_eq!(queue.sizes["digest"], digest);
}

#[test]
fn events_of_an_account_of_which_many_wait_join_its_newest() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("each", Who::Administrators, 0)];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    let mut event = kill(0, 1000);
    for number in 1..=10_000 {
        event.account = Some("mallory".to_owned());
        event.number = Some(number);
        queue.take(&event, &rules, 0, 10).unwrap();
    }
    event.account = Some("alice".to_owned());
    queue.take(&event, &rules, 0, 10).unwrap();
    assert!(adds_up(&queue) && queue.state().counts.rules["each"].dropped.is_empty());
    let told = deliver_all(&mut queue, &rules[0], 10);
    let counts: Vec<u64> = told.iter().map(Delivery::count).collect();
    // Half of the share in full; what is more is counted.
    let most = (MOST.get() / 2).div_ceil(FULL).max(MOST_OF_ONE as u64);
    assert_eq!(counts.len() as u64, most + 1);
    assert_eq!(counts.iter().sum::<u64>(), 10_001);
    assert!(
        told.iter()
            .all(|it| it.events.len() as u64 == it.count().min(20))
    );
    assert_eq!(counts.last(), Some(&1));
}

#[test]
fn who_cannot_be_told_is_given_up_after_a_while_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("each", Who::User, 0)];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue.take(&kill(1, 1000), &rules, 0, 0).unwrap();
    let mut tried = Vec::new();
    while let Some(due) = queue.next_due(&rules[0], 0) {
        let id = queue.due_of(&rules[0], due).unwrap();
        queue.begin(id, &rules[0], due).unwrap();
        tried.push(due);
        queue.settle(id, Outcome::later("status 503".to_owned()), &rules[0], due);
    }
    assert_eq!(tried, [0, 10, 30, 70, 150]);
    assert_eq!(
        queue.state().counts.rules["each"].dropped["given up: status 503"],
        1
    );
}

#[test]
fn who_cannot_be_told_keeps_nobody_else_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("each", Who::User, 0)];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    let mut tried = Vec::new();
    for second in 0..40_i64 {
        let number = second.unsigned_abs() + 1;
        // The first three are answered with no for ever; each second somebody else comes.
        queue
            .take(&kill(number, 1000 + number as u32), &rules, 0, second)
            .unwrap();
        let id = queue.due_of(&rules[0], second).unwrap();
        queue.begin(id, &rules[0], second).unwrap();
        let outcome = match id {
            1..=3 => Outcome::later("not you".to_owned()),
            _ => Outcome::Delivered,
        };
        queue.settle(id, outcome, &rules[0], second);
        tried.push(id);
    }
    assert_eq!(tried, (1..=40).collect::<Vec<_>>());
    // Of what failed before, that which is due for longest.
    let left: Vec<_> = [40, 40, 40]
        .into_iter()
        .map(|second| {
            let id = queue.due_of(&rules[0], second).unwrap();
            queue.begin(id, &rules[0], second).unwrap();
            queue.settle(id, Outcome::later(String::new()), &rules[0], second);
            id
        })
        .collect();
    assert_eq!(left, [1, 2, 3]);
}

#[test]
fn a_rule_without_a_daily_bound_keeps_no_record_of_the_day() {
    let directory = tempfile::tempdir().unwrap();
    let mut bounded = rule("bounded", Who::User, 0);
    bounded.at_most_per_day = 5;
    let rules = [rule("each", Who::User, 0), bounded];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    for number in 1..=10 {
        queue.take(&kill(number, 1000), &rules, 0, 10).unwrap();
    }
    for rule in &rules {
        deliver_all(&mut queue, rule, 10);
    }
    let sent: Vec<_> = queue.state().sent.iter().collect();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0.0.as_str(), sent[0].1.len()), ("bounded", 5));
}

#[test]
fn a_large_file_is_not_written_anew_at_each_turn() {
    let directory = tempfile::tempdir().unwrap();
    let mut bounded = rule("bounded", Who::User, 0);
    bounded.at_most_per_day = 10_000;
    let rules = [bounded];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    // A day's record that is larger than all that waits.
    let key = ("bounded".to_owned(), Recipient::User(Uid::new(1000)));
    queue.state.sent.insert(key, (0..60_000).collect());
    let mut times = 0;
    queue.journal.replace(&queue.state.snapshot()).unwrap();
    assert!(queue.journal.length() > 2 * SLACK);
    let path = directory.path().join("queue");
    let mut file = fs::metadata(&path).unwrap().ino();
    for number in 1..=1_000 {
        queue.take(&kill(number, 1000), &rules, 0, 10).unwrap();
        queue.tidy().unwrap();
        let after = fs::metadata(&path).unwrap().ino();
        times += u32::from(after != file);
        file = after;
    }
    assert_eq!(times, 0);
}

#[test]
fn no_daily_bound_holds_an_alarm_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut rule = rule("admins", Who::Administrators, 10);
    rule.at_most_per_day = 3;
    rule.kinds.push(EventKind::Released);
    let rules = [rule];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    for (at, number) in (0_i64..10).zip(1..) {
        queue.take(&kill(number, 1000), &rules, 0, at * 60).unwrap();
        deliver_all(&mut queue, &rules[0], at * 60 + 10);
    }
    assert_eq!(queue.due_of(&rules[0], 1_000), None);
    let mut released = Event::new(EventKind::Released);
    released.number = Some(11);
    queue.take(&released, &rules, 0, 1_000).unwrap();
    let told = deliver_all(&mut queue, &rules[0], 1_010);
    assert_eq!((told.len(), told[0].count()), (1, 8));
    assert_eq!(told[0].count_of(EventKind::Released), 1);
}

#[test]
fn an_attempt_that_may_have_come_through_is_said_to_be_one() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("each", Who::User, 0)];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue.take(&kill(1, 1000), &rules, 0, 0).unwrap();
    let outcomes = [
        (Outcome::later(String::new()), false),
        (Outcome::Unreached(String::new()), false),
        (Outcome::unsure(String::new()), true),
        (Outcome::unsure(String::new()), true),
        (Outcome::later(String::new()), true),
    ];
    for (outcome, may_repeat) in outcomes {
        queue.begin(1, &rules[0], 0).unwrap();
        queue.settle(1, outcome, &rules[0], 0);
        // Across restarts.
        drop(queue);
        queue = Queue::open(directory.path(), MOST).unwrap();
        assert_eq!(queue.state().waiting[&1].may_repeat, may_repeat);
    }
    assert_eq!(queue.state().counts.rules["each"].repeated, 1);
}

#[test]
fn a_clock_that_was_set_back_keeps_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let rules = [rule("digest", Who::User, 900)];
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue.take(&kill(1, 1000), &rules, 0, 1_000_000).unwrap();
    assert_eq!(queue.due_of(&rules[0], 1_000_000), None);
    assert!(queue.due_of(&rules[0], 5_000).is_some());
}

#[test]
fn two_do_not_work_on_one_queue() {
    let directory = tempfile::tempdir().unwrap();
    let _first = Queue::open(directory.path(), MOST).unwrap();
    let second = Queue::open(directory.path(), MOST).unwrap_err().to_string();
    assert!(second.contains("another bursar-notify"), "{second}");
}

#[test]
fn a_disk_that_fails_in_the_middle_costs_nothing_that_was_taken_and_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let each = rule("each", Who::User, 0);
    let rules = std::slice::from_ref(&each);
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue.take(&kill(1, 60001), rules, 0, 0).unwrap();
    let id = queue.due_of(&each, 0).unwrap();
    // Half a line may be there, and cannot be cut off.
    queue.journal.break_disk();
    assert!(queue.take(&kill(2, 60001), rules, 0, 0).is_err());
    assert!(queue.journal.is_broken());
    // Nor can it be written anew at first.
    let in_the_way = directory.path().join("queue.new");
    fs::create_dir(&in_the_way).unwrap();
    assert!(queue.take(&kill(2, 60001), rules, 0, 0).is_err());
    assert!(queue.begin(id, &each, 0).is_err() && queue.tidy().is_err());
    fs::remove_dir(&in_the_way).unwrap();
    queue.take(&kill(2, 60001), rules, 0, 0).unwrap();
    let told = deliver_all(&mut queue, &each, 0);
    assert_eq!((told.len(), queue.state().counts.repaired), (2, 1));
    queue.tidy().unwrap();
    // The same is on the disk.
    let state = queue.state().clone();
    drop(queue);
    let queue = Queue::open(directory.path(), MOST).unwrap();
    assert!(*queue.state() == state && adds_up(&queue));
    assert!(!directory.path().join("queue.damaged").exists());
}

#[test]
fn an_attempt_whose_beginning_the_disk_has_not_taken_is_made_later_and_is_no_repetition() {
    let directory = tempfile::tempdir().unwrap();
    let each = rule("each", Who::User, 0);
    let mut queue = Queue::open(directory.path(), MOST).unwrap();
    queue
        .take(&kill(1, 60001), std::slice::from_ref(&each), 0, 0)
        .unwrap();
    let id = queue.due_of(&each, 0).unwrap();
    queue.journal.break_sync();
    assert!(queue.begin(id, &each, 0).is_err());
    assert!(queue.write_outcomes() && queue.tidy().is_ok());
    let told = deliver_all(&mut queue, &each, 0);
    assert!(told.len() == 1 && !told[0].may_repeat, "{told:?}");
    assert_eq!(queue.state().counts.repaired, 1);
}
