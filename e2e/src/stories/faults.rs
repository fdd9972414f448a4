// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page faults (S3): measured, watched, kept out, proven absent.

mod verify;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use bursar_model::Bytes;
use serde_json::Value;

use crate::length::whole;
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::stories::ALICE;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) use self::verify::STORIES as VERIFY_STORIES;

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "measure_counts_exactly_the_pages_that_were_touched",
        place: Place::Anywhere,
        tell: measure,
    },
    Story {
        name: "measure_in_batches_counts_exactly_too",
        place: Place::Anywhere,
        tell: measure_in_batches,
    },
    Story {
        name: "watch_counts_what_getrusage_counts",
        place: Place::Anywhere,
        tell: watch_is_exact,
    },
    Story {
        name: "watch_counts_a_flood_whole_and_shares_it_out_as_it_saw_it",
        place: Place::Anywhere,
        tell: watch_flood,
    },
    Story {
        name: "watch_counts_processes_born_in_a_flood",
        place: Place::Anywhere,
        tell: watch_born_in_flood,
    },
    Story {
        name: "watch_of_an_account_names_its_processes",
        place: Place::Anywhere,
        tell: watch_account,
    },
    Story {
        name: "watch_ends_with_a_process_that_goes_meanwhile",
        place: Place::Anywhere,
        tell: watch_pid_gone,
    },
    Story {
        name: "a_locked_program_takes_no_faults_and_an_unlocked_one_is_told_where",
        place: Place::Anywhere,
        tell: churn,
    },
    Story {
        name: "a_cpp_program_is_locked_and_proven",
        place: Place::Host,
        tell: cpp,
    },
    Story {
        name: "a_python_program_is_locked_and_proven",
        place: Place::Host,
        tell: python,
    },
    Story {
        name: "a_c_program_locks_itself_and_says_when_it_has_started",
        place: Place::Host,
        tell: own_lock,
    },
    Story {
        name: "a_locked_heap_of_more_than_two_gib_is_kept_when_it_is_freed",
        place: Place::Host,
        tell: large_heap,
    },
    Story {
        name: "locked_on_fault_memory_is_resident_once_touched_and_not_before",
        place: Place::Host,
        tell: on_fault,
    },
    Story {
        name: "faults_of_others_and_of_kernel_threads_are_refused",
        place: Place::Anywhere,
        tell: refused,
    },
    Story {
        name: "an_ordinary_user_sees_his_own_rates",
        place: Place::Anywhere,
        tell: ordinary_user,
    },
    Story {
        name: "what_is_too_large_to_lock_is_refused_and_nothing_stays_locked",
        place: Place::Anywhere,
        tell: too_large,
    },
    Story {
        name: "what_the_account_has_no_room_for_is_not_locked_and_nobody_is_killed",
        place: Place::Host,
        tell: account_full,
    },
    Story {
        name: "watching_a_fault_storm_costs_at_most_a_twentieth",
        place: Place::Named,
        tell: overhead,
    },
];

/// Seconds that proofs last.
fn seconds() -> String {
    whole(60).or(3).to_string()
}

fn faults(binaries: &Binaries, words: &[&str]) -> Command {
    let mut command = Command::new(binaries.path("bursar"));
    command
        .arg("faults")
        .args(words)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The last line of stdout as JSON.
fn answer(output: &Output) -> Result<Value> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout
        .lines()
        .last()
        .with_context(|| format!("an answer: {}", text(output)))?;
    serde_json::from_str(line).with_context(|| format!("JSON: {line}"))
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("{key} in {value}"))
}

/// What `faulter known` says of itself.
fn own_count(said: &str) -> Result<u64> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("own "))
        .with_context(|| format!("own: {said}"))?;
    line.split(' ').map(|word| Ok(word.parse::<u64>()?)).sum()
}

