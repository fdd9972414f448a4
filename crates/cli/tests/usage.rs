// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is typed wrongly, and the commands that need no daemon.

mod surroundings;

use std::fs;
use std::process::{Command, Output, Stdio};

use surroundings::bursar;

fn run(arguments: &[&str]) -> Output {
    bursar().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn what_is_typed_wrongly_is_said_and_exits_with_2() {
    let table: [(&[&str], &str); 17] = [
        (&[], "which command?"),
        (&["frobnicate"], "frobnicate"),
        (&["limit"], "which command?"),
        (&["limit", "set", "alice"], "<SIZE|RESOURCE=BARRIER:LIMIT>"),
        (
            &["limit", "set", "alice", "12X"],
            "\"12X\" is not a valid size",
        ),
        (&["limit", "set", "alice", "--", "-1"], "is negative"),
        (
            &["limit", "set", "a/b", "1G"],
            "\"a/b\" is not a valid name",
        ),
        (
            &["limit", "set", "alice", "numprocs=1:2"],
            "has no resource \"numprocs\"",
        ),
        (&["limit", "set", "alice", "memory=1G:2G"], "--barrier"),
        (
            &["limit", "set", "alice", "numproc=1:2", "numfile=2:1"],
            "numfile: the barrier (2) lies above the limit (1)",
        ),
        (
            &["limit", "set", "alice", "numproc=1", "--barrier", "80%"],
            "belong to a SIZE",
        ),
        (&["limit", "set", "alice", "1G", "2G"], "one SIZE"),
        (
            &["limit", "set", "alice", "numproc=1", "numproc=2"],
            "numproc is given twice",
        ),
        (&["events", "--since", "the day before"], "how long ago"),
        (&["why", "0"], "--user"),
        (&["why", "@staff"], "not an account"),
        (&["kill"], "<PID>"),
    ];
    for (arguments, message) in table {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(
            said.starts_with("bursar: ") && said.contains(message),
            "{arguments:?}: {said}"
        );
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["limit", "set", "-h"],
        &["--version"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stdout).contains("bursar"), "{arguments:?}");
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for arguments in [&["--help"][..], &["--version"], &["help", "limit", "set"]] {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_bursar"))
            .args(arguments)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(
            said.starts_with("bursar: cannot write the answer: "),
            "{said}"
        );
    }
}

#[test]
fn metrics_are_listed_for_programs_too() {
    for arguments in [
        ["--json", "metrics", "--list"],
        ["metrics", "--list", "--json"],
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let held = &listed.as_array().unwrap()[0];
        assert_eq!(held["name"], "bursar_held");
        assert_eq!(held["kind"], "gauge");
        assert_eq!(held["labels"][2], "resource");
        assert!(held["help"].is_string());
    }
}

/// That `command`, after the arguments `before` it, ended so, and why was said.
fn assert_cannot_run(output: &Output, code: i32, before: &[&str], command: &str) {
    assert_eq!(output.status.code(), Some(code), "{before:?} {command}");
    let said = text(&output.stderr);
    let start = format!("bursar: cannot run {command:?}: ");
    assert!(said.starts_with(&start), "{said}");
}

#[test]
fn a_command_that_cannot_be_run_exits_as_under_env() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let plain = plain.to_str().unwrap();
    let missing = folder.path().join("missing");
    let missing = missing.to_str().unwrap();
    for before in [
        &["run", "--"][..],
        &["run", "--lock", "--"],
        &["faults", "lock", "--"],
    ] {
        for (command, code) in [
            ("no-such-command-anywhere", 127),
            (missing, 127),
            (plain, 126),
            ("/", 126),
        ] {
            let output = run(&[before, &[command]].concat());
            assert_cannot_run(&output, code, before, command);
        }
    }
    let output = run(&["run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "its own, where it is run");
}

#[test]
fn what_is_in_path_and_cannot_be_executed_is_there() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), "#!/bin/sh\n").unwrap();
    fs::create_dir(folder.path().join("directory")).unwrap();
    for before in [
        &["run", "--"][..],
        &["run", "--lock", "--"],
        &["run", "--tmalloc", "--"],
        &["faults", "lock", "--"],
    ] {
        for (command, code) in [("plain", 126), ("directory", 126), ("missing", 127)] {
            let output = bursar()
                .env("PATH", folder.path())
                .args([before, &[command]].concat())
                .output()
                .unwrap();
            assert_cannot_run(&output, code, before, command);
        }
    }
}

