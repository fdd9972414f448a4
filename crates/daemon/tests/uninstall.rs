// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make uninstall` does not take bursard away from under limits that are in force.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn uninstall(folder: &Path, destination: &str) -> Output {
    let at = |name: &str| folder.join(name).display().to_string();
    Command::new("make")
        .arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .arg("uninstall")
        .arg(format!("PREFIX={}", at("usr")))
        .arg(format!("UNITDIR={}", at("units")))
        .arg(format!("PINS={}", at("pins")))
        .arg(format!("DESTDIR={destination}"))
        .output()
        .unwrap()
}

#[test]
fn bursard_stays_while_its_limits_are_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("usr/sbin/bursard");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::write(&program, "").unwrap();
    let half = folder.path().join("pins/half-0123");
    fs::create_dir_all(&half).unwrap();

    let refused = uninstall(folder.path(), "");
    assert!(!refused.status.success() && program.exists());
    let said = String::from_utf8_lossy(&refused.stderr);
    let remedy = "systemctl disable --now bursard && bursard --release";
    assert!(said.contains(remedy), "{said}");

    // What is packed elsewhere is in nobody's use.
    let elsewhere = folder.path().join("elsewhere").display().to_string();
    assert!(uninstall(folder.path(), &elsewhere).status.success() && program.exists());

    // As `bursard --release` leaves the directory where something else is in it.
    fs::remove_dir(&half).unwrap();
    assert!(uninstall(folder.path(), "").status.success() && !program.exists());
}
