// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is an ordinary user.

use std::fmt::{self, Display, Formatter};

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

/// `uids from 1000 on, but for 61184 to 65519 and 65534`.
impl Display for Coverage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "uids from {} on", self.uid_min)?;
        let concerned = |(_, last): &&(Uid, Uid)| *last >= self.uid_min;
        for (index, (first, last)) in self.exempt.iter().filter(concerned).enumerate() {
            f.write_str(if index == 0 { ", but for " } else { " and " })?;
            match first == last {
                true => write!(f, "{first}")?,
                false => write!(f, "{first} to {last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_whom_it_covers() {
        let ranges = |all: &[(u32, u32)]| Coverage {
            uid_min: Uid::new(1000),
            exempt: all
                .iter()
                .map(|&(first, last)| (Uid::new(first), Uid::new(last)))
                .collect(),
        };
        assert_eq!(ranges(&[(5, 9)]).to_string(), "uids from 1000 on");
        assert_eq!(
            ranges(&[(61_184, 65_519), (65_534, 65_534)]).to_string(),
            "uids from 1000 on, but for 61184 to 65519 and 65534"
        );
    }
}
