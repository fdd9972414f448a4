// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine on machines made of files: what it writes, what it puts back, when it gives way. The
//! readers and writers are the real ones; only their roots are not /proc and /sys.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bursar_config::{
    Comparison, Condition, Quantity, Sysctl, SysctlRule, WatermarkMode, Watermarks,
};
use bursar_model::{Bytes, Nanos};
use bursar_watermarks::{
    Act, Detail, Engine, Measured, Observer, Paths, Restored, SavedValues, Standing, recover,
    report, restored,
};
use tempfile::TempDir;

/// A machine of 1 GiB, made of files.
struct Machine {
    folder: TempDir,
    now: u64,
    stalls: u64,
    free: u64,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self {
            folder,
            now: 1_000_000_000,
            stalls: 0,
            free: 60_000,
        };
        for path in [
            "proc/sys/vm",
            "proc/sys/fs",
            "proc/sys/kernel/random",
            "sys",
            "state",
        ] {
            fs::create_dir_all(machine.at(path)).unwrap();
        }
        machine.set("proc/sys/vm/watermark_scale_factor", "10\n");
        machine.set("proc/sys/vm/swappiness", "60\n");
        machine.set(
            "proc/sys/kernel/random/boot_id",
            "0a0b0c0d-1111-2222-3333-444455556666\n",
        );
        machine.set(
            "proc/meminfo",
            "MemTotal: 1000000 kB\nMemFree: 5 kB\nMemAvailable: 5 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nShmem: 0 kB\nDirty: 0 kB\nHugetlb: 0 kB\n",
        );
        machine.show();
        machine
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn set(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap().trim().to_owned()
    }

    fn scale(&self) -> u32 {
        self.get("proc/sys/vm/watermark_scale_factor")
            .parse()
            .unwrap()
    }

    fn paths(&self) -> Paths {
        Paths {
            proc: self.at("proc"),
            sys: self.at("sys"),
            state: self.at("state"),
        }
    }

    /// The kernel's files as they should be now.
    fn show(&self) {
        let (free, gap) = (
            self.free,
            (243_234 * u64::from(self.scale()) / 10_000).max(242),
        );
        let (low, high) = (970 + gap, 970 + 2 * gap);
        self.set(
            "proc/buddyinfo",
            &format!("Node 0, zone    DMA32 {free} 0 0 0 0 0 0 0 0 0 0\n"),
        );
        self.set(
            "proc/zoneinfo",
            &format!(
                "Node 0, zone    DMA32\n  pages free     {free}\n        boost    0\n        min      970\n        low      {low}\n        high     {high}\n        spanned  258000\n        present  258000\n        managed  243234\n        protection: (0, 0)\n"
            ),
        );
        self.set(
            "proc/vmstat",
            &format!(
                "nr_free_pages {free}\nnr_inactive_file 150000\nnr_active_file 1000\nallocstall_normal {}\npgsteal_kswapd 0\n",
                self.stalls
            ),
        );
    }

    fn settings(mode: WatermarkMode) -> Watermarks {
        Watermarks {
            mode,
            stall_time: false,
            ..Watermarks::default()
        }
    }

    fn engine(&self, mode: WatermarkMode) -> Engine {
        Engine::start(Self::settings(mode), self.paths(), Nanos::new(self.now)).unwrap()
    }

    fn tick(&mut self, engine: &mut Engine, times: usize) {
        for _ in 0..times {
            self.now += 100_000_000;
            self.show();
            engine.tick(Nanos::new(self.now));
        }
    }

    /// Somebody stalls, and the engine looks.
    fn stall(&mut self, engine: &mut Engine) {
        self.stalls += 5;
        self.tick(engine, 1);
    }
}

fn files(folder: &Path) -> Vec<(PathBuf, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let modified = fs::metadata(&path).unwrap().modified().unwrap();
                found.push((path, modified));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_stall_raises_the_factor_and_the_end_puts_it_back() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    machine.stall(&mut engine);
    assert!(machine.scale() > 10);
    assert_eq!(engine.turned().len(), 1);
    let results = engine.finish();
    assert!(
        matches!(results[..], [Restored::Done { to: 10, .. }]),
        "{results:?}"
    );
    assert_eq!(machine.scale(), 10);
}

