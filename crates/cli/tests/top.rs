// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar top` on a real terminal, which script(1) makes: it says what it cannot know, leaves when it is
//! told to, and gives the terminal back.

mod surroundings;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use surroundings::bursar;

const NOWHERE: &str = "/nonexistent/bursar.sock";

/// What a terminal of 80 columns sees of `command`, in which `TOP` stands for `bursar top`, while
/// `typed` is typed after a while; and its settings afterwards.
fn seen(command: &str, typed: &str) -> String {
    let top = format!(
        "{} --socket {NOWHERE} top --interval 0.2",
        env!("CARGO_BIN_EXE_bursar")
    );
    let command = command.replace("TOP", &top);
    let mut terminal = Command::new("script")
        .args(["-q", "-c"])
        .arg(format!("stty rows 24 cols 80; {command}; stty -a"))
        .arg("/dev/null")
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Keys wait in the terminal: it does not matter when they come.
    std::thread::sleep(Duration::from_secs(1));
    let mut keys = terminal.stdin.take().unwrap();
    keys.write_all(typed.as_bytes()).unwrap();
    let output = terminal.wait_with_output().unwrap();
    drop(keys);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn assert_given_back(seen: &str) {
    let (screen, after) = seen.rsplit_once("\x1b[?1049l").expect("it left the screen");
    assert!(screen.contains("\x1b[?1049h"), "{seen:?}");
    assert!(after.contains(" icanon"), "{after}");
    assert!(after.contains(" echo "), "{after}");
    assert!(
        after.contains("\x1b[?25h") || screen.contains("\x1b[?25h"),
        "{seen:?}"
    );
}

#[test]
fn q_leaves_a_screen_that_says_that_bursard_is_away() {
    for key in ["q", "\x03"] {
        let seen = seen("TOP", key);
        assert!(seen.contains("NOT UP TO DATE"), "{seen:?}");
        assert_given_back(&seen);
    }
}

#[test]
fn sigterm_gives_the_terminal_back() {
    assert_given_back(&seen("timeout --foreground 2 TOP", ""));
}

#[test]
fn without_a_terminal_it_says_what_to_use_instead() {
    let output = bursar().arg("top").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--json"), "{message}");
    assert!(message.contains("bursar status"), "{message}");
}

#[test]
fn a_terminal_that_moves_no_cursor_is_left_alone() {
    let seen = seen("TERM=dumb TOP", "");
    assert!(seen.contains("TERM=dumb"), "{seen:?}");
    assert!(!seen.contains('\x1b'), "{seen:?}");
}

#[test]
fn programs_are_told_that_nobody_answers() {
    let output = bursar()
        .args(["--socket", NOWHERE, "--json", "top"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
}
