// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar quota --brief`: one line at a login, or none.

use bursar_model::Bytes;
use bursar_protocol::Brief;

use crate::style::Style;
use crate::view::words::count;

/// Nothing below half of the limit, unless something was killed.
pub(crate) fn brief(brief: &Brief, style: &Style) -> String {
    let used = brief.limit.and_then(|limit| used(brief.held, limit));
    let is_much = used.is_some_and(|percent| percent >= 50);
    if !is_much && brief.kills == 0 {
        return String::new();
    }
    let holder = match &brief.shared {
        Some(name) => format!("the shared account {} holds", style.shown(name)),
        None => "your programs hold".to_owned(),
    };
    let mut text = match (brief.limit, used) {
        (Some(limit), Some(percent)) => {
            format!("bursar: {holder} {} of {limit} ({percent}%)", brief.held)
        }
        _ => format!("bursar: {holder} {}", brief.held),
    };
    if brief.kills > 0 {
        let were = if brief.kills == 1 { "was" } else { "were" };
        let killed = count(brief.kills, "process", "processes");
        text.push_str(&format!("; {killed} {were} killed since your last login"));
        if let Some(last) = &brief.last {
            let comm = style.shown(&last.comm);
            text.push_str(&format!(", the last {comm} with {}", last.bytes));
        }
        text.push_str(" (see: bursar why)");
    } else {
        text.push_str(" (see: bursar quota)");
    }
    text.push('\n');
    text
}

/// Per cent; `None` of nothing.
fn used(held: Bytes, limit: Bytes) -> Option<u64> {
    held.get().saturating_mul(100).checked_div(limit.get())
}

#[cfg(test)]
mod tests {
    use bursar_model::{Candidate, Pid};

    use super::*;
    use crate::sample::style;

    fn said(held: u64, limit: Option<u64>, kills: u64) -> String {
        let last = (kills > 0)
            .then(|| Candidate::new(Pid::new(7), "py\u{1b}".into(), Bytes::from_mib(301)));
        let brief = Brief {
            shared: None,
            held: Bytes::from_mib(held),
            limit: limit.map(Bytes::from_mib),
            kills,
            last,
        };
        super::brief(&brief, &style(80))
    }

    #[test]
    fn nothing_is_said_below_half_and_without_a_kill() {
        for quiet in [
            said(31, Some(64), 0),
            said(900, None, 0),
            said(0, Some(0), 0),
        ] {
            assert_eq!(quiet, "");
        }
        assert_eq!(
            said(32, Some(64), 0),
            "bursar: your programs hold 32 MiB of 64 MiB (50%) (see: bursar quota)\n"
        );
    }

    #[test]
    fn kills_are_said_however_little_is_held() {
        assert_eq!(
            said(0, Some(512), 1),
            "bursar: your programs hold 0 B of 512 MiB (0%); 1 process was killed since your last login, the last \
             py\\x1b with 301 MiB (see: bursar why)\n"
        );
        assert!(said(1, None, 3).contains("hold 1 MiB; 3 processes were killed since"));
    }
}