#[test]
fn a_script_whose_interpreter_cannot_be_run_exits_as_under_env() {
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str, interpreter: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!{interpreter}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = script("missing", "/nonexistent/interpreter");
    let through = script("through", &missing);
    let folder_runs_it = script("folder", "/usr");
    let circle = script("circle", folder.path().join("circle").to_str().unwrap());
    for before in [
        &["run", "--"][..],
        &["run", "--lock", "--"],
        &["run", "--tmalloc", "--"],
        &["faults", "lock", "--"],
    ] {
        for (command, code) in [
            (&missing, 127),
            (&through, 127),
            (&folder_runs_it, 126),
            (&circle, 126),
        ] {
            let output = run(&[before, &[command.as_str()]].concat());
            assert_cannot_run(&output, code, before, command);
        }
    }
}

#[test]
fn packagers_get_pages_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man");
    let output = bursar()
        .args(["generate", "man"])
        .arg(&man)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(man.join("bursar-limit-set.1").exists());
    let output = run(&["generate", "completions", "bash"]);
    assert!(text(&output.stdout).contains("_bursar"));
}

fn check(name: &str, content: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), content).unwrap();
    let output = bursar()
        .current_dir(folder.path())
        .args(["check", name])
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    (output.status.code(), text(&output.stdout))
}

#[test]
fn a_file_that_has_only_temporary_limits_is_one_of_limits() {
    for table in ["[temporary]\nalice", "temporary.alice"] {
        let text = format!("{table} = {{ memmory = \"8Q\" }}\n");
        let (code, said) = check("site.toml", &text);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("temporary.alice"), "{said}");
    }
}

#[test]
fn limits_on_who_runs_the_machine_are_remarked() {
    let limits = "[limits]\nroot = { memory = \"8G\" }\n1 = { memory = \"8G\" }\n2 = { memory = \"none\" }\n";
    let (code, said) = check("limits.toml", limits);
    assert_eq!(code, Some(0), "{said}");
    for line in [
        "limits.toml:2: limits.root: a limit on root can",
        "limits.toml:3: limits.1: a limit on a user below UID_MIN",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(
        said.matches("can kill system services").count(),
        2,
        "{said}"
    );
}

#[test]
fn files_that_are_right_are_said_to_be() {
    let limits = "[limits]\nalice = { memory = \"512M\" }\n";
    assert_eq!(
        check("limits.toml", limits),
        (Some(0), "limits.toml: right, with 1 limit\n".into())
    );
    assert_eq!(
        check("other", limits),
        (Some(0), "other: right, with 1 limit\n".into())
    );
    let (code, said) = check("bursar.toml", "");
    assert!(
        code == Some(0) && said.contains("bursar.toml: right"),
        "{said}"
    );
}

#[test]
fn errors_in_files_are_said_with_their_line_and_exit_with_2() {
    let limits = "[limits]\nalice = { memory = \"512M\" }\nbob = { memory = \"12X\" }\n";
    let (code, said) = check("limits.toml", limits);
    assert_eq!(code, Some(2));
    assert!(
        said.starts_with("limits.toml:3: limits.bob.memory: "),
        "{said}"
    );
    assert!(said.ends_with("\n1 error\n"), "{said}");
    let (code, said) = check("bursar.toml", "\n[paths]\nruntime = 5\n");
    assert_eq!(code, Some(2));
    assert!(said.starts_with("bursar.toml:3: paths.runtime: "), "{said}");
    let (code, said) = check("half.toml", "[limits]\nalice = { memory");
    assert_eq!(code, Some(2));
    assert!(said.starts_with("half.toml:2: "), "{said}");
}

#[test]
fn a_remark_is_no_error() {
    let (code, said) = check("limits.toml", "[limits]\nalice = { memory = \"999T\" }\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.starts_with("note: limits.toml:2: limits.alice: "),
        "{said}"
    );
    let (code, said) = check("bursar.toml", "nonsense = 1\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.starts_with("note: bursar.toml:1: nonsense: "),
        "{said}"
    );
}

#[test]
fn a_configuration_that_names_no_file_of_limits_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.tmol");
    let config = format!("[paths]\nlimits = {limits:?}\n");
    let (code, said) = check("bursar.toml", &config);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("limits.tmol: the file that paths.limits names does not exist"),
        "{said}"
    );
    assert!(said.ends_with("\n1 error\n"), "{said}");
    // A link to what is not mounted.
    std::os::unix::fs::symlink("nowhere", &limits).unwrap();
    assert_eq!(check("bursar.toml", &config).0, Some(2));
    fs::remove_file(&limits).unwrap();
    fs::write(&limits, "").unwrap();
    assert_eq!(
        check("bursar.toml", &config),
        (Some(0), "bursar.toml: right\n".into())
    );
}

