// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The readers of free memory and reclaim on what real kernels wrote (tests/fixtures/capture_vm.sh; for
//! 4.14 see its README), and on what none would.

use std::fs;
use std::path::{Path, PathBuf};

use bursar_host::vm::{
    BuddyInfo, Extfrag, KeptFile, Marks, Pressure, VmStat, VmStatReader, ZoneInfo, ZoneKind,
};
use proptest::prelude::*;

/// Fixtures with their numbers of nodes.
const MACHINES: [(&str, usize); 5] = [
    ("4.14-2-nodes", 2),
    ("6.1-1-node", 1),
    ("6.12-2-nodes", 2),
    ("6.18-1-node", 1),
    ("7.2-8-nodes", 8),
];

fn fixture(machine: &str, file: &str) -> Option<Vec<u8>> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/vm")
        .join(machine)
        .join(file);
    fs::read(path).ok()
}

fn zones(text: &[u8]) -> ZoneInfo {
    let mut zones = ZoneInfo::default();
    zones.read(text).unwrap();
    zones
}

fn buddies(text: &[u8]) -> BuddyInfo {
    let mut buddies = BuddyInfo::default();
    buddies.read(text).unwrap();
    buddies
}

#[test]
fn every_layout_is_read_and_both_files_agree_on_what_is_free() {
    for (machine, nodes) in MACHINES {
        let zones = zones(&fixture(machine, "zoneinfo").unwrap());
        assert_eq!(zones.nodes().len(), nodes, "{machine}");
        let buddies = buddies(&fixture(machine, "buddyinfo").unwrap());
        let populated = zones.zones().iter().filter(|zone| zone.is_populated());
        assert_eq!(
            buddies.zones().len(),
            populated.clone().count(),
            "{machine}"
        );
        for zone in populated {
            let free = buddies
                .zones()
                .iter()
                .find(|it| (it.node, it.kind) == (zone.node, zone.kind))
                .unwrap();
            assert_eq!(free.blocks().len(), 11, "{machine}");
            // S4's slide shows one file only, so there is nothing for it to agree with.
            if machine != "4.14-2-nodes" {
                let apart = free.pages_from(0).abs_diff(zone.free);
                assert!(apart <= zone.free / 20 + 64, "{machine} {zone:?} {free:?}");
            }
            let marks = zone.marks();
            assert!(
                marks.min < marks.low || zone.managed < 4096,
                "{machine} {zone:?}"
            );
            assert!(
                marks.low <= marks.high && zone.managed <= zone.present,
                "{machine}"
            );
        }
    }
}

#[test]
fn an_empty_zone_does_not_swallow_the_next_node() {
    let zones = zones(&fixture("4.14-2-nodes", "zoneinfo").unwrap());
    let of = |node, kind| {
        *zones
            .zones()
            .iter()
            .find(|zone| (zone.node, zone.kind) == (node, kind))
            .unwrap()
    };
    let marks = |min, low, high| Marks { min, low, high };
    assert_eq!(of(0, ZoneKind::Normal).marks(), marks(9800, 12_250, 14_700));
    assert_eq!(of(0, ZoneKind::Movable).marks(), marks(0, 0, 0));
    assert_eq!(
        of(1, ZoneKind::Normal).marks(),
        marks(10_012, 12_515, 15_018)
    );
    assert_eq!(of(0, ZoneKind::Normal).per_cpu, 377);
    assert_eq!(of(1, ZoneKind::Normal).per_cpu, 3);
    let files: Vec<u64> = zones
        .nodes()
        .iter()
        .map(|node| node.inactive_file)
        .collect();
    assert_eq!(files, [91_234_567, 91_234_567]);
}

#[test]
fn a_boost_is_taken_off_all_marks() {
    let text = b"Node 0, zone   Normal\n  pages free     5000\n        boost    2048\n        min      3017\n        low      3259\n        high     3501\n        promo    3743\n        managed  243234\n";
    let zones = zones(text);
    let expected = Marks {
        min: 969,
        low: 1211,
        high: 1453,
    };
    assert_eq!(zones.zones()[0].marks(), expected);
}

#[test]
fn the_pagesets_high_is_not_the_zones_high() {
    for (machine, _) in MACHINES {
        let text = fixture(machine, "zoneinfo").unwrap();
        for zone in zones(&text).zones() {
            let marks = zone.marks();
            if zone.is_populated() {
                assert!(
                    marks.high - marks.low <= (marks.low - marks.min) + 1,
                    "{machine} {zone:?}"
                );
            }
        }
    }
}

#[test]
fn s4s_machine_has_hardly_a_large_block_although_gigabytes_are_free() {
    let buddies = buddies(&fixture("4.14-2-nodes", "buddyinfo").unwrap());
    let normal = buddies
        .zones()
        .iter()
        .filter(|zone| zone.kind == ZoneKind::Normal);
    for zone in normal {
        assert!(
            zone.pages_from(0) > 100_000 && zone.pages_from(9) <= 512,
            "{zone:?}"
        );
    }
}

