// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar wait`.

use std::time::{Duration, Instant};

use bursar_model::WatchLevel;
use bursar_protocol::Reached;
use clap::Args;

use crate::caller::Caller;
use crate::failure::{Code, Failure};
use crate::level_wait::LevelWait;
use crate::since;

/// Wait until your account reaches a level of memory
///
/// For scripts and programs that save their work in time: it ends with exit code 0 when the account that it pays
/// into is at the level, at once if it is there already, and with 124 when that has not happened within the
/// timeout. Any user may wait, also in an account that was entered with `bursar run --account`.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// For what: notice, barrier (also a request refused there), or a part of the limit (80%)
    #[arg(long, value_name = "LEVEL", default_value = "notice")]
    at: WatchLevel,
    /// No longer than T (90s, 10m, 2h, 1h30m)
    #[arg(long, value_name = "T", value_parser = since::span)]
    timeout: Option<Duration>,
}

impl Wait {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let until = self
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        let mut wait = LevelWait::begin(caller.socket.clone(), self.at, false)?;
        match wait.next(until)? {
            Some(reached) => caller.answer(&reached, sentence),
            None => Err(Failure::Answer(Code::TimedOut)),
        }
    }
}

fn sentence(reached: &Reached) -> String {
    let limit = reached
        .limit
        .map_or_else(String::new, |limit| format!(" of {limit}"));
    let Reached {
        account, at, held, ..
    } = reached;
    if reached.refused {
        return format!("{account} holds {held}{limit}, and a request was refused at its barrier");
    }
    match at {
        WatchLevel::Percent(_) => format!("{account} holds {held}{limit}: {at} or more"),
        WatchLevel::Notice | WatchLevel::Barrier => {
            format!(
                "{account} holds {held}{limit}: its {at} is {}",
                reached.level
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Bytes;

    use super::*;

    #[test]
    fn it_says_how_the_account_stands() {
        let reached = |at, refused| Reached {
            account: "alice".into(),
            at,
            level: Bytes::from_mib(900),
            held: Bytes::from_mib(910),
            limit: Some(Bytes::from_mib(1000)),
            refused,
        };
        let said = |at, refused| sentence(&reached(at, refused));
        assert_eq!(
            said(WatchLevel::Notice, false),
            "alice holds 910 MiB of 1000 MiB: its notice is 900 MiB"
        );
        assert_eq!(
            said(WatchLevel::Percent(90), false),
            "alice holds 910 MiB of 1000 MiB: 90% or more"
        );
        assert_eq!(
            said(WatchLevel::Barrier, true),
            "alice holds 910 MiB of 1000 MiB, and a request was refused at its barrier"
        );
    }
}
