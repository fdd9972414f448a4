// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar metrics`: in a file, and to whoever asks over HTTP.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};

use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "metrics_say_what_status_says",
        place: Place::Anywhere,
        tell: metrics,
    },
    Story {
        name: "metrics_are_told_to_who_asks_over_http",
        place: Place::Anywhere,
        tell: metrics_over_http,
    },
    Story {
        name: "every_query_of_the_dashboard_finds_data",
        place: Place::Host,
        tell: dashboard,
    },
];

/// For Grafana.
const DASHBOARD: &str = include_str!("../../../dist/grafana/bursar.json");

fn metrics(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "metrics", "")?;
    world.daemon.start()?;
    world.daemon.limit("60548", "320M")?;
    // Near its notice, with pages that several have: scanned and corrected.
    let _hog = world.there("uid=60548 hold=90M leave=2 memfd=24M say=there pause")?;
    until("a correction, and the files being counted", || {
        let account = world.daemon.account("60548")?;
        let is_it = |it: &bursar_model::AccountStatus| {
            it.correction.is_some() && it.unmapped.get() >= 4 << 20
        };
        Ok(account.filter(is_it).map(drop))
    })?;
    let file = world.directory().join("bursar.prom");
    let path = file.display().to_string();
    let mut text = String::new();
    until("a file with a correction in it", || {
        let done = world.bursar(&["metrics", "--textfile", &path]).status()?;
        ensure!(done.success(), "metrics: {done}");
        text = fs::read_to_string(&file)?;
        Ok(text
            .contains("bursar_account_correction_age_seconds{")
            .then_some(()))
    })?;
    let status = world.daemon.status()?;
    let half = &status.kernel_half;
    let bound = (u64::from(half.counter_cpus) * 8).max(64) * half.page_bytes;
    ensure!(bound == status.error_bound_bytes.get(), "{half:?}");
    let value = |name: &str| {
        let found = text.lines().find_map(|line| {
            let is_it = line.starts_with(name);
            is_it.then(|| line.rsplit_once(' ')?.1.parse::<f64>().ok())?
        });
        found.with_context(|| format!("{name} in {text}"))
    };
    ensure!(
        value("bursar_error_bound_bytes ")? as u64 == bound,
        "{text}"
    );
    ensure!(value("bursar_held{")? >= f64::from(90 << 20), "{text}");
    ensure!(value("bursar_limit{")? as u64 == 320 << 20, "{text}");
    ensure!(value("bursar_surveys_total ")? >= 1.0, "{text}");
    ensure!(value("bursar_surveyed_accounts ")? as u64 == 1, "{text}");
    ensure!(
        value("bursar_account_correction_bytes{")? >= f64::from(100 << 20),
        "{text}"
    );
    ensure!(
        value("bursar_account_files_bytes{")? >= f64::from(4 << 20),
        "{text}"
    );
    ensure!(value("bursar_resums_total ")? >= 1.0, "{text}");
    ensure!(value("bursar_events_lost_total ")? as u64 == 0, "{text}");
    Ok(())
}

/// A request to `bursar metrics --http`, as a socket unit starts it.
fn scrape(world: &World, request: &str) -> Result<String> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut child = world
        .bursar(&["metrics", "--http", "--accounts", "1"])
        .stdin(OwnedFd::from(theirs.try_clone()?))
        .stdout(OwnedFd::from(theirs))
        .spawn()?;
    ours.write_all(request.as_bytes())?;
    let mut answer = String::new();
    ours.read_to_string(&mut answer)?;
    child.wait()?;
    Ok(answer)
}

fn metrics_over_http(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "metrics-http", "")?;
    world.daemon.start()?;
    world.daemon.limit("60548", "320M")?;
    world.daemon.limit("60549", "320M")?;
    let _hog = world.there("uid=60548 hold=60M say=there pause")?;
    let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    until("an answer with who holds most, alone", || {
        let answer = scrape(&world, get)?;
        ensure!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let held: Vec<&str> = answer
            .lines()
            .filter(|it| it.starts_with("bursar_held{"))
            .collect();
        let is_it = matches!(held.as_slice(), [only] if only.contains("uid=\"60548\""))
            && answer.contains("\nbursar_left_out_accounts 1\n");
        Ok(is_it.then_some(()))
    })?;
    let answer = scrape(&world, "POST /metrics HTTP/1.1\r\n\r\n")?;
    ensure!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let answer = scrape(&world, "GET /etc/shadow HTTP/1.1\r\n\r\n")?;
    ensure!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    world.daemon.end(libc::SIGKILL)?;
    let answer = scrape(&world, get)?;
    ensure!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    Ok(())
}

/// Answers scrapers as a socket unit with Accept=yes does, until it is dropped.
struct Exporter {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    fn start(world: &World) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let mut command = world.bursar(&["metrics", "--http"]);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(copy) = stream.try_clone() else {
                    continue;
                };
                let (stdin, stdout) = (OwnedFd::from(copy), OwnedFd::from(stream));
                // Whoever gets no answer asks again.
                let _ = command.stdin(stdin).stdout(stdout).status();
                command.stdin(Stdio::null()).stdout(Stdio::null());
            }
        });
        Ok(Self {
            port,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It waits for somebody.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Debian's own, in a directory of the story's.
struct Prometheus {
    process: Child,
    port: u16,
}

impl Prometheus {
    fn start(binaries: &Binaries, world: &World, scraped: u16) -> Result<Self> {
        // Free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let place = world.directory();
        let configuration = place.join("prometheus.yml");
        fs::write(
            &configuration,
            format!(
                "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: bursar\n    \
                 static_configs:\n      - targets: ['127.0.0.1:{scraped}']\n"
            ),
        )?;
        let program = binaries.path("programs/prometheus/usr/bin/prometheus");
        let process = Command::new(&program)
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                place.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| {
                format!("{program:?}: xtask/unpack target/release/programs prometheus")
            })?;
        Ok(Self { process, port })
    }

    /// How many series a query finds; none while it does not answer yet.
    fn finds(&self, query: &str) -> Result<usize> {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return Ok(0);
        };
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let request = format!("GET /api/v1/query?query={escaped} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let Some((head, body)) = answer.split_once("\r\n\r\n") else {
            return Ok(0);
        };
        if head.starts_with("HTTP/1.0 503") {
            return Ok(0);
        }
        ensure!(head.starts_with("HTTP/1.0 200"), "{query}: {answer}");
        let body: serde_json::Value = serde_json::from_str(body)?;
        Ok(body["data"]["result"].as_array().map_or(0, Vec::len))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn dashboard(binaries: &Binaries) -> Result<()> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels.iter().filter_map(|it| it["targets"].as_array());
    let queries: Vec<String> = targets
        .flatten()
        .filter_map(|it| Some(it["expr"].as_str()?.to_owned()))
        .map(|it| it.replace("$instance", ".*").replace("$account", ".*"))
        .collect();
    ensure!(queries.len() >= 20, "{queries:?}");
    let mut world = World::new(binaries, "dashboard", "")?;
    world.daemon.start()?;
    world.daemon.limit("60550", "64M")?;
    let _hog = world.there("uid=60550 hold=20M say=there pause")?;
    // Its memory is waited for, too.
    world.hog("uid=60550 hold=80M pause")?.expect_killed()?;
    let exporter = Exporter::start(&world)?;
    let prometheus = Prometheus::start(binaries, &world, exporter.port)?;
    for query in &queries {
        until(query, || {
            let found = prometheus.finds(query)?;
            Ok((found > 0).then_some(()))
        })?;
    }
    Ok(())
}
