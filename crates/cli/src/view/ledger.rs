// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar doctor`: the ledger beside /proc, account by account.

use bursar_model::{Bytes, Nanos};
use bursar_protocol::{AccountCheck, LedgerCheck, Verdict};

use crate::style::{Style, Tone};
use crate::view::table::{Align, Cell, Table, cut};
use crate::view::words::{count, narrow_count, narrow_size, span};

/// Accounts shown; JSON has all.
const SHOWN: usize = 20;
const NAME: usize = 24;

/// What was compared, in a sentence.
pub(crate) fn sentence(check: &LedgerCheck, style: &Style) -> String {
    let accounts = check.accounts.len() as u64;
    let widest = check.accounts.iter().map(|it| it.bound).max();
    let mut text = format!(
        "the ledger agrees with /proc: {}, {} looked at in {}",
        count(accounts, "account", "accounts"),
        count(check.processes, "process", "processes"),
        span(Nanos::new(check.duration_ns), style.charset),
    );
    if let Some(widest) = widest {
        text.push_str(&format!(", bound {widest}"));
        if !check.proc_is_exact {
            text.push_str(" (this kernel's /proc is not exact itself)");
        }
    }
    text
}

/// What is out, if anything is.
pub(crate) fn trouble(check: &LedgerCheck) -> Option<String> {
    let of = |verdict| {
        let some = check
            .accounts
            .iter()
            .filter(move |it| it.verdict == verdict);
        some.collect::<Vec<_>>()
    };
    let out = of(Verdict::Out);
    if let Some(worst) = out.iter().max_by_key(|it| it.apart) {
        let side = if worst.held > worst.held_by_proc {
            "more"
        } else {
            "less"
        };
        let others = match out.len() {
            1 => String::new(),
            2 => ", and 1 more account is out".to_owned(),
            many => format!(", and {} more accounts are out", many - 1),
        };
        return Some(format!(
            "the ledger has {} {side} for {} than /proc, with a bound of {}{others}",
            worst.apart, worst.account, worst.bound
        ));
    }
    (check.left > 0).then(|| {
        format!(
            "{} of {} could not be looked at in time",
            check.left,
            count(
                check.left.saturating_add(check.processes),
                "process",
                "processes"
            )
        )
    })
}

/// What to do about that.
pub(crate) fn remedy(check: &LedgerCheck) -> &'static str {
    let has_out = check.accounts.iter().any(|it| it.verdict == Verdict::Out);
    match (has_out, check.unfit > 0) {
        (true, true) => {
            "raise ledger.max_processes and ledger.max_accounts in bursar.toml: some did not fit (bursar \
             status says how many), and restart bursard"
        }
        (true, false) => {
            "run doctor again: what is out for two re-sums is repaired within a second (bursar status \
             --json: drift_repaired_bytes). If it stays, bursard --release and a restart make a new \
             ledger, and the output of doctor --json belongs in a bug report"
        }
        (false, _) => "run it again when the machine is less busy",
    }
}

/// A table, the worst first.
pub(crate) fn table(check: &LedgerCheck, indent: usize, style: &Style) -> String {
    if check.accounts.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("ACCOUNT", Align::Left),
        ("LEDGER", Align::Right),
        ("/PROC", Align::Right),
        ("APART", Align::Right),
        ("BOUND", Align::Right),
        ("PROCS", Align::Right),
        ("", Align::Left),
    ]);
    for account in check.accounts.iter().take(SHOWN) {
        table.push(row(account, style));
    }
    let mut text = table.indented_lines(indent, 2, style);
    let more = check.accounts.len().saturating_sub(SHOWN);
    if more > 0 {
        text.push_str(&format!("{:indent$}and {more} more (--json has all)\n", ""));
    }
    text
}

