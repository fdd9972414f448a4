// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar faults measure`.

use bursar_faults::measure::{CASES, Case, Measurement, measure};
use bursar_model::{Nanos, SizeSpec};
use clap::Args;
use serde::Serialize;

use crate::caller::{Caller, Form};
use crate::failure::{Code, Failure};
use crate::output;
use crate::style::Style;
use crate::view::faults::measurements;

/// Measure what a first touch costs against a touch of resident, locked memory
///
/// S3's experiment: pages that are not resident are touched one by one, then resident, locked,
/// populated, huge and copy-on-write ones. The faults that the kernel counts are compared with the number
/// that must come; exit code 1 when one differs.
#[derive(Debug, Args)]
pub(crate) struct Measure {
    /// Pages to touch in each pass (S3: 1048576)
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pages: u64,
    /// Passes of each case, for the spread
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,
    /// Use no more memory than this at once: pages that do not fit are measured in batches. Without it, what
    /// the machine has free, less a sixteenth
    #[arg(long, value_name = "SIZE")]
    memory: Option<SizeSpec>,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    pages: u64,
    page_bytes: u64,
    all_counts_right: bool,
    /// Time of touching pages that are not resident : resident and locked, in thousandths.
    ratio_permille: Option<u64>,
    /// What one fault costs more than a touch, as S3 computes it.
    fault_ns: Option<u64>,
    cases: &'a [Measurement],
}

impl Measure {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let mut found = Vec::new();
        let ram = bursar_host::Proc::host()
            .and_then(|proc| proc.meminfo())
            .map_err(bursar_faults::Error::from)?
            .total;
        let most = self.memory.and_then(|size| size.resolve(ram));
        measure(self.pages, self.passes, most, &CASES, |measurement| {
            found.push(measurement)
        })?;
        let is_right = found.iter().all(Measurement::is_right);
        let comparison = Comparison::of(&found);
        match caller.form {
            Form::Json => caller.answer(
                &Answer {
                    pages: self.pages,
                    page_bytes: rustix::param::page_size() as u64,
                    all_counts_right: is_right,
                    ratio_permille: comparison.as_ref().map(Comparison::ratio_permille),
                    fault_ns: comparison.as_ref().map(|it| it.fault.get()),
                    cases: &found,
                },
                |_| String::new(),
            )?,
            Form::People => output::say(&people(self.pages, &found, comparison, &caller.style))?,
        }
        if is_right {
            Ok(())
        } else {
            Err(Failure::Answer(Code::Failed))
        }
    }
}

/// S3's two lines.
struct Comparison {
    first: Nanos,
    resident: Nanos,
    fault: Nanos,
}

impl Comparison {
    /// The first touch of pages allocated one by one against resident memory, locked where that was
    /// allowed.
    fn of(found: &[Measurement]) -> Option<Self> {
        let median = |case: Case| found.iter().find(|it| it.case == case)?.median();
        let first = median(Case::Memalign)?;
        let resident = median(Case::Locked).or_else(|| median(Case::MemalignAgain))?;
        let saved = first.touch_ns.saturating_sub(resident.touch_ns);
        Some(Self {
            first: Nanos::new(first.touch_ns),
            resident: Nanos::new(resident.touch_ns),
            fault: Nanos::new(saved.checked_div(first.faults.total())?),
        })
    }

    fn ratio_permille(&self) -> u64 {
        self.first
            .get()
            .saturating_mul(1000)
            .checked_div(self.resident.get())
            .unwrap_or(u64::MAX)
    }
}

fn people(
    pages: u64,
    found: &[Measurement],
    comparison: Option<Comparison>,
    style: &Style,
) -> String {
    let mut text = measurements(pages, found, style);
    if let Some(it) = comparison {
        let ratio = it.ratio_permille();
        text.push_str(&format!(
            "\nnot resident : resident = {} us : {} us = {}.{} : 1; one fault costs {} ns\n",
            it.first.get() / 1000,
            it.resident.get() / 1000,
            ratio / 1000,
            ratio % 1000 / 100,
            it.fault.get()
        ));
    }
    text
}
