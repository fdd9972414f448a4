// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole Debian in QEMU. Booting it takes half a minute and more under an emulator, so a machine that
//! stands ready is saved, disk and memory, and others begin there in a second.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::image::Image;
use super::terminal::Terminal;
use crate::console::{complaints, has_panicked};
use crate::interrupt;
use crate::program;
use crate::qemu::{self, Boot, Qemu, escaped};

/// What a saved machine is: its disk and its memory, both read only from now on.
const DISK: &str = "disk.qcow2";
const MEMORY: &str = "memory";

/// A machine that runs.
pub(super) struct Machine {
    qemu: Qemu,
    monitor: Monitor,
    dir: PathBuf,
    port: u16,
    key: PathBuf,
    /// The administrator's shell.
    pub root: Terminal,
    /// The serial console, where anybody logs in.
    pub console: Terminal,
}

/// How long what takes a second on a real machine may take here.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a boot may take.
const BOOT: Duration = Duration::from_secs(300);

impl Machine {
    /// Starts one, at its first boot or where another one was saved; its files are in `dir`, `files` is its
    /// second disk.
    pub(super) fn start(
        image: &Image,
        saved: Option<&Path>,
        files: &Path,
        dir: &Path,
    ) -> Result<Machine> {
        let at = |name: &str| dir.join(name);
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F"]);
        match saved {
            None => create.args(["raw", "-b"]).arg(image.disk()),
            Some(saved) => create.args(["qcow2", "-b"]).arg(saved.join(DISK)),
        };
        program::run(create.arg(at(DISK)))?;
        // Taken by nobody else in the moment until QEMU has it.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.context("find a free port")?.port();
        let mut command = qemu::Machine {
            smp: 1,
            ..qemu::Machine::default()
        }
        .command(&Boot {
            suite: image.kernel.suite(),
            kernel: &image.kernel.vmlinuz(),
            initramfs: &image.initrd(),
            log: &at("kernel.log"),
        });
        for (option, value) in devices(dir, files, port) {
            command.arg(option).arg(value);
        }
        if let Some(saved) = saved {
            let memory = saved.join(MEMORY);
            command.args(["-incoming", &format!("exec:cat '{}'", memory.display())]);
        }
        let errors = fs::File::create(at("qemu.log")).context("create qemu.log")?;
        let mut qemu = Qemu::start(command, Stdio::null(), errors.into())?;
        let mut connect = |name: &str| -> Result<UnixStream> {
            let deadline = Instant::now() + TIMEOUT;
            loop {
                match UnixStream::connect(at(name)) {
                    Ok(stream) => return Ok(stream),
                    Err(error) => ensure!(Instant::now() < deadline, "connect to QEMU: {error}"),
                }
                let soon = Instant::now() + Duration::from_millis(20);
                if qemu.wait_until(soon).is_some() {
                    let said = fs::read_to_string(at("qemu.log")).unwrap_or_default();
                    bail!("QEMU: {said}");
                }
            }
        };
        let monitor = Monitor::new(connect("monitor")?)?;
        let root = Terminal::on_socket("root", connect("root")?)?;
        let console = Terminal::on_socket("console", connect("tty")?)?;
        let (dir, key) = (dir.to_owned(), image.key());
        let mut machine = Machine {
            qemu,
            monitor,
            dir,
            port,
            key,
            root,
            console,
        };
        match saved {
            None => machine.wait_for_boot()?,
            Some(_) => machine.resume()?,
        }
        Ok(machine)
    }

    /// Waits until a machine that boots has done so.
    fn wait_for_boot(&mut self) -> Result<()> {
        let deadline = Instant::now() + BOOT;
        let root = &mut self.root;
        let booted = root.wait_for("control: ready", deadline).and_then(|()| {
            root.wait_for_prompt(deadline)?;
            root.run("systemctl is-system-running --wait", deadline)
        });
        booted.map(|_| ()).with_context(|| self.diagnosis())
    }

    fn resume(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while self.monitor.execute("query-status", json!({}))?["status"] == "inmigrate" {
            ensure!(
                Instant::now() < deadline && !interrupt::came(),
                "the saved machine does not come back"
            );
            thread::sleep(Duration::from_millis(20));
        }
        self.monitor.execute("cont", json!({}))?;
        self.root.send("")?;
        self.root.wait_for_prompt(deadline).map(|_| ())
    }

    /// Runs root's command, which has to succeed.
    pub(super) fn command(&mut self, command: &str, timeout: Duration) -> Result<()> {
        let answer = self.root.run(command, Instant::now() + timeout)?;
        let text = answer.text;
        ensure!(answer.status == Some(0), "{command} failed:\n{text}");
        Ok(())
    }

