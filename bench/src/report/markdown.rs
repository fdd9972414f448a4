// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/BENCHMARKS.md: a committed run, with how to repeat it and what it does not show.

use crate::results::Results;
use crate::show;

const TEMPLATE: &str = include_str!("benchmarks.md");

pub(crate) fn markdown(results: &Results) -> String {
    let mut tables = String::new();
    for section in show::sections(results) {
        tables += &format!("## {}\n\n{}\n\n", section.title, section.about);
        for picture in section.pictures {
            tables += &format!("![{picture}](benchmarks/{picture}.svg)\n\n");
        }
        for grid in &section.grids {
            tables += &grid.markdown();
            tables.push('\n');
        }
    }
    let pace = if results.is_quick {
        "A quick run (wide intervals)"
    } else {
        "A whole run"
    };
    let further = match results.further_runs {
        0 => "",
        _ => " in all, of more than one run: not all tables are of the same hour and build",
    };
    let waited = match results.waited_seconds {
        none if none < 60.0 => String::new(),
        some => format!(
            ", {:.0} of them spent waiting for others' builds to pause",
            some / 60.0
        ),
    };
    TEMPLATE
        .replace(
            "{{run}}",
            &format!(
                "{pace}: {:.0} minutes{further}{waited}.",
                results.seconds / 60.0
            ),
        )
        .replace(
            "{{machine}}",
            show::machine(&results.machine).markdown().trim_end(),
        )
        .replace("{{claims}}", show::claims(results).markdown().trim_end())
        .replace("{{tables}}", tables.trim_end())
}