fn measure(binaries: &Binaries) -> Result<()> {
    let output = faults(
        binaries,
        &["measure", "--pages", "4000", "--passes", "3", "--json"],
    )
    .output()?;
    ensure!(output.status.success(), "{}", text(&output));
    let answer = answer(&output)?;
    ensure!(answer["all_counts_right"] == true, "{answer}");
    ensure!(number(&answer, "ratio_permille")? > 1000, "{answer}");
    for case in answer["cases"].as_array().context("cases")? {
        let minor = |pass: &Value| pass["faults"]["minor"].as_u64().unwrap_or(u64::MAX);
        let passes = case["passes"].as_array().context("passes")?;
        let name = case["case"].as_str().unwrap_or_default();
        for pass in passes {
            match name {
                "mapping" | "after_fork" => ensure!(minor(pass) == 4000, "{case}"),
                // Less those in which malloc's own headers lie, which it has touched.
                "memalign" => ensure!((3900..=4000).contains(&minor(pass)), "{case}"),
                "huge" => {}
                _ => ensure!(minor(pass) == 0, "{case}"),
            }
        }
        ensure!(name == "huge" || passes.len() == 3, "{case}");
    }
    Ok(())
}

fn measure_in_batches(binaries: &Binaries) -> Result<()> {
    let bytes = (38 << 20) << (bursar_host::machine::page_size().shift() - 12);
    let memory = bytes.to_string();
    let words = [
        "measure", "--pages", "10000", "--passes", "1", "--memory", &memory, "--json",
    ];
    let output = faults(binaries, &words).output()?;
    ensure!(output.status.success(), "{}", text(&output));
    let answer = answer(&output)?;
    let cases = answer["cases"].as_array().context("cases")?;
    // Two pages each for malloc's and for copies, and those do not fit at once.
    for name in ["memalign", "after_fork"] {
        let case = cases.iter().find(|it| it["case"] == name).context(name)?;
        let remark = case["remark"].as_str().unwrap_or_default();
        ensure!(remark.starts_with("in 3 batches"), "{case}");
        ensure!(
            case["passes"][0]["faults"]["minor"] == case["passes"][0]["expected"],
            "{case}"
        );
    }
    let words = ["measure", "--pages", "10000", "--memory", "1M"];
    expect(&faults(binaries, &words).output()?, 1, "too little")
}

/// What a faulter counted itself, and the report of who watched it, which says the same.
fn watched_faulter(binaries: &Binaries, words: [&str; 2]) -> Result<(u64, Value)> {
    let output = faults(binaries, &["watch", "--quiet", "--json", "--"])
        .arg(binaries.path("faulter"))
        .args(words)
        .output()?;
    ensure!(output.status.success(), "{}", text(&output));
    let own = own_count(&String::from_utf8_lossy(&output.stderr))?;
    let report = answer(&output)?;
    let seen = number(&report, "minor")? + number(&report, "major")?;
    // What follows its own look: the end of the program, which touches what it has not before.
    ensure!(
        seen >= own && seen - own < 40,
        "{seen} seen, {own} counted by itself"
    );
    Ok((own, report))
}

fn watch_is_exact(binaries: &Binaries) -> Result<()> {
    let faulter = binaries.path("faulter");
    for pages in ["1", "500", "20000"] {
        let (_, report) = watched_faulter(binaries, ["known", pages])?;
        let told = faults(binaries, &["watch", "--quiet", "--"])
            .arg(&faulter)
            .args(["known", pages])
            .output()?;
        let told = text(&told);
        let sum = told
            .lines()
            .find_map(|line| line.strip_prefix("in ")?.split_once(": ").map(|it| it.1));
        let sum = sum
            .and_then(|line| line.strip_suffix(" faults"))
            .context("a sum")?;
        let kernel = told
            .lines()
            .find_map(|line| line.split_once("getrusage counts "))
            .context("getrusage")?
            .1;
        let (minor, rest) = kernel.split_once(" minor and ").context("minor")?;
        let major = rest.split(' ').next().context("major")?;
        ensure!(sum == format!("{minor} minor and {major} major"), "{told}");
        let anon = report["processes"][0]["mappings"]
            .as_array()
            .context("mappings")?;
        let in_anon: u64 = anon
            .iter()
            .filter(|it| it["kind"] == "anon" || it["kind"] == "unknown")
            .filter_map(|it| it["minor"].as_u64())
            .sum();
        // A slow guest takes it for a flood, of which a part is shared out.
        let estimated = number(&report, "shared_out")? / 20;
        ensure!(
            in_anon + estimated >= pages.parse::<u64>()? + 300,
            "{in_anon} of {pages} in anonymous memory: {report}"
        );
        ensure!(
            report["losses"].is_null() || report["losses"]["threads"] == 0,
            "{report}"
        );
    }
    Ok(())
}

