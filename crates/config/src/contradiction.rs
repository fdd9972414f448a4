// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounds that contradict each other whatever the machine's memory.

use bursar_model::{BoundsSpec, Bytes, SizeSpec};

use crate::finding::Wrong;

/// Why the bounds contradict each other whatever the machine's memory; `None` when there may be a
/// machine on which they do not.
pub(crate) fn contradiction(spec: &BoundsSpec) -> Option<Wrong> {
    for (name, bound) in [("notice", spec.notice), ("barrier", spec.barrier)] {
        if spec.limit == SizeSpec::None && matches!(bound, Some(SizeSpec::Percent(_))) {
            let message = format!("the {name} is a percentage of the limit, but the limit is none");
            return Some(Wrong::new(message, "give it as a size"));
        }
    }
    let full = SizeSpec::Bytes(Bytes::new(u64::from(u32::MAX)));
    let limit_for = |bound: SizeSpec| match bound {
        // A share of the limit exceeds the limit when it exceeds all of it.
        SizeSpec::Percent(_) => full,
        _ => spec.limit,
    };
    let pairs = [
        (
            "barrier",
            spec.barrier,
            "limit",
            spec.barrier.map(limit_for),
        ),
        ("notice", spec.notice, "limit", spec.notice.map(limit_for)),
        ("notice", spec.notice, "barrier", spec.barrier),
    ];
    pairs
        .into_iter()
        .find_map(|(low_name, low, high_name, high)| {
            let (low, high) = (low?, high?);
            let above = match (low, high, spec.limit) {
                (SizeSpec::Bytes(low), SizeSpec::Bytes(high), _) => low > high,
                (SizeSpec::Percent(low), SizeSpec::Percent(high), _) => low > high,
                (SizeSpec::Percent(low), SizeSpec::Bytes(high), _) if high_name == "limit" => {
                    low.of(high) > high
                }
                (SizeSpec::Percent(low), SizeSpec::Bytes(high), SizeSpec::Bytes(limit)) => {
                    low.of(limit) > high
                }
                (SizeSpec::Bytes(low), SizeSpec::Percent(high), SizeSpec::Bytes(limit)) => {
                    low > high.of(limit)
                }
                _ => false,
            };
            let shown = if high_name == "limit" {
                spec.limit
            } else {
                high
            };
            above.then(|| {
                Wrong::new(
                    format!("the {low_name} ({low}) lies above the {high_name} ({shown})"),
                    format!("lower it or raise the {high_name}"),
                )
            })
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(limit: &str, notice: Option<&str>, barrier: Option<&str>) -> BoundsSpec {
        let size = |text: &str| text.parse().unwrap();
        BoundsSpec {
            limit: size(limit),
            notice: notice.map(size),
            barrier: barrier.map(size),
        }
    }

    #[test]
    fn what_no_machine_can_satisfy_is_found() {
        let table = [
            (
                spec("25%", Some("95%"), Some("90%")),
                "the notice (95%) lies above the barrier (90%)",
            ),
            (
                spec("25%", Some("101%"), None),
                "the notice (101%) lies above the limit (25%)",
            ),
            (
                spec("25%", None, Some("100.01%")),
                "the barrier (100.01%) lies above the limit (25%)",
            ),
            (
                spec("25%", Some("2G"), Some("1G")),
                "the notice (2G) lies above the barrier (1G)",
            ),
            (
                spec("1G", Some("2G"), None),
                "the notice (2G) lies above the limit (1G)",
            ),
            (
                spec("1G", Some("90%"), Some("512M")),
                "the notice (90%) lies above the barrier (512M)",
            ),
            (
                spec("none", Some("2G"), Some("1G")),
                "the notice (2G) lies above the barrier (1G)",
            ),
            (
                spec("none", Some("90%"), None),
                "the notice is a percentage of the limit, but the limit is none",
            ),
        ];
        for (spec, message) in table {
            assert_eq!(contradiction(&spec).unwrap().message, message);
        }
    }

    #[test]
    fn what_some_machine_can_satisfy_is_left_to_it() {
        for spec in [
            spec("25%", Some("1G"), None),
            spec("25%", Some("90%"), Some("10G")),
            spec("25%", Some("100%"), Some("100%")),
            spec("1G", None, None),
            spec("none", None, None),
            spec("1G", Some("none"), Some("none")),
        ] {
            assert_eq!(contradiction(&spec), None, "{spec:?}");
        }
    }

    fn sizes() -> impl Strategy<Value = SizeSpec> {
        prop_oneof![
            Just(SizeSpec::None),
            (0_u64..1 << 40).prop_map(|count| SizeSpec::Bytes(Bytes::new(count))),
            (0_u32..=10_000).prop_map(|percent| format!("{percent}%").parse().unwrap()),
        ]
    }

    proptest! {
        /// What is refused for every machine is refused on each by the model, too.
        #[test]
        fn nothing_is_refused_that_a_machine_could_do(
            limit in sizes(),
            notice in prop::option::of(sizes()),
            barrier in prop::option::of(sizes()),
            ram in (24_u32..44).prop_map(|shift| Bytes::new(1 << shift)),
        ) {
            let spec = BoundsSpec { limit, notice, barrier };
            let zero = limit.resolve(ram).is_some_and(|limit| limit < Bytes::from_mib(1));
            if contradiction(&spec).is_some() && !zero {
                prop_assert!(spec.resolve(ram).is_err(), "{spec:?}");
            }
            // Where the memory does not matter, what the model refuses is found beforehand.
            if !matches!(limit, SizeSpec::Percent(_)) && spec.resolve(ram).is_err() {
                prop_assert!(contradiction(&spec).is_some(), "{spec:?}");
            }
        }
    }
}
