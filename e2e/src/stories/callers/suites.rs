// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPython's own tests, under everything that bursar puts around a program: the same verdicts as without.
//!
//! They are Debian's package libpython3.11-testsuite, fetched beside our programs (xtask/unpack) or installed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{NOBODY, Workshop};
use crate::runner::{Place, Story};
use crate::stories::ALICE;
use crate::world::Binaries;

pub(crate) const STORIES: &[Story] = &[Story {
    name: "cpythons_own_tests_end_alike_under_tmalloc_lock_and_rlimit_gate",
    place: Place::Named,
    tell: suite,
}];

const PYTHON: &str = "/usr/bin/python3";
const PACKAGE: &str = "libpython3.11-testsuite";
/// On memory, processes, threads, descriptors, signals, foreign functions.
const MODULES: [&str; 26] = [
    "test_array",
    "test_bytes",
    "test_ctypes",
    "test_dict",
    "test_faulthandler",
    "test_fcntl",
    "test_fork1",
    "test_gc",
    "test_list",
    "test_memoryio",
    "test_memoryview",
    "test_mmap",
    "test_os",
    "test_posix",
    "test_pty",
    "test_resource",
    "test_select",
    "test_selectors",
    "test_signal",
    "test_struct",
    "test_subprocess",
    "test_thread",
    "test_threading",
    "test_threadsignals",
    "test_tracemalloc",
    "test_wait4",
];

/// With Debian 12's Python this one hangs by itself.
const HANGS: &str = "test_4_daemon_threads";

/// What is put around the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    Nothing,
    Tmalloc,
    TmallocWithoutBursard,
    Lock,
    RlimitGate,
}

/// A test, and how it ended: ok, failure, error, skipped.
type Verdicts = BTreeMap<String, &'static str>;

/// Packages of Python as they would be installed: links to what Debian has in two packages.
fn lay_out(binaries: &Binaries, place: &Path) -> Result<()> {
    let version = PACKAGE
        .trim_start_matches("lib")
        .trim_end_matches("-testsuite");
    let lib = Path::new("usr/lib").join(version);
    let unpacked = binaries.path("programs").join(PACKAGE).join(&lib);
    let installed = Path::new("/").join(&lib);
    ensure!(
        [&unpacked, &installed]
            .iter()
            .any(|it| it.join("test/test_subprocess.py").exists()),
        "CPython's tests are missing: xtask/unpack target/release/programs {PACKAGE}"
    );
    for package in ["test", "ctypes"] {
        let own = place.join(package);
        fs::create_dir_all(&own)?;
        for from in [&unpacked, &installed] {
            for entry in fs::read_dir(from.join(package)).into_iter().flatten() {
                let entry = entry?;
                let target = own.join(entry.file_name());
                if entry.file_name() != "__pycache__" && !target.exists() {
                    symlink(entry.path(), &target).with_context(|| format!("link {target:?}"))?;
                }
            }
        }
    }
    Ok(())
}

struct Suite<'a> {
    workshop: Workshop<'a>,
    home: PathBuf,
}