/// Three of four faults in anonymous memory, for a few seconds, of which a part is seen.
fn watch_flood(binaries: &Binaries) -> Result<()> {
    let (own, report) = watched_faulter(binaries, ["mixed", "500"])?;
    let mappings = report["processes"][0]["mappings"]
        .as_array()
        .context("mappings")?;
    let sum = |kind: &str| -> u64 {
        let of_kind = mappings.iter().filter(|it| it["kind"] == kind);
        of_kind.filter_map(|it| it["minor"].as_u64()).sum()
    };
    if mappings.first().is_some_and(no_mapping_is_known) {
        ensure!(
            mappings.len() == 1 && sum("unknown") > own * 99 / 100,
            "{report}"
        );
        return Ok(());
    }
    let (anon, file) = (sum("anon"), sum("file"));
    let share = file as f64 / (anon + file) as f64;
    let shared_out = number(&report, "shared_out")?;
    println!(
        "        {own} faults, {shared_out} of them not looked at; {:.1} % of them in the file (25.0)",
        share * 100.0
    );
    ensure!((0.22..=0.28).contains(&share), "{report}");
    ensure!(anon + file > own * 99 / 100, "{report}");
    Ok(())
}

/// Processes that nobody may have looked at as long as they lived.
fn watch_born_in_flood(binaries: &Binaries) -> Result<()> {
    let mut watch = faults(binaries, &["watch", "--json", "--account"])
        .args([&ALICE.to_string(), "--for", "120"])
        .stdout(Stdio::piped())
        .spawn()?;
    // Not before it has looked once: in a guest loading takes a while.
    let mut looks = BufReader::new(watch.stdout.take().context("its stdout")?).lines();
    looks.next().context("a look")??;
    let faulter = binaries.path("faulter");
    let born = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!(
            "i=0; while [ $i -lt 100 ]; do {} known 9000 || exit 1; i=$((i + 1)); done",
            faulter.display()
        ))
        .uid(ALICE)
        .gid(ALICE)
        .output()?;
    ensure!(born.status.success(), "{}", text(&born));
    let said = text(&born);
    let own: u64 = said.lines().map(own_count).sum::<Result<u64>>()?;
    send(watch.id(), libc::SIGINT)?;
    let last = looks.last().context("a last look")??;
    watch.wait()?;
    let report: Value = serde_json::from_str(&last).context(last)?;
    let seen = number(&report, "minor")? + number(&report, "major")?;
    let processes = report["processes"].as_array().context("processes")?;
    let mappings = processes.iter().filter_map(|it| it["mappings"].as_array());
    let unseen = mappings
        .flatten()
        .filter(|it| it["kind"] == "unseen")
        .filter_map(|it| it["minor"].as_u64());
    println!(
        "        100 processes counted {own}, seen {seen}; not looked at {} that are shared out, and {} of \
         processes never looked at",
        number(&report, "shared_out")?,
        unseen.sum::<u64>()
    );
    // Beside them the shell, and how each began to run the program and ended.
    ensure!(
        seen >= own && seen - own < 101 * 300,
        "{seen} seen, {own} counted by themselves"
    );
    Ok(())
}

/// A churn of Alice's.
struct Churn(std::process::Child);

