// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which control groups patterns mean, on directories of our own. It takes root: groups that are exempt are root's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bursar_host::ExemptCgroups;
use bursar_model::{CgroupExtent, CgroupHierarchy, ExemptCgroup, Pid};

fn tree() -> (tempfile::TempDir, impl Fn(&str) -> u64) {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        "a/jobs/job_1/step",
        "a/jobs/job_2",
        "a/other",
        "user.slice/user@7.service/x",
    ] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    let mount = folder.path().to_owned();
    let procs = ["a", "a/jobs", "a/jobs/job_1", "a/jobs/job_2", "user.slice"];
    for path in procs {
        fs::write(mount.join(path).join("cgroup.procs"), "").unwrap();
    }
    (folder, move |path| {
        fs::metadata(mount.join(path)).unwrap().ino()
    })
}

fn exempt(folder: &tempfile::TempDir, pattern: &str) -> ExemptCgroups {
    let unified = CgroupHierarchy::Unified;
    ExemptCgroups::on(&[pattern.to_owned()], unified, folder.path())
}

#[test]
fn what_a_pattern_means_is_found_and_what_it_may_mean_is_watched() {
    let (folder, id) = tree();
    let found = |pattern: &str| exempt(&folder, pattern).resolve();
    let below = found("/a/jobs/*");
    assert_eq!(
        below.found,
        [ExemptCgroup {
            id: id("a/jobs"),
            hierarchy: CgroupHierarchy::Unified,
            extent: CgroupExtent::Below,
        }]
    );
    assert!(
        below.watched.contains(&folder.path().join("a")),
        "{below:?}"
    );
    let each = found("/a/*/job_?");
    let ids: Vec<u64> = each.found.iter().map(|it| it.id).collect();
    assert_eq!(ids, [id("a/jobs/job_1"), id("a/jobs/job_2")]);
    assert!(each.remarks.is_empty(), "{each:?}");
    let of_users = found("/user.slice/user@7.service");
    assert!(of_users.found.is_empty());
    assert!(
        of_users.remarks[0].contains("/user.slice/user@7.service is not exempt"),
        "{of_users:?}"
    );
    assert!(found("/nothing/*").found.is_empty());
}

#[test]
fn what_is_below_a_directory_is_covered_unless_it_is_another_users() {
    let (folder, _) = tree();
    let covers = |pattern: &str, inside: &str| {
        exempt(&folder, pattern).covers(CgroupHierarchy::Unified, Path::new(inside))
    };
    assert!(covers("/a/jobs/*", "a/jobs/job_1/step"));
    assert!(!covers("/a/jobs/*", "a/jobs"));
    assert!(covers("/a/jobs", "a/jobs"));
    assert!(!covers("/a/jobs", "a/other"));
    std::os::unix::fs::chown(folder.path().join("a/jobs/job_1"), Some(60_001), None).unwrap();
    assert!(!covers("/a/jobs/*", "a/jobs/job_1/step"));
    assert!(covers("/a/jobs/*", "a/jobs/job_2"));
}

#[test]
fn of_version_1_whoever_may_write_to_tasks_moves_processes_there() {
    let (folder, id) = tree();
    for job in ["a/jobs/job_1", "a/jobs/job_2"] {
        fs::write(folder.path().join(job).join("tasks"), "").unwrap();
    }
    let tasks = folder.path().join("a/jobs/job_1/tasks");
    std::os::unix::fs::chown(tasks, Some(60_001), None).unwrap();
    let memory = CgroupHierarchy::Memory;
    let groups = ExemptCgroups::on(&["memory:/a/jobs/*".to_owned()], memory, folder.path());
    let resolved = groups.resolve();
    let group = |path: &str, extent| ExemptCgroup {
        id: id(path),
        hierarchy: memory,
        extent,
    };
    let expected = [
        group("a/jobs", CgroupExtent::Below),
        group("a/jobs/job_1", CgroupExtent::Nothing),
    ];
    assert_eq!(resolved.found, expected);
    let remark = "exempt.cgroups: memory:/a/jobs/job_1 is not exempt: others than root may write to its cgroup.procs or \
                  tasks; name a directory of root's";
    assert_eq!(resolved.remarks, [remark]);
    assert!(!groups.covers(memory, Path::new("a/jobs/job_1")));
    assert!(groups.covers(memory, Path::new("a/jobs/job_2")));
    // Each hierarchy has its own names.
    assert!(!groups.covers(CgroupHierarchy::Unified, Path::new("a/jobs/job_2")));
    let other = CgroupHierarchy::Unified;
    let none = ExemptCgroups::on(&["memory:/a".to_owned()], other, folder.path());
    assert!(none.resolve().remarks[0].contains("memory controller of version 1 is not mounted"));
}

#[test]
fn of_a_process_that_cannot_be_looked_at_nothing_is_said() {
    let (folder, _) = tree();
    let (own, nobody) = (Pid::new(std::process::id()), Pid::new(1 << 30));
    let exempt = exempt(&folder, "/a/jobs/*");
    assert_eq!(exempt.has(own), Some(false));
    assert_eq!(exempt.has(nobody), None);
    // Where nothing is exempt nobody has to be looked at.
    let nothing = ExemptCgroups::new(&[]).unwrap();
    assert_eq!(nothing.has(nobody), Some(false));
}
