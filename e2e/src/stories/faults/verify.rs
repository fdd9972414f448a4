// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `bursar faults verify` counts, and what it makes of it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{answer, build, expect, faults, number, text};
use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

pub(crate) const STORIES: &[Story] = &[
    Story {
        name: "verify_counts_no_faults_of_its_own_stack_walk",
        place: Place::Anywhere,
        tell: own_walk,
    },
    Story {
        name: "verify_counts_no_fault_that_ended_in_a_signal",
        place: Place::Anywhere,
        tell: handled,
    },
    Story {
        name: "a_program_that_ends_without_faults_is_told_from_one_that_fails",
        place: Place::Anywhere,
        tell: ended,
    },
    Story {
        name: "pages_of_a_shared_file_fault_after_a_writeback_and_those_of_a_memfd_do_not",
        place: Place::Host,
        tell: shared_file,
    },
    Story {
        name: "faults_after_a_fork_are_said_to_be_copy_on_write",
        place: Place::Anywhere,
        tell: forked,
    },
    Story {
        name: "the_experiment_of_s3_counts_more_pages_until_the_clock_was_read_once",
        place: Place::Host,
        tell: experiment,
    },
    Story {
        name: "real_time_threads_are_locked_and_proven_beside_others_that_fault",
        place: Place::Host,
        tell: real_time,
    },
];

const PAGES: u64 = 12;

/// The verdict on `faulter WAY PAGES`, started by verify, and on one that runs already.
fn verdicts(binaries: &Binaries, words: &[&str]) -> Result<[Value; 2]> {
    let faulter = binaries.path("faulter");
    // A faulter waits longer in a guest, where it takes a while to begin to watch.
    let is_guest = std::env::var_os("BURSAR_VM").is_some();
    let time = if is_guest { "6" } else { "2.5" };
    let started = || -> Result<Output> {
        let marked = ["verify", "--json", "--marker", "ready", "--for", time, "--"];
        let mut command = faults(binaries, &marked);
        Ok(command.arg(&faulter).args(words).output()?)
    };
    let attached = || -> Result<Output> {
        let mut running = Command::new(&faulter)
            .args(words)
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(running.stdout.take().context("its stdout")?).lines();
        lines.next().context("ready")??;
        let pid = running.id().to_string();
        let attached = faults(binaries, &["verify", "--json", "--for", time, &pid]).output()?;
        running.kill()?;
        running.wait()?;
        Ok(attached)
    };
    // Both wait most of the time; one after the other where they share a file, or an emulated processor.
    let shares = is_guest || words.iter().any(|it| it.starts_with('/'));
    let outputs = if shares {
        [started()?, attached()?]
    } else {
        std::thread::scope(|scope| -> Result<[Output; 2]> {
            let starting = scope.spawn(started);
            let attached = attached();
            match starting.join() {
                Ok(started) => Ok([started?, attached?]),
                Err(_) => bail!("a thread has panicked"),
            }
        })?
    };
    let [started, attached] = outputs;
    Ok([
        answer(&started).with_context(|| text(&started))?,
        answer(&attached).with_context(|| text(&attached))?,
    ])
}

/// Faults in mappings of a kind.
fn of_kind(verdict: &Value, kind: &str) -> u64 {
    let mappings = verdict["mappings"].as_array();
    let of_kind = mappings
        .into_iter()
        .flatten()
        .filter(|it| it["kind"] == kind);
    of_kind.filter_map(|it| it["minor"].as_u64()).sum()
}

/// So many first touches of one mapping, and what the program needs to say that it is ready.
fn check_pages(verdict: &Value) -> Result<()> {
    let all = number(verdict, "minor")?;
    if super::no_mapping_is_known(&verdict["mappings"][0]) {
        ensure!(of_kind(verdict, "unknown") == all, "{verdict}");
        ensure!((PAGES..PAGES + 5).contains(&all), "{verdict}");
        return Ok(());
    }
    ensure!(
        of_kind(verdict, "anon") == PAGES && of_kind(verdict, "unknown") == 0,
        "{verdict}"
    );
    ensure!((PAGES..PAGES + 5).contains(&all), "{verdict}");
    Ok(())
}

fn own_walk(binaries: &Binaries) -> Result<()> {
    for verdict in verdicts(binaries, &["frame", &PAGES.to_string()])? {
        check_pages(&verdict)?;
    }
    Ok(())
}

