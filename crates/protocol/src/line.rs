// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines out of a stream that arrives in pieces, with a bound.

/// Collects bytes until a line is whole.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    searched: usize,
    limit: usize,
}

/// More bytes than a line may have, and still no end of line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {limit} bytes")]
pub struct LineTooLong {
    /// The bound.
    pub limit: usize,
}

impl LineBuffer {
    /// A buffer for lines of at most `limit` bytes, the newline included.
    pub const fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            searched: 0,
            limit,
        }
    }

    /// Takes what has arrived. Lines are then to be fetched by [`Self::next_line`].
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line without its newline, if there is one.
    ///
    /// # Errors
    /// When the bound is passed without an end of line.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        let fresh = self.bytes.get(self.searched..).unwrap_or_default();
        let Some(offset) = fresh.iter().position(|&byte| byte == b'\n') else {
            self.searched = self.bytes.len();
            if self.bytes.len() >= self.limit {
                return Err(LineTooLong { limit: self.limit });
            }
            return Ok(None);
        };
        let end = self.searched.saturating_add(offset);
        if end >= self.limit {
            return Err(LineTooLong { limit: self.limit });
        }
        let rest = self.bytes.split_off(end.saturating_add(1));
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.truncate(end);
        self.searched = 0;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_without_end_is_refused_at_the_bound() {
        let mut buffer = LineBuffer::new(4);
        buffer.push(b"abc");
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.push(b"d");
        assert_eq!(buffer.next_line(), Err(LineTooLong { limit: 4 }));
    }

    proptest! {
        #[test]
        fn lines_come_out_whole_however_they_were_cut(
            lines in prop::collection::vec("[a-z]{0,9}", 0..9),
            cut in 1usize..7,
        ) {
            let stream: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut buffer = LineBuffer::new(16);
            let mut seen = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                buffer.push(piece);
                while let Some(line) = buffer.next_line().unwrap() {
                    seen.push(String::from_utf8(line).unwrap());
                }
            }
            prop_assert_eq!(seen, lines);
        }
    }
}