impl Churn {
    fn start(binaries: &Binaries) -> Result<Self> {
        let mut command = Command::new(binaries.path("faulter"));
        command
            .arg("churn")
            .stdout(Stdio::null())
            .uid(ALICE)
            .gid(ALICE);
        Ok(Self(command.spawn().context("start faulter")?))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch_account(binaries: &Binaries) -> Result<()> {
    let churn = Churn::start(binaries)?;
    let account = ALICE.to_string();
    let output = faults(
        binaries,
        &[
            "watch",
            "--account",
            &account,
            "--for",
            "2",
            "--interval",
            "0.5",
            "--json",
        ],
    )
    .output()?;
    ensure!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    ensure!(lines >= 3, "{lines} looks");
    let report = answer(&output)?;
    let process = &report["processes"][0];
    ensure!(
        process["pid"].as_u64() == Some(u64::from(churn.0.id())) && process["uid"] == ALICE,
        "{report}"
    );
    ensure!(number(process, "minor")? > 500, "{report}");
    let mapping = &process["mappings"][0];
    ensure!(
        mapping["kind"] == "anon" || no_mapping_is_known(mapping),
        "{report}"
    );
    ensure!(
        report["minor_latency"]["p50_ns"]
            .as_u64()
            .is_some_and(|ns| ns > 50),
        "{report}"
    );
    let site = mapping["sites"][0]["symbol"].as_str().unwrap_or_default();
    ensure!(site.contains("faulter"), "{report}");
    Ok(())
}

fn watch_pid_gone(binaries: &Binaries) -> Result<()> {
    let churn = Churn::start(binaries)?;
    let mut watch = faults(
        binaries,
        &["watch", "--json", "--interval", "0.1", &churn.pid()],
    )
    .stdout(Stdio::piped())
    .spawn()?;
    // Not before the watch has seen it fault: in a guest loading takes a while.
    let mut looks = BufReader::new(watch.stdout.take().context("its stdout")?).lines();
    let sees = |line: &str| {
        serde_json::from_str::<Value>(line).is_ok_and(|it| it["minor"].as_u64() > Some(0))
    };
    looks
        .by_ref()
        .map_while(|line| line.ok())
        .find(|line| sees(line))
        .context("a look with faults")?;
    drop(churn);
    let ended = until("the watch's end", || Ok(watch.try_wait()?));
    if ended.is_err() {
        watch.kill()?;
    }
    ensure!(ended?.success());
    let last = looks
        .map_while(|line| line.ok())
        .last()
        .context("a last look")?;
    let report: Value = serde_json::from_str(&last)?;
    ensure!(
        report["is_final"] == true && number(&report, "minor")? > 0,
        "{report}"
    );
    Ok(())
}

/// With PREEMPT_RT nobody may look for a mapping where interrupts are off (kernel/bpf/mmap_unlock_work.h), as they are
/// at a fault: docs/reference/kernels.md. What is counted is the same.
fn no_mapping_is_known(mapping: &Value) -> bool {
    let version = std::fs::read_to_string("/proc/version");
    let is_real_time = version.is_ok_and(|it| it.contains("PREEMPT_RT"));
    is_real_time && mapping["kind"] == "unknown"
}

/// Verifies a churning command unlocked and locked, whose start phase ends as `start` says.
fn verify(binaries: &Binaries, command: &[&str], start: [&str; 2]) -> Result<()> {
    let words = ["verify", "--json", "--marker", "ready", "--for"];
    let open = faults(binaries, &words)
        .args(["3", "--"])
        .args(command)
        .output()?;
    ensure!(open.status.code() == Some(1), "{}", text(&open));
    let verdict = answer(&open)?;
    ensure!(verdict["passed"] == false, "{verdict}");
    ensure!(
        number(&verdict, "minor")? > 3000,
        "thousands a second: {verdict}"
    );
    let worst = &verdict["mappings"][0];
    ensure!(
        worst["kind"] == "anon" || worst["kind"] == "heap" || no_mapping_is_known(worst),
        "{verdict}"
    );
    ensure!(
        number(worst, "minor")? * 10 >= number(&verdict, "minor")? * 9,
        "{verdict}"
    );
    ensure!(
        verdict["records"]
            .as_array()
            .is_some_and(|it| !it.is_empty()),
        "{verdict}"
    );

    let locked = faults(
        binaries,
        &["verify", "--json", "--lock", "--heap", "96M", "--for"],
    )
    .arg(seconds())
    .args(start)
    .arg("--")
    .args(command)
    .output()?;
    let verdict = answer(&locked)?;
    ensure!(locked.status.success(), "{}", text(&locked));
    ensure!(
        verdict["passed"] == true && number(&verdict, "minor")? == 0,
        "{verdict}"
    );
    ensure!(
        number(&verdict, "major")? == 0 && number(&verdict, "locked_bytes")? > 96 << 20,
        "{verdict}"
    );
    Ok(())
}

fn churn(binaries: &Binaries) -> Result<()> {
    let path = binaries.path("faulter").display().to_string();
    verify(binaries, &[&path, "churn"], ["--marker", "ready"])
}

fn cpp(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "cpp", "")?;
    let (source, program) = (
        world.directory().join("loop.cc"),
        world.directory().join("loop"),
    );
    fs::write(
        &source,
        "#include <chrono>\n#include <cstdio>\n#include <memory>\n#include <thread>\n#include <vector>\n\
         int main() { std::puts(\"ready\"); std::fflush(stdout); unsigned long sum = 0;\n\
         for (;;) { std::vector<std::vector<char>> rows(30, std::vector<char>(40000));\n\
         auto block = std::make_unique_for_overwrite<char[]>(40 << 20);\n\
         for (int i = 0; i < 3000; i++) block[i * 4096] = char(i);\n\
         sum += block[4096] + rows[7][7];\n\
         std::this_thread::sleep_for(std::chrono::milliseconds(5)); } }\n",
    )?;
    let built = Command::new("g++")
        .args(["-std=c++20", "-O1", "-o"])
        .arg(&program)
        .arg(&source)
        .output()?;
    ensure!(built.status.success(), "{}", text(&built));
    // Its first rounds load what it is linked with.
    verify(
        binaries,
        &[&program.display().to_string()],
        ["--after", "3"],
    )
}

fn python(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "python", "")?;
    let script = world.directory().join("loop.py");
    fs::write(
        &script,
        "import time\nprint('ready', flush=True)\nwhile True:\n    x = [str(i) * 10 for i in range(20000)]\n    \
         y = bytearray(40000000)\n    del x, y\n    time.sleep(0.005)\n",
    )?;
    let said = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()?;
    let real = PathBuf::from(String::from_utf8(said.stdout)?.trim());
    verify(
        binaries,
        &[&real.display().to_string(), &script.display().to_string()],
        ["--after", "3"],
    )
}

