// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sysctl that has a value while something holds (S4 "Doing more": tunables on system events): how much of memory is
//! huge pages, how many processors there are, what an account holds.

use std::fmt;

use bursar_model::{Bytes, SizeSpec, Who, printable};

use crate::finding::Wrong;
use crate::spelling::nearest;
use crate::sysctl::Sysctl;

const FORM: &str = "write \"CONDITION: NAME=NUMBER\", \"huge_pages >= 4G: vm.swappiness=10\"";
const QUANTITIES: [&str; 5] = ["huge_pages", "memory", "swap", "cpus", "held"];

/// A sysctl and the value that it has while a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlRule {
    /// While this holds.
    pub when: Condition,
    /// Which one.
    pub sysctl: Sysctl,
    /// Its value.
    pub value: i64,
}

/// A quantity compared with a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What is compared.
    pub quantity: Quantity,
    /// How it is compared.
    pub comparison: Comparison,
    /// With what: bytes, or CPUs.
    pub number: u64,
}

/// Something that changes while a machine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Quantity {
    /// Memory in pools of huge pages, used or not.
    HugePages,
    /// Memory of the machine, as /proc/meminfo has it.
    Memory,
    /// Swap, used or not.
    Swap,
    /// Processors that are online.
    Cpus,
    /// What an account holds: a user, or a shared account.
    Held(Who),
}

/// How a quantity is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `>=`
    AtLeast,
    /// `<`
    Below,
}

impl Condition {
    /// Whether it holds of an amount.
    pub const fn holds(&self, amount: u64) -> bool {
        match self.comparison {
            Comparison::AtLeast => amount >= self.number,
            Comparison::Below => amount < self.number,
        }
    }
}

impl SysctlRule {
    /// Reads `CONDITION: NAME=NUMBER`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, Wrong> {
        let Some((condition, assignment)) = text.split_once(':') else {
            return Err(Wrong::new(format!("{:?} is not a rule", shown(text)), FORM));
        };
        let when = Condition::parse(condition)?;
        let (sysctl, value) = setting(assignment.trim())?;
        if matches!(sysctl, Sysctl::NegativeDentryLimit | Sysctl::DentryNegative) {
            let message = format!("{} follows what negative dentries take", sysctl.name());
            return Err(Wrong::new(
                message,
                "set watermarks.negative_dentries_permille",
            ));
        }
        Ok(Self {
            when,
            sysctl,
            value,
        })
    }
}

impl Condition {
    fn parse(text: &str) -> Result<Self, Wrong> {
        let (quantity, comparison, number) = match (text.split_once(">="), text.split_once('<')) {
            (Some((quantity, number)), None) => (quantity, Comparison::AtLeast, number),
            (None, Some((quantity, number))) if !number.starts_with('=') => {
                (quantity, Comparison::Below, number)
            }
            _ => {
                let message = format!("{:?} is not a condition", shown(text));
                let remedy = "compare with >= or <: \"cpus < 4\", \"huge_pages >= 4G\", \"held(alice) >= 8G\"";
                return Err(Wrong::new(message, remedy));
            }
        };
        let quantity = Quantity::parse(quantity.trim())?;
        let number = quantity.number(number.trim())?;
        Ok(Self {
            quantity,
            comparison,
            number,
        })
    }
}

impl Quantity {
    fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "huge_pages" => return Ok(Self::HugePages),
            "memory" => return Ok(Self::Memory),
            "swap" => return Ok(Self::Swap),
            "cpus" => return Ok(Self::Cpus),
            _ => {}
        }
        let who = text
            .strip_prefix("held(")
            .and_then(|it| it.strip_suffix(')'));
        let Some(who) = who else {
            let remedy = match nearest(text, QUANTITIES.into_iter()) {
                Some("held") => "write held(WHO), \"held(alice)\"".to_owned(),
                Some(close) => format!("did you mean {close:?}?"),
                None => "write huge_pages, memory, swap, cpus or held(WHO)".to_owned(),
            };
            let message = format!("{:?} is nothing that is looked at", shown(text));
            return Err(Wrong::new(message, remedy));
        };
        let remedy = "write a user, a uid or a shared account: held(alice), held(1000), held(=lab)";
        match who.trim().parse::<Who>() {
            Ok(who @ (Who::User(_) | Who::Uid(_) | Who::Shared(_))) => Ok(Self::Held(who)),
            Ok(who) => Err(Wrong::new(format!("{who} is not a single account"), remedy)),
            Err(error) => Err(Wrong::new(error.to_string(), remedy)),
        }
    }

    fn number(&self, text: &str) -> Result<u64, Wrong> {
        if *self == Self::Cpus {
            return text.parse().map_err(|_| {
                let message = format!("{:?} is not a number of CPUs", shown(text));
                Wrong::new(message, "write a whole number")
            });
        }
        match text.parse() {
            Ok(SizeSpec::Bytes(bytes)) => Ok(bytes.get()),
            _ => Err(Wrong::new(
                format!("{:?} is not an amount of memory", shown(text)),
                "write bytes, with K, M, G or T (4G)",
            )),
        }
    }
}

