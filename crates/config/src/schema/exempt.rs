// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of `[exempt]`.

use super::{Key, LONGEST_PATH};
use crate::MAX_SPARED;
use crate::cgroup_pattern::cgroup_patterns;
use crate::value::absolute_paths;

pub(super) const TABLE: (&str, &str) = (
    "exempt",
    "Which processes are nobody's, and which die last.",
);

pub(super) static KEYS: [Key; 2] = [
    Key {
        table: "exempt",
        name: "cgroups",
        default: "[]",
        values: "at most 64 paths of control groups, with * and ? in names",
        about: "Processes in these groups and below them are nobody's: they do not count, are refused nothing and never \
                killed. For what a batch system limits already: [\"/system.slice/slurmstepd.scope/*\"]; /* at the end is \
                all that is below. Paths are of version 2, or begin with memory: for version 1's memory controller, \
                [\"memory:/slurm/*\"]. Groups that belong to a user, and user@.service, are never exempt. `bursar check` says \
                which are not. Takes effect when bursard is restarted; groups that come and go are followed.",
        set: |config, value| {
            cgroup_patterns(value).map(|patterns| config.exempt.cgroups = patterns)
        },
    },
    Key {
        table: "exempt",
        name: "programs",
        default: "[]",
        values: "at most 64 absolute paths of programs",
        about: "Programs whose processes are spared. They count. As long as such a process holds less than a quarter of \
                its account's limit, others that hold a sixteenth of it are killed first. For shells, editors, \
                terminals and sshd: [\"/usr/bin/bash\", \"/usr/bin/tmux\", \"/usr/bin/vim\"]. Each file, and each directory \
                above it, must be root's; interpreters are refused. `bursar check` says which are. Takes effect when \
                bursard is restarted.",
        set: |config, value| {
            absolute_paths(value, MAX_SPARED, LONGEST_PATH)
                .map(|paths| config.exempt.programs = paths)
        },
    },
];