fn row(account: &AccountCheck, style: &Style) -> Vec<Cell> {
    let (word, tone) = match account.verdict {
        Verdict::Within => ("within", None),
        Verdict::Moving => ("moving", None),
        Verdict::Unfinished => ("unfinished", Some(Tone::Warning)),
        Verdict::Out => ("out", Some(Tone::Bad)),
    };
    let mut verdict = word.to_owned();
    if account.verdict == Verdict::Moving {
        verdict.push_str(&format!(", by {}", narrow_size(account.moved)));
    }
    if account.correction > Bytes::ZERO {
        verdict.push_str(&format!(", shared -{}", narrow_size(account.correction)));
    }
    if account.unmapped > Bytes::ZERO {
        verdict.push_str(&format!(", files +{}", narrow_size(account.unmapped)));
    }
    let processes = if account.processes == account.processes_by_proc {
        narrow_count(account.processes.into())
    } else {
        format!(
            "{}/{}",
            narrow_count(account.processes.into()),
            narrow_count(account.processes_by_proc.into())
        )
    };
    vec![
        Cell::new(cut(&style.shown(&account.account), NAME, style)),
        Cell::new(narrow_size(account.held)),
        Cell::new(narrow_size(account.held_by_proc)),
        Cell::new(narrow_size(account.apart)),
        Cell::new(narrow_size(account.bound)),
        Cell::new(processes),
        Cell::toned(verdict, tone),
    ]
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{HOSTILE, style};

    fn account(name: &str, verdict: Verdict, held: u64, by_proc: u64) -> AccountCheck {
        AccountCheck {
            account: name.into(),
            uid: Some(Uid::new(1000)),
            verdict,
            held: Bytes::from_mib(held),
            held_by_proc: Bytes::from_mib(by_proc),
            correction: Bytes::ZERO,
            unmapped: Bytes::ZERO,
            bound: Bytes::new(256 << 10),
            apart: Bytes::from_mib(held.abs_diff(by_proc)),
            moved: Bytes::ZERO,
            processes: 3,
            processes_by_proc: 3,
        }
    }

    fn check(accounts: Vec<AccountCheck>) -> LedgerCheck {
        LedgerCheck {
            accounts,
            processes: 341,
            left: 0,
            rounds: 1,
            duration_ns: 12_000_000,
            proc_is_exact: true,
            unfit: 0,
        }
    }

    fn told(check: &LedgerCheck, width: usize) -> String {
        let style = style(width);
        format!(
            "{}\n{}\n{}\n{}",
            sentence(check, &style),
            trouble(check).unwrap_or_default(),
            remedy(check),
            table(check, 13, &style)
        )
    }

    #[test]
    fn what_is_out_comes_first_with_its_figures() {
        let mut moving = account("carol", Verdict::Moving, 90, 130);
        moving.moved = Bytes::from_mib(35);
        let mut shared = account(HOSTILE, Verdict::Within, 480, 480);
        shared.correction = Bytes::from_mib(1600);
        shared.unmapped = Bytes::from_mib(7);
        shared.processes_by_proc = 4;
        let accounts = vec![
            account("alice", Verdict::Out, 474, 410),
            account("bob", Verdict::Out, 1, 2),
            moving,
            shared,
        ];
        assert_snapshot!(told(&check(accounts), 80));
    }

    #[test]
    fn agreement_is_one_line_and_a_table() {
        let mut all = check(vec![account("alice", Verdict::Within, 410, 410)]);
        assert_eq!(trouble(&all), None);
        all.proc_is_exact = false;
        assert_snapshot!(told(&all, 80));
    }

    #[test]
    fn what_there_was_no_time_for_is_said() {
        let mut late = check(vec![account("alice", Verdict::Unfinished, 410, 300)]);
        late.left = 20_000;
        assert_snapshot!(told(&late, 80));
    }

    #[test]
    fn many_accounts_are_cut_and_counted() {
        let many = (0..45).map(|it| account(&format!("user{it}"), Verdict::Within, it, it));
        let text = table(&check(many.collect()), 0, &style(80));
        assert_eq!(text.lines().count(), 22);
        assert!(text.ends_with("and 25 more (--json has all)\n"), "{text}");
    }
}