fn handled(binaries: &Binaries) -> Result<()> {
    for verdict in verdicts(binaries, &["handled", &PAGES.to_string()])? {
        check_pages(&verdict)?;
    }
    Ok(())
}

fn ended(binaries: &Binaries) -> Result<()> {
    let faulter = binaries.path("faulter");
    let verify = |words: &[&str], status: &str| {
        faults(binaries, &["verify", "--json", "--marker", "ready"])
            .args(words)
            .args(["--for", "5", "--"])
            .arg(&faulter)
            .args(["idle", status])
            .output()
    };
    let table = [
        (vec![], "0", 1, "unproven"),
        (vec!["--until-exit"], "0", 0, "passed"),
        (vec!["--until-exit"], "3", 1, "unproven"),
    ];
    for (words, status, code, outcome) in table {
        let output = verify(&words, status)?;
        let verdict = answer(&output).with_context(|| text(&output))?;
        ensure!(
            verdict["outcome"] == outcome && number(&verdict, "minor")? == 0,
            "{verdict}"
        );
        expect(&output, code, "")?;
    }
    let words = ["verify", "--marker", "ready", "--for", "5", "--"];
    let said = faults(binaries, &words)
        .arg(&faulter)
        .args(["idle", "0"])
        .output()?;
    expect(&said, 1, "not proven")
}

/// The mapping of a file of this name, and its report.
fn mapping_of<'a>(verdict: &'a Value, name: &str) -> Result<&'a Value> {
    let mappings = verdict["mappings"].as_array().context("mappings")?;
    let found = mappings
        .iter()
        .find(|it| it["name"].as_str().is_some_and(|it| it.contains(name)));
    found.with_context(|| format!("{name} in {verdict}"))
}

fn shared_file(binaries: &Binaries) -> Result<()> {
    // /tmp may be without a disk.
    let file = tempfile::NamedTempFile::new_in("/var/tmp").context("a file on a disk")?;
    let path = file.path().display().to_string();
    let pages = PAGES.to_string();
    for verdict in verdicts(binaries, &["written-back", &path, &pages])? {
        let name = file.path().file_name().context("a name")?;
        let mapping = mapping_of(&verdict, &name.to_string_lossy())?;
        ensure!(
            mapping["minor"] == PAGES && mapping["cause"] == "writeback",
            "{verdict}"
        );
        let advice = mapping["advice"].as_str().unwrap_or_default();
        ensure!(advice.contains("locked or not"), "{verdict}");
        ensure!(
            mapping["resident_bytes"] == PAGES * rustix::param::page_size() as u64,
            "all of it is there: {verdict}"
        );
    }
    for verdict in verdicts(binaries, &["written-back", "memfd", &pages])? {
        // Written once before, so there, and nothing writes it back.
        ensure!(mapping_of(&verdict, "written-back").is_err(), "{verdict}");
    }
    for verdict in verdicts(binaries, &["shared", "memfd", &pages])? {
        let mapping = mapping_of(&verdict, "shared")?;
        let advice = mapping["advice"].as_str().unwrap_or_default();
        ensure!(
            mapping["minor"] == PAGES && advice.starts_with("shared memory"),
            "{verdict}"
        );
    }
    Ok(())
}

fn forked(binaries: &Binaries) -> Result<()> {
    for verdict in verdicts(binaries, &["forked", &PAGES.to_string()])? {
        let mappings = verdict["mappings"].as_array().context("mappings")?;
        if super::no_mapping_is_known(&verdict["mappings"][0]) {
            ensure!(number(&verdict, "minor")? >= PAGES, "{verdict}");
            continue;
        }
        let anon = mappings
            .iter()
            .find(|it| it["kind"] == "anon" && it["minor"].as_u64() >= Some(PAGES));
        let anon = anon.with_context(|| format!("an anonymous mapping in {verdict}"))?;
        let advice = anon["advice"].as_str().unwrap_or_default();
        ensure!(
            anon["cause"] == "copy_on_write" && advice.contains("fork"),
            "{verdict}"
        );
    }
    Ok(())
}

