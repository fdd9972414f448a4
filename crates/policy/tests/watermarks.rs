// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What must hold of every model and every line, whatever the machine shows.

use bursar_model::Nanos;
use bursar_policy::watermarks::{
    Model, ModelChoice, Reason, Sample, ScaleBounds, Verdict, Window, Zone, gap_of_zone,
    highest_that_can_be_met, scale_for_gap, unusable_permille,
};
use proptest::prelude::*;

const MODELS: [ModelChoice; 3] = [ModelChoice::Bursar, ModelChoice::Trend, ModelChoice::Loop];
const MANAGED: u64 = 243_234;
const MIN: u64 = 970;

/// A machine of 1 GiB, its page cache full or not, which the tests let live.
#[derive(Debug, Clone)]
struct Machine {
    sample: Sample,
}

impl Machine {
    fn new(free: u64) -> Self {
        let mut machine = Self {
            sample: Sample {
                at: Nanos::new(1_000_000_000),
                scale: 10,
                zones: vec![Zone {
                    managed: MANAGED,
                    ..Zone::default()
                }],
                ..Sample::default()
            },
        };
        machine.sample.holdings.file = 200_000;
        machine.set(free, 10);
        machine
    }

    /// Free pages and factor as they are now; the marks follow as the kernel computes them.
    fn set(&mut self, free: u64, scale: u32) {
        let gap = gap_of_zone(MANAGED, MIN, scale);
        self.sample.scale = scale;
        let zone = &mut self.sample.zones[0];
        *zone = Zone {
            free,
            min: MIN,
            low: MIN + gap,
            high: MIN + 2 * gap,
            ..*zone
        };
        zone.blocks[0] = free;
    }

    fn free(&self) -> u64 {
        self.sample.zones[0].free
    }

    fn wait(&mut self, milliseconds: u64) {
        self.sample.at = Nanos::new(self.sample.at.get() + milliseconds * 1_000_000);
    }
}

fn model(choice: ModelChoice) -> Model {
    Model::new(choice, ScaleBounds::new(10, 1000))
}

/// Lets the machine live: each step asks for pages, kswapd takes back what it can, the factor is what
/// the model said last.
fn live(
    model: &mut Model,
    machine: &mut Machine,
    steps: u64,
    milliseconds: u64,
    mut asked: impl FnMut(u64) -> i64,
    supply: u64,
) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for step in 0..steps {
        machine.wait(milliseconds);
        let zone = machine.sample.zones[0];
        let counters = &mut machine.sample.counters;
        let wanted = asked(step);
        let mut free = zone.free.saturating_add_signed(-wanted).min(MANAGED);
        if free < zone.low {
            let stolen = supply.min(zone.high.saturating_sub(free));
            counters.steal_kswapd += stolen;
            counters.kswapd_runs += 1;
            free += stolen;
        }
        let left = i64::try_from(zone.free).unwrap() - wanted + supply as i64;
        if left < MIN as i64 {
            counters.alloc_stalls += 1;
        }
        machine.set(free, machine.sample.scale);
        let verdict = model.look(&machine.sample);
        if let Some(scale) = verdict.scale {
            let free = machine.free();
            machine.set(free, scale);
        }
        verdicts.push(verdict);
    }
    verdicts
}

fn window(points: &[(u64, f64)]) -> Window {
    let mut window = Window::new(points.len());
    for (at, value) in points {
        window.push(Nanos::new(*at), *value);
    }
    window
}

/// Times with a jitter of up to half the period.
fn times(count: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0_u64..50_000_000, count..=count).prop_map(|jitters| {
        let jitters = jitters.iter().enumerate();
        jitters
            .map(|(index, jitter)| 7_000_000_000_000 + index as u64 * 100_000_000 + jitter)
            .collect()
    })
}

