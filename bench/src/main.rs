// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-bench`: what limits cost and how well they hold, on this machine.

mod allocator;
mod arguments;
mod board;
mod bpf;
mod figures;
mod idle;
mod interrupt;
mod load;
mod lock;
mod machine;
mod poller;
mod progress;
mod report;
mod results;
mod run;
mod show;
mod table;

use anyhow::{Context, Result};
use arguments::{Arguments, Table};
use clap::Parser;
use results::Results;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // What cannot be loaded is a line of a table, with the reason.
    libbpf_rs::set_print(None);
    let how = &arguments.how;
    let name = match &arguments.table {
        Table::All => "results",
        Table::Overcommit(_) => "overcommit",
        Table::Speed(_) => "speed",
        Table::Scale => "scale",
        Table::Observe => "observe",
        Table::System => "system",
        Table::Gate => "gate",
        Table::Instructions => "instructions",
        Table::Malloc(_) => "malloc",
        Table::Peers => "peers",
        Table::Report(chosen) => {
            let results = load_all(&chosen.from)?;
            if let Some(path) = &chosen.markdown {
                report::write_markdown(&results, path)?;
                eprintln!("{}", path.display());
            }
            return show_all(&results, &how.out);
        }
    };
    interrupt::listen();
    let path = how.out.join(format!("{name}.json"));
    let results = run::run(&arguments.table, how, &path)?;
    if how.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    }
    if matches!(arguments.table, Table::All) {
        if !how.json {
            println!("Promises\n{}", show::claims(&results).plain());
        }
        show_all(&results, &how.out)?;
    }
    eprintln!("{:.0} s; figures in {}", results.seconds, path.display());
    Ok(())
}

/// Pictures and page.
fn show_all(results: &Results, out: &std::path::Path) -> Result<()> {
    for remark in report::write(results, out)? {
        eprintln!("{remark}");
    }
    eprintln!("pictures and page: {}", out.join("index.html").display());
    Ok(())
}

/// Several runs as one.
fn load_all(paths: &[std::path::PathBuf]) -> Result<Results> {
    let mut results: Option<Results> = None;
    for path in paths {
        let next = Results::load(path)?;
        match &mut results {
            Some(results) => results.complete_from(next),
            None => results = Some(next),
        }
    }
    results.context("name the JSON of a run with --from")
}