/// prefault.h from C, and `verify --signal`, which it tells.
const OWN_LOCK: &str = r#"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "prefault.h"

static int refuses(int result, int with) { return result == -1 && errno == with; }

int main(int argc, char **argv)
{
	struct prefault_options options = PREFAULT_OPTIONS_INIT, old = options;
	struct prefault_counts before, after;

	options.heap_bytes = 64 << 20;
	old.size = 4;
	if (!refuses(prefault_lock(NULL), EINVAL) || !refuses(prefault_lock(&old), EINVAL) ||
	    !refuses(prefault_count(NULL), EINVAL) || !refuses(prefault_range(NULL, 1), EINVAL) ||
	    !refuses(prefault_stack((size_t)1 << 40), ENOMEM))
		return 3;
	if (argc > 1)
		return refuses(prefault_started(), ESRCH) ? 0 : 4;
	if (prefault_lock(&options) || prefault_started() || prefault_count(&before))
		return 5;
	for (;;) {
		char *block = malloc(30 << 20);

		for (size_t at = 0; block && at < 30 << 20; at += 4096)
			block[at] = 1;
		free(block);
		if (!block || prefault_count(&after) || after.minor != before.minor)
			return 6;
		usleep(1000);
	}
}
"#;

/// More than 2 GiB, locked as it is touched, which is never.
const LARGE_HEAP: &str = r#"
#include <stdlib.h>
#include <unistd.h>
#include "prefault.h"