proptest! {
    #[test]
    fn exact_lines_are_recovered_at_any_jitter(
        times in times(8),
        slope in -1e6_f64..1e6,
        level in 0.0_f64..1e9,
    ) {
        let last = *times.last().unwrap();
        let points: Vec<(u64, f64)> = times
            .iter()
            .map(|&at| (at, level - slope * (last - at) as f64 / 1e9))
            .collect();
        let window = window(&points);
        for line in [window.least_squares().unwrap(), window.repeated_median().unwrap()] {
            let tolerance = 1e-6 * (slope.abs() + level.abs() + 1.0);
            prop_assert!((line.slope - slope).abs() <= tolerance, "{line:?}");
            prop_assert!((line.level - level).abs() <= tolerance, "{line:?}");
        }
    }

    #[test]
    fn lines_shift_and_scale_with_their_values(
        times in times(12),
        values in prop::collection::vec(0.0_f64..1e6, 12),
        shift in -1e6_f64..1e6,
        factor in 0.001_f64..1000.0,
        later in 0_u64..1_000_000_000_000,
    ) {
        let points: Vec<(u64, f64)> = times.iter().copied().zip(values.iter().copied()).collect();
        let moved: Vec<(u64, f64)> = points
            .iter()
            .map(|&(at, value)| (at + later, value * factor + shift))
            .collect();
        let (plain, moved) = (window(&points), window(&moved));
        let pairs = [
            (plain.least_squares().unwrap(), moved.least_squares().unwrap()),
            (plain.repeated_median().unwrap(), moved.repeated_median().unwrap()),
        ];
        for (line, moved) in pairs {
            let tolerance = 1e-6 * (1.0 + factor) * 1e7;
            prop_assert!((line.slope * factor - moved.slope).abs() <= tolerance, "{line:?} {moved:?}");
            prop_assert!((line.level * factor + shift - moved.level).abs() <= tolerance);
        }
    }

    #[test]
    fn thirty_percent_of_outliers_do_not_turn_the_sign(
        times in times(20),
        slope in prop_oneof![-1e5_f64..-1e3, 1e3_f64..1e5],
        outliers in prop::collection::btree_map(0_usize..20, -1e9_f64..1e9, 0..=6),
    ) {
        let points: Vec<(u64, f64)> = times
            .iter()
            .enumerate()
            .map(|(index, &at)| {
                let value = slope * (at - times[0]) as f64 / 1e9;
                (at, outliers.get(&index).copied().unwrap_or(value))
            })
            .collect();
        let line = window(&points).repeated_median().unwrap();
        prop_assert_eq!(line.slope.signum(), slope.signum(), "{:?}", line);
    }

    #[test]
    fn no_model_leaves_its_bounds_whatever_it_is_shown(
        lowest in 1_u32..3000,
        highest in 1_u32..4000,
        steps in prop::collection::vec(
            (any::<u32>(), 0_u64..1 << 40, any::<u64>(), any::<u64>(), 0_u64..1 << 40, any::<u16>()),
            1..60,
        ),
    ) {
        let bounds = ScaleBounds::new(lowest, highest);
        for choice in MODELS {
            let mut model = Model::new(choice, bounds);
            let mut machine = Machine::new(100_000);
            machine.sample.scale = bounds.lowest();
            for (pause, free, steal, stalls, file, node) in &steps {
                let sample = &mut machine.sample;
                sample.at = Nanos::new(sample.at.get().saturating_add(u64::from(*pause)));
                sample.zones[0].free = *free;
                sample.zones[0].node = *node;
                sample.counters.steal_kswapd = *steal;
                sample.counters.alloc_stalls = *stalls;
                sample.holdings.file = *file;
                let verdict = model.look(sample);
                if let Some(scale) = verdict.scale {
                    prop_assert!((bounds.lowest()..=bounds.highest()).contains(&scale), "{choice:?} {verdict:?}");
                    sample.scale = scale;
                }
                let forecast = verdict.forecast;
                prop_assert!(forecast.demand.is_finite() && forecast.supply.is_finite(), "{forecast:?}");
            }
        }
    }

    #[test]
    fn nothing_is_done_before_there_are_enough_samples(
        free in prop::collection::vec(0_u64..MANAGED, 7),
        stalls in 0_u64..1000,
    ) {
        for choice in [ModelChoice::Bursar, ModelChoice::Trend] {
            let mut model = model(choice);
            let mut machine = Machine::new(200_000);
            for (index, free) in free.iter().enumerate() {
                machine.wait(1000);
                machine.sample.counters.alloc_stalls += stalls;
                machine.set(*free, 10);
                let verdict = model.look(&machine.sample);
                prop_assert_eq!(verdict.scale, None, "{:?} {}", choice, index);
                prop_assert_eq!(verdict.compact, None);
            }
        }
    }

    #[test]
    fn the_same_samples_give_the_same_verdicts(
        asked in prop::collection::vec(-20_000_i64..20_000, 100),
    ) {
        for choice in MODELS {
            let run = || {
                let mut machine = Machine::new(200_000);
                live(&mut model(choice), &mut machine, 100, 100, |step| asked[step as usize], 8000)
            };
            prop_assert_eq!(run(), run());
        }
    }

    #[test]
    fn a_gap_asked_for_is_a_gap_got(gap in 1_u64..24_000) {
        let machine = Machine::new(100_000);
        let scale = scale_for_gap(&machine.sample, 0, gap);
        prop_assert!(gap_of_zone(MANAGED, MIN, scale) >= gap);
        prop_assert!(scale == 0 || scale * 24 <= gap as u32 + 24, "{} {}", scale, gap);
    }
}

