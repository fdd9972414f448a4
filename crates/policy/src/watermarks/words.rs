// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A verdict in words: what was seen, what is expected, what follows from it.

use super::verdict::{Forecast, Reason, Verdict};

/// A verdict as a sentence. `before`: the factor as it stood; `page_bytes`: the size of a page.
pub fn sentence(verdict: &Verdict, before: u32, page_bytes: u64) -> String {
    let seen = seen(&verdict.forecast, page_bytes);
    let Forecast {
        needed,
        stalls,
        order,
        ..
    } = verdict.forecast;
    let needed = size(needed as f64, page_bytes);
    let change = match verdict.scale {
        Some(scale) if scale > before => format!(": scale factor {before} up to {scale}"),
        Some(scale) => format!(": scale factor {before} down to {scale}"),
        None => String::new(),
    };
    let compact = match verdict.compact {
        Some(node) => format!(": compact node {node}"),
        None => String::new(),
    };
    let why = match verdict.reason {
        Reason::TooFewSamples => "too few samples for a forecast".to_owned(),
        Reason::Quiet => "nothing asks for more room than the kernel keeps by itself".to_owned(),
        Reason::Enough => "there is room enough for what is asked for".to_owned(),
        Reason::Ahead if verdict.forecast.needed > 0 => {
            format!(
                "a burst may take {needed} before kswapd has made room, and memory may be low {}",
                soon(verdict.forecast.soonest)
            )
        }
        Reason::Ahead => format!("memory may run short {}", soon(verdict.forecast.soonest)),
        Reason::Stalled => format!(
            "{stalls} {} had to wait for memory",
            if stalls == 1 {
                "allocation"
            } else {
                "allocations"
            }
        ),
        Reason::AtBound => format!(
            "{stalls} had to wait and {needed} should be kept free, but watermarks.max_scale or what could \
             be made free allows no more"
        ),
        Reason::Overload => {
            "more is asked for than kswapd can take back: no watermark helps; slow the \
                             cause down, or give the machine more memory or faster storage"
                .to_owned()
        }
        Reason::Calm => format!("{needed} is room enough for what was asked for lately"),
        Reason::Margin => {
            "room is kept for what others take while a killed process's memory comes back"
                .to_owned()
        }
        Reason::Fragmented => match order {
            Some(order) => format!(
                "blocks of {} run out while memory does not",
                size((1_u64 << order.min(40)) as f64, page_bytes)
            ),
            None => "large blocks run out while memory does not".to_owned(),
        },
    };
    format!("{why}{change}{compact} ({seen})")
}

fn seen(forecast: &Forecast, page_bytes: u64) -> String {
    let mut text = format!(
        "free {}, kswapd wakes at {}",
        size(forecast.free as f64, page_bytes),
        size(forecast.low as f64, page_bytes)
    );
    if forecast.demand >= 1.0 {
        text.push_str(&format!(", demand {}/s", size(forecast.demand, page_bytes)));
    }
    if forecast.supply >= 1.0 {
        text.push_str(&format!(
            ", kswapd gives {}/s",
            size(forecast.supply, page_bytes)
        ));
    }
    if forecast.compaction >= 1.0 {
        text.push_str(&format!(
            ", compaction makes {}/s",
            size(forecast.compaction, page_bytes)
        ));
    }
    if forecast.margin > 0 {
        let margin = size(forecast.margin as f64, page_bytes);
        if forecast.margin_kept < forecast.margin {
            let kept = size(forecast.margin_kept as f64, page_bytes);
            text.push_str(&format!(
                ", {kept} of the {margin} for a reap kept free, more is beyond watermarks.max_scale or cannot be made free"
            ));
        } else {
            text.push_str(&format!(", {margin} kept free for a reap"));
        }
    }
    if let Some(likely) = forecast.likely.filter(|&likely| likely < 3600.0) {
        text.push_str(&format!(", low in {likely:.0} s"));
    }
    text
}

fn soon(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) if seconds >= 0.1 => format!("within {seconds:.1} s"),
        Some(_) => "at any moment".to_owned(),
        None => "soon".to_owned(),
    }
}

/// Pages as an amount for people: three digits and a unit.
fn size(pages: f64, page_bytes: u64) -> String {
    let mut amount = pages * page_bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if amount < 1024.0 || unit == "TiB" {
            let digits = usize::from(amount < 10.0 && unit != "B");
            return format!("{amount:.digits$} {unit}");
        }
        amount /= 1024.0;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_read_as_sentences() {
        let forecast = Forecast {
            free: 38_000,
            low: 1206,
            demand: 15_000.0,
            supply: 264_000.0,
            compaction: 25_600.0,
            needed: 12_000,
            soonest: Some(2.5),
            likely: Some(9.0),
            stalls: 1,
            order: None,
            ..Forecast::default()
        };
        let verdict = |reason, scale| Verdict {
            scale,
            compact: None,
            reclaim: None,
            reason,
            forecast,
        };
        let seen = "(free 148 MiB, kswapd wakes at 4.7 MiB, demand 59 MiB/s, kswapd gives 1.0 GiB/s, compaction makes 100 MiB/s, low in 9 s)";
        let table = [
            (
                verdict(Reason::Ahead, Some(540)),
                "a burst may take 47 MiB before kswapd has made room, and memory may be low within 2.5 s: scale factor 10 up to 540",
            ),
            (
                verdict(Reason::Stalled, Some(700)),
                "1 allocation had to wait for memory: scale factor 10 up to 700",
            ),
            (
                verdict(Reason::Quiet, None),
                "nothing asks for more room than the kernel keeps by itself",
            ),
        ];
        for (verdict, text) in table {
            assert_eq!(sentence(&verdict, 10, 4096), format!("{text} {seen}"));
        }
    }

    #[test]
    fn what_is_kept_for_a_reap_is_told_and_what_is_missing_of_it() {
        let said = |margin, margin_kept| {
            let forecast = Forecast {
                free: 38_000,
                low: 1206,
                margin,
                margin_kept,
                ..Forecast::default()
            };
            sentence(&Verdict::leave(Reason::Margin, forecast), 10, 4096)
        };
        let why = "room is kept for what others take while a killed process's memory comes back (free 148 MiB, \
                   kswapd wakes at 4.7 MiB";
        assert_eq!(
            said(12_800, 12_800),
            format!("{why}, 50 MiB kept free for a reap)")
        );
        assert_eq!(
            said(256_000, 12_800),
            format!(
                "{why}, 50 MiB of the 1000 MiB for a reap kept free, more is beyond watermarks.max_scale or cannot \
                 be made free)"
            )
        );
    }

    #[test]
    fn amounts_have_the_unit_that_suits_them() {
        for (pages, text) in [
            (0.0, "0 B"),
            (1.0, "4.0 KiB"),
            (256.0, "1.0 MiB"),
            (25_600.0, "100 MiB"),
            (1e12, "3725 TiB"),
        ] {
            assert_eq!(size(pages, 4096), text);
        }
    }
}