impl Suite<'_> {
    fn verdicts(&self, around: Around, modules: &[&str]) -> Result<Verdicts> {
        let report = self.home.join(format!("{around:?}.xml"));
        let _ = fs::remove_file(&report);
        let daemon = &self.workshop.world.daemon;
        let own = |arguments: &[&str]| {
            let command = self.workshop.world.bursar(arguments);
            let words = command.get_args().map(|it| it.to_string_lossy());
            let program = command.get_program().to_string_lossy().into_owned();
            let words: Vec<String> = words.map(|it| it.into_owned()).collect();
            [vec![program], words].concat()
        };
        let wrapper = match around {
            Around::Nothing | Around::TmallocWithoutBursard => Vec::new(),
            Around::Tmalloc => own(&["run", "--tmalloc", "--"]),
            Around::Lock => own(&["run", "--lock", "--heap", "32M", "--lock-children", "--"]),
            Around::RlimitGate => own(&["run", "--gate", "--"]),
        };
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={ALICE}"), format!("--regid={ALICE}")])
            .arg("--clear-groups");
        if around == Around::Lock {
            command.args(["--inh-caps=+ipc_lock", "--ambient-caps=+ipc_lock"]);
        }
        command
            .args(wrapper)
            .args([
                PYTHON,
                "-m",
                "test",
                "-j",
                "2",
                "--timeout",
                "120",
                "--ignore",
                HANGS,
                "--junit-xml",
            ])
            .arg(&report)
            .args(modules)
            .current_dir(&self.home)
            .env("HOME", &self.home)
            .env("PYTHONPATH", self.home.join("suite"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("BURSAR_SOCKET", daemon.socket())
            .env_remove("PYTHONMALLOC");
        if around == Around::TmallocWithoutBursard {
            command
                .env("LD_PRELOAD", self.workshop.binaries.path("libtmalloc.so"))
                .env("BURSAR_SOCKET", NOBODY);
        }
        let log = fs::File::create(self.home.join(format!("{around:?}.log")))?;
        let status = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()
            .context("run setpriv")?;
        let text = fs::read_to_string(&report)
            .with_context(|| format!("{around:?}: no verdicts, {status}"))?;
        Ok(read(&text))
    }
}

/// What regrtest's --junit-xml says.
fn read(text: &str) -> Verdicts {
    let cases = text.split("<testcase ").skip(1);
    let verdict = |case: &str| {
        let inside = case.split("</testcase>").next().unwrap_or_default();
        let words = ["failure", "error", "skipped"];
        let found = words
            .into_iter()
            .find(|word| inside.contains(&format!("<{word}")));
        found.unwrap_or("ok")
    };
    let name = |case: &str| {
        let rest = case.strip_prefix("name=\"")?;
        Some(rest.split('"').next()?.to_owned())
    };
    cases
        .filter_map(|case| Some((name(case)?, verdict(case))))
        .collect()
}

/// The module that a test is of: `test.test_os.PathTests.test_x`.
fn module(test: &str) -> Option<&'static str> {
    MODULES
        .into_iter()
        .find(|module| test.split(['.', ' ']).any(|part| part == *module))
}

fn suite(binaries: &Binaries) -> Result<()> {
    let mut workshop = Workshop::new(binaries, "suites")?;
    workshop.world.daemon.start()?;
    workshop.world.daemon.limit(&ALICE.to_string(), "3G")?;
    let home = workshop.path("home");
    lay_out(binaries, &home.join("suite"))?;
    fs::set_permissions(&home, fs::Permissions::from_mode(0o777))?;
    let suite = Suite { workshop, home };
    let plain = suite.verdicts(Around::Nothing, &MODULES)?;
    let failed = plain
        .values()
        .filter(|it| **it != "ok" && **it != "skipped");
    println!(
        "        {} tests of {} modules, {} of which fail without anything around them",
        plain.len(),
        MODULES.len(),
        failed.count()
    );
    ensure!(plain.len() > 2000, "only {} tests were run", plain.len());
    let mut wrong = Vec::new();
    for around in [
        Around::TmallocWithoutBursard,
        Around::Tmalloc,
        Around::Lock,
        Around::RlimitGate,
    ] {
        let differing = |own: &Verdicts, plain: &Verdicts| -> Vec<String> {
            let tests = plain
                .keys()
                .chain(own.keys().filter(|it| !plain.contains_key(*it)));
            let differing = tests.filter(|it| plain.get(*it) != own.get(*it));
            differing.cloned().collect()
        };
        let first = differing(&suite.verdicts(around, &MODULES)?, &plain);
        // Some of these tests depend on time: what differs once is compared once more.
        let mut modules: Vec<&str> = first.iter().filter_map(|it| module(it)).collect();
        modules.dedup();
        let mut still = first.clone();
        if !modules.is_empty() {
            let plain = suite.verdicts(Around::Nothing, &modules)?;
            let again = differing(&suite.verdicts(around, &modules)?, &plain);
            still.retain(|it| again.contains(it));
        }
        println!(
            "        {around:?}: {} differ, {} of them twice",
            first.len(),
            still.len()
        );
        wrong.extend(still.into_iter().map(|it| format!("{around:?}: {it}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}
