// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All accounts as comma-separated values (RFC 4180), for spreadsheets.

use bursar_model::Bytes;

use crate::report::{Account, Report};

const HEAD: &str = "account,uid,kills,refusals,notices,would_kills,kills_kept,kills_told_before,max_bytes,mean_bytes,\
                    limit_bytes,held_seconds,max_time,last_kill_time,programs";

/// A head and a line for each account.
pub(crate) fn csv(report: &Report) -> String {
    let lines = report.accounts.iter().map(line);
    std::iter::once(HEAD.to_owned())
        .chain(lines)
        .fold(String::new(), |text, line| text + &line + "\n")
}

fn line(account: &Account) -> String {
    let number = |number: u64| number.to_string();
    let programs: Vec<String> = account
        .programs
        .iter()
        .map(|it| format!("{} x{}", it.comm, it.kills))
        .collect();
    let cells = [
        quoted(&account.account),
        account.uid.map_or_else(String::new, |it| it.to_string()),
        number(account.kills),
        number(account.refusals),
        number(account.notices),
        number(account.would_kills),
        number(account.kills_kept),
        number(account.kills_told_before),
        number(account.max.get()),
        number(account.mean.get()),
        account
            .limit
            .map(Bytes::get)
            .map_or_else(String::new, number),
        number(account.held_seconds),
        account.max_time.clone(),
        account.last_kill_time.clone().unwrap_or_default(),
        quoted(&harmless(&programs.join("; "))),
    ];
    cells.join(",")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A spreadsheet takes what begins so for a formula; a user has chosen it.
fn harmless(text: &str) -> String {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    }
}