#[test]
fn observing_writes_nothing_and_says_what_would_be_done() {
    let mut machine = Machine::new();
    let engine = machine.engine(WatermarkMode::Observe);
    changes_nothing(&mut machine, engine);
}

#[test]
fn a_rehearsal_changes_nothing_and_says_what_the_configured_mode_would() {
    for (mode, name, said) in [
        (
            WatermarkMode::Act,
            "act",
            "bursard would do what would be done",
        ),
        (WatermarkMode::Observe, "observe", "change nothing either"),
        (WatermarkMode::Off, "off", "bursard would not even look"),
    ] {
        let mut machine = Machine::new();
        let now = Nanos::new(machine.now);
        let engine = Engine::rehearse(Machine::settings(mode), machine.paths(), now).unwrap();
        let told = report(&engine, &machine.at("proc"), now, Nanos::new(0));
        assert_eq!((told.mode.as_str(), told.is_acting), (name, false));
        assert!(told.standing.contains(said), "{}", told.standing);
        changes_nothing(&mut machine, engine);
    }
}

/// Whatever is seen; what would be done is said.
fn changes_nothing(machine: &mut Machine, mut engine: Engine) {
    machine.tick(&mut engine, 10);
    let mut before = files(machine.folder.path());
    machine.stalls += 5;
    machine.show();
    machine.now += 100_000_000;
    engine.tick(Nanos::new(machine.now));
    let mut after = files(machine.folder.path());
    // The kernel's own files, which the test writes.
    for list in [&mut before, &mut after] {
        list.retain(|(path, _)| {
            !path.ends_with("vmstat") && !path.ends_with("zoneinfo") && !path.ends_with("buddyinfo")
        });
    }
    assert_eq!(before, after);
    assert_eq!(machine.scale(), 10);
    let last = engine.decision_log().records().next_back().unwrap();
    assert_eq!(last.act, Act::Withheld);
    assert!(last.verdict.scale.is_some());
    assert!(!machine.at("state/watermarks.originals").exists());
}

#[test]
fn originals_survive_a_crash_and_the_next_start_puts_them_back() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    machine.stall(&mut engine);
    let raised = machine.scale();
    assert!(raised > 10);
    // As SIGKILL would leave it: nothing is put back, the lock is gone with the process.
    std::mem::forget(engine);
    release_lock(&machine);
    let results = recover(&machine.paths()).unwrap();
    assert_eq!(
        results,
        [Restored::Done {
            name: "vm.watermark_scale_factor",
            from: i64::from(raised),
            to: 10
        }]
    );
    assert_eq!(machine.scale(), 10);
    assert_eq!(recover(&machine.paths()).unwrap(), []);
}

/// A forgotten engine keeps its descriptor, and with it the lock, as no dead process would: a new file
/// with the same content has none.
fn release_lock(machine: &Machine) {
    let path = machine.at("state/watermarks.originals");
    let text = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, text).unwrap();
}

#[test]
fn originals_of_another_boot_are_void() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    machine.stall(&mut engine);
    std::mem::forget(engine);
    release_lock(&machine);
    machine.set(
        "proc/sys/kernel/random/boot_id",
        "ffffffff-1111-2222-3333-444455556666\n",
    );
    machine.set("proc/sys/vm/watermark_scale_factor", "30\n");
    assert_eq!(recover(&machine.paths()).unwrap(), []);
    assert_eq!(machine.scale(), 30);
}

