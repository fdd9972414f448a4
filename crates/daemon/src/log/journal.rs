// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An event as an entry of the journal, with its fields (systemd's "native journal protocol"). Not
//! tracing-journald's layer, whose socket waits for the journal.

use std::fmt::{Debug, Write};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Sends an entry to where the journal takes them; one too large for a datagram in a file that nobody can
/// change any more, as the protocol has it.
pub(super) fn send(socket: &UnixDatagram, journal: &Path, entry: &[u8]) -> io::Result<()> {
    match socket.send_to(entry, journal) {
        Err(error) if Errno::from_io_error(&error).is_some_and(is_too_large) => {
            send_file(socket, journal, &sealed(entry)?)
        }
        outcome => outcome.map(drop),
    }
}

/// The socket's buffer, or the kernel's memory in one piece, does not do.
fn is_too_large(error: Errno) -> bool {
    matches!(error, Errno::MSGSIZE | Errno::NOBUFS)
}

/// The journal maps it: with a seal missing it copies it instead, or takes it for somebody's trick.
fn sealed(entry: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(memfd_create("bursard-log", flags)?);
    io::Write::write_all(&mut file, entry)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

fn send_file(socket: &UnixDatagram, journal: &Path, file: &OwnedFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::NOBUFS.into());
    }
    let journal = SocketAddrUnix::new(journal)?;
    sendmsg_addr(socket, &journal, &[], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Hands on entries, one for each event.
#[derive(Debug)]
pub(super) struct Journal(pub(super) fn(Vec<u8>));

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut entry = entry(*metadata.level());
        entry.field("TARGET", metadata.target());
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            entry.field("CODE_FILE", file);
            entry.field("CODE_LINE", &line.to_string());
        }
        event.record(&mut entry);
        (self.0)(entry.0);
    }
}

/// The entry that only says something.
pub(super) fn message(level: Level, text: &str) -> Vec<u8> {
    let mut entry = entry(level);
    entry.field("MESSAGE", text);
    entry.0
}

fn entry(level: Level) -> Entry {
    let mut entry = Entry(Vec::with_capacity(256));
    // syslog's: err, warning, notice, info, debug.
    let priority = match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    };
    entry.field("PRIORITY", priority);
    entry.field("SYSLOG_IDENTIFIER", "bursard");
    entry
}

struct Entry(Vec<u8>);

impl Entry {
    /// With its length, so that a line end in it ends nothing.
    fn field(&mut self, name: &str, value: &str) {
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.0
            .extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.field("MESSAGE", value),
            // A prefix, so that none of ours is taken for one of the journal's own.
            name => self.field(&format!("F_{}", name.to_ascii_uppercase()), value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read, Seek};
    use std::sync::Mutex;

    use rustix::fs::fcntl_get_seals;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    static ENTRIES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

    #[test]
    fn an_event_is_an_entry_with_its_fields() {
        let journal = Journal(|entry| ENTRIES.lock().unwrap().push(entry));
        let subscriber = tracing_subscriber::registry().with(journal);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(
                account = "alice",
                uid = Some(1000),
                pid = None::<u32>,
                "killed:\n{}",
                "hog"
            );
        });

        let entries = ENTRIES.lock().unwrap();
        let text = String::from_utf8(entries[0].clone()).unwrap();
        let field = |name: &str, value: &str| {
            let length = String::from_utf8((value.len() as u64).to_le_bytes().to_vec()).unwrap();
            format!("{name}\n{length}{value}\n")
        };
        for (name, value) in [
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "bursard"),
            ("F_ACCOUNT", "alice"),
            ("F_UID", "1000"),
            ("MESSAGE", "killed:\nhog"),
        ] {
            assert!(text.contains(&field(name, value)), "{name}: {text:?}");
        }
        assert!(!text.contains("F_PID"), "{text:?}");
    }

    /// What came as a datagram, and the file that came with it.
    fn received(journal: &UnixDatagram) -> (Vec<u8>, Option<OwnedFd>) {
        let mut bytes = vec![0; 1 << 20];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(journal, &mut pieces, &mut control, RecvFlags::DONTWAIT).unwrap();
        let file = control.drain().find_map(|it| match it {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        bytes.truncate(got.bytes);
        (bytes, file)
    }

    #[test]
    fn an_entry_too_large_for_a_datagram_comes_in_a_file_that_nobody_can_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let journal = UnixDatagram::bind(&path).unwrap();
        let ours = UnixDatagram::unbound().unwrap();
        let small = message(Level::INFO, "small");
        send(&ours, &path, &small).unwrap();
        let (bytes, file) = received(&journal);
        assert_eq!((bytes, file.is_none()), (small, true));

        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 64 << 10).unwrap();
        let large = message(Level::INFO, &"large ".repeat(100_000));
        send(&ours, &path, &large).unwrap();
        let (bytes, file) = received(&journal);
        assert!(bytes.is_empty());
        let mut file = std::fs::File::from(file.unwrap());
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        assert!(fcntl_get_seals(&file).unwrap().contains(seals));
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        assert!(text == large, "{} of {} bytes", text.len(), large.len());
    }

    #[test]
    fn a_journal_that_is_gone_is_an_error_and_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let ours = UnixDatagram::unbound().unwrap();
        let nobody = folder.path().join("journal");
        assert!(send(&ours, &nobody, b"x").is_err());
    }
}