#[test]
fn bursts_seen_while_memory_is_plentiful_raise_the_marks_before_it_is_low() {
    let mut machine = Machine::new(220_000);
    let mut model = model(ModelChoice::Bursar);
    // 60 MiB/s, and twice a second a burst of 32 MiB that ends again.
    let asked = |step: u64| match step % 5 {
        0 => 1536 + 8192,
        3 => 1536 - 8192,
        _ => 1536,
    };
    let mut verdicts = Vec::new();
    while machine.free() > 40_000 {
        verdicts.extend(live(
            &mut model,
            &mut machine,
            1,
            100,
            |_| asked(verdicts.len() as u64),
            0,
        ));
    }
    let first = verdicts.iter().find(|it| it.scale.is_some()).unwrap();
    assert_eq!(first.reason, Reason::Ahead, "{first:?}");
    assert!(first.scale.unwrap() > 300, "{first:?}");
    assert_eq!(machine.sample.counters.alloc_stalls, 0);
}

/// Free memory shows nothing of a process that fills huge pages and ends between two looks; the next one
/// needs them all the same, and in whole blocks.
#[test]
fn huge_pages_that_came_and_went_between_two_looks_are_held_ready_in_whole_blocks() {
    let asked = 24 << 9;
    let play = |huge_each_second: u64, blocks_of: usize| {
        let mut machine = Machine::new(30_000);
        let mut model = model(ModelChoice::Bursar);
        model.set_prefrees(true);
        let mut last = Verdict::default();
        for tick in 0..600 {
            machine.wait(100);
            let counters = &mut machine.sample.counters;
            counters.steal_kswapd += 100;
            if tick % 10 == 0 {
                counters.thp_faults += huge_each_second;
            }
            let zone = &mut machine.sample.zones[0];
            zone.blocks = Default::default();
            zone.blocks[blocks_of] = zone.free >> blocks_of;
            last = model.look(&machine.sample);
        }
        last
    };
    let quiet = play(0, 9);
    let whole = play(24, 9);
    assert!(quiet.forecast.needed < asked / 2, "{quiet:?}");
    assert!(whole.forecast.needed >= asked, "{whole:?}");
    assert_eq!((quiet.reclaim, whole.reclaim), (None, None));
    let in_pieces = play(24, 8);
    assert!(in_pieces.reclaim.is_some(), "{in_pieces:?}");
    assert_eq!(play(0, 8).reclaim, None);
}

#[test]
fn a_machine_that_only_reads_slowly_is_left_alone_until_memory_is_near_its_end() {
    let mut machine = Machine::new(220_000);
    let verdicts = live(
        &mut model(ModelChoice::Bursar),
        &mut machine,
        600,
        100,
        |_| 10,
        8000,
    );
    assert!(verdicts.iter().all(|it| it.scale.is_none()));
}

