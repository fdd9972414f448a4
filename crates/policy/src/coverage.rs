// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is an ordinary user.

use bursar_model::Uid;

/// Whom `default` covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// Where ordinary users begin.
    pub uid_min: Uid,
    /// First and last of those whom it leaves alone all the same, both included.
    pub exempt: Vec<(Uid, Uid)>,
}

impl Coverage {
    /// Whether it covers this user.
    pub fn covers(&self, uid: Uid) -> bool {
        uid >= self.uid_min
            && !self
                .exempt
                .iter()
                .any(|&(first, last)| (first..=last).contains(&uid))
    }
}
