// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has come of replies and is not read yet. Empty between two requests: nothing comes unasked.

/// A reply is read as far as this; what a refusal says beyond it is for people.
const LONGEST_REPLY: usize = 512;

/// Bytes received.
pub(crate) struct Inbox {
    bytes: [u8; 2 * LONGEST_REPLY],
    filled: usize,
}

impl Inbox {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; 2 * LONGEST_REPLY],
            filled: 0,
        }
    }

    /// Reads the first line, if it has come as a whole, and drops it.
    pub(crate) fn take_line<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let known = self.bytes.get(..self.filled)?;
        let end = known.iter().position(|&byte| byte == b'\n')?;
        let answer = read(known.get(..end.min(LONGEST_REPLY))?);
        let rest = end + 1;
        for at in rest..self.filled {
            let byte = self.bytes.get(at).copied().unwrap_or(0);
            if let Some(place) = self.bytes.get_mut(at - rest) {
                *place = byte;
            }
        }
        self.filled -= rest;
        Some(answer)
    }

    /// Where more is put. The end of a line that is too long is dropped.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.filled == self.bytes.len() {
            self.filled = LONGEST_REPLY;
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// So many bytes were put into [`Self::room`].
    pub(crate) fn put(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(inbox: &mut Inbox, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = inbox.room();
            let count = bytes.len().min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            inbox.put(count);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn lines_come_one_by_one_however_they_were_received() {
        let mut inbox = Inbox::new();
        put(&mut inbox, b"first\nsec");
        assert_eq!(inbox.take_line(<[u8]>::to_vec), Some(b"first".to_vec()));
        assert_eq!(inbox.take_line(<[u8]>::to_vec), None);
        put(&mut inbox, b"ond\n");
        assert_eq!(inbox.take_line(<[u8]>::to_vec), Some(b"second".to_vec()));
        assert_eq!(inbox.filled, 0);
    }

    #[test]
    fn of_a_line_that_is_too_long_the_head_is_read() {
        let mut inbox = Inbox::new();
        let mut line = vec![b'x'; 5 * LONGEST_REPLY];
        line.extend(b"\nnext\n");
        put(&mut inbox, &line);
        let head = inbox.take_line(<[u8]>::to_vec).unwrap();
        assert_eq!(head, [b'x'; LONGEST_REPLY]);
        assert_eq!(inbox.take_line(<[u8]>::to_vec), Some(b"next".to_vec()));
    }
}
