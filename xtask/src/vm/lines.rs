// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's output, cut into lines as it comes, up to the token that ends it. Pure.

/// A line longer than this is handed on in pieces: memory stays bounded whatever a guest prints.
const LONGEST_BYTES: usize = 64 * 1024;

/// Cuts bytes into lines.
pub(super) struct Lines {
    token: Vec<u8>,
    pending: Vec<u8>,
    ended: bool,
}

impl Lines {
    /// The token ends the output; it comes alone on a line, or after an unfinished last one.
    pub(super) fn until(token: &str) -> Lines {
        Lines {
            token: format!("{token}\n").into_bytes(),
            pending: Vec::new(),
            ended: false,
        }
    }

    /// Takes what came and gives every line that is complete. Nothing comes after the end.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.ended {
                break;
            }
            self.pending.extend_from_slice(piece);
            if self.pending.ends_with(&self.token) {
                self.ended = true;
                let rest = self.pending.len() - self.token.len();
                self.pending.truncate(rest);
                lines.extend(self.take());
            } else if self.pending.ends_with(b"\n") || self.pending.len() > LONGEST_BYTES {
                lines.extend(self.take());
            }
        }
        lines
    }

    /// Whether the token came.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// What is left of a stream that broke off.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.pending)).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str]) -> (Vec<String>, bool) {
        let mut cutter = Lines::until("TOKEN");
        let mut lines = Vec::new();
        for piece in pieces {
            lines.extend(
                cutter
                    .push(piece.as_bytes())
                    .into_iter()
                    .map(|line| String::from_utf8(line).unwrap()),
            );
        }
        (lines, cutter.ended())
    }

    #[test]
    fn lines_come_as_soon_as_they_are_complete() {
        let cases: [(&[&str], &[&str], bool); 6] = [
            (&["a\nb"], &["a\n"], false),
            (&["a", "b\n"], &["ab\n"], false),
            (&["a\n", "TOK", "EN\n"], &["a\n"], true),
            (&["no newline", "TOKEN\n"], &["no newline"], true),
            (
                &["TOKEN is only a word\nTOKEN\nlate\n"],
                &["TOKEN is only a word\n"],
                true,
            ),
            (&["TOKEN\n"], &[], true),
        ];
        for (pieces, expected, ended) in cases {
            let expected: Vec<String> = expected.iter().map(|&line| line.to_owned()).collect();
            assert_eq!(lines(pieces), (expected, ended), "{pieces:?}");
        }
    }

    #[test]
    fn an_endless_line_comes_in_pieces() {
        let mut cutter = Lines::until("TOKEN");
        let pieces = cutter.push(&vec![b'x'; LONGEST_BYTES + 1]);
        assert_eq!(pieces.len(), 1);
        assert!(cutter.take().is_none());
    }

    #[test]
    fn what_is_left_of_a_broken_stream_is_not_lost() {
        let mut cutter = Lines::until("TOKEN");
        assert!(cutter.push(b"half").is_empty());
        assert_eq!(cutter.take().as_deref(), Some(&b"half"[..]));
    }
}
