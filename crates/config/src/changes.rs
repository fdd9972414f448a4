// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of `bursar.toml` has changed since it was read: most of it holds only from the next start on, and whoever has
//! changed it is to know.

use crate::{Config, Exempt};

impl Config {
    /// The keys and tables that `other` says otherwise.
    #[must_use]
    pub fn changes(&self, other: &Self) -> Vec<&'static str> {
        // By name, so that a key that comes is not forgotten here.
        let Self {
            trigger,
            mode,
            reload,
            on_exit,
            count,
            paths,
            triggers,
            ledger,
            accounts,
            exempt: Exempt { cgroups, programs },
            gate,
            tell,
            messages,
            reap,
            last_defence,
            events,
            usage,
            log,
            watermarks,
        } = self;
        let all = [
            ("trigger", *trigger != other.trigger),
            ("mode", *mode != other.mode),
            ("reload", *reload != other.reload),
            ("on_exit", *on_exit != other.on_exit),
            ("count", *count != other.count),
            ("[paths]", *paths != other.paths),
            ("[triggers]", *triggers != other.triggers),
            ("[ledger]", *ledger != other.ledger),
            ("[accounts]", *accounts != other.accounts),
            ("exempt.cgroups", *cgroups != other.exempt.cgroups),
            ("exempt.programs", *programs != other.exempt.programs),
            ("[gate]", *gate != other.gate),
            ("[tell]", *tell != other.tell),
            ("[messages]", *messages != other.messages),
            ("[reap]", *reap != other.reap),
            ("[last_defence]", *last_defence != other.last_defence),
            ("[events]", *events != other.events),
            ("[usage]", *usage != other.usage),
            ("[log]", *log != other.log),
            ("[watermarks]", *watermarks != other.watermarks),
        ];
        let changed = all.into_iter().filter(|(_, is_other)| *is_other);
        changed.map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_says_something_else_is_named() {
        let config = |text: &str| {
            Config::parse(text, Path::new("bursar.toml"))
                .unwrap()
                .config
        };
        let running = config("[ledger]\nevents_bytes = \"1M\"\n");
        assert!(running.changes(&running).is_empty());
        // Written otherwise, and the same.
        let same = config("trigger = \"auto\"\n[ledger]\nevents_bytes = \"1024K\"\n");
        assert!(running.changes(&same).is_empty());
        let other = config(
            "trigger = \"poll\"\n[exempt]\ncgroups = [\"/jobs/*\"]\n[log]\nlevel = \"debug\"\n",
        );
        assert_eq!(
            running.changes(&other),
            ["trigger", "[ledger]", "exempt.cgroups", "[log]"]
        );
    }
}