#[test]
fn a_file_of_originals_cut_short_or_written_by_a_stranger_does_no_harm() {
    let machine = Machine::new();
    let head = "bursar watermarks 1 0a0b0c0d-1111-2222-3333-444455556666\n";
    let line = |text: &str| format!("{text:<95}\n");
    for (text, expected) in [
        (format!("{head}vm.watermark_scale_factor 10 5"), 0),
        (
            format!("{head}{}", line("vm.watermark_scale_factor 20 10 .")),
            1,
        ),
        (format!("{head}{}", line("kernel.core_pattern 1 2 .")), 0),
        (
            format!("{head}{}", line("vm.watermark_scale_factor ten 500 .")),
            0,
        ),
        ("\0\u{ff}rubbish\n\n\n".to_owned(), 0),
        (format!("{head}{}", "\n".repeat(500)), 0),
    ] {
        machine.set("state/watermarks.originals", &text);
        assert_eq!(
            recover(&machine.paths()).unwrap().len(),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn another_tuner_is_noticed_given_way_to_and_not_overwritten_at_the_end() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    machine.stall(&mut engine);
    let written = machine.scale();
    machine.set("proc/sys/vm/watermark_scale_factor", "77\n");
    machine.stall(&mut engine);
    assert_eq!(*engine.standing(), Standing::GaveWay { found: 77, written });
    machine.now += 60_000_000_000;
    machine.stall(&mut engine);
    assert_eq!(machine.scale(), 77);
    assert_eq!(engine.finish(), []);
    assert_eq!(machine.scale(), 77);
}

#[test]
fn what_somebody_changed_after_a_crash_is_left_to_them() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    machine.stall(&mut engine);
    std::mem::forget(engine);
    release_lock(&machine);
    machine.set("proc/sys/vm/watermark_scale_factor", "123\n");
    let results = recover(&machine.paths()).unwrap();
    assert!(matches!(
        results[..],
        [Restored::Foreign { found: 123, .. }]
    ));
    assert!(restored(&results).lines[0].contains("left at 123"));
    assert_eq!(machine.scale(), 123);
}

#[test]
fn two_engines_do_not_move_the_same_machine() {
    let machine = Machine::new();
    let first = machine.engine(WatermarkMode::Act);
    let second = Engine::start(
        Machine::settings(WatermarkMode::Act),
        machine.paths(),
        Nanos::new(1),
    );
    let message = second.unwrap_err().to_string();
    assert!(message.contains("is in use"), "{message}");
    drop(first);
    machine.engine(WatermarkMode::Act);
}

#[test]
fn a_file_that_cannot_be_written_ends_acting_and_says_so() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    // Root writes what it likes; a directory in its place nobody can open for writing.
    let path = machine.at("proc/sys/vm/watermark_scale_factor");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    machine.stalls += 5;
    machine.now += 100_000_000;
    let zoneinfo = machine.get("proc/zoneinfo");
    machine.set("proc/zoneinfo", &(zoneinfo + "\n"));
    machine.set(
        "proc/vmstat",
        "nr_free_pages 60000\nallocstall_normal 5\npgsteal_kswapd 0\n",
    );
    engine.tick(Nanos::new(machine.now));
    let Standing::Refused { knob, .. } = engine.standing() else {
        panic!("{:?}", engine.standing());
    };
    assert_eq!(*knob, "vm.watermark_scale_factor");
}

#[test]
fn putting_back_on_request_ends_acting() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    machine.stall(&mut engine);
    let results = engine.put_back();
    assert!(matches!(results[..], [Restored::Done { to: 10, .. }]));
    machine.now += 60_000_000_000;
    machine.stall(&mut engine);
    assert_eq!(
        (machine.scale(), engine.standing()),
        (10, &Standing::PutBack)
    );
}

#[test]
fn listed_sysctls_are_set_at_start_and_put_back_at_the_end() {
    let machine = Machine::new();
    let settings = Watermarks {
        sysctls: vec![(Sysctl::Swappiness, 10), (Sysctl::DefragMode, 1)],
        ..Machine::settings(WatermarkMode::Act)
    };
    let engine = Engine::start(settings, machine.paths(), Nanos::new(1)).unwrap();
    assert_eq!(machine.get("proc/sys/vm/swappiness"), "10");
    let remarks = engine.remarks();
    assert!(
        remarks[0].contains("vm.defrag_mode could not be set to 1"),
        "{remarks:?}"
    );
    engine.finish();
    assert_eq!(machine.get("proc/sys/vm/swappiness"), "60");
}