/// Reads `NAME=NUMBER`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn setting(text: &str) -> Result<(Sysctl, i64), Wrong> {
    let Some((name, number)) = text.split_once('=') else {
        let message = format!("{text:?} is not a setting");
        return Err(Wrong::new(
            message,
            "write NAME=NUMBER, \"vm.swappiness=10\"",
        ));
    };
    let name = name.trim();
    let Some(sysctl) = Sysctl::of_name(name) else {
        let known = Sysctl::ALL.iter().map(|it| it.name());
        let remedy = match nearest(name, known.clone()) {
            Some(close) => format!("did you mean {close:?}?"),
            None => format!("write one of {}", known.collect::<Vec<_>>().join(", ")),
        };
        return Err(Wrong::new(
            format!("{name:?} is not a sysctl that bursar sets"),
            remedy,
        ));
    };
    if sysctl == Sysctl::WatermarkScaleFactor {
        return Err(Wrong::new(
            format!("{name} is what bursar moves by itself"),
            "set the value to begin with in /etc/sysctl.d, and watermarks.max_scale here",
        ));
    }
    let value = number.trim().parse::<i64>().ok();
    match value.filter(|value| sysctl.takes(*value)) {
        Some(value) => Ok((sysctl, value)),
        None => Err(Wrong::new(
            format!("{:?} is not a value for {name}", number.trim()),
            format!("write {}", sysctl.values()),
        )),
    }
}

fn shown(text: &str) -> String {
    printable(text.as_bytes(), 80)
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comparison = match self.comparison {
            Comparison::AtLeast => ">=",
            Comparison::Below => "<",
        };
        write!(out, "{} {comparison} ", self.quantity)?;
        match self.quantity {
            Quantity::Cpus => write!(out, "{}", self.number),
            _ => write!(out, "{}", Bytes::new(self.number)),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HugePages => out.write_str("huge_pages"),
            Self::Memory => out.write_str("memory"),
            Self::Swap => out.write_str("swap"),
            Self::Cpus => out.write_str("cpus"),
            Self::Held(who) => write!(out, "held({who})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_hold_where_they_say() {
        let table = [
            (
                "huge_pages >= 4G: vm.swappiness=10",
                4 << 30,
                (4 << 30) - 1,
                "huge_pages >= 4 GiB",
            ),
            ("cpus<4:vm.swappiness = 10", 3, 4, "cpus < 4"),
            (
                "memory >= 64G : vm.min_free_kbytes=262144",
                64 << 30,
                1 << 30,
                "memory >= 64 GiB",
            ),
            ("swap < 1M: vm.swappiness=0", 0, 1 << 20, "swap < 1 MiB"),
            (
                "held(alice) >= 8G: vm.swappiness=10",
                8 << 30,
                0,
                "held(alice) >= 8 GiB",
            ),
            (
                "held(=lab) >= 1K: vm.swappiness=10",
                1024,
                1023,
                "held(=lab) >= 1 KiB",
            ),
        ];
        for (text, does, does_not, shown) in table {
            let rule = SysctlRule::parse(text).unwrap();
            assert!(
                rule.when.holds(does) && !rule.when.holds(does_not),
                "{text}"
            );
            assert_eq!(rule.when.to_string(), shown);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_remedy() {
        let table = [
            (
                "vm.swappiness=10",
                "is not a rule",
                "CONDITION: NAME=NUMBER",
            ),
            (
                "huge_pages > 4G: vm.swappiness=10",
                "is not a condition",
                ">= or <",
            ),
            (
                "huge_pages <= 4G: vm.swappiness=10",
                "is not a condition",
                ">= or <",
            ),
            (
                "hugepages >= 4G: vm.swappiness=10",
                "\"hugepages\" is nothing that is looked at",
                "did you mean \"huge_pages\"?",
            ),
            (
                "load >= 4: vm.swappiness=10",
                "\"load\" is nothing that is looked at",
                "held(WHO)",
            ),
            (
                "held(@staff) >= 4G: vm.swappiness=10",
                "@staff is not a single account",
                "held(=lab)",
            ),
            (
                "cpus >= few: vm.swappiness=10",
                "\"few\" is not a number of CPUs",
                "whole number",
            ),
            (
                "memory >= 25%: vm.swappiness=10",
                "\"25%\" is not an amount of memory",
                "4G",
            ),
            (
                "cpus >= 4: vm.swapiness=10",
                "is not a sysctl that bursar sets",
                "vm.swappiness",
            ),
            (
                "cpus >= 4: vm.swappiness=500",
                "\"500\" is not a value for vm.swappiness",
                "0 to 200",
            ),
            (
                "cpus >= 4: vm.watermark_scale_factor=500",
                "bursar moves by itself",
                "max_scale",
            ),
            (
                "cpus >= 4: fs.dentry-negative=1",
                "negative dentries",
                "negative_dentries_permille",
            ),
        ];
        for (text, message, remedy) in table {
            let wrong = SysctlRule::parse(text).unwrap_err();
            let is_said = wrong.message.contains(message) && wrong.remedy.contains(remedy);
            assert!(is_said, "{text}: {wrong:?}");
        }
    }
}
