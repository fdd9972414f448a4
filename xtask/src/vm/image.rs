// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest starts with: busybox, our /init, a few users, the files and modules asked for,
//! and the command as a small script.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::cache::Kernel;
use super::initramfs::Tree;
use super::module::module_name;
use super::program;

/// What carries output to the host; where the kernel has it built in, nothing is loaded.
const TRANSPORT: [&str; 2] = ["virtio_pci", "virtio_console"];

/// Throw-away users, each with a group of the same number.
const FIRST_UID: u32 = 60_000;
const USERS: u32 = 10;
/// A group that the first half of them are members of.
const CREW_GID: u32 = 60_100;

const INIT: &str = include_str!("init.sh");

/// What is asked of an image.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Host path, guest path.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// `name` or `name parameter=value …`.
    pub modules: Vec<String>,
    pub environment: BTreeMap<String, std::ffi::OsString>,
    pub command: Vec<std::ffi::OsString>,
    /// Guest paths to send back, in order.
    pub out: Vec<PathBuf>,
    pub bpffs: bool,
    pub tracefs: bool,
    /// Rows and columns of the terminal, for a shell.
    pub terminal: Option<(u16, u16)>,
}

/// Lays out everything.
pub(super) fn tree(kernel: &Kernel, wanted: &Wanted, token: &str) -> Result<Tree> {
    let mut tree = Tree::new();
    tree.bytes("/init", 0o755, INIT)?;
    shell(&mut tree)?;
    tree.host_files(&wanted.files)?;
    busybox(&mut tree)?;
    users(&mut tree)?;
    modules(&mut tree, kernel, wanted)?;
    settings(&mut tree, wanted, token)?;
    Ok(tree)
}

/// busybox for process 1 and for every program that was not brought along.
fn busybox(tree: &mut Tree) -> Result<()> {
    let busybox = program::find("busybox").ok_or_else(|| anyhow!("busybox is not installed"))?;
    let listed = program::run(Command::new(&busybox).arg("--list"))?;
    tree.host_files(&[(busybox, PathBuf::from("/usr/bin/busybox"))])?;
    let applets = String::from_utf8_lossy(&listed.stdout).into_owned();
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        tree.link_if_free(format!("/usr/bin/{applet}"), "busybox")?;
    }
    Ok(())
}

/// This machine's own /bin/sh: busybox' shell prefers its applets to programs of the same name,
/// so that a `ps` brought along would never run.
fn shell(tree: &mut Tree) -> Result<()> {
    let shell = fs::canonicalize("/bin/sh").context("find /bin/sh")?;
    tree.host_files(&[(shell, PathBuf::from("/usr/bin/sh"))])
}

fn users(tree: &mut Tree) -> Result<()> {
    let mut passwd = "root:x:0:0:root:/root:/bin/sh\n\
                      daemon:x:1:1:daemon:/:/bin/false\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n"
        .to_owned();
    let mut group = "root:x:0:\ndaemon:x:1:\ntty:x:5:\nnogroup:x:65534:\n".to_owned();
    let mut homes = String::new();
    for uid in FIRST_UID..FIRST_UID + USERS {
        passwd.push_str(&format!(
            "u{uid}:x:{uid}:{uid}:guest user:/home/u{uid}:/bin/sh\n"
        ));
        group.push_str(&format!("u{uid}:x:{uid}:\n"));
        homes.push_str(&format!("u{uid} {uid}\n"));
    }
    let members: Vec<String> = (FIRST_UID..FIRST_UID + USERS / 2)
        .map(|uid| format!("u{uid}"))
        .collect();
    group.push_str(&format!("crew:x:{CREW_GID}:{}\n", members.join(",")));
    tree.bytes("/etc/passwd", 0o644, passwd)?;
    tree.bytes("/etc/group", 0o644, group)?;
    tree.bytes("/vm/users", 0o644, homes)?;
    tree.bytes(
        "/etc/nsswitch.conf",
        0o644,
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
    )?;
    tree.bytes("/etc/hosts", 0o644, "127.0.0.1 localhost bursar-vm\n")?;
    tree.bytes("/etc/shells", 0o644, "/bin/sh\n")?;
    tree.bytes("/etc/profile", 0o644, "export PS1='bursar-vm \\w # '\n")?;
    // Debian's own values, but for UID_MAX, so that the throw-away users are ordinary ones.
    tree.bytes(
        "/etc/login.defs",
        0o644,
        "UID_MIN 1000\nUID_MAX 60999\nSYS_UID_MIN 100\nSYS_UID_MAX 999\nGID_MIN 1000\nGID_MAX 60999\n",
    )?;
    // Libraries outside the loader's own directories are found as on this machine.
    let cache = Path::new("/etc/ld.so.cache");
    if cache.is_file() {
        tree.host_files(&[(cache.to_owned(), cache.to_owned())])?;
    }
    Ok(())
}

