// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nothing is allocated where a machine that is short of memory is looked at and acted upon: not when
//! samples are taken, not when models decide, not when a knob is turned again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use bursar_config::{WatermarkMode, WatermarkModel, Watermarks};
use bursar_host::clock::monotonic;
use bursar_model::Nanos;
use bursar_policy::watermarks::{Model, ModelChoice, ScaleBounds};
use bursar_watermarks::{Engine, Knob, Paths, SavedValues};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test, for the count is the process's.
#[test]
fn looking_deciding_and_turning_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // The real /proc, read only: an engine that observes.
    for model in [
        WatermarkModel::Bursar,
        WatermarkModel::Trend,
        WatermarkModel::Loop,
    ] {
        let settings = Watermarks {
            mode: WatermarkMode::Observe,
            model,
            stall_time: false,
            ..Watermarks::default()
        };
        let mut engine = Engine::start(settings, Paths::host(folder.path()), monotonic()).unwrap();
        let start = monotonic().get();
        let step = 100_000_000;
        for tick in 0..300 {
            engine.tick(Nanos::new(start + tick * step));
        }
        let before = COUNT.load(Ordering::Relaxed);
        for tick in 300..1300 {
            engine.tick(Nanos::new(start + tick * step));
        }
        let made = COUNT.load(Ordering::Relaxed) - before;
        assert_eq!(made, 0, "{model:?}");
    }

    // A storm, decided upon.
    let mut sample = bursar_policy::watermarks::Sample::default();
    sample.zones.push(bursar_policy::watermarks::Zone {
        managed: 243_234,
        min: 970,
        low: 1212,
        high: 1454,
        ..Default::default()
    });
    sample.holdings.file = 200_000;
    sample.scale = 10;
    for choice in [ModelChoice::Bursar, ModelChoice::Trend, ModelChoice::Loop] {
        let mut model = Model::new(choice, ScaleBounds::new(10, 1000));
        let mut storm = |ticks: std::ops::Range<u64>| {
            for tick in ticks {
                sample.at = Nanos::new(1_000_000_000 + tick * 100_000_000);
                sample.zones[0].free = 2000 + (tick * 7919) % 50_000;
                sample.counters.steal_kswapd += 3000;
                sample.counters.alloc_stalls += tick % 3;
                model.look(&sample);
            }
        };
        storm(0..50);
        let before = COUNT.load(Ordering::Relaxed);
        storm(50..1000);
        let made = COUNT.load(Ordering::Relaxed) - before;
        assert_eq!(made, 0, "{choice:?}");
    }

    // A knob, turned again and again.
    let paths = Paths {
        proc: folder.path().join("proc"),
        sys: folder.path().join("sys"),
        state: folder.path().join("state"),
    };
    std::fs::create_dir_all(paths.proc.join("sys/vm")).unwrap();
    std::fs::write(paths.proc.join("sys/vm/watermark_scale_factor"), "10\n").unwrap();
    let mut saved = SavedValues::open(&paths).unwrap();
    let knob = Knob::scale(&paths);
    saved.turn(&knob, 10, 100).unwrap();
    let before = COUNT.load(Ordering::Relaxed);
    for value in 101..200 {
        saved.turn(&knob, value - 1, value).unwrap();
    }
    let made = COUNT.load(Ordering::Relaxed) - before;
    assert_eq!(made, 0, "turning");
}