/// The kernel keeps the ratio or the bytes, and forgets the one when the other is written.
#[test]
fn a_ratio_is_left_alone_while_its_twin_in_bytes_is_set() {
    let ratios = [
        (Sysctl::DirtyRatio, "dirty_ratio", "dirty_bytes"),
        (
            Sysctl::DirtyBackgroundRatio,
            "dirty_background_ratio",
            "dirty_background_bytes",
        ),
    ];
    for (sysctl, ratio, bytes) in ratios {
        let file = |name: &str| format!("proc/sys/vm/{name}");
        // (the ratio and the bytes before, the ratio while we act)
        for (before, counterpart, acting) in [("0", "268435456", "0"), ("20", "0", "10")] {
            let machine = Machine::new();
            machine.set(&file(ratio), before);
            machine.set(&file(bytes), counterpart);
            let settings = Watermarks {
                sysctls: vec![(sysctl, 10)],
                ..Machine::settings(WatermarkMode::Act)
            };
            let engine = Engine::start(settings, machine.paths(), Nanos::new(1)).unwrap();
            assert_eq!(machine.get(&file(ratio)), acting, "{ratio}");
            let is_said = engine
                .remarks()
                .iter()
                .any(|it| it.contains(&format!("vm.{bytes} is 268435456")));
            assert_eq!(is_said, counterpart != "0", "{:?}", engine.remarks());
            engine.finish();
            assert_eq!(machine.get(&file(ratio)), before, "{ratio}");
            assert_eq!(machine.get(&file(bytes)), counterpart, "{bytes}");
        }
    }
}

#[test]
fn a_knob_that_was_refused_is_no_original() {
    let machine = Machine::new();
    let mut saved = SavedValues::open(&machine.paths()).unwrap();
    let knob = bursar_watermarks::Knob::of(Sysctl::DefragMode, &machine.paths());
    assert!(saved.turn(&knob, 0, 1).is_err());
    assert_eq!(saved.turned(), []);
    let text = machine.get("state/watermarks.originals");
    assert_eq!(text.lines().count(), 1, "{text:?}");
}

#[test]
fn huge_pages_lower_the_bound_and_give_it_back() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 2);
    assert_eq!(engine.bounds().highest(), 1000);
    let meminfo = machine.get("proc/meminfo");
    machine.set(
        "proc/meminfo",
        &meminfo.replace("Hugetlb: 0 kB", "Hugetlb: 486468 kB"),
    );
    machine.now += 20_000_000_000;
    machine.tick(&mut engine, 2);
    assert_eq!(engine.bounds().highest(), 500);
    machine.set("proc/meminfo", &meminfo);
    machine.now += 20_000_000_000;
    machine.tick(&mut engine, 2);
    assert_eq!(engine.bounds().highest(), 1000);
}

#[test]
fn negative_dentries_are_capped_where_the_kernel_can_and_said_where_not() {
    let mut machine = Machine::new();
    machine.set("proc/sys/fs/dentry-state", "900000 800000 45 0 700000 0\n");
    machine.set("proc/sys/fs/negative-dentry-limit", "0\n");
    let settings = || Watermarks {
        negative_dentries_permille: 15,
        ..Machine::settings(WatermarkMode::Act)
    };
    let mut engine = Engine::start(settings(), machine.paths(), Nanos::new(1)).unwrap();
    machine.tick(&mut engine, 2);
    assert_eq!(machine.get("proc/sys/fs/negative-dentry-limit"), "15");
    engine.finish();
    assert_eq!(machine.get("proc/sys/fs/negative-dentry-limit"), "0");

    fs::remove_file(machine.at("proc/sys/fs/negative-dentry-limit")).unwrap();
    machine.set("proc/sys/fs/dentry-negative", "0\n");
    let mut engine = Engine::start(settings(), machine.paths(), Nanos::new(1)).unwrap();
    machine.tick(&mut engine, 2);
    assert_eq!(machine.get("proc/sys/fs/dentry-negative"), "1");
    assert!(engine.remarks()[0].contains("700000 negative dentries"));
    machine.set("proc/sys/fs/dentry-state", "900000 800000 45 0 100 0\n");
    machine.now += 20_000_000_000;
    machine.tick(&mut engine, 1);
    assert_eq!(machine.get("proc/sys/fs/dentry-negative"), "0");
}