int main(void)
{
	struct prefault_options options = PREFAULT_OPTIONS_INIT;
	size_t size = ((size_t)2 << 30) + (64 << 20);
	char *before, *end;
	void *volatile block;

	options.flags = PREFAULT_ONFAULT;
	if (prefault_lock(&options))
		return 3;
	before = sbrk(0);
	block = malloc(size);
	end = sbrk(0);
	if (!block || end < before + size)
		return 4;
	free(block);
	return sbrk(0) == end ? 0 : 5;
}
"#;

/// A C program that uses libprefault, and one that has it within itself.
fn build(world: &World, binaries: &Binaries, code: &str) -> Result<PathBuf> {
    link(world, binaries, code, "libprefault.so", &[])
}

fn build_static(world: &World, binaries: &Binaries, code: &str) -> Result<PathBuf> {
    let words = ["-static", "-lpthread", "-ldl"];
    link(world, binaries, code, "libprefault.a", &words)
}

fn link(
    world: &World,
    binaries: &Binaries,
    code: &str,
    library: &str,
    words: &[&str],
) -> Result<PathBuf> {
    let (source, program) = (
        world.directory().join("own.c"),
        world.directory().join(format!("own-{library}")),
    );
    fs::write(&source, code)?;
    let library = binaries.path(library);
    let beside = library.parent().context("its directory")?;
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-O1", "-I"])
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../crates/prefault/include"
        ))
        .arg("-o")
        .arg(&program)
        .args([&source, &library])
        .args(words)
        .arg(format!("-Wl,-rpath,{}", beside.display()))
        .output()?;
    ensure!(built.status.success(), "{}", text(&built));
    Ok(program)
}

fn large_heap(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "large-heap", "")?;
    let ended = Command::new(build(&world, binaries, LARGE_HEAP)?).status()?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

fn own_lock(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "own-lock", "")?;
    let program = build(&world, binaries, OWN_LOCK)?;
    let alone = Command::new(&program).arg("alone").output()?;
    ensure!(
        alone.status.success(),
        "its own checks: {:?} {}",
        alone.status,
        text(&alone)
    );
    let alone = Command::new(build_static(&world, binaries, OWN_LOCK)?)
        .arg("alone")
        .status()?;
    ensure!(alone.success(), "linked statically: {alone}");
    let proof = faults(
        binaries,
        &["verify", "--json", "--signal", "--for", "2", "--"],
    )
    .arg(&program)
    .output()?;
    let verdict = answer(&proof)?;
    ensure!(
        proof.status.success() && verdict["passed"] == true && number(&verdict, "minor")? == 0,
        "{}",
        text(&proof)
    );
    Ok(())
}

fn on_fault(binaries: &Binaries) -> Result<()> {
    let script = "import mmap, os\nm = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                  m[:8 << 20] = bytes(8 << 20)\n\
                  print(open('/proc/self/smaps_rollup').read())\n";
    let locked_kib = |words: &[&str]| -> Result<u64> {
        let mut command = faults(binaries, &["lock"]);
        command
            .args(words)
            .args(["--", "/usr/bin/python3", "-c", script]);
        let output = command.output()?;
        ensure!(output.status.success(), "{}", text(&output));
        let said = text(&output);
        let line = said.lines().find_map(|line| line.strip_prefix("Locked:"));
        let kib = line.context("Locked:")?.trim().trim_end_matches(" kB");
        Ok(kib.parse()?)
    };
    let (whole, touched) = (locked_kib(&[])?, locked_kib(&["--on-fault"])?);
    // smaps' Locked is what is resident of it: all 64 MiB, or the eight that were touched.
    ensure!(
        whole >= 64 << 10 && touched >= 8 << 10 && touched + (50 << 10) <= whole,
        "{whole} KiB locked at once, {touched} KiB as they were touched"
    );
    Ok(())
}

