// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursar makes of a daemon's answers: output, messages, exit codes.

mod daemon;
mod surroundings;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bursar_model::{
    BoundsSpec, Bytes, DaemonStatus, Event, EventKind, KernelHalfStatus, ReapStatus, Uid,
};
use bursar_protocol::{
    ErrorKind, LimitChange, LimitEntry, Operation, Quota, Refusal, Reply, Terms,
};
use daemon::Daemon;
use signal_hook::consts::SIGPIPE;
use surroundings::bursar;

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn no_accounts() -> DaemonStatus {
    DaemonStatus {
        dry_run: false,
        version: "0.1.0".into(),
        pid: 1,
        kernel_half: KernelHalfStatus::default(),
        error_bound_bytes: Bytes::ZERO,
        ram_bytes: Bytes::from_mib(1),
        reaps: ReapStatus::default(),
        accounts: Vec::new(),
        remarks: Vec::new(),
        counts: bursar_model::DaemonCounts::default(),
    }
}

fn event(kind: EventKind) -> Event {
    let mut event = Event::new(kind);
    event.time = "2026-11-21T05:12:03.000004Z".into();
    event.account = Some("alice".into());
    event
}

#[test]
fn every_refusal_has_its_exit_code_and_is_told_on_stderr() {
    let table = [
        (ErrorKind::BadRequest, 2),
        (ErrorKind::NotPermitted, 3),
        (ErrorKind::NotFound, 1),
        (ErrorKind::Refused, 1),
        (ErrorKind::Failed, 1),
    ];
    for (kind, code) in table {
        let message = "cannot do it\u{1b}[2J".to_owned();
        let daemon = Daemon::answering(&Reply::Refused(Refusal {
            kind,
            message,
            reserved: None,
        }));
        let output = daemon.bursar(&["status"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{kind:?}");
        assert_eq!(stderr(&output), "bursar: cannot do it\\x1b[2J\n");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn an_absent_daemon_is_said_with_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("none.sock");
    let dead = folder.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    for socket in [absent, dead] {
        let output = bursar()
            .arg("--socket")
            .arg(&socket)
            .arg("quota")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(4));
        let message = stderr(&output);
        assert!(
            message.starts_with("bursar: cannot reach bursard at "),
            "{message}"
        );
        assert!(message.contains(socket.to_str().unwrap()), "{message}");
    }
}

#[test]
fn a_daemon_that_closes_without_a_word_is_not_reachable() {
    for daemon in [Daemon::closing(), Daemon::doing(|_| {})] {
        let output = daemon.bursar(&["status"]).output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        assert!(
            stderr(&output).contains("stopped answering"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn an_answer_that_makes_no_sense_is_a_failure() {
    let endless = |client: &mut std::os::unix::net::UnixStream| {
        // The client hangs up at its bound.
        let piece = vec![b' '; 1 << 20];
        while client.write_all(&piece).is_ok() {}
    };
    let daemons = [
        Daemon::doing(|client| {
            client
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap()
        }),
        Daemon::doing(|client| client.write_all(b"\xff\xfe\n").unwrap()),
        Daemon::doing(|client| client.write_all(b"{\"quota\":{}}\n").unwrap()),
        Daemon::doing(endless),
        Daemon::answering(&Reply::Changed {
            remarks: Vec::new(),
            change: None,
        }),
    ];
    for daemon in daemons {
        let output = daemon.bursar(&["status"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("of the same version?"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_change_that_was_not_answered_is_of_unknown_outcome() {
    let daemon = Daemon::doing(|_| {});
    let output = daemon
        .bursar(&["limit", "set", "alice", "512M"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("whether the limit was changed is not known"));
}

#[test]
fn a_size_and_rows_are_one_request() {
    let daemon = Daemon::answering(&Reply::Changed {
        remarks: Vec::new(),
        change: None,
    });
    let typed = ["limit", "set", "alice", "8G", "numproc=200:220"];
    let output = daemon.bursar(&typed).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let asked = serde_json::to_value(daemon.asked().ask).unwrap();
    assert_eq!(
        asked,
        serde_json::json!({
            "ask": "set_limit_and_rows",
            "who": "alice",
            "memory": { "limit": "8G" },
            "rows": { "numproc": "200:220" },
            "force": false,
        })
    );
}

#[test]
fn limits_are_set_as_typed() {
    let daemon = Daemon::answering(&Reply::Changed {
        remarks: vec!["more than RAM".into()],
        change: None,
    });
    let typed = [
        "limit",
        "set",
        "@students",
        "25%",
        "--notice",
        "80%",
        "--barrier",
        "1G",
        "--force",
    ];
    let output = daemon.bursar(&typed).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "@students has a limit of 25% of RAM from now on (notice 80%, barrier 1G)\nnote: more than RAM\n"
    );
    let size = |text: &str| text.parse().unwrap();
    let memory = BoundsSpec {
        limit: size("25%"),
        notice: Some(size("80%")),
        barrier: Some(size("1G")),
    };
    let who = "@students".parse().unwrap();
    assert_eq!(
        daemon.asked().ask,
        Operation::SetLimit(LimitChange {
            who,
            memory,
            force: true,
            terms: Terms::default(),
        })
    );
}

#[test]
fn limits_are_cleared_and_shown() {
    let daemon = Daemon::answering(&Reply::Changed {
        remarks: Vec::new(),
        change: None,
    });
    let output = daemon
        .bursar(&["--json", "limit", "clear", "=render"])
        .output()
        .unwrap();
    assert_eq!(
        stdout(&output),
        "{\"who\":\"=render\",\"changed\":true,\"remarks\":[]}\n"
    );
    assert_eq!(
        daemon.asked().ask,
        Operation::ClearLimit {
            who: "=render".parse().unwrap(),
            force: false,
            terms: Terms::default(),
        }
    );
    let daemon = Daemon::answering(&Reply::Changed {
        remarks: Vec::new(),
        change: None,
    });
    let forced = daemon
        .bursar(&["limit", "clear", "=render", "--force"])
        .output();
    assert!(forced.unwrap().status.success());
    assert_eq!(
        daemon.asked().ask,
        Operation::ClearLimit {
            who: "=render".parse().unwrap(),
            force: true,
            terms: Terms::default(),
        }
    );

    let entry = LimitEntry {
        who: "alice".parse().unwrap(),
        memory: BoundsSpec::of_limit("512M".parse().unwrap()),
        mode: bursar_model::Mode::Enforce,
        kill: Some(bursar_model::KillManner::Graceful),
        is_silent: false,
        rows: BTreeMap::new(),
        accounts: vec!["alice".into()],
        remark: None,
        covers: None,
        origin: None,
        overrides: Vec::new(),
        reason: Some("thesis".parse().unwrap()),
        until: Some("2026-12-01T08:00:00Z".parse().unwrap()),
        then: None,
    };
    let daemon = Daemon::answering(&Reply::Limits(vec![entry.clone()]));
    let output = daemon
        .bursar(&["limit", "show", "alice", "--json"])
        .output()
        .unwrap();
    let shown: Vec<LimitEntry> = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(shown, [entry]);
    assert_eq!(
        daemon.asked().ask,
        Operation::Limits {
            who: Some("alice".parse().unwrap())
        }
    );
}

#[test]
fn status_and_quota_are_passed_on_as_json() {
    let status = no_accounts();
    let daemon = Daemon::answering(&Reply::Status(Box::new(status.clone())));
    let output = daemon
        .bursar(&["status", "alice", "--json"])
        .output()
        .unwrap();
    assert_eq!(
        serde_json::from_str::<DaemonStatus>(&stdout(&output)).unwrap(),
        status
    );
    assert_eq!(
        daemon.asked().ask,
        Operation::Status {
            who: Some("alice".parse().unwrap())
        }
    );

    let quota = Quota {
        account: None,
        shared: Vec::new(),
        error_bound_bytes: Bytes::new(5),
        barrier_refuses: false,
        recent: Vec::new(),
        hint: None,
        reason: None,
        until: None,
    };
    let daemon = Daemon::answering(&Reply::Quota(Box::new(quota)));
    let output = daemon.bursar(&["quota", "--json"]).output().unwrap();
    assert_eq!(
        stdout(&output),
        "{\"error_bound_bytes\":5,\"barrier_refuses\":false}\n"
    );
    assert_eq!(daemon.asked().ask, Operation::Quota);
}

#[test]
fn events_are_passed_on_unchanged_one_a_line() {
    let events = [event(EventKind::Notice), event(EventKind::Kill)];
    let lines: Vec<String> = events
        .iter()
        .map(|event| serde_json::to_string(event).unwrap())
        .collect();
    let daemon = Daemon::answering(&Reply::Events(events.to_vec()));
    let since = ["events", "--json", "--since", "2026-11-21T06:00:00+01:00"];
    let output = daemon.bursar(&since).output().unwrap();
    assert_eq!(stdout(&output), lines.join("\n") + "\n");
    let since = Some("2026-11-21T05:00:00.000000Z".into());
    assert_eq!(
        daemon.asked().ask,
        Operation::Events {
            since,
            follow: false
        }
    );
}

#[test]
fn events_of_one_are_what_concerns_him() {
    let mut in_the_lab = event(EventKind::Kill);
    in_the_lab.account = Some("=lab".into());
    in_the_lab.uid = Some(Uid::new(60_001));
    let events = [
        event(EventKind::Notice),
        in_the_lab,
        event(EventKind::Refused),
    ];
    let kinds = |who: &str| {
        let daemon = Daemon::answering(&Reply::Events(events.to_vec()));
        let output = daemon.bursar(&["events", who, "--json"]).output().unwrap();
        let lines = stdout(&output);
        let kinds = lines.lines().map(|line| {
            let event: Event = serde_json::from_str(line).unwrap();
            event.event
        });
        (
            output.status.code(),
            kinds.collect::<Vec<_>>(),
            stderr(&output),
        )
    };
    let alice = (
        Some(0),
        vec![EventKind::Notice, EventKind::Refused],
        String::new(),
    );
    assert_eq!(kinds("alice"), alice);
    let in_the_lab = (Some(0), vec![EventKind::Kill], String::new());
    assert_eq!(kinds("=lab"), in_the_lab);
    assert_eq!(kinds("60001"), in_the_lab);
    assert_eq!(kinds("60002"), (Some(0), vec![], String::new()));
    let (code, none, told) = kinds("alcie");
    assert_eq!((code, none.len()), (Some(1), 0));
    assert!(told.contains("there is no user \"alcie\""), "{told}");
}

#[test]
fn no_events_are_no_output() {
    for form in [&["events"][..], &["events", "--json"]] {
        let daemon = Daemon::answering(&Reply::Events(Vec::new()));
        let output = daemon.bursar(form).output().unwrap();
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), "")
        );
    }
}

/// A daemon that sends one past event and `coming` ones, then waits for its client to go.
fn stream(coming: usize) -> Daemon {
    Daemon::doing(move |client| {
        let past = Reply::Events(vec![event(EventKind::Notice)]);
        let next = serde_json::to_string(&event(EventKind::Kill)).unwrap() + "\n";
        let text = serde_json::to_string(&past).unwrap() + "\n" + &next.repeat(coming);
        client.write_all(text.as_bytes()).unwrap();
        let _ = std::io::Read::read(client, &mut [0]);
    })
}

fn wait(child: &mut std::process::Child) -> ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "bursar does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn follow(daemon: &Daemon) -> std::process::Child {
    std::process::Command::new(env!("CARGO_BIN_EXE_bursar"))
        .args(["events", "--follow", "--socket"])
        .arg(daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn following_ends_with_its_reader_also_while_nothing_happens() {
    use std::io::{BufRead, BufReader};
    let daemon = stream(1);
    let mut child = follow(&daemon);
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    for kind in ["notice", "kill"] {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(kind), "{line}");
    }
    drop(reader);
    assert_eq!(wait(&mut child).signal(), Some(SIGPIPE));
}

#[test]
fn following_begins_now_and_says_when_the_daemon_goes() {
    let daemon = Daemon::answering(&Reply::Events(Vec::new()));
    let output = daemon.bursar(&["events", "--follow"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(
        stderr(&output).contains("closed the stream"),
        "{}",
        stderr(&output)
    );
    let Operation::Events {
        since: Some(_),
        follow: true,
    } = daemon.asked().ask
    else {
        panic!()
    };
}

#[test]
fn a_reader_that_has_read_enough_ends_it_without_a_word() {
    let many = vec![event(EventKind::Kill); 20_000];
    let daemon = Daemon::answering(&Reply::Events(many));
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_bursar"))
        .args(["events", "--socket"])
        .arg(daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(wait(&mut child).signal(), Some(SIGPIPE));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
fn what_has_no_end_ends_where_standard_output_is_closed() {
    for (command, reply) in [
        ("top --json", Reply::Status(Box::new(no_accounts()))),
        ("events --follow", Reply::Events(Vec::new())),
    ] {
        let line = serde_json::to_string(&reply).unwrap() + "\n";
        let daemon = Daemon::doing(move |client| {
            // It goes on until the client has gone.
            let _ = client.write_all(line.as_bytes());
            let _ = std::io::Read::read_to_end(client, &mut Vec::new());
        });
        let output = std::process::Command::new("timeout")
            .args(["20", "sh", "-c"])
            .arg(format!("exec \"$0\" --socket \"$1\" {command} >&-"))
            .arg(env!("CARGO_BIN_EXE_bursar"))
            .arg(daemon.socket())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = stderr(&output);
        assert!(
            said.starts_with("bursar: cannot write the answer: "),
            "{said}"
        );
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_and_one_that_nobody_reads_is_none() {
    let full = || -> Stdio {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        full.unwrap().into()
    };
    let unread = || -> Stdio { std::io::pipe().unwrap().1.into() };
    let table = [
        ("status", Some(Reply::Status(Box::new(no_accounts())))),
        (
            "status --json",
            Some(Reply::Status(Box::new(no_accounts()))),
        ),
        ("top --json", Some(Reply::Status(Box::new(no_accounts())))),
        ("events", Some(Reply::Events(vec![event(EventKind::Kill)]))),
        ("limit show", Some(Reply::Limits(Vec::new()))),
        ("check --help", None),
        ("doctor", None),
        ("metrics --list", None),
        ("generate completions bash", None),
        ("--version", None),
    ];
    for (command, reply) in table {
        let said_of = |stdout: Stdio| {
            let daemon = reply.as_ref().map(Daemon::answering);
            let socket = daemon.as_ref().map(Daemon::socket);
            std::process::Command::new(env!("CARGO_BIN_EXE_bursar"))
                .env(
                    "BURSAR_SOCKET",
                    socket.unwrap_or_else(|| "/nonexistent".into()),
                )
                .args(command.split(' '))
                .stdout(stdout)
                .output()
                .unwrap()
        };
        let failed = said_of(full());
        assert_eq!(failed.status.code(), Some(1), "{command}");
        let start = "bursar: cannot write the answer: ";
        assert!(stderr(&failed).starts_with(start), "{}", stderr(&failed));
        let ended = said_of(unread());
        assert_eq!(ended.status.signal(), Some(SIGPIPE), "{command}");
        assert_eq!(stderr(&ended), "", "{command}");
    }
}

#[test]
fn why_asks_for_one_process_for_somebody_or_for_the_last() {
    let who = |text: &str| Some(text.parse().unwrap());
    for (typed, pid, who) in [
        (&["why"][..], None, None),
        (&["why", "4242"], Some(bursar_model::Pid::new(4242)), None),
        (&["why", "alice"], None, who("alice")),
        (&["why", "=lab"], None, who("=lab")),
        (&["why", "--user", "60001"], None, who("60001")),
    ] {
        let daemon = Daemon::answering(&Reply::Why(Vec::new()));
        let output = daemon.bursar(typed).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let starts = ["no kill of", "no kill is", "nothing of"];
        let text = stdout(&output);
        assert!(starts.iter().any(|it| text.starts_with(it)), "{text}");
        assert_eq!(daemon.asked().ask, Operation::Why { pid, who });
    }
}

fn not_found(message: &str) -> Reply {
    Reply::Refused(Refusal {
        kind: ErrorKind::NotFound,
        message: message.to_owned(),
        reserved: None,
    })
}

#[test]
fn a_shared_account_that_nothing_has_is_an_error() {
    let nothing = || Reply::Why(Vec::new());
    let daemon = Daemon::answering_each(&[nothing(), not_found("no limit is set")]);
    let output = daemon.bursar(&["why", "=nosuch-here"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "bursar: there is no shared account =nosuch-here, and nothing recorded names one\n"
    );
    assert_eq!(stdout(&output), "");
    let who = Some("=nosuch-here".parse().unwrap());
    assert_eq!(daemon.asked().ask, Operation::Limits { who });

    // One with an entry and without a group, and one that nobody may know of.
    let refused = Reply::Refused(Refusal {
        kind: ErrorKind::NotPermitted,
        message: String::new(),
        reserved: None,
    });
    for reply in [Reply::Limits(Vec::new()), refused] {
        let daemon = Daemon::answering_each(&[nothing(), reply]);
        let output = daemon.bursar(&["why", "=nosuch-here"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    // A group by which there might be one.
    let daemon = Daemon::answering(&nothing());
    let output = daemon.bursar(&["why", "=root"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn status_tells_a_group_that_nobody_has_from_one_without_a_limit() {
    for (who, said) in [
        (
            "@nosuch-here",
            "there is no group \"nosuch-here\"; check the name (getent group)",
        ),
        ("@root", "no limit concerns it"),
        ("nosuch-here", "no limit concerns it"),
    ] {
        let daemon = Daemon::answering(&not_found("no limit concerns it"));
        let output = daemon.bursar(&["status", who]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(stderr(&output), format!("bursar: {said}\n"));
    }
}

#[test]
fn doctor_answers_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let output = bursar()
        .args(["doctor", "--json", "--socket"])
        .arg(&socket)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let daemon = found
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["ability"] == "bursard")
        .unwrap();
    assert_eq!(daemon["state"], "missing");
    assert!(
        daemon["reason"].as_str().unwrap().contains("none.sock"),
        "{daemon}"
    );
}