#[test]
fn files_that_make_no_sense_are_survived_and_told() {
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    machine.tick(&mut engine, 10);
    for text in [
        "",
        "rubbish\n",
        "Node 0, zone Normal\n  pages free",
        "Node 0, zone Normal\n  pages free -1\n",
    ] {
        machine.now += 10_000_000_000;
        machine.set("proc/zoneinfo", text);
        engine.tick(Nanos::new(machine.now));
    }
    assert_eq!(engine.effort().failures, 4);
    assert!(
        engine.remarks()[0].contains("4 looks failed"),
        "{:?}",
        engine.remarks()
    );
    // And goes on when the machine speaks again.
    machine.stall(&mut engine);
    assert!(machine.scale() > 10);
}

#[test]
fn a_machine_without_zoneinfo_is_not_watched_and_says_why() {
    let machine = Machine::new();
    fs::remove_file(machine.at("proc/zoneinfo")).unwrap();
    let error = Engine::start(
        Machine::settings(WatermarkMode::Observe),
        machine.paths(),
        Nanos::new(1),
    );
    let message = error.unwrap_err().to_string();
    assert!(message.contains("zoneinfo"), "{message}");
}

#[test]
fn knobs_are_written_down_before_they_are_turned() {
    let machine = Machine::new();
    let mut saved = SavedValues::open(&machine.paths()).unwrap();
    let knob = bursar_watermarks::Knob::scale(&machine.paths());
    saved.turn(&knob, 10, 400).unwrap();
    let text = machine.get("state/watermarks.originals");
    assert!(
        text.ends_with("vm.watermark_scale_factor 10 400 ."),
        "{text:?}"
    );
    saved.turn(&knob, 400, 500).unwrap();
    let text = machine.get("state/watermarks.originals");
    assert!(
        text.ends_with("vm.watermark_scale_factor 10 500 ."),
        "{text:?}"
    );
    // A knob that refuses keeps its line as it was.
    fs::remove_file(machine.at("proc/sys/vm/watermark_scale_factor")).unwrap();
    assert!(saved.turn(&knob, 500, 600).is_err());
    let text = machine.get("state/watermarks.originals");
    assert!(
        text.ends_with("vm.watermark_scale_factor 10 500 ."),
        "{text:?}"
    );
}

#[test]
fn on_one_node_free_memory_is_known_each_time_although_free_blocks_are_looked_at_once_a_second() {
    let mut machine = Machine::new();
    let mut sums = Observer::open(&machine.paths(), Detail::Sums).unwrap();
    let mut orders = Observer::open(&machine.paths(), Detail::Orders).unwrap();
    let mut look = |machine: &Machine, after: u64| {
        machine.show();
        let now = Nanos::new(machine.now + after * 1_000_000);
        let of = |observer: &mut Observer| {
            let sample = observer.look(now, Measured::default()).unwrap();
            (sample.free(), sample.zones[0].blocks[0])
        };
        (of(&mut sums), of(&mut orders))
    };
    assert_eq!(look(&machine, 0), ((60_000, 60_000), (60_000, 60_000)));
    machine.free = 9_000;
    assert_eq!(look(&machine, 100), ((9_000, 60_000), (9_000, 9_000)));
    machine.free = 70_000;
    assert_eq!(look(&machine, 900), ((70_000, 60_000), (70_000, 70_000)));
    assert_eq!(look(&machine, 1000), ((70_000, 70_000), (70_000, 70_000)));
}

#[test]
fn on_two_nodes_free_blocks_say_whose_memory_is_free() {
    let machine = Machine::new();
    let show = |first: u64, second: u64| {
        machine.show();
        let zones = |of: fn(u64, u64) -> String| of(0, first) + &of(1, second);
        machine.set(
            "proc/buddyinfo",
            &zones(|node, free| format!("Node {node}, zone Normal {free} 0 0 0 0 0 0 0 0 0 0\n")),
        );
        machine.set(
            "proc/zoneinfo",
            &zones(|node, free| {
                format!(
                    "Node {node}, zone Normal\n  pages free     {free}\n        min      970\n        low      1212\n        high     1454\n        spanned  258000\n        present  258000\n        managed  243234\n        protection: (0, 0)\n"
                )
            }),
        );
    };
    let mut observer = Observer::open(&machine.paths(), Detail::Sums).unwrap();
    for (step, (first, second)) in (0..).zip([(50_000, 40_000), (30_000, 60_000)]) {
        show(first, second);
        let now = Nanos::new(machine.now + step * 100_000_000);
        let sample = observer.look(now, Measured::default()).unwrap();
        let free = |node| sample.sum_of_node(node, |zone| zone.free);
        assert_eq!((free(0), free(1)), (first, second));
    }
}