#[test]
fn ten_quiet_minutes_bring_our_model_back_to_the_original() {
    let mut machine = Machine::new(60_000);
    let mut model = model(ModelChoice::Bursar);
    let storm = |step: u64| match step % 10 {
        0 => 14_000,
        5 => -12_000,
        _ => 1500,
    };
    live(&mut model, &mut machine, 1200, 100, storm, 9000);
    // What it learns from that is for storms.
    machine.sample.counters.alloc_stalls += 7;
    live(&mut model, &mut machine, 20, 100, storm, 9000);
    let learned = machine.sample.scale;
    assert!(learned > 100, "{learned}");
    let verdicts = live(&mut model, &mut machine, 600, 1000, |_| 0, 9000);
    assert_eq!(machine.sample.scale, 10);
    let late = verdicts.iter().skip(300);
    assert!(late.clone().all(|it| it.scale.is_none()));
    assert!(late.clone().all(|it| it.reason == Reason::Quiet));
    // The next one finds it as it was, less what is forgotten in ten minutes.
    live(&mut model, &mut machine, 20, 100, storm, 9000);
    let again = machine.sample.scale;
    assert!(again >= learned / 3, "{learned} {again}");
}

#[test]
fn a_stall_raises_at_once_and_is_remembered() {
    let mut machine = Machine::new(60_000);
    let mut model = model(ModelChoice::Bursar);
    live(&mut model, &mut machine, 20, 100, |_| 100, 9000);
    machine.sample.counters.alloc_stalls += 3;
    let verdict = live(&mut model, &mut machine, 1, 100, |_| 100, 9000)[0];
    assert_eq!(
        (verdict.reason, verdict.forecast.stalls),
        (Reason::Stalled, 3)
    );
    let raised = verdict.scale.unwrap();
    live(&mut model, &mut machine, 500, 100, |_| 100, 9000);
    assert!(
        machine.sample.scale >= raised * 9 / 10,
        "{raised} {}",
        machine.sample.scale
    );
}

#[test]
fn the_loop_doubles_on_a_stall_and_decays_after_a_minute() {
    let mut machine = Machine::new(60_000);
    let mut model = model(ModelChoice::Loop);
    live(&mut model, &mut machine, 2, 1000, |_| 0, 0);
    let mut scales = Vec::new();
    for _ in 0..5 {
        machine.sample.counters.alloc_stalls += 1;
        live(&mut model, &mut machine, 1, 1000, |_| 0, 0);
        scales.push(machine.sample.scale);
    }
    assert_eq!(scales, [100, 200, 400, 800, 1000]);
    live(&mut model, &mut machine, 70, 1000, |_| 0, 0);
    assert_eq!(machine.sample.scale, 810);
}

#[test]
fn the_trend_acts_when_the_line_reaches_the_mark_before_reclaim_catches_up() {
    let mut machine = Machine::new(200_000);
    let mut model = model(ModelChoice::Trend);
    let verdicts = live(&mut model, &mut machine, 30, 1000, |_| 9000, 20_000);
    let first = verdicts.iter().find(|it| it.scale.is_some()).unwrap();
    assert_eq!(first.reason, Reason::Ahead);
    let likely = first.forecast.likely.unwrap();
    assert!((6.0..8.5).contains(&likely), "{first:?}");
}

#[test]
fn nodes_that_run_out_of_an_order_together_are_compacted_one_after_the_other() {
    let mut machine = Machine::new(100_000);
    let mut model = model(ModelChoice::Trend);
    let other = Zone {
        node: 1,
        ..machine.sample.zones[0]
    };
    machine.sample.zones.push(other);
    let mut compacted = Vec::new();
    for round in 0..12 {
        machine.wait(1000);
        // Free memory stays as it is, its large blocks go: of order 3 on one node, 5 on the other.
        for (zone, order) in machine.sample.zones.iter_mut().zip([3, 5]) {
            let large = 8000 - 700 * round;
            zone.blocks = Default::default();
            zone.blocks[order] = large >> order;
            zone.blocks[0] = zone.free - (zone.blocks[order] << order);
        }
        let verdict = model.look(&machine.sample);
        if let Some(node) = verdict.compact {
            compacted.push((node, verdict.forecast.order));
        }
    }
    assert_eq!(compacted, [(0, Some(3)), (1, Some(5))]);
}