    /// Another shell of this user's, by ssh.
    pub(super) fn ssh(&self, user: &str, name: &str) -> Result<Terminal> {
        let words = self.ssh_command(user);
        let mut ssh = Command::new("ssh");
        ssh.arg("-tt")
            .args(words.split(' ').skip(1))
            .env("TERM", "dumb")
            .env("LC_ALL", "C.UTF-8");
        Terminal::of_command(name, &mut ssh)
    }

    pub(super) fn ssh_command(&self, user: &str) -> String {
        format!(
            "ssh -q -F /dev/null -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no \
             -o IdentitiesOnly=yes -o ConnectTimeout=100 -i {} -p {} {user}@127.0.0.1",
            self.key.display(),
            self.port
        )
    }

    /// Reboots in order, or without a warning as when the power fails.
    pub(super) fn reboot(&mut self, in_order: bool) -> Result<()> {
        if in_order {
            self.root.send("systemctl reboot")?;
        } else {
            self.monitor.execute("system_reset", json!({}))?;
        }
        self.console.forget()?;
        self.wait_for_boot()
    }

    /// Saves the machine as it stands and ends it.
    pub(super) fn save(mut self, to: &Path) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        // What can be read again need not be saved.
        self.root
            .run("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1", deadline)?;
        self.monitor.execute("stop", json!({}))?;
        let uri = format!("exec:cat >'{}'", to.join(MEMORY).display());
        self.monitor.execute("migrate", json!({ "uri": uri }))?;
        loop {
            let status = self.monitor.execute("query-migrate", json!({}))?;
            match status["status"].as_str() {
                Some("completed") => break,
                Some("failed" | "cancelled") => bail!("QEMU cannot save the machine: {status}"),
                _ => ensure!(
                    Instant::now() < deadline && !interrupt::came(),
                    "the machine is not saved in time"
                ),
            }
            thread::sleep(Duration::from_millis(50));
        }
        self.monitor.execute("quit", json!({}))?;
        self.qemu.wait_until(deadline);
        let disk = self.dir.join(DISK);
        fs::rename(&disk, to.join(DISK)).with_context(|| format!("move {disk:?}"))
    }

    /// What the kernel complained of.
    pub(super) fn complaints(&self) -> Vec<String> {
        complaints(&fs::read_to_string(self.dir.join("kernel.log")).unwrap_or_default())
    }

    /// Why it may be that the machine does not answer.
    pub(super) fn diagnosis(&self) -> String {
        let log = self.dir.join("kernel.log");
        let what = if has_panicked(&fs::read_to_string(&log).unwrap_or_default()) {
            "the kernel panicked"
        } else {
            "the machine does not answer"
        };
        format!("{what}; kernel log: {}", log.display())
    }
}

/// The two disks, the network with ssh behind a port, the consoles, the monitor: sockets in `dir`.
fn devices(dir: &Path, files: &Path, port: u16) -> Vec<(&'static str, String)> {
    let path = |name: &str| escaped(&dir.join(name));
    let server = "server=on,wait=off";
    let disk = format!("if=virtio,format=qcow2,cache=unsafe,file={}", path(DISK));
    let files = format!("if=virtio,format=raw,readonly=on,file={}", escaped(files));
    let net = format!("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22");
    let root = format!("socket,id=root,path={},{server}", path("root"));
    let random = "rng-random,id=random,filename=/dev/urandom";
    vec![
        ("-drive", disk),
        ("-drive", files),
        ("-netdev", net),
        ("-device", "virtio-net-pci,netdev=net,romfile=".to_owned()),
        ("-object", random.to_owned()),
        ("-device", "virtio-rng-pci,rng=random".to_owned()),
        ("-serial", format!("unix:{},{server}", path("tty"))),
        ("-device", "virtio-serial-pci".to_owned()),
        ("-chardev", root),
        ("-device", "virtconsole,chardev=root".to_owned()),
        ("-qmp", format!("unix:{},{server}", path("monitor"))),
    ]
}

/// QEMU's monitor.
struct Monitor {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Monitor {
    fn new(stream: UnixStream) -> Result<Monitor> {
        stream
            .set_read_timeout(Some(TIMEOUT))
            .context("set up a socket")?;
        let from = BufReader::new(stream.try_clone().context("share a socket")?);
        let mut monitor = Monitor { to: stream, from };
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let message = json!({ "execute": command, "arguments": arguments });
        writeln!(self.to, "{message}").context("tell QEMU")?;
        loop {
            let mut line = String::new();
            let count = self
                .from
                .read_line(&mut line)
                .with_context(|| format!("QEMU on {command}"))?;
            ensure!(count > 0, "QEMU has gone");
            // Greetings and events have neither.
            let mut answer: Value = serde_json::from_str(&line).context("read QEMU's answer")?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU: {command}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }
}