#[test]
fn a_file_that_is_not_there_exits_with_2() {
    let output = run(&["check", "/nonexistent/limits.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("/nonexistent/limits.toml"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_is_no_file_is_refused_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    let file = fs::File::create(&large).unwrap();
    file.set_len(bursar_config::MAX_FILE + 1).unwrap();
    let fifo = folder.path().join("limits.toml");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let table = [
        (fifo.to_str().unwrap(), "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        (large.to_str().unwrap(), "is larger than 4 MiB"),
    ];
    for (path, message) in table {
        // Nobody writes into the FIFO: whoever waited for it would wait for ever.
        let output = Command::new("timeout")
            .args(["20", env!("CARGO_BIN_EXE_bursar"), "check", path])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}");
        let said = text(&output.stdout);
        assert!(said.starts_with(&format!("{path}: {message}")), "{said}");
    }
}

#[test]
fn errors_in_files_are_there_for_programs_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    fs::write(&file, "[limits]\nbob = { memory = \"12X\" }\n").unwrap();
    let output = bursar()
        .args(["check", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["errors"][0]["line"], 2);
    assert_eq!(report["errors"][0]["key"], "limits.bob.memory");
}

#[test]
fn processes_are_killed_and_waited_for() {
    let sleeper = || {
        Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children = [sleeper(), sleeper()];
    let pids = children.each_ref().map(|child| child.id().to_string());
    // Once for each, however often it is named.
    let output = run(&["kill", &pids[0], &pids[1], &pids[0]]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert_eq!(said.lines().count(), 2, "{said}");
    for (line, pid) in said.lines().zip(&pids) {
        assert!(
            line.starts_with(&format!("process {pid} (sleep): gone after ")),
            "{line}"
        );
    }
    for child in &mut children {
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }
}

#[test]
fn one_that_cannot_be_killed_does_not_save_the_others() {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let output = run(&["kill", "1", &child.id().to_string(), "2147483647", "--json"]);
    child.wait().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let outcomes: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let killed: Vec<_> = outcomes
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["killed"] == true)
        .collect();
    assert_eq!(killed, [false, true, false]);
    assert!(outcomes[1]["duration_ns"].as_u64().is_some());
    assert_eq!(outcomes[2]["reason"], "no such process");
}

#[test]
fn one_that_has_ended_already_is_said_to_have() {
    let mut child = Command::new("true").spawn().unwrap();
    // Ended, not yet waited for.
    let stat = format!("/proc/{}/stat", child.id());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let output = run(&["kill", &child.id().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("has ended already"),
        "{}",
        text(&output.stderr)
    );
    child.wait().unwrap();
}
