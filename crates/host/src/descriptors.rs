// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many descriptors this process may have: RLIMIT_NOFILE.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises it to `enough`, or as far as this process may: beyond its hard limit only with CAP_SYS_RESOURCE. It is never
/// lowered. Returns how many it may have then; `u64::MAX` where there is no such limit.
pub fn raise_descriptors(enough: u64) -> u64 {
    let current = || getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if current() >= enough {
        return current();
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: Some(enough),
        maximum: maximum.map(|most| most.max(enough)),
    };
    let some = Rlimit {
        current: maximum.map(|most| most.min(enough)).or(Some(enough)),
        maximum,
    };
    if setrlimit(Resource::Nofile, all).is_err() {
        let _ = setrlimit(Resource::Nofile, some);
    }
    current()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_raised_and_never_lowered() {
        let before = raise_descriptors(0);
        assert_eq!(raise_descriptors(1), before);
        let raised = raise_descriptors(before.saturating_add(1));
        assert!(raised >= before, "{raised} of {before}");
    }
}
