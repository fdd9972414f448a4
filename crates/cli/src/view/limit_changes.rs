// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a file of limits changes, entry by entry.

use bursar_model::EntrySpec;
use bursar_protocol::EntryChange;
use bursar_text::entry::said;

use crate::style::Style;
use crate::view::paragraph::paragraph;
use crate::view::words::count;

/// `limit apply`, done, or with `check` only compared.
pub(crate) fn applied(
    changes: &[EntryChange],
    remarks: &[String],
    check: bool,
    style: &Style,
) -> String {
    let mut text: String = changes.iter().map(|it| lines_of(it, style)).collect();
    let entries = count(changes.len() as u64, "entry", "entries");
    let sentence = match (changes.len(), check) {
        (0, _) => "limits.toml says the same already: nothing changes".to_owned(),
        (_, true) => format!("{entries} would change"),
        (_, false) => format!("{entries} changed"),
    };
    text.push_str(&paragraph("", &sentence, style.width));
    for remark in remarks {
        text.push_str(&paragraph("note: ", &style.shown(remark), style.width));
    }
    text
}

/// As diff(1) shows a change.
fn lines_of(change: &EntryChange, style: &Style) -> String {
    let who = style.shown(&change.who.to_string());
    let line = |sign: char, spec: &Option<EntrySpec>| {
        let said = spec.as_ref().map(said);
        said.map_or_else(String::new, |said| {
            format!("{sign} {who}: {}\n", style.shown(&said))
        })
    };
    format!("{}{}", line('-', &change.old), line('+', &change.new))
}

#[cfg(test)]
mod tests {
    use bursar_model::{BoundsSpec, KillManner, Resource, RowBounds};

    use super::*;
    use crate::sample::style;

    fn spec(limit: &str) -> EntrySpec {
        EntrySpec {
            memory: Some(BoundsSpec::of_limit(limit.parse().unwrap())),
            ..EntrySpec::default()
        }
    }

    fn change(who: &str, old: Option<EntrySpec>, new: Option<EntrySpec>) -> EntryChange {
        let who = who.parse().unwrap();
        EntryChange { who, old, new }
    }

    #[test]
    fn what_comes_goes_and_changes_is_shown_like_a_diff() {
        let full = EntrySpec {
            memory: Some(BoundsSpec {
                notice: Some("80%".parse().unwrap()),
                ..BoundsSpec::of_limit("2G".parse().unwrap())
            }),
            rows: [(
                Resource::Numproc,
                RowBounds::new(Some(200), Some(220)).unwrap(),
            )]
            .into(),
            mode: None,
            kill: Some(KillManner::Graceful),
            granted: Some(vec!["alice".parse().unwrap(), "@staff".parse().unwrap()]),
            reason: Some("exams".parse().unwrap()),
            until: None,
        };
        let changes = [
            change("alice", Some(spec("1G")), Some(spec("2G"))),
            change("bob", Some(spec("1G")), None),
            change("=lab", None, Some(full)),
        ];
        let diff = "- alice: memory 1G\n+ alice: memory 2G\n- bob: memory 1G\n\
                    + =lab: memory 2G (notice 80%), numproc 200:220, kill graceful, granted to alice @staff, \
                    reason: exams\n";
        let shown = |check| applied(&changes, &[], check, &style(80));
        assert_eq!(shown(true), format!("{diff}3 entries would change\n"));
        assert_eq!(shown(false), format!("{diff}3 entries changed\n"));
        assert_eq!(
            applied(&[], &["so\u{1b}".to_owned()], true, &style(80)),
            "limits.toml says the same already: nothing changes\nnote: so\\x1b\n"
        );
    }
}
