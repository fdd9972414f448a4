// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An event as an entry of the journal, with its fields (systemd's "native journal protocol"). Not
//! tracing-journald's layer, whose socket waits for the journal.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

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
    use std::sync::Mutex;

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
}
