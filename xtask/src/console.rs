// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's kernel log: what in it means that the kernel was unhappy. Pure.

/// How a line starts when the kernel complains about itself. Only at the start: a line that
/// quotes a hostile process name ("Killed process 7 (BUG: x)") is no complaint.
const COMPLAINTS: [&str; 14] = [
    "BUG:",
    "WARNING:",
    "Oops",
    "kernel BUG at",
    "watchdog: BUG:",
    "rcu: INFO:",
    "INFO: rcu",
    "INFO: task",
    "INFO: trying to register non-static key",
    "KASAN",
    "UBSAN:",
    "general protection fault",
    "Kernel panic",
    "unregister_netdevice: waiting",
];

/// Lines in which the kernel complains, without their time stamps, each once.
pub(crate) fn complaints(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in log.lines().map(message) {
        let complains = COMPLAINTS.iter().any(|start| line.starts_with(start));
        if complains && !found.iter().any(|have| have == line) {
            found.push(line.to_owned());
        }
    }
    found
}

/// Whether the kernel stopped for good.
pub(crate) fn has_panicked(log: &str) -> bool {
    log.lines()
        .any(|line| message(line).starts_with("Kernel panic"))
}

/// The last lines, for a person to see what happened.
pub(crate) fn tail(log: &str, lines: usize) -> Vec<&str> {
    let all: Vec<&str> = log.lines().collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}

/// A line without `<4>`, `[   12.345678]` and `[  T123]`.
fn message(line: &str) -> &str {
    let mut rest = line.trim();
    if let Some((level, after)) = rest
        .strip_prefix('<')
        .and_then(|inner| inner.split_once('>'))
        && level.chars().all(|c| c.is_ascii_digit())
    {
        rest = after;
    }
    while let Some((stamp, after)) = rest
        .strip_prefix('[')
        .and_then(|inner| inner.split_once(']'))
    {
        let is_stamp = stamp
            .trim()
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'T' | 'C'));
        if !is_stamp {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_complaint_is_found() {
        for line in [
            "[    1.5] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[   12.345678] WARNING: CPU: 0 PID: 7 at mm/memcontrol.c:123 mem+0x1/0x2",
            "[   12.345678][  T123] Oops: 0000 [#1] PREEMPT SMP NOPTI",
            "<4>[    3.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "[  245.1] INFO: task kworker/0:1:12 blocked for more than 120 seconds.",
            "[    9.0] BUG: KASAN: use-after-free in foo",
            "[   60.0] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [sh:1]",
            "[    1.0] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
        ] {
            assert_eq!(complaints(line).len(), 1, "{line}");
        }
    }

    #[test]
    fn ordinary_lines_are_no_complaint() {
        for line in [
            "[    0.0] Command line: console=ttyS0 oops=panic panic=-1",
            "[    5.0] Out of memory: Killed process 77 (BUG: Oops) total-vm:1kB",
            "[    5.0] audit: type=1400 comm=\"WARNING:\"",
            "[    0.1] rcu: Hierarchical RCU implementation.",
            "[drm] WARNING: not a kernel time stamp",
            "",
        ] {
            assert!(complaints(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn the_same_complaint_in_two_logs_is_one() {
        let log = "[ 1.0] WARNING: CPU: 0 PID: 7 at x\n[ 1.0] WARNING: CPU: 0 PID: 7 at x\n";
        assert_eq!(complaints(log), ["WARNING: CPU: 0 PID: 7 at x"]);
    }

    #[test]
    fn a_panic_is_told_from_a_warning() {
        assert!(has_panicked(
            "x\n[ 1.0] Kernel panic - not syncing: Fatal exception\n"
        ));
        assert!(!has_panicked("[ 1.0] WARNING: CPU: 0\n"));
    }

    #[test]
    fn the_tail_of_a_short_log_is_all_of_it() {
        assert_eq!(tail("a\nb", 5), ["a", "b"]);
        assert_eq!(tail("a\nb\nc", 2), ["b", "c"]);
    }
}