#[test]
fn counters_are_read_on_every_kernel() {
    for (machine, _) in MACHINES {
        let stat = VmStat::parse(&fixture(machine, "vmstat").unwrap()).unwrap();
        assert!(stat.free > 0 && stat.anon > 0, "{machine} {stat:?}");
        assert_eq!(stat.free_in_blocks > 0, machine >= "6.18", "{machine}");
    }
    let stat = VmStat::parse(&fixture("4.14-2-nodes", "vmstat").unwrap()).unwrap();
    let expected = VmStat {
        free: 734_975,
        free_in_blocks: 0,
        file: 185_273_796,
        anon: 684_856,
        slab_reclaimable: 1_622_446,
        steal_kswapd: 987_654_321,
        steal_direct: 4_321_000,
        steal_other: 0,
        scan_kswapd: 1_987_654_321,
        alloc_stalls: 5529,
        compact_stalls: 321,
        compact_fails: 300,
        kswapd_runs: 8123,
        kcompactd_wakes: 77,
        refaults: 123_456,
        thp_faults: 44,
        thp_fallbacks: 55,
        given_back: 0,
        swap_outs: 9,
        oom_kills: 2,
    };
    assert_eq!(stat, expected);
}

#[test]
fn counters_by_zone_of_kernels_before_4_8_are_added_up() {
    let text = b"nr_free_pages 5\nallocstall 7\npgsteal_kswapd_dma 1\npgsteal_kswapd_normal 20\npgscan_kswapd_normal 30\npgsteal_direct_normal 4\n";
    let stat = VmStat::parse(text).unwrap();
    assert_eq!(
        (
            stat.alloc_stalls,
            stat.steal_kswapd,
            stat.scan_kswapd,
            stat.steal_direct
        ),
        (7, 21, 30, 4)
    );
}

#[test]
fn counters_are_found_again_also_where_the_lines_have_moved() {
    let mut reader = VmStatReader::default();
    let text = |machine| fixture(machine, "vmstat").unwrap();
    for (machine, _) in MACHINES.iter().chain(MACHINES.iter().rev()) {
        let text = text(machine);
        let once = VmStat::parse(&text).unwrap();
        assert_eq!(reader.read(&text).unwrap(), once, "{machine}");
        assert_eq!(reader.read(&text).unwrap(), once, "{machine} again");
    }
    // The same lines with other numbers, cut short, with one too few, with nonsense at the end.
    reader
        .read(b"nr_free_pages 5\nnr_mlock 3\npgsteal_kswapd 7\n")
        .unwrap();
    let table = [
        ("nr_free_pages 6\nnr_mlock 4\npgsteal_kswapd 70\n", Some(70)),
        ("nr_free_pages 6\nnr_mlock 4\npgsteal_kswapd 7", Some(7)),
        ("nr_free_pages 6\npgsteal_kswapd 71\n", Some(71)),
        ("nr_free_pages 6\nnr_mlock 4\npgsteal_kswapd x\n", None),
        (
            "nr_free_pages 6\nnr_mlock 4\npgsteal_kswapd 72\nnumb 1\n",
            Some(72),
        ),
        ("nr_mlock 4\npgsteal_kswapd 72\n", None),
    ];
    for (text, expected) in table {
        let found = reader.read(text.as_bytes()).ok();
        let found = found.map(|stat| (stat.free, stat.steal_kswapd));
        assert_eq!(found, expected.map(|steal| (6, steal)), "{text}");
    }
}

#[test]
fn pressure_is_read_with_its_hundredths() {
    let text = b"some avg10=1.23 avg60=0.00 avg300=100.00 total=4500000\nfull avg10=0.07 avg60=0.00 avg300=0.00 total=12\n";
    let pressure = Pressure::parse(text).unwrap();
    assert_eq!(
        (
            pressure.some.avg10,
            pressure.some.avg300,
            pressure.some.total_us
        ),
        (123, 10_000, 4_500_000)
    );
    assert_eq!(pressure.full.unwrap().avg10, 7);
    for (machine, _) in MACHINES {
        if let Some(text) = fixture(machine, "pressure") {
            assert!(Pressure::parse(&text).is_ok(), "{machine}");
        }
    }
    assert!(Pressure::parse(b"some avg10=1,23 total=1\n").is_err());
    assert!(Pressure::parse(b"").is_err());
}

#[test]
fn the_indices_of_debugfs_are_read_and_minus_one_is_nothing() {
    for machine in ["6.1-1-node", "6.12-2-nodes", "7.2-8-nodes"] {
        for file in ["unusable_index", "extfrag_index"] {
            let mut extfrag = Extfrag::default();
            extfrag.read(&fixture(machine, file).unwrap()).unwrap();
            assert!(!extfrag.zones().is_empty(), "{machine} {file}");
            for zone in extfrag.zones() {
                assert!(
                    zone.indices().flatten().all(|index| index <= 1000),
                    "{machine}"
                );
                if file == "unusable_index" {
                    assert_eq!(zone.indices().next(), Some(Some(0)), "{machine}");
                }
            }
        }
    }
    let mut extfrag = Extfrag::default();
    extfrag
        .read(b"Node 0, zone   Normal -1.000 0.512 1.000 \n")
        .unwrap();
    let indices: Vec<_> = extfrag.zones()[0].indices().collect();
    assert_eq!(indices, [None, Some(512), Some(1000)]);
}

