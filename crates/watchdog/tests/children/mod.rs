// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Child processes that never outlive their test.

use std::process::{Child, Command};

use bursar_model::Pid;

pub(crate) struct Children(Vec<Child>);

impl Children {
    /// So many that sleep.
    pub(crate) fn start(count: usize) -> Self {
        let sleep = |_| {
            let mut command = Command::new("sleep");
            command.arg("60");
            command
        };
        Self::of((0..count).map(sleep))
    }

    pub(crate) fn of(commands: impl IntoIterator<Item = Command>) -> Self {
        let spawn = |mut command: Command| command.spawn().unwrap();
        Self(commands.into_iter().map(spawn).collect())
    }

    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.0.iter().map(|it| Pid::new(it.id())).collect()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
