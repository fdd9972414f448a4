// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever is under way, bursar-notify ends within five seconds of SIGTERM, and the next one goes on.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use bursar_model::{Event, EventKind, Uid};
use bursar_protocol::{EventPage, Operation, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};

const LATEST: Duration = Duration::from_secs(5);

/// A bursard with so many events, whose connections last.
fn bursard(socket: &Path, events: u64) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for line in lines.map_while(Result::ok) {
                let request: Request = serde_json::from_str(&line).unwrap();
                let Operation::Stream { after } = request.ask else {
                    panic!("{request:?}")
                };
                // Who never read anything begins before the first.
                let most = if after.is_some() { events } else { 0 };
                let after = after.unwrap_or(0);
                let last = most.min(after + 500);
                let page = EventPage {
                    newest: most,
                    events: (after + 1..=last).map(kill).collect(),
                    is_last: last == most,
                };
                let reply = Reply::Stream(Box::new(page));
                if writeln!(stream, "{}", serde_json::to_string(&reply).unwrap()).is_err() {
                    break;
                }
            }
        }
    });
}

fn kill(number: u64) -> Event {
    let mut event = Event::new(EventKind::Kill);
    event.number = Some(number);
    event.uid = Some(Uid::new(0));
    event.account = Some(format!("user{}", number % 3_000));
    event.time = format!("2026-11-26T07:00:00.{number:06}Z");
    event
}

/// A server that takes connections, reads and says nothing. It tells of each that it has something to read of.
fn silent_server() -> (u16, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.unwrap(), tell.clone());
            thread::spawn(move || {
                let _ = tell.send(());
                let mut piece = [0; 4096];
                while stream.read(&mut piece).is_ok_and(|count| count > 0) {}
            });
        }
    });
    (port, told)
}

fn start(directory: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_bursar-notify"))
        .arg("--config")
        .arg(directory.join("notify.toml"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Asks it to end, and says how long that took.
fn stop(mut child: Child) -> Duration {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let asked = Instant::now();
    kill_process(pid, Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    asked.elapsed()
}

fn status(directory: &Path) -> serde_json::Value {
    let said = Command::new(env!("CARGO_BIN_EXE_bursar-notify"))
        .arg("--config")
        .arg(directory.join("notify.toml"))
        .arg("--status")
        .output()
        .unwrap();
    serde_json::from_slice(&said.stdout).unwrap()
}

/// A directory with a configuration of these rules.
fn directory(events: u64, rules: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (socket, state) = (
        directory.path().join("events.sock"),
        directory.path().join("state"),
    );
    bursard(&socket, events);
    let text = format!("socket = {socket:?}\nstate = {state:?}\nqueue_bytes = \"64M\"\n{rules}");
    fs::write(directory.path().join("notify.toml"), text).unwrap();
    directory
}

fn beginning(rule: &str, via: &str) -> String {
    format!(
        "[[rule]]\nname = \"{rule}\"\nkinds = [\"kill\"]\nwho = \"administrators\"\ngather = \"0s\"\nvia = \"{via}\"\n"
    )
}

#[test]
fn servers_and_programs_that_never_answer_hold_up_no_end() {
    let (smtp, mailed) = silent_server();
    let (http, posted) = silent_server();
    let rules = format!(
        "[mail]\nsmtp = \"127.0.0.1:{smtp}\"\n{}{}url = \"http://127.0.0.1:{http}/\"\ntime_limit = \"5m\"\n{}\
         command = [\"/bin/sleep\", \"1000\"]\ntime_limit = \"1h\"\n",
        beginning("mail", "mail"),
        beginning("hook", "webhook"),
        beginning("program", "exec"),
    );
    let directory = directory(3, &rules);
    // The first start begins after what is there, the second one reads on.
    let first = start(directory.path());
    while status(directory.path())["read_up_to"] != 0 {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(stop(first) < LATEST);
    let second = start(directory.path());
    mailed.recv().unwrap();
    posted.recv().unwrap();
    let took = stop(second);
    assert!(took < LATEST, "{took:?}");
    // All is there, and what was under way may come twice.
    let third = start(directory.path());
    mailed.recv().unwrap();
    posted.recv().unwrap();
    let status = status(directory.path());
    for rule in ["mail", "hook", "program"] {
        let its = &status["rules"][rule];
        assert_eq!(
            (&its["waiting"], &its["repeated"]),
            (&3.into(), &1.into()),
            "{status:#}"
        );
    }
    assert!(stop(third) < LATEST);
}

#[test]
fn many_events_that_are_being_read_hold_up_no_end() {
    let (http, posted) = silent_server();
    let rule = beginning("hook", "webhook");
    let rules = format!("{rule}url = \"http://127.0.0.1:{http}/\"\ntime_limit = \"5m\"\n");
    let directory = directory(50_000, &rules);
    let first = start(directory.path());
    while status(directory.path())["read_up_to"] != 0 {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(stop(first) < LATEST);
    let second = start(directory.path());
    posted.recv().unwrap();
    thread::sleep(Duration::from_secs(3));
    let took = stop(second);
    assert!(took < LATEST, "{took:?}");
    let status = status(directory.path());
    let its = &status["rules"]["hook"];
    assert_eq!(its["matched"], status["read_up_to"], "{status:#}");
}
