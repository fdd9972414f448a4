// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What other limits would change, account by account.

use bursar_model::Candidate;
use bursar_protocol::{AccountPreview, Over, Preview, PreviewBound};

use crate::style::Style;
use crate::view::paragraph::paragraph;
use crate::view::words::count;

/// Accounts shown that are over nothing.
const MOST_SHOWN: usize = 20;

/// Those that are over something, some of the others, and sums.
pub(crate) fn preview(preview: &Preview, style: &Style) -> String {
    let (over, within): (Vec<_>, Vec<_>) =
        preview.accounts.iter().partition(|it| it.over.is_some());
    let shown = over.iter().chain(within.iter().take(MOST_SHOWN));
    let mut text: String = shown.map(|it| line(it, style)).collect();
    let left_out =
        (within.len().saturating_sub(MOST_SHOWN) as u64).saturating_add(preview.left_out);
    if left_out > 0 {
        let more = count(left_out, "more account", "more accounts");
        text.push_str(&paragraph(
            "",
            &format!("and {more} with another limit, over nothing"),
            style.width,
        ));
    }
    text.push_str(&paragraph("", &sums(preview), style.width));
    if let Some(why) = &preview.not_in_force {
        let why = style.shown(why);
        let sentence = format!("the limits as they were last read are not in force: {why}");
        text.push_str(&paragraph("", &sentence, style.width));
    }
    for remark in &preview.remarks {
        text.push_str(&paragraph("note: ", &style.shown(remark), style.width));
    }
    text
}

/// `alice: limit 512 MiB (alice) -> 256 MiB (alice); holds 463 MiB, over its limit: python3[4242] 400 MiB would be killed`.
fn line(account: &AccountPreview, style: &Style) -> String {
    let name = style.shown(&account.account);
    let (old, new) = (bound(&account.old, style), bound(&account.new, style));
    let held = account.held;
    let over = match account.over {
        None => String::new(),
        Some(Over::Notice) => ", over its notice".to_owned(),
        Some(Over::Barrier) => ", over its barrier".to_owned(),
        Some(Over::Limit) if account.is_observed() => {
            ", over its limit: observed, nothing is killed".to_owned()
        }
        Some(Over::Limit) => format!(
            ", over its limit: {}",
            killed(account.victim.as_ref(), style)
        ),
    };
    let is_new = if account.old.is_none() { "new; " } else { "" };
    format!("{name}: {is_new}{old} -> {new}; holds {held}{over}\n")
}

fn bound(bound: &Option<PreviewBound>, style: &Style) -> String {
    match bound {
        None => "no limit".to_owned(),
        Some(PreviewBound {
            who, limit, mode, ..
        }) => {
            let limit = limit.map_or_else(|| "none".to_owned(), |it| it.to_string());
            let observed = if mode.is_observed() { ", observed" } else { "" };
            format!(
                "limit {limit} ({}{observed})",
                style.shown(&who.to_string())
            )
        }
    }
}

fn killed(victim: Option<&Candidate>, style: &Style) -> String {
    match victim {
        Some(Candidate {
            pid, comm, bytes, ..
        }) => {
            format!("{}[{pid}] {bytes} would be killed", style.shown(comm))
        }
        None => "nothing of it can be killed".to_owned(),
    }
}

fn sums(preview: &Preview) -> String {
    let all = (preview.accounts.len() as u64).saturating_add(preview.left_out);
    if all == 0 {
        return "nobody's limit on memory changes".to_owned();
    }
    let number = |over| {
        preview
            .accounts
            .iter()
            .filter(|it| it.over == Some(over))
            .count()
    };
    let new = preview
        .accounts
        .iter()
        .filter(|it| it.old.is_none())
        .count();
    let mut text = format!(
        "{} would change ({new} new): {} over the limit, {} over the barrier, {} over the notice",
        count(all, "limit", "limits"),
        number(Over::Limit),
        number(Over::Barrier),
        number(Over::Notice)
    );
    if preview.refused {
        text.push_str("; refused, because it would kill at once, unless it is forced");
    }
    text
}

#[cfg(test)]
mod tests {
    use bursar_model::{Bytes, Mode, Pid, Uid};

    use super::*;
    use crate::sample::style;

    fn account(
        name: &str,
        old: Option<u64>,
        new: Option<u64>,
        held: u64,
        over: Option<Over>,
    ) -> AccountPreview {
        let bound = |mib: Option<u64>| {
            mib.map(|it| PreviewBound {
                who: name.parse().unwrap(),
                notice: None,
                barrier: None,
                limit: Some(Bytes::from_mib(it)),
                mode: Mode::Enforce,
            })
        };
        AccountPreview {
            account: name.into(),
            uid: Some(Uid::new(1000)),
            old: bound(old),
            new: bound(new),
            held: Bytes::from_mib(held),
            over,
            victim: None,
        }
    }

    #[test]
    fn who_would_be_killed_comes_first_and_names_are_harmless() {
        let mut alice = account("alice", Some(512), Some(256), 463, Some(Over::Limit));
        alice.victim = Some(Candidate::new(
            Pid::new(4242),
            "py\u{1b}".into(),
            Bytes::from_mib(400),
        ));
        let preview = Preview {
            accounts: vec![
                alice,
                account("bob", None, Some(64), 60, Some(Over::Notice)),
                account("carol", Some(64), None, 1, None),
            ],
            left_out: 2,
            remarks: vec!["ghost: there is no user of this name".into()],
            refused: true,
            not_in_force: Some("cannot read \u{1b}".into()),
        };
        let text = super::preview(&preview, &style(200));
        assert_eq!(
            text,
            "alice: limit 512 MiB (alice) -> limit 256 MiB (alice); holds 463 MiB, over its limit: py\\x1b[4242] 400 \
             MiB would be killed\n\
             bob: new; no limit -> limit 64 MiB (bob); holds 60 MiB, over its notice\n\
             carol: limit 64 MiB (carol) -> no limit; holds 1 MiB\n\
             and 2 more accounts with another limit, over nothing\n\
             5 limits would change (1 new): 1 over the limit, 0 over the barrier, 1 over the \
             notice; refused, because it would kill at once, unless it is forced\n\
             the limits as they were last read are not in force: cannot read \\x1b\n\
             note: ghost: there is no user of this name\n"
        );
        assert_eq!(
            super::preview(&Preview::default(), &style(80)),
            "nobody's limit on memory changes\n"
        );
    }
}