/// S4 "Modelling". Compaction that brings back less than was lost is asked for earlier.
#[test]
fn the_trend_measures_compaction_and_asks_earlier_where_it_is_slow() {
    let first_asked = |merged: u64| {
        let mut machine = Machine::new(100_000);
        let mut model = model(ModelChoice::Trend);
        let mut large = 30_000;
        for round in 0..100 {
            machine.wait(1000);
            // What was merged once in blocks of order 4 is lost by and by.
            large = if round == 1 {
                large + merged
            } else {
                large - 400
            };
            let zone = &mut machine.sample.zones[0];
            zone.blocks = Default::default();
            zone.blocks[4] = large >> 4;
            zone.blocks[0] = zone.free - (zone.blocks[4] << 4);
            let verdict = model.look(&machine.sample);
            if verdict.compact.is_some() {
                assert_eq!(verdict.forecast.order, Some(4));
                return (round, verdict.forecast.compaction);
            }
        }
        panic!("compaction was not asked for");
    };
    let (late, quick) = first_asked(8000);
    let (early, slow) = first_asked(160);
    assert_eq!((quick, slow), (8000.0, 160.0));
    assert!(early + 20 < late, "asked for after {early} and {late} s");
}

#[test]
fn more_than_can_be_taken_back_is_said_and_not_climbed_after() {
    let mut machine = Machine::new(60_000);
    let mut model = model(ModelChoice::Bursar);
    let verdicts = live(&mut model, &mut machine, 1200, 100, |_| 20_000, 3000);
    let last = verdicts.last().unwrap();
    assert_eq!(last.reason, Reason::Overload, "{last:?}");
    assert!(verdicts.iter().rev().take(300).all(|it| it.scale.is_none()));
    assert!(machine.sample.scale <= 1000);
}

#[test]
fn marks_are_never_raised_above_what_could_be_made_free() {
    let mut machine = Machine::new(5_000);
    machine.sample.holdings.file = 3_000;
    let highest = highest_that_can_be_met(&machine.sample);
    assert!(highest < 200, "{highest}");
    let mut model = model(ModelChoice::Bursar);
    for _ in 0..100 {
        machine.wait(1000);
        machine.sample.counters.alloc_stalls += 5;
        if let Some(scale) = model.look(&machine.sample).scale {
            assert!(scale <= highest, "{scale}");
            machine.sample.scale = scale;
        }
    }
}

#[test]
fn anonymous_memory_counts_as_reclaimable_only_as_far_as_swap_has_room() {
    let mut machine = Machine::new(0);
    machine.sample.holdings.file = 10;
    machine.sample.holdings.anon = 1000;
    assert_eq!(machine.sample.holdings.reclaimable(), 10);
    machine.sample.holdings.swap_free = 300;
    assert_eq!(machine.sample.holdings.reclaimable(), 310);
}

#[test]
fn counters_that_go_backwards_count_as_not_moved() {
    for choice in MODELS {
        let mut machine = Machine::new(100_000);
        machine.sample.counters.alloc_stalls = 1000;
        machine.sample.counters.steal_kswapd = 1 << 60;
        let mut model = model(choice);
        live(&mut model, &mut machine, 20, 1000, |_| 0, 0);
        machine.sample.counters.alloc_stalls = 10;
        machine.sample.counters.steal_kswapd = 5;
        let verdicts = live(&mut model, &mut machine, 20, 1000, |_| 0, 0);
        assert!(
            verdicts.iter().all(|it| it.forecast.stalls == 0),
            "{choice:?}"
        );
        assert!(verdicts.iter().all(|it| it.scale.is_none()), "{choice:?}");
    }
}

#[test]
fn below_a_quarter_of_min_the_factor_changes_nothing() {
    assert_eq!(gap_of_zone(243_234, 11_087, 10), 2771);
    assert_eq!(gap_of_zone(243_234, 11_087, 113), 2771);
    assert_eq!(gap_of_zone(243_234, 11_087, 120), 2918);
    assert_eq!(
        gap_of_zone(u64::MAX, 1, 3000),
        u64::MAX / 10_000 * 3000 + 484
    );
}

#[test]
fn the_index_of_what_is_unusable_is_the_kernels() {
    let mut zone = Zone::default();
    assert_eq!(unusable_permille(&zone, 3), 1000);
    zone.blocks[0] = 8;
    zone.blocks[3] = 1;
    let indices: Vec<u32> = (0..5)
        .map(|order| unusable_permille(&zone, order))
        .collect();
    assert_eq!(indices, [0, 500, 500, 500, 1000]);
}
