// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What vm.overcommit_memory and its neighbours mean on a machine, and what to set. Pure.

use std::collections::BTreeMap;

use bursar_model::Bytes;

use super::{Committed, Machine};

/// What the settings mean on this machine.
pub(super) fn meaning(machine: &Machine) -> String {
    let all = machine.ram_bytes.saturating_add(machine.swap_bytes);
    match machine.overcommit_memory {
        1 => format!(
            "vm.overcommit_memory is 1: every request is granted, whatever is left. {} have been promised \
             and there are {all}; when pages that do not exist are touched, the OOM killer comes",
            machine.committed_bytes
        ),
        2 => {
            let limit = if machine.overcommit_kbytes > 0 {
                format!(
                    "vm.overcommit_kbytes, {}",
                    Bytes::new(machine.overcommit_kbytes << 10)
                )
            } else {
                format!("{} % of RAM, and swap", machine.overcommit_ratio)
            };
            format!(
                "vm.overcommit_memory is 2: no more than {} ({limit}) is promised, {} are; beyond that \
                 malloc fails even while memory is free",
                machine.commit_limit_bytes, machine.committed_bytes
            )
        }
        _ => format!(
            "vm.overcommit_memory is 0: a single request larger than all memory ({all}) is refused, any \
             other is granted; {} have been promised. vm.overcommit_ratio ({} %) does not matter in this \
             mode. malloc hardly ever fails, and the OOM killer comes instead",
            machine.committed_bytes, machine.overcommit_ratio
        ),
    }
}

pub(super) fn advice(machine: &Machine, accounts: &BTreeMap<u32, Committed>) -> Vec<String> {
    let all = machine.ram_bytes.saturating_add(machine.swap_bytes);
    let mut advice = Vec::new();
    if machine.overcommit_memory != 2 && machine.committed_bytes > all {
        advice.push(
            "more has been promised than there is: limit those who hold most of it (bursar limit set), so \
             that one user's touch does not become another's OOM kill"
                .to_owned(),
        );
    }
    advice.extend(of_ratio(machine));
    let locked = accounts
        .values()
        .fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.locked_bytes));
    if locked > machine.ram_bytes.scaled(1, 2) {
        advice.push(format!(
            "{locked} are locked, more than half of RAM: what is locked is nobody else's in need"
        ));
    }
    advice.push(
        "a program that must answer in time needs no change here: lock its memory (bursar run --lock), \
         whatever the machine promises to others"
            .to_owned(),
    );
    advice
}

/// What vm.overcommit_ratio should be (S3: raised for production, lowered in development to find the most that
/// is needed).
fn of_ratio(machine: &Machine) -> Option<String> {
    let least = machine.ratio_for(machine.committed_bytes)?;
    let promised = machine.committed_bytes;
    let enough = machine.ratio_for(promised.saturating_add(promised.scaled(1, 10)))?;
    if machine.overcommit_memory != 2 {
        return Some(format!(
            "to have malloc refuse instead (vm.overcommit_memory = 2), vm.overcommit_ratio would have to be \
             {least} at the least for what is promised today, {enough} with a tenth to spare; it is {}",
            machine.overcommit_ratio
        ));
    }
    if machine.overcommit_kbytes > 0 {
        let is_short = promised > machine.commit_limit_bytes.scaled(9, 10);
        return is_short.then(|| {
            "nearly all that may be promised is promised: raise vm.overcommit_kbytes, or requests fail soon"
                .to_owned()
        });
    }
    if promised > machine.commit_limit_bytes.scaled(9, 10) {
        return Some(format!(
            "nearly all that may be promised is promised: requests fail soon. Raise vm.overcommit_ratio from \
             {} to {enough} or more; what is promised today needs {least}",
            machine.overcommit_ratio
        ));
    }
    Some(format!(
        "vm.overcommit_ratio is {}, and what is promised today needs {least}: to find the most that a program \
         needs, lower it in development until malloc fails",
        machine.overcommit_ratio
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_is_explained() {
        let mut machine = Machine {
            ram_bytes: Bytes::from_mib(1000),
            swap_bytes: Bytes::ZERO,
            committed_bytes: Bytes::from_mib(1200),
            commit_limit_bytes: Bytes::from_mib(500),
            overcommit_memory: 0,
            overcommit_ratio: 50,
            overcommit_kbytes: 0,
            huge_page_bytes: Bytes::ZERO,
        };
        for (mode, word) in [
            (0, "single request"),
            (1, "every request"),
            (2, "malloc fails"),
        ] {
            machine.overcommit_memory = mode;
            assert!(meaning(&machine).contains(word));
            assert!(advice(&machine, &BTreeMap::new()).len() >= 2);
        }
    }

    fn strict(ratio: u64, promised: u64) -> Machine {
        let (ram, huge, swap) = (1000, 200, 100);
        Machine {
            ram_bytes: Bytes::from_mib(ram),
            swap_bytes: Bytes::from_mib(swap),
            committed_bytes: Bytes::from_mib(promised),
            commit_limit_bytes: Bytes::from_mib((ram - huge) * ratio / 100 + swap),
            overcommit_memory: 2,
            overcommit_ratio: ratio,
            overcommit_kbytes: 0,
            huge_page_bytes: Bytes::from_mib(huge),
        }
    }

    #[test]
    fn the_ratio_advised_is_the_least_that_the_kernel_would_take() {
        // As the kernel computes the limit: (RAM - huge pages) * ratio / 100 + swap.
        for promised in [0, 100, 101, 108, 500, 899, 900, 5000] {
            let least = strict(50, promised)
                .ratio_for(Bytes::from_mib(promised))
                .unwrap();
            let limit = |ratio| strict(ratio, promised).commit_limit_bytes;
            assert!(limit(least) >= Bytes::from_mib(promised), "{promised}");
            if least > 0 {
                assert!(limit(least - 1) < Bytes::from_mib(promised), "{promised}");
            }
        }
    }

    #[test]
    fn a_ratio_that_is_nearly_used_up_is_to_be_raised() {
        let words = |machine: &Machine| of_ratio(machine).unwrap();
        assert!(words(&strict(50, 490)).contains("from 50 to 55 or more"));
        assert!(words(&strict(50, 490)).contains("needs 49"));
        assert!(words(&strict(50, 200)).contains("lower it in development"));
        let mut heuristic = strict(50, 490);
        heuristic.overcommit_memory = 0;
        assert!(words(&heuristic).contains("would have to be 49"));
    }
}