/// Expects a refusal with this exit code and these words.
fn expect(output: &Output, code: i32, words: &str) -> Result<()> {
    let said = text(output);
    if output.status.code() != Some(code) || !said.contains(words) {
        bail!(
            "expected {code} and {words:?}: {:?} {said}",
            output.status.code()
        );
    }
    Ok(())
}

fn refused(binaries: &Binaries) -> Result<()> {
    expect(
        &faults(binaries, &["watch", "2"]).output()?,
        1,
        "is a kernel thread",
    )?;
    expect(
        &faults(binaries, &["verify", "2"]).output()?,
        1,
        "is a kernel thread",
    )?;
    expect(
        &faults(binaries, &["watch", "4194303"]).output()?,
        1,
        "there is no process 4194303",
    )?;
    let mut command = faults(binaries, &["watch", "1"]);
    expect(
        &command.uid(ALICE).gid(ALICE).output()?,
        3,
        "your own processes",
    )?;
    let mut command = faults(binaries, &["watch", "--account", "0"]);
    expect(&command.uid(ALICE).gid(ALICE).output()?, 3, "only root")?;
    let mut command = faults(binaries, &["verify", "1"]);
    expect(
        &command.uid(ALICE).gid(ALICE).output()?,
        3,
        "your own processes",
    )?;
    // The Debian package busybox-static, which guests have as well.
    for path in ["/bin/busybox", "/usr/bin/busybox"] {
        if fs::exists(path)? {
            let output = faults(binaries, &["lock", "--", path, "true"]).output()?;
            expect(&output, 1, "statically linked")?;
        }
    }
    expect(
        &faults(binaries, &["lock", "--", "no-such-program"]).output()?,
        127,
        "no such program",
    )?;
    let ended = faults(binaries, &["verify", "--after", "1", "--", "true"]).output()?;
    expect(&ended, 1, "ended in its start phase")?;
    let ended = faults(
        binaries,
        &["verify", "--after", "0.1", "--for", "5", "--", "sleep", "1"],
    )
    .output()?;
    expect(&ended, 1, "before the time was over")
}

fn ordinary_user(binaries: &Binaries) -> Result<()> {
    let churn = Churn::start(binaries)?;
    let mut command = faults(binaries, &["watch", "--json", "--for", "1", &churn.pid()]);
    let output = command.uid(ALICE).gid(ALICE).output()?;
    ensure!(output.status.success(), "{}", text(&output));
    let report = answer(&output)?;
    ensure!(
        report["source"] == "proc" && number(&report, "minor")? > 100,
        "{report}"
    );
    let mut command = faults(binaries, &["verify", "--json", "--for", "1", &churn.pid()]);
    let output = command.uid(ALICE).gid(ALICE).output()?;
    let verdict = answer(&output)?;
    ensure!(
        output.status.code() == Some(1) && verdict["source"] == "proc",
        "{verdict}"
    );
    ensure!(number(&verdict, "minor")? > 100, "{verdict}");
    Ok(())
}

/// Locks as alice, who may lock as much as she likes.
fn lock_as_alice(world: &World, heap: &str) -> Result<Output> {
    let lock = world.bursar(&["run", "--lock", "--heap", heap, "--", "sleep", "0"]);
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={ALICE}"), format!("--regid={ALICE}")])
        .args(["--clear-groups", "--inh-caps=+ipc_lock"])
        .arg("--ambient-caps=+ipc_lock")
        .arg(lock.get_program())
        .args(lock.get_args());
    Ok(command.stdin(Stdio::null()).output()?)
}

