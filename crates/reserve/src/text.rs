// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text in a buffer on the stack, and numbers out of a reply.

/// A request is at most so long, bytes: all words and four numbers of 20 digits.
const LONGEST: usize = 256;

/// A text being written. What does not fit is left out, and the text is then no request.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: [u8; LONGEST],
    used: usize,
}

impl Text {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; LONGEST],
            used: 0,
        }
    }

    pub(crate) fn word(&mut self, word: &str) -> &mut Self {
        self.put(word.as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        for &byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.used) {
                *place = byte;
                self.used += 1;
            }
        }
        self
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut rest = number;
        let mut first = digits.len();
        loop {
            first -= 1;
            if let (Some(place), Ok(digit)) = (digits.get_mut(first), u8::try_from(rest % 10)) {
                *place = b'0' + digit;
            }
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.put(digits.get(first..).unwrap_or_default())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// The number behind `key` in a reply.
pub(crate) fn number_after(reply: &[u8], key: &str) -> Option<u64> {
    let rest = behind(reply, key)?;
    let mut number: Option<u64> = None;
    for byte in rest.iter().take_while(|byte| byte.is_ascii_digit()) {
        let digit = u64::from(byte - b'0');
        number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
    }
    number
}

/// What follows the first `key` in a reply.
pub(crate) fn behind<'a>(reply: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let key = key.as_bytes();
    // slice::windows() of an empty key panics, and the machinery for that would come with tmalloc.
    (0..reply.len()).find_map(|at| reply.get(at..)?.strip_prefix(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_and_read_back() {
        for number in [0, 7, 10, 4096, u64::MAX] {
            let mut text = Text::new();
            text.word("{\"pages\":").number(number).word("}");
            assert_eq!(number_after(text.as_bytes(), "\"pages\":"), Some(number));
        }
        assert_eq!(number_after(b"{\"pages\":}", "\"pages\":"), None);
        let beyond = b"{\"pages\":99999999999999999999}";
        assert_eq!(number_after(beyond, "\"pages\":"), None);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut text = Text::new();
        for _ in 0..100 {
            text.word("seventeen letters");
        }
        assert_eq!(text.as_bytes().len(), LONGEST);
    }
}
