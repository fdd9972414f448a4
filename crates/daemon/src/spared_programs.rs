// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs whose processes go after others: looks for their files when bursard starts or reads the limits again, and
//! whenever one of them is replaced. That is seen at once, for the directories are watched: an upgrade's new shells are
//! to be spared as the old ones are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bursar_config::{Program, programs};
use bursar_host::{Executable, FileWatch, Proc, ProcessQuery};
use bursar_kernel::ProgramFile;
use bursar_model::{AccountId, Pid};

/// Files of one path that are remembered: it, and those that upgrades have replaced.
const MOST_FILES: usize = 16;

/// The programs as an administrator has listed them.
#[derive(Debug)]
pub(crate) struct SparedPrograms {
    paths: Vec<PathBuf>,
    watch: Option<FileWatch>,
    remarks: Vec<String>,
}

impl SparedPrograms {
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        Self {
            watch: watch(paths),
            paths: paths.to_vec(),
            remarks: Vec::new(),
        }
    }

    /// Readable when one of them may have been replaced.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.watch.as_ref().is_some_and(FileWatch::take_news)
    }

    /// Looks for their files. What is said of those that are not spared is new where it is not empty.
    pub(crate) fn find(&mut self) -> (Vec<Program>, Vec<String>) {
        let (found, remarks) = programs(&self.paths);
        let is_new = |it: &&String| !self.remarks.contains(it);
        let fresh = remarks.iter().filter(is_new).cloned().collect();
        self.remarks = remarks;
        (found, fresh)
    }

    /// Which are not spared, and why.
    pub(crate) fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

/// Where a path is a link, that and the file it leads to.
fn watch(paths: &[PathBuf]) -> Option<FileWatch> {
    if paths.is_empty() {
        return None;
    }
    let led_to: Vec<PathBuf> = paths
        .iter()
        .filter_map(|it| fs::canonicalize(it).ok())
        .collect();
    let all = paths.iter().chain(&led_to).map(PathBuf::as_path);
    FileWatch::of_paths(all)
        .inspect_err(|error| {
            tracing::info!(%error, "programs that are replaced are spared from the next reload on");
        })
        .ok()
}

/// As the kernel half wants them.
pub(crate) fn program_files(programs: &[Program]) -> Vec<ProgramFile<'_>> {
    let number = |path: &Path| {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        hasher.finish()
    };
    let files = programs.iter().map(|it| ProgramFile {
        number: number(&it.written),
        file: it.file.as_fd(),
    });
    files.collect()
}

/// The same programs where bursard itself looks which one a process runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct SparedFiles(BTreeMap<PathBuf, BTreeSet<(u64, u64)>>);

impl SparedFiles {
    /// These from now on. Files that they have replaced stay, for they may be running.
    pub(crate) fn replace(&mut self, programs: &[Program]) {
        self.0
            .retain(|path, _| programs.iter().any(|it| it.written == *path));
        for program in programs {
            let Ok(found) = program.file.metadata() else {
                continue;
            };
            let files = self.0.entry(program.written.clone()).or_default();
            if files.len() >= MOST_FILES {
                files.clear();
            }
            files.insert((found.dev(), found.ino()));
        }
    }

    /// Which of these processes of an account are spared. Nobody is where several users share it: one could hold it with
    /// such programs, and others' would die. Nor is who does not say in time what he runs.
    pub(crate) fn among(
        &self,
        account: AccountId,
        pids: Vec<Pid>,
        query: &mut impl ProcessQuery,
    ) -> BTreeSet<Pid> {
        if account.uid().is_none() || self.0.is_empty() {
            return BTreeSet::new();
        }
        let found = query.ask_each(pids, Proc::executable).into_iter();
        let is_spared = |(pid, file): (Pid, Option<Executable>)| {
            file.is_some_and(|it| self.is_one(&it)).then_some(pid)
        };
        found.filter_map(is_spared).collect()
    }

    /// A number of an inode comes again: what is not root's is none. Nor is who is in a user namespace: there a process
    /// names any file as the one it runs (PR_SET_MM_MAP).
    fn is_one(&self, file: &Executable) -> bool {
        let mut all = self.0.values();
        file.is_roots
            && file.in_our_user_namespace
            && all.any(|files| files.contains(&(file.device, file.inode)))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use bursar_host::Patient;
    use bursar_model::Uid;

    use super::*;

    #[test]
    fn a_process_is_known_by_the_file_it_runs_and_not_by_its_name() {
        let mut spared = SparedFiles::default();
        let (found, remarks) = programs(&[PathBuf::from("/usr/bin/cat")]);
        assert!(remarks.is_empty(), "{remarks:?}");
        spared.replace(&found);
        let mut cat = Command::new("/usr/bin/cat")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let proc = Proc::host().unwrap();
        let own = Pid::new(std::process::id());
        let among = |spared: &SparedFiles, account| {
            spared.among(account, vec![own, Pid::new(cat.id())], &mut Patient(&proc))
        };
        let user = AccountId::of(Uid::new(0));
        assert_eq!(among(&spared, user), BTreeSet::from([Pid::new(cat.id())]));
        spared.replace(&[]);
        assert!(among(&spared, user).is_empty());
        cat.kill().unwrap();
        cat.wait().unwrap();
    }

    #[test]
    fn what_was_said_once_is_not_news() {
        let mut programs = SparedPrograms::new(&[PathBuf::from("/usr/bin/nothing-has-it")]);
        assert_eq!(programs.find().1.len(), 1);
        assert!(programs.find().1.is_empty());
        assert_eq!(programs.remarks().len(), 1);
    }
}