fn modules(tree: &mut Tree, kernel: &Kernel, wanted: &Wanted) -> Result<()> {
    let index = kernel.module_index()?;
    let transport: &[&str] = if wanted.terminal.is_some() {
        &[]
    } else {
        &TRANSPORT
    };
    let asked: Vec<(String, &str)> = wanted
        .modules
        .iter()
        .map(|module| {
            let (name, parameters) = module
                .split_once(char::is_whitespace)
                .unwrap_or((module, ""));
            (module_name(name), parameters)
        })
        .collect();
    let names: Vec<&str> = transport
        .iter()
        .copied()
        .chain(asked.iter().map(|(name, _)| name.as_str()))
        .collect();
    let mut list = String::new();
    for file in index
        .load_order(&names)
        .with_context(|| format!("kernel {}", kernel.release()))?
    {
        let name = module_name(&file);
        let parameters = asked
            .iter()
            .find(|(asked, _)| *asked == name)
            .map_or("", |(_, parameters)| parameters);
        tree.bytes(
            format!("/vm/modules/{name}.ko"),
            0o644,
            unpacked(&kernel.modules().join(&file))?,
        )?;
        list.push_str(&format!("{name} {parameters}\n"));
    }
    tree.bytes("/vm/modules.list", 0o644, list)
}

/// A module as insmod takes it.
fn unpacked(file: &Path) -> Result<Vec<u8>> {
    let unpack = match file.extension().and_then(OsStr::to_str) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(file).with_context(|| format!("read {file:?}")),
    };
    Ok(program::run(Command::new(unpack).arg("-dc").arg(file))?.stdout)
}

fn settings(tree: &mut Tree, wanted: &Wanted, token: &str) -> Result<()> {
    let (rows, columns) = wanted.terminal.unwrap_or((24, 80));
    let mode = if wanted.terminal.is_some() {
        "shell"
    } else {
        "run"
    };
    tree.bytes(
        "/vm/settings",
        0o644,
        format!(
            "TOKEN={token}\nMODE={mode}\nBPFFS={}\nTRACEFS={}\nROWS={rows}\nCOLUMNS={columns}\n",
            u8::from(wanted.bpffs),
            u8::from(wanted.tracefs)
        ),
    )?;
    let mut list = Vec::new();
    for path in &wanted.out {
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&b'\n') {
            bail!("guest path {path:?} has a line break in it");
        }
        list.extend_from_slice(bytes);
        list.push(b'\n');
    }
    tree.bytes("/vm/wanted", 0o644, list)?;
    tree.bytes(
        "/vm/command",
        0o644,
        script(&wanted.environment, &wanted.command),
    )
}

/// The command as a script, every word of it quoted.
fn script(
    environment: &BTreeMap<String, std::ffi::OsString>,
    command: &[std::ffi::OsString],
) -> Vec<u8> {
    let mut script = b"export HOME=/root USER=root LOGNAME=root SHELL=/bin/sh\n".to_vec();
    for (name, value) in environment {
        script.extend_from_slice(format!("export {name}=").as_bytes());
        script.extend(quoted(value));
        script.push(b'\n');
    }
    let Some((program, arguments)) = command.split_first() else {
        script.extend_from_slice(b"exec busybox sh -l\n");
        return script;
    };
    script.extend_from_slice(b"name=");
    script.extend(quoted(program));
    script.extend_from_slice(
        b"\nprogram=$(which \"$name\") || {\n\
          \techo \"vm: no program $name in the guest; bring it with --file\" >&2\n\
          \texit 127\n}\nexec \"$program\"",
    );
    for argument in arguments {
        script.push(b' ');
        script.extend(quoted(argument));
    }
    script.push(b'\n');
    script
}

/// A word that a shell takes as it is.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::process::Stdio;

    #[test]
    fn arguments_and_environment_reach_the_program_as_they_are() {
        let hostile = "a b'c\"d$(id)`id`\\e\n*;&|<>\u{e9}";
        let environment = BTreeMap::from([("VALUE".to_owned(), OsString::from(hostile))]);
        let command = [
            "sh",
            "-c",
            "printf '%s|%s' \"$1\" \"$VALUE\"",
            "sh",
            hostile,
        ]
        .map(OsString::from);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), script(&environment, &command)).unwrap();
        let output = Command::new("sh")
            .arg(file.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("{hostile}|{hostile}")
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let script = script(&BTreeMap::new(), &["nonesuch-program".into()]);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), script).unwrap();
        let output = Command::new("sh").arg(file.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(127));
        assert!(
            String::from_utf8(output.stderr)
                .unwrap()
                .contains("nonesuch-program")
        );
    }

    #[test]
    fn the_init_script_is_one_a_shell_can_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), INIT).unwrap();
        assert!(
            Command::new("sh")
                .arg("-n")
                .arg(file.path())
                .status()
                .unwrap()
                .success()
        );
    }

    #[test]
    fn throw_away_users_have_groups_and_a_crew() {
        let mut tree = Tree::new();
        users(&mut tree).unwrap();
        let paths: Vec<_> = tree.list().collect();
        for path in [
            "etc/passwd",
            "etc/group",
            "etc/login.defs",
            "etc/nsswitch.conf",
        ] {
            assert!(paths.contains(&Path::new(path)), "{path}");
        }
    }
}
