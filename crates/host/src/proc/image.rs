// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which program image a process runs (proc_pid_stat(5)).

use crate::Malformed;
use crate::bytes::{number, words};

/// Where the kernel has put code, stack, heap and arguments of a program. Each execve(2) draws them anew: two
/// images look the same only where addresses are not randomised, or not told to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image([u64; 4]);

impl Image {
    /// Reads the content of a stat file, of a process or of a thread.
    ///
    /// # Errors
    /// When it has too few fields.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        /// The field that follows the name.
        const FIRST: usize = 3;
        const START_CODE: usize = 26;
        const START_STACK: usize = 28;
        const START_BRK: usize = 47;
        const ARG_START: usize = 48;
        let close = bytes.iter().rposition(|&byte| byte == b')');
        let rest = close.and_then(|at| bytes.get(at.saturating_add(1)..));
        let fields: Vec<&[u8]> = words(rest.unwrap_or_default()).collect();
        let field = |index: usize| {
            let value = fields.get(index.saturating_sub(FIRST)).copied();
            value
                .and_then(number::<u64>)
                .ok_or_else(|| Malformed::new("stat has no addresses of an image"))
        };
        Ok(Self([
            field(START_CODE)?,
            field(START_STACK)?,
            field(START_BRK)?,
            field(ARG_START)?,
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_from_their_places() {
        let fields: Vec<String> = (3..=52).map(|at| at.to_string()).collect();
        let text = format!("7 (a ) b) {}\n", fields.join(" "));
        assert_eq!(
            Image::parse(text.as_bytes()).unwrap(),
            Image([26, 28, 47, 48])
        );
        assert!(Image::parse(b"7 (a) S 1 2").is_err());
        assert!(Image::parse(b"").is_err());
    }
}