#[test]
fn arm_with_large_pages_has_fourteen_orders() {
    let text = b"Node 0, zone   Normal      5      9     16      5      3      2      1      2      2      1      2      2      1    250 \n";
    let buddies = buddies(text);
    assert_eq!(buddies.zones()[0].blocks().len(), 14);
    assert_eq!(buddies.zones()[0].pages_from(13), 250 << 13);
}

#[test]
fn what_is_no_such_file_is_refused_and_says_why() {
    let mut zones = ZoneInfo::default();
    let mut buddies = BuddyInfo::default();
    for (text, why) in [
        (&b""[..], "no zone"),
        (b"hello\n", "the file does not begin with a zone"),
        (
            b"Node 0, zone Normal\n  pages free x\n",
            "free is no number",
        ),
        (
            b"Node 0, zone Normal\n  per-node stats\n      nr_inact",
            "it ends in the middle of a zone",
        ),
        (
            b"Node 0, zone Normal\nNode 1, zone Normal\n  pages free 5\n",
            "a zone without its free pages",
        ),
        (
            b"Node 99999, zone Normal\n  pages free 5\n",
            "a line begins with \"Node\" and names no node and zone",
        ),
        (
            b"Node 0, zone Normal\n  pages free 5\n        min      -3\n",
            "min is no number",
        ),
    ] {
        assert_eq!(zones.read(text).unwrap_err().to_string(), why);
    }
    for (text, why) in [
        (&b"\n"[..], "no zone"),
        (b"Node 0, zone Normal\n", "a zone without counts"),
        (
            b"Node 0, zone Normal 1 2 x\n",
            "a count of blocks is no number",
        ),
        (
            b"Node 0, zone Normal 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
            "more than 16 orders",
        ),
        (b"MemTotal: 5 kB\n", "a line does not begin with Node"),
    ] {
        assert_eq!(buddies.read(text).unwrap_err().to_string(), why);
    }
    assert!(VmStat::parse(b"pgsteal_kswapd 5\n").is_err());
    assert!(VmStat::parse(b"nr_free_pages 99999999999999999999999\n").is_err());
}

#[test]
fn a_zoneinfo_of_which_nothing_is_understood_is_refused() {
    let text = b"Node 0, zone   Normal\n  pages free     5\n        given    900\n";
    let refused = ZoneInfo::default().read(text).unwrap_err();
    assert!(refused.to_string().contains("how much memory"), "{refused}");
}

#[test]
fn a_file_of_ten_megabytes_is_read() {
    let path = std::env::temp_dir().join(format!("bursar-vm-{}", std::process::id()));
    let line = b"              high_min: 378\n";
    fs::write(&path, line.repeat(10_000_000 / line.len())).unwrap();
    let length = KeptFile::open(&path).unwrap().read().unwrap().len();
    fs::remove_file(&path).unwrap();
    assert_eq!(length, 10_000_000 / line.len() * line.len());
}

#[test]
fn a_truncated_file_is_refused_or_has_fewer_zones_and_never_panics() {
    for (machine, _) in MACHINES {
        let text = fixture(machine, "zoneinfo").unwrap();
        let mut whole = ZoneInfo::default();
        whole.read(&text).unwrap();
        let mut part = ZoneInfo::default();
        for length in (0..text.len()).step_by(37) {
            if part.read(&text[..length]).is_ok() {
                assert!(part.zones().len() <= whole.zones().len());
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = ZoneInfo::default().read(&bytes);
        let _ = BuddyInfo::default().read(&bytes);
        let _ = Extfrag::default().read(&bytes);
        let _ = VmStat::parse(&bytes);
        let _ = Pressure::parse(&bytes);
    }

    #[test]
    fn no_damaged_file_panics(at in 0_usize..6000, byte: u8) {
        for (machine, _) in MACHINES {
            for file in ["zoneinfo", "buddyinfo", "vmstat"] {
                let mut text = fixture(machine, file).unwrap();
                let at = at % text.len();
                text[at] = byte;
                let _ = ZoneInfo::default().read(&text);
                let _ = BuddyInfo::default().read(&text);
                let _ = VmStat::parse(&text);
            }
        }
    }

    #[test]
    fn free_blocks_come_out_as_written(counts in prop::collection::vec(0_u64..1 << 40, 1..16)) {
        let words: Vec<String> = counts.iter().map(u64::to_string).collect();
        let text = format!("Node 3, zone  Movable {}\n", words.join("  "));
        let buddies = buddies(text.as_bytes());
        prop_assert_eq!(buddies.zones()[0].blocks(), &counts[..]);
        prop_assert_eq!(buddies.zones()[0].kind, ZoneKind::Movable);
    }
}
