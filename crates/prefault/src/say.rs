// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One line on stderr, made without allocating.

/// Text in the making; what is too long for it is cut off.
#[derive(Debug)]
pub(crate) struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; 512],
            used: 0,
        }
        .text(b"bursar: prefault: ")
    }

    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        for &byte in text {
            if let Some(place) = self.bytes.get_mut(self.used) {
                *place = byte;
                self.used += 1;
            }
        }
        self
    }

    /// Bytes as MiB, rounded up.
    pub(crate) fn mib(self, bytes: u64) -> Self {
        self.number(bytes.div_ceil(1 << 20)).text(b" MiB")
    }

    pub(crate) fn number(self, number: u64) -> Self {
        let mut digits = [0u8; 20];
        let mut rest = number;
        let mut first = digits.len();
        loop {
            first -= 1;
            if let Some(place) = digits.get_mut(first) {
                *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            }
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(digits.get(first..).unwrap_or_default())
    }

    pub(crate) fn say(self) {
        let line = self.text(b"\n");
        let bytes = line.bytes.get(..line.used).unwrap_or_default();
        // With stderr gone there is nobody to tell.
        // SAFETY: live memory of that length.
        let _ = unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
    }
}