#[test]
fn room_for_the_time_of_a_reap_is_kept_where_that_is_asked_for_and_given_back() {
    const MARGIN: u64 = 64 << 20;
    // 16,384 of 243,234 pages.
    const SCALE: u32 = 674;
    let mut machine = Machine::new();
    let mut engine = machine.engine(WatermarkMode::Act);
    engine.account_facts().keep(Bytes::new(MARGIN));
    machine.tick(&mut engine, 20);
    assert_eq!(machine.scale(), 10, "nobody has asked for it");
    drop(engine);

    let settings = Watermarks {
        keep_reap_margin: true,
        ..Machine::settings(WatermarkMode::Act)
    };
    let mut engine = Engine::start(settings, machine.paths(), Nanos::new(machine.now)).unwrap();
    machine.tick(&mut engine, 20);
    assert_eq!(machine.scale(), 10, "nothing was measured yet");
    engine.account_facts().keep(Bytes::new(MARGIN));
    machine.tick(&mut engine, 2);
    assert_eq!(machine.scale(), SCALE);
    let told = |engine: &Engine, machine: &Machine| {
        let now = Nanos::new(machine.now);
        report(engine, &machine.at("proc"), now, Nanos::new(0)).forecast
    };
    let seen = told(&engine, &machine);
    assert_eq!(seen.reason, "margin");
    assert_eq!(
        (seen.margin.get(), seen.margin_kept.get()),
        (MARGIN, MARGIN)
    );
    assert!(
        seen.text.contains("64 MiB kept free for a reap"),
        "{seen:?}"
    );
    // It stays, with nothing going on.
    machine.tick(&mut engine, 700);
    assert_eq!(machine.scale(), SCALE);

    // No more than may be set.
    engine.account_facts().keep(Bytes::new(10 << 30));
    machine.tick(&mut engine, 2);
    assert_eq!(machine.scale(), 1000);
    let seen = told(&engine, &machine);
    assert!(seen.margin_kept < seen.margin, "{seen:?}");
    assert!(seen.text.contains("of the 10 GiB for a reap"), "{seen:?}");

    engine.account_facts().keep(Bytes::ZERO);
    machine.tick(&mut engine, 700);
    assert_eq!(machine.scale(), 10);
}

fn rule(quantity: Quantity, comparison: Comparison, number: u64, value: i64) -> SysctlRule {
    SysctlRule {
        when: Condition {
            quantity,
            comparison,
            number,
        },
        sysctl: Sysctl::Swappiness,
        value,
    }
}

