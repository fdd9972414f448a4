// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar doctor`: what is there, what is not, and what that costs.

use bursar_protocol::LedgerCheck;
use serde::Serialize;

use crate::style::{Style, Tone};
use crate::view::ledger;
use crate::view::paragraph::paragraph;

/// Something bursar can make use of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ability {
    /// Its name.
    pub(crate) ability: String,
    #[serde(flatten)]
    pub(crate) state: State,
    /// What bursar cannot do, or does worse, without it.
    pub(crate) cost: String,
    /// What to do about it, where something can be done.
    pub(crate) remedy: Option<String>,
    /// Of the ledger: what was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ledger: Option<Box<LedgerCheck>>,
}

/// Whether it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub(crate) enum State {
    Available,
    /// How that shows.
    Missing(String),
    /// It exists, and by whom or why it is kept from us.
    Refused(String),
    /// It is there and does not do what it should.
    Wrong(String),
    /// Why nobody can know yet: nothing is to be done about it.
    Unknown(String),
}

impl State {
    const fn name(&self) -> (&'static str, Tone) {
        match self {
            Self::Available => ("available", Tone::Good),
            Self::Missing(_) => ("missing", Tone::Bad),
            Self::Refused(_) => ("refused", Tone::Warning),
            Self::Wrong(_) => ("wrong", Tone::Bad),
            Self::Unknown(_) => ("unknown", Tone::Warning),
        }
    }
}

/// Where what is said of one begins.
const INDENT: usize = 13;

/// One line each; for what is not there also why, what it costs and what to do.
pub(crate) fn abilities(abilities: &[Ability], style: &Style) -> String {
    const STATE: usize = 9;
    let mut text = String::new();
    for ability in abilities {
        let (state, tone) = ability.state.name();
        let line = paragraph(
            &" ".repeat(STATE + 2),
            &style.shown(&ability.ability),
            style.width,
        );
        // The state takes the place of the first line's blanks.
        let rest = line.trim_start();
        let blanks = " ".repeat(STATE.saturating_sub(state.len()) + 2);
        text.push_str(&format!("{}{blanks}{rest}", style.painted(tone, state)));
        if let State::Missing(reason) | State::Refused(reason) | State::Wrong(reason) =
            &ability.state
        {
            text.push_str(&troubles(ability, reason, style));
        }
        if let State::Unknown(reason) = &ability.state {
            text.push_str(&told(&[("why", reason)], style));
        }
        if let Some(check) = &ability.ledger {
            text.push_str(&ledger::table(check, INDENT, style));
        }
    }
    text.push_str(&format!("\n{}\n", summary(abilities)));
    text
}

fn troubles(ability: &Ability, reason: &str, style: &Style) -> String {
    let remedy = ability.remedy.as_deref();
    let all = [
        ("why", Some(reason)),
        ("cost", Some(ability.cost.as_str())),
        ("do", remedy),
    ];
    let said = all
        .into_iter()
        .filter_map(|(label, said)| Some((label, said.filter(|said| !said.is_empty())?)));
    told(&said.collect::<Vec<_>>(), style)
}

fn told(said: &[(&str, &str)], style: &Style) -> String {
    said.iter()
        .map(|(label, said)| {
            let head = format!("{:INDENT$}{label:<6}", "");
            paragraph(&head, &style.shown(said), style.width)
        })
        .collect()
}

fn summary(abilities: &[Ability]) -> String {
    let of = |wanted: &str| {
        abilities
            .iter()
            .filter(|it| it.state.name().0 == wanted)
            .count()
    };
    let also = |state: &str| match of(state) {
        0 => String::new(),
        count => format!(", {count} {state}"),
    };
    let (wrong, unknown) = (also("wrong"), also("unknown"));
    format!(
        "{} available, {} missing, {} refused{wrong}{unknown}",
        of("available"),
        of("missing"),
        of("refused")
    )
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::style;

    fn sample() -> Vec<Ability> {
        let ability = |name: &str, state, cost: &str, remedy: Option<&str>| Ability {
            ability: name.into(),
            state,
            cost: cost.into(),
            remedy: remedy.map(str::to_owned),
            ledger: None,
        };
        vec![
            ability("bursard 0.1.0", State::Available, "everything", None),
            ability(
                "killing another process from the event (bpf_send_signal_task)",
                State::Missing("the kernel's BTF has no bpf_send_signal_task()".into()),
                "a victim that sleeps is killed by bursard instead, some milliseconds later",
                Some("Linux 6.13 or newer"),
            ),
            ability(
                "trampolines",
                State::Refused("attaching one: Operation not permitted (os error 1)".into()),
                "no graceful refusal at the barrier",
                None,
            ),
        ]
    }

    #[test]
    fn what_cannot_be_known_yet_is_no_alarm() {
        let free = Ability {
            ability: "free memory".into(),
            state: State::Unknown("nothing has been reaped yet".into()),
            cost: "others stall".into(),
            remedy: Some("more memory".into()),
            ledger: None,
        };
        assert_eq!(
            abilities(&[free], &style(80)),
            "unknown    free memory\n             why   nothing has been reaped yet\n\n\
             0 available, 0 missing, 0 refused, 1 unknown\n"
        );
    }

    #[test]
    fn what_is_missing_says_what_it_costs() {
        assert_snapshot!(
            [80, 60]
                .map(|width| abilities(&sample(), &style(width)))
                .join("---\n")
        );
    }

    #[test]
    fn programs_read_the_same() {
        insta::assert_json_snapshot!(sample());
    }
}
