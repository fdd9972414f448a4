// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Screens as they are seen.

use bursar_model::{Bytes, Uid, UsageSample, UsageSeries};
use bursar_text::{Charset, Tone};
use insta::assert_snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use unicode_width::UnicodeWidthStr;

use super::{Pen, draw};
use crate::sample::{account, sample, with_kills};
use crate::{BillText, EventText, Input, Key, Top};

/// As a daemon should never send it: a name that draws, turns, stacks and hides.
const HOSTILE: &str = "\x1b[2J\u{202e}evil\u{301}\u{301}\n山田山田 א\u{fe0f}";

const PEN: Pen = Pen {
    charset: Charset::Unicode,
    has_colours: false,
};

fn screen(top: &mut Top, pen: Pen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(top, pen, frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let mut text = String::new();
    for y in 0..height {
        let mut line = String::new();
        let mut x = 0;
        while x < width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += u16::try_from(symbol.width().max(1)).unwrap();
        }
        assert!(line.width() <= usize::from(width), "{line:?}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    assert!(
        text.chars().all(|it| it == '\n' || !it.is_control()),
        "{text:?}"
    );
    text
}

fn busy() -> Top {
    let mut top = Top::default();
    for (seconds, held) in [(0, 380), (2, 400)] {
        let accounts = vec![
            with_kills(account("alice", 1000, held, Some(512)), 1 + seconds),
            account("bob", 1001, 90, None),
            account("carol", 1002, 0, Some(8 << 10)),
            with_kills(
                account("=render", 0, 7910 - seconds * 200, Some(8 << 10)),
                41,
            ),
            account("dave", 1003, 500, Some(512)),
            account(HOSTILE, 1005, 600, Some(1 << 10)),
            account("bernadette.vanderbilt@corp.example", 1004, 1500, Some(1024)),
        ];
        let mut sample = sample(seconds, accounts);
        sample.machine.notes = vec![
            format!("nobody is called {HOSTILE}"),
            "2 killed processes came back in no more than 8.1 ms".into(),
        ];
        top.on(Input::Sample(Box::new(sample)));
    }
    let event = |name: &str, text: &str, tone| EventText {
        account: Some(name.into()),
        text: text.into(),
        tone,
    };
    top.on(Input::Events(vec![
        event(
            "alice",
            "06:11:59  notice         alice  held 461 MiB of 512 MiB",
            Some(Tone::Warning),
        ),
        event(
            "dave",
            &format!("06:12:01  kill           dave  {HOSTILE}[4242] 301 MiB"),
            Some(Tone::Bad),
        ),
    ]));
    top
}

#[test]
fn eighty_by_twenty_four() {
    assert_snapshot!(screen(&mut busy(), PEN, 80, 24));
}

#[test]
fn forty_by_twelve() {
    assert_snapshot!(screen(&mut busy(), PEN, 40, 12));
}

#[test]
fn two_hundred_by_fifty() {
    assert_snapshot!(screen(&mut busy(), PEN, 200, 50));
}

#[test]
fn letters_only() {
    let pen = Pen {
        charset: Charset::Ascii,
        ..PEN
    };
    let text = screen(&mut busy(), pen, 80, 24);
    assert!(text.is_ascii(), "{text}");
    assert_snapshot!(text);
}

#[test]
fn the_chosen_account_in_detail() {
    let mut top = busy();
    for _ in 0..3 {
        top.on(Input::Key(Key::Down));
    }
    top.on(Input::Key(Key::Enter));
    assert_eq!(top.wanted_bill().map(|it| it.name()), Some("alice"));
    let waiting = screen(&mut top, PEN, 80, 24);
    assert!(waiting.contains("asking for its beancounters"), "{waiting}");
    top.on(Input::Bill(BillText {
        account: "alice".into(),
        lines: (0..20).map(|number| format!("row {number}")).collect(),
    }));
    assert_snapshot!(screen(&mut top, PEN, 80, 30));
    assert_snapshot!("detail_small", screen(&mut top, PEN, 40, 12));
}

#[test]
fn the_last_hour_of_the_chosen_account() {
    let mut top = busy();
    for _ in 0..3 {
        top.on(Input::Key(Key::Down));
    }
    top.on(Input::Key(Key::Enter));
    let minute = |number: u64| UsageSample {
        start: number * 60,
        observed_ms: 60_000,
        max: Bytes::from_mib(number * 10 % 540),
        limit: Some(Bytes::from_mib(512)),
        kills: u32::from(number == 53),
        refusals: u32::from(number == 50),
        ..UsageSample::default()
    };
    let series = UsageSeries {
        account: "alice".into(),
        uid: Some(Uid::new(1000)),
        from: 0,
        until: 60 * 60 - 1,
        span_seconds: 60,
        samples: (4..60).filter(|it| it % 13 != 0).map(minute).collect(),
    };
    top.on(Input::Usage(series.clone()));
    assert_snapshot!(screen(&mut top, PEN, 80, 36));
    let letters = Pen {
        charset: Charset::Ascii,
        ..PEN
    };
    assert_snapshot!("usage_in_letters", screen(&mut top, letters, 50, 36));
    // Another one of that name, and a clock that went back.
    top.on(Input::Usage(UsageSeries {
        uid: Some(Uid::new(7)),
        until: 0,
        span_seconds: 0,
        ..series
    }));
    assert!(!screen(&mut top, PEN, 80, 36).contains("the last 60 minutes"));
}

#[test]
fn help_on_small_and_large_screens() {
    let mut top = busy();
    top.on(Input::Key(Key::Character('?')));
    assert_snapshot!(screen(&mut top, PEN, 80, 24));
    assert_snapshot!("help_narrow", screen(&mut top, PEN, 40, 24));
}

#[test]
fn a_daemon_that_is_away_is_said_and_nothing_old_is_taken_for_new() {
    let mut top = Top::default();
    let why = "cannot reach bursard at \"/run/bursar/bursar.sock\": No such file or directory (os error 2); is it running? (systemctl status bursard)";
    top.on(Input::Lost(why.into()));
    let never = screen(&mut top, PEN, 80, 24);
    let mut top = busy();
    top.on(Input::Lost(why.into()));
    assert_snapshot!(never + "---\n" + &screen(&mut top, PEN, 80, 24));
}

#[test]
fn two_hundred_accounts_are_paged_through_and_the_chosen_one_is_always_seen() {
    let many = (0..200u32).map(|number| {
        let held = u64::from(number) * 37 % 1100;
        account(&format!("user{number:03}"), 1000 + number, held, Some(1023))
    });
    let mut top = Top::default();
    top.on(Input::Sample(Box::new(sample(0, many.collect()))));
    for key in [
        Key::Down,
        Key::PageDown,
        Key::PageDown,
        Key::PageUp,
        Key::End,
        Key::Up,
    ] {
        screen(&mut top, PEN, 80, 24);
        top.on(Input::Key(key));
        let text = screen(&mut top, PEN, 80, 24);
        let shown = top.shown();
        let chosen = shown[top.position(&shown)].name();
        assert!(text.contains(chosen), "{key:?}: {chosen} in {text}");
    }
}

#[test]
fn no_size_is_too_small_or_odd() {
    let mut top = busy();
    for detail in [false, true] {
        for width in [1, 2, 7, 20, 39, 41, 63, 64, 79, 81, 120, 300] {
            for height in 1..30 {
                screen(&mut top, PEN, width, height);
            }
        }
        if !detail {
            top.on(Input::Key(Key::Enter));
        }
    }
}

#[test]
fn nothing_is_too_large() {
    let mut huge = with_kills(account(&HOSTILE.repeat(9), 1, 0, Some(1)), u64::MAX);
    huge.processes = u32::MAX;
    let mut top = Top::default();
    top.on(Input::Sample(Box::new(sample(0, vec![huge.clone()]))));
    if let Some(row) = huge.resources.get_mut(&bursar_model::Resource::Memory) {
        row.held = bursar_model::Bytes::MAX;
        row.limit = Some(bursar_model::Bytes::MAX);
    }
    top.on(Input::Sample(Box::new(sample(1, vec![huge]))));
    for width in [40, 60, 80, 120, 200] {
        screen(&mut top, PEN, width, 24);
    }
}

#[test]
fn colours_only_where_there_are_some() {
    let colourful = |has_colours| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let pen = Pen { has_colours, ..PEN };
        terminal
            .draw(|frame| draw(&mut busy(), pen, frame))
            .unwrap();
        let cells = terminal.backend().buffer().content().to_vec();
        cells
            .iter()
            .filter(|cell| cell.fg != ratatui::style::Color::Reset)
            .count()
    };
    assert_eq!(colourful(false), 0);
    assert!(colourful(true) > 50);
}