#[test]
fn sysctls_follow_huge_pages_processors_and_accounts_and_are_put_back() {
    const SWAPPINESS: &str = "proc/sys/vm/swappiness";
    let mut machine = Machine::new();
    fs::create_dir_all(machine.at("sys/devices/system/cpu")).unwrap();
    let cpus = |machine: &Machine, online: &str| {
        machine.set("sys/devices/system/cpu/online", online);
    };
    let huge = |machine: &Machine, kilobytes: u64| {
        machine.set(
            "proc/meminfo",
            &format!("MemTotal: 1000000 kB\nMemFree: 5 kB\nMemAvailable: 5 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nShmem: 0 kB\nDirty: 0 kB\nHugetlb: {kilobytes} kB\n"),
        );
    };
    cpus(&machine, "0-3\n");
    let alice = "alice".parse().unwrap();
    let settings = Watermarks {
        sysctls_while: vec![
            rule(Quantity::HugePages, Comparison::AtLeast, 400 << 20, 5),
            rule(Quantity::Held(alice), Comparison::AtLeast, 64 << 20, 15),
            rule(Quantity::Cpus, Comparison::Below, 4, 25),
        ],
        ..Machine::settings(WatermarkMode::Act)
    };
    let start = |machine: &Machine| {
        let now = Nanos::new(machine.now);
        Engine::start(settings.clone(), machine.paths(), now).unwrap()
    };
    let mut engine = start(&machine);
    // Slow things are looked at every ten seconds.
    let settled = |machine: &mut Machine, engine: &mut Engine| {
        machine.tick(engine, 120);
        machine.get(SWAPPINESS)
    };
    assert_eq!(settled(&mut machine, &mut engine), "60");
    let remarks = engine.remarks();
    assert!(
        remarks
            .iter()
            .any(|it| it.contains("held(alice) is not known")),
        "{remarks:?}"
    );

    cpus(&machine, "0,2\n");
    assert_eq!(settled(&mut machine, &mut engine), "25");
    let remarks = engine.remarks();
    assert!(
        remarks.contains(&"vm.swappiness is set while cpus < 4".to_owned()),
        "{remarks:?}"
    );
    // The first that holds counts.
    let held = |bytes| BTreeMap::from([("alice".to_owned(), Bytes::new(bytes))]);
    engine.account_facts().hold(held(64 << 20));
    assert_eq!(settled(&mut machine, &mut engine), "15");
    huge(&machine, 400 << 10);
    assert_eq!(settled(&mut machine, &mut engine), "5");
    engine.account_facts().hold(held(1 << 20));
    huge(&machine, 0);
    assert_eq!(settled(&mut machine, &mut engine), "25");
    cpus(&machine, "0-3\n");
    assert_eq!(settled(&mut machine, &mut engine), "60");
    assert!(
        engine
            .turned()
            .iter()
            .all(|it| it.knob.sysctl() != Sysctl::Swappiness)
    );

    // While no rule holds it is anybody's.
    machine.set(SWAPPINESS, "70\n");
    assert_eq!(settled(&mut machine, &mut engine), "70");
    cpus(&machine, "0\n");
    assert_eq!(settled(&mut machine, &mut engine), "25");
    // At the end it stands as it did.
    drop(engine.finish());
    assert_eq!(machine.get(SWAPPINESS), "70");

    // Who sets it while a rule holds has it.
    let mut engine = start(&machine);
    assert_eq!(settled(&mut machine, &mut engine), "25");
    machine.set(SWAPPINESS, "33\n");
    assert_eq!(settled(&mut machine, &mut engine), "33");
    let remarks = engine.remarks();
    assert!(
        remarks
            .iter()
            .any(|it| it.contains("somebody else set it to 33")),
        "{remarks:?}"
    );
    drop(engine.finish());
    assert_eq!(machine.get(SWAPPINESS), "33");
}

#[test]
fn who_gives_way_puts_back_what_rules_have_set() {
    const SWAPPINESS: &str = "proc/sys/vm/swappiness";
    let mut machine = Machine::new();
    fs::create_dir_all(machine.at("sys/devices/system/cpu")).unwrap();
    machine.set("sys/devices/system/cpu/online", "0\n");
    let settings = Watermarks {
        sysctls_while: vec![rule(Quantity::Cpus, Comparison::Below, 4, 25)],
        ..Machine::settings(WatermarkMode::Act)
    };
    let now = Nanos::new(machine.now);
    let mut engine = Engine::start(settings, machine.paths(), now).unwrap();
    machine.tick(&mut engine, 120);
    assert_eq!(machine.get(SWAPPINESS), "25");

    machine.set("proc/sys/vm/watermark_scale_factor", "77\n");
    machine.tick(&mut engine, 120);
    assert!(
        matches!(engine.standing(), Standing::GaveWay { .. }),
        "{:?}",
        engine.standing()
    );
    assert_eq!(machine.get(SWAPPINESS), "60");
    // Rules are not followed any more, so the value is anybody's.
    machine.set(SWAPPINESS, "33\n");
    machine.tick(&mut engine, 120);
    drop(engine.finish());
    assert_eq!(machine.get(SWAPPINESS), "33");
}
