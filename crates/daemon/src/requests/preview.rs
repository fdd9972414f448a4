// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What other limits would change, asked before they hold. Nothing changes by it.

use std::path::Path;

use bursar_config::{Limits, ReloadChoice, check, ended};
use bursar_protocol::{AccountPreview, LimitsText, Preview, Refusal, Reply};

use super::permission::{Answer, config_refusal, failed, only_root};
use crate::control::Requester;
use crate::daemon::Daemon;

/// Of a file that would be `limits.toml`; of one that is read at a reload, or without any, of the files as they are.
pub(super) fn preview(
    daemon: &mut Daemon,
    requester: Requester,
    file: Option<LimitsText>,
) -> Answer {
    only_root(requester.uid, "see what limits would change")?;
    let not_in_force = daemon.not_in_force.clone().filter(|_| file.is_none());
    let in_force = daemon.accounts.table.limits();
    let other = file.filter(|it| !is_read_at_reload(in_force, Path::new(&it.path)));
    let is_done_anyway = other.is_none() && daemon.reload == ReloadChoice::Force;
    let limits = match other {
        Some(LimitsText { path, text }) => in_force.with_text(&text, Path::new(&path)),
        None => Limits::load_after(in_force.path(), in_force.before()),
    };
    let limits = limits.map_err(|error| config_refusal(&error))?;
    let mut preview = of(daemon, &limits)?;
    preview.refused = !is_done_anyway
        && preview
            .accounts
            .iter()
            .any(|it| it.kills() && !is_forced(it, &limits));
    preview.not_in_force = not_in_force;
    Ok(Reply::Preview(Box::new(preview)))
}

/// What limits would change.
pub(super) fn of(daemon: &mut Daemon, limits: &Limits) -> Result<Preview, Refusal> {
    let plan = daemon.accounts.plan_with(limits);
    let plan = plan.map_err(|error| failed(&error))?;
    let told = daemon.accounts.preview(&plan);
    let (accounts, left_out) = told.map_err(|error| failed(&error))?;
    let names = plan
        .remarks
        .iter()
        .map(|(who, text)| format!("{who}: {text}"));
    let mut remarks: Vec<String> = names.collect();
    let findings = check(limits, daemon.accounts.table.ram()).into_iter();
    remarks.extend(findings.chain(ended(limits)).map(|it| it.to_string()));
    Ok(Preview {
        refused: accounts.iter().any(AccountPreview::kills),
        accounts,
        left_out,
        remarks,
        not_in_force: None,
    })
}

/// Whether the file of the entry that would hold says that it holds at once.
fn is_forced(account: &AccountPreview, limits: &Limits) -> bool {
    let bound = account.new.as_ref();
    bound.is_some_and(|it| limits.is_forced(&it.who))
}

/// Whether the file is `limits.toml` itself or one of its drop-ins.
fn is_read_at_reload(limits: &Limits, path: &Path) -> bool {
    let mut drop_ins = limits.path().as_os_str().to_owned();
    drop_ins.push(".d");
    path == limits.path() || path.parent() == Some(Path::new(&drop_ins))
}
