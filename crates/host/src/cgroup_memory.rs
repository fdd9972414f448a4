// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own memory by control group, as the memory controller of version 2 counts it (`memory.stat`): what is
//! put into namespaces is in it, routes and packet filters too. A group's figure is an account's where nobody else's
//! processes are in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bursar_model::{AccountId, Bytes, Uid};

use crate::bytes::{number, words};

/// Directories that are looked at; those beyond have no figure.
const MOST_GROUPS: usize = 16_384;
/// Levels of directories.
const MOST_LEVELS: usize = 32;

/// Whose processes are in a group, by its id (its directory's inode).
pub type GroupMembers = HashMap<u64, BTreeSet<AccountId>>;

/// A group with processes.
struct Group {
    path: PathBuf,
    members: BTreeSet<AccountId>,
}

/// What each account has of the kernel's memory in groups that are its own, below a mount of the unified hierarchy.
///
/// systemd's `user-UID.slice` is that user's as a whole: root's processes in it (sshd, login) are there for the user.
/// Elsewhere root's processes are others.
pub fn kernel_memory_by_account(
    mount: &Path,
    members: &GroupMembers,
) -> BTreeMap<AccountId, Bytes> {
    let mut groups = Vec::new();
    let mut seen = 0;
    find(mount, members, MOST_LEVELS, &mut seen, &mut groups);
    let root = AccountId::of(Uid::new(0));
    let mut slices: BTreeMap<PathBuf, BTreeSet<AccountId>> = BTreeMap::new();
    let mut others: Vec<Group> = Vec::new();
    for group in groups {
        match slice_of(&group.path) {
            Some(path) => {
                let users = group.members.into_iter().filter(|it| *it != root);
                slices.entry(path).or_default().extend(users);
            }
            None => others.push(group),
        }
    }
    let mut figures: BTreeMap<AccountId, Bytes> = BTreeMap::new();
    let mut add = |account: AccountId, path: &Path| {
        if let Some(bytes) = kernel_memory_of(path) {
            let figure = figures.entry(account).or_default();
            *figure = figure.saturating_add(bytes);
        }
    };
    for (path, accounts) in &slices {
        let mut accounts = accounts.iter();
        if let (Some(owner), None) = (accounts.next(), accounts.next()) {
            add(*owner, path);
        }
    }
    for group in &others {
        let mut accounts = group.members.iter();
        let (Some(owner), None) = (accounts.next(), accounts.next()) else {
            continue;
        };
        let is_own = |it: &&Group| it.members == group.members;
        // A figure is of all that is below: somebody else there spoils it, and one above has it already.
        let below = others.iter().filter(|it| it.path.starts_with(&group.path));
        let above = others
            .iter()
            .filter(|it| is_own(it) && it.path != group.path);
        let is_in_another = above.clone().any(|it| {
            let mut inside = others
                .iter()
                .filter(|below| below.path.starts_with(&it.path));
            group.path.starts_with(&it.path) && inside.all(|below| is_own(&below))
        });
        if below.clone().all(|it| is_own(&it)) && !is_in_another {
            add(*owner, &group.path);
        }
    }
    figures
}

fn find(
    directory: &Path,
    members: &GroupMembers,
    levels: usize,
    seen: &mut usize,
    groups: &mut Vec<Group>,
) {
    if levels == 0 || *seen >= MOST_GROUPS {
        return;
    }
    *seen = seen.saturating_add(1);
    // A group that has gone has no processes left.
    let Ok(about) = fs::metadata(directory) else {
        return;
    };
    if let Some(members) = members.get(&about.ino()) {
        groups.push(Group {
            path: directory.to_owned(),
            members: members.clone(),
        });
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            find(
                &entry.path(),
                members,
                levels.saturating_sub(1),
                seen,
                groups,
            );
        }
    }
}

/// The user's slice that a group is or lies in.
fn slice_of(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|directory| {
        let name = directory.file_name()?.to_str()?;
        let uid = name.strip_prefix("user-")?.strip_suffix(".slice")?;
        uid.parse::<u32>().ok().map(|_| directory.to_owned())
    })
}

/// `kernel` (5.18) less what the kernel gives back when memory is short: names and inodes of files that were looked at
/// are no reason to refuse anybody anything.
fn kernel_memory_of(group: &Path) -> Option<Bytes> {
    let text = fs::read(group.join("memory.stat")).ok()?;
    let of = |key: &[u8]| {
        text.split(|&byte| byte == b'\n').find_map(|line| {
            let mut words = words(line);
            (words.next()? == key).then_some(())?;
            number(words.next()?)
        })
    };
    let all: u64 = of(b"kernel")?;
    Some(Bytes::new(all.saturating_sub(of(b"slab_reclaimable")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// A group with this much of the kernel's memory in KiB, half as much again to be given back.
        fn group(&self, path: &str, kib: u64) -> u64 {
            let path = self.0.path().join(path);
            fs::create_dir_all(&path).unwrap();
            let text = format!(
                "anon 7\nkernel_stack 1\nkernel {}\nslab_reclaimable {}\nslab 5\n",
                (kib + kib / 2) << 10,
                (kib / 2) << 10
            );
            fs::write(path.join("memory.stat"), text).unwrap();
            fs::metadata(&path).unwrap().ino()
        }
    }

    fn account(uid: u32) -> AccountId {
        AccountId::of(Uid::new(uid))
    }

    #[test]
    fn a_group_is_an_accounts_where_nobody_else_is_in_it() {
        let tree = Tree(tempfile::tempdir().unwrap());
        let mut members = GroupMembers::new();
        let mut put = |path: &str, kib: u64, uids: &[u32]| {
            let id = tree.group(path, kib);
            members.insert(id, uids.iter().map(|uid| account(*uid)).collect());
        };
        // A user's slice, with root's part of a login; and one in which a shared account's process runs.
        put("user.slice", 9000, &[]);
        put("user.slice/user-1000.slice", 100, &[]);
        put("user.slice/user-1000.slice/session-3.scope", 60, &[0, 1000]);
        put(
            "user.slice/user-1000.slice/user@1000.service/app.slice",
            30,
            &[1000],
        );
        put("user.slice/user-1001.slice", 200, &[]);
        put(
            "user.slice/user-1001.slice/session-4.scope",
            50,
            &[1001, 1000],
        );
        // Services: with root's own process, and without.
        put("system.slice/mixed.service", 300, &[0, 33]);
        put("system.slice/plain.service", 400, &[33]);
        // One below another, of the same and of somebody else's.
        put("jobs/a", 500, &[1002]);
        put("jobs/a/b", 70, &[1002]);
        put("jobs/c", 600, &[1003]);
        put("jobs/c/d", 80, &[1004]);
        let found = kernel_memory_by_account(tree.0.path(), &members);
        let expected = [(33, 400), (1000, 100), (1002, 500), (1004, 80)];
        let expected = expected.map(|(uid, kib)| (account(uid), Bytes::new(kib << 10)));
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn where_nothing_is_counted_there_is_no_figure() {
        let tree = Tree(tempfile::tempdir().unwrap());
        let id = tree.group("jobs/a", 5);
        let file = tree.0.path().join("jobs/a/memory.stat");
        let members = GroupMembers::from([(id, BTreeSet::from([account(1000)]))]);
        fs::write(&file, "anon 4096\nslab 5\n").unwrap();
        assert!(kernel_memory_by_account(tree.0.path(), &members).is_empty());
        fs::remove_file(&file).unwrap();
        assert!(kernel_memory_by_account(tree.0.path(), &members).is_empty());
    }
}