fn account_full(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lock-account", "")?;
    world.daemon.start()?;
    let alice = ALICE.to_string();
    world.daemon.limit(&alice, "200M")?;
    let refused = lock_as_alice(&world, "400M")?;
    expect(&refused, 125, "no room below its barrier")?;
    expect(&lock_as_alice(&world, "50M")?, 0, "")?;
    let account = world.daemon.account(&alice)?.context("the account")?;
    ensure!(account.kills == 0, "{} were killed", account.kills);
    until("all reservations to be gone", || {
        Ok((world.daemon.memory(&alice)?.reserved == Bytes::ZERO).then_some(()))
    })
}

fn too_large(binaries: &Binaries) -> Result<()> {
    let faulter = binaries.path("faulter");
    let locked = |words: &[&str]| {
        let mut command = faults(binaries, &["lock"]);
        command
            .args(words)
            .arg("--")
            .arg(&faulter)
            .args(["known", "1"]);
        command
    };
    let before = mlocked()?;
    expect(
        &locked(&["--heap", "100%"]).output()?,
        1,
        "memory is too small",
    )?;
    // A limit that is too small, met by us and by the library from inside.
    let with_limit = |words: &[&str]| {
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -l 64; exec \"$@\"", "sh"])
            .arg(binaries.path("bursar"));
        command
            .args(["faults", "lock"])
            .args(words)
            .arg("--")
            .arg(&faulter)
            .args(["known", "1"]);
        command.uid(ALICE).gid(ALICE).stdin(Stdio::null());
        command
    };
    expect(
        &with_limit(&["--heap", "1M"]).output()?,
        1,
        "RLIMIT_MEMLOCK allows",
    )?;
    expect(
        &with_limit(&["--stack", "0"]).output()?,
        125,
        "RLIMIT_MEMLOCK allows 1 MiB",
    )?;
    expect(
        &locked(&["--stack", "200M"]).output()?,
        125,
        "stack may not grow as deep",
    )?;
    let after = until("nothing left locked", || {
        let now = mlocked()?;
        Ok((now <= before + 1024).then_some(now))
    })?;
    ensure!(
        after <= before + 1024,
        "{before} KiB locked before, {after} after"
    );
    Ok(())
}

/// Mlocked of /proc/meminfo, KiB.
fn mlocked() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Mlocked:"))
        .context("Mlocked")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// Each watched run against the mean of the two without a watch around it: what else the machine does,
/// and what the processor's clock does, is in all three.
/// Of the whole storm, the first half second, in which each fault is seen, included.
fn overhead(binaries: &Binaries) -> Result<()> {
    const PAIRS: usize = 25;
    let faulter = binaries.path("faulter");
    let rounds = "100";
    let run = |mut command: Command| -> Result<f64> {
        let output = command.output()?;
        ensure!(output.status.success(), "{}", text(&output));
        let all = text(&output);
        let figures: Vec<f64> = all.lines().filter_map(|line| line.parse().ok()).collect();
        ensure!(figures.len() == 100, "{all}");
        Ok(figures.iter().sum::<f64>() / figures.len() as f64)
    };
    let plain = || {
        let mut plain = Command::new(&faulter);
        plain.args(["storm", rounds]);
        run(plain)
    };
    let mut ratios = Vec::with_capacity(PAIRS);
    let mut nanos = Vec::with_capacity(PAIRS);
    let mut before = plain()?;
    for _ in 0..PAIRS {
        let mut watched = faults(binaries, &["watch", "--quiet", "--json", "--"]);
        watched.arg(&faulter).args(["storm", rounds]);
        let watched = run(watched)?;
        let after = plain()?;
        ratios.push(watched / f64::midpoint(before, after));
        nanos.push(after);
        before = after;
    }
    ratios.sort_by(f64::total_cmp);
    nanos.sort_by(f64::total_cmp);
    let median = ratios[PAIRS / 2];
    println!(
        "        storm watched / not: median {median:.3}, half of them {:.3} to {:.3}; {} ns a fault without",
        ratios[PAIRS / 4],
        ratios[PAIRS * 3 / 4],
        nanos[PAIRS / 2]
    );
    ensure!(median <= 1.05, "ratios {ratios:?}");
    Ok(())
}