/// S3's experiment as it is printed there, once with the clock read before.
const EXPERIMENT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);
	unsigned char **allocated = malloc(count * sizeof(*allocated));
	struct rusage usage;
	long before, spent;

	if (argc > 2)
		now();
	memset(allocated, 0, count * sizeof(*allocated));
	for (int i = 0; i < count; i++)
		if (posix_memalign((void **)&allocated[i], 4096, 4096))
			return 1;
	getrusage(RUSAGE_SELF, &usage);
	before = usage.ru_minflt;
	spent = now();
	for (int i = 0; i < count; i++)
		allocated[i][2048] = 0xff;
	spent = now() - spent;
	getrusage(RUSAGE_SELF, &usage);
	printf("%ld\n", usage.ru_minflt - before);
	return spent < 0;
}
"#;

fn experiment(binaries: &Binaries) -> Result<()> {
    const PAGES: u64 = 20_000;
    let world = World::new(binaries, "experiment", "")?;
    let program = build(&world, binaries, EXPERIMENT)?;
    let count = |words: &[&str]| -> Result<u64> {
        // Without huge pages, whatever the machine's default.
        let output = Command::new(binaries.path("faulter"))
            .arg("small-pages")
            .arg(&program)
            .arg(PAGES.to_string())
            .args(words)
            .output()?;
        ensure!(output.status.success(), "{}", text(&output));
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    let (cold, warm) = (count(&[])?, count(&["warm"])?);
    println!("        {PAGES} pages: {cold} faults, {warm} once the clock was read");
    ensure!(
        warm == PAGES && (1..=4).contains(&(cold - PAGES)),
        "{cold} {warm}"
    );
    Ok(())
}

/// A thread that must answer in time, in memory of its own that is locked, beside one that allocates.
const REAL_TIME: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "prefault.h"

enum { POOL = 8 << 20, STACK = 64 << 10 };

static char *pool;
static volatile int is_ready;

static int refuses(int result, int with) { return result == -1 && errno == with; }

static void work(void)
{
	char frame[STACK / 2];

	for (size_t at = 0; at < sizeof(frame); at += 4096)
		((volatile char *)frame)[at] = 1;
	for (size_t at = 0; at < POOL; at += 4096)
		((volatile char *)pool)[at]++;
}

static void *in_time(void *none)
{
	struct sched_param parameter = { .sched_priority = 1 };

	if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameter) || prefault_lock_stack(STACK))
		_exit(4);
	work();
	usleep(1000);
	is_ready = 1;
	for (;;) {
		work();
		usleep(5000);
	}
}

int main(void)
{
	pthread_t thread;

	pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pool == MAP_FAILED || !refuses(prefault_lock_range(NULL, 1), EINVAL) ||
	    !refuses(prefault_lock_range((void *)4096, 4096), ENOMEM) ||
	    !refuses(prefault_lock_stack((size_t)1 << 40), ENOMEM) ||
	    !refuses(prefault_unlock_range(NULL, 1), EINVAL))
		return 3;
	if (prefault_lock_range(pool, POOL))
		return 5;
	/* Locked memory cannot be given back. */
	if (!refuses(madvise(pool, POOL, MADV_DONTNEED), EINVAL))
		return 6;
	if (pthread_create(&thread, NULL, in_time, NULL))
		return 7;
	while (!is_ready)
		usleep(1000);
	prefault_started();
	for (;;) {
		char *block = malloc(40 << 20);

		for (size_t at = 0; block && at < 1 << 20; at += 4096)
			block[at] = 1;
		free(block);
		usleep(5000);
	}
}
"#;

fn real_time(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "real-time", "")?;
    let program = build(&world, binaries, REAL_TIME)?;
    let verify = |words: &[&str]| -> Result<Value> {
        let output = faults(binaries, &["verify", "--json", "--signal", "--for", "2"])
            .args(words)
            .arg("--")
            .arg(&program)
            .output()?;
        answer(&output).with_context(|| text(&output))
    };
    let threads = verify(&["--real-time"])?;
    ensure!(
        threads["passed"] == true && threads["threads"].as_array().map(Vec::len) == Some(1),
        "{threads}"
    );
    let locked = number(&threads, "locked_bytes")?;
    ensure!(
        (8 << 20..9 << 20).contains(&locked),
        "only what it asked for is locked: {threads}"
    );
    let all = verify(&[])?;
    ensure!(
        all["outcome"] == "failed" && number(&all, "minor")? > 1000,
        "{all}"
    );
    let words = ["verify", "--real-time", "--for", "1", "--", "sleep", "5"];
    expect(
        &faults(binaries, &words).output()?,
        1,
        "has no real-time thread",
    )
}
