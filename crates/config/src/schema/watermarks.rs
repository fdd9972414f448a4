// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of the table `[watermarks]`.

use toml_edit::Value;

use super::Key;
use crate::finding::Wrong;
use crate::sysctl::Sysctl;
use crate::sysctl_rule::setting;
use crate::value::{boolean, integer, kind, word};
use crate::{SysctlRule, WatermarkMode, WatermarkModel};

/// At most so many sysctls can be set at start.
const MAX_SYSCTLS: usize = 16;

/// The table's name and what it is about.
pub(super) const TABLE: (&str, &str) = (
    "watermarks",
    "Making room before anybody has to wait for memory: the kernel's watermarks are raised when \
     demand is seen coming, and put back when it is over. See docs/explanation/watermarks.md.",
);

/// Its keys.
pub(super) static KEYS: [Key; 10] = [
    Key {
        table: TABLE.0,
        name: "mode",
        default: "\"observe\"",
        values: "\"off\", \"observe\" or \"act\"",
        about: "off does nothing; observe watches, and `bursar watermarks explain` says what would be \
                done; act does it. What act changes is recorded first and put back when bursard ends.",
        set: |config, value| {
            let words = [
                ("off", WatermarkMode::Off),
                ("observe", WatermarkMode::Observe),
                ("act", WatermarkMode::Act),
            ];
            word(value, &words).map(|mode| config.watermarks.mode = mode)
        },
    },
    Key {
        table: TABLE.0,
        name: "model",
        default: "\"bursar\"",
        values: "\"bursar\", \"trend\" or \"loop\"",
        about: "Who decides: bursar, a stock of free memory for the largest demand that kswapd cannot \
                meet in time; trend, a line of least squares through free memory; loop, twice as much \
                after each stall. The last two are there for comparison.",
        set: |config, value| {
            let words = [
                ("bursar", WatermarkModel::Bursar),
                ("trend", WatermarkModel::Trend),
                ("loop", WatermarkModel::Loop),
            ];
            word(value, &words).map(|model| config.watermarks.model = model)
        },
    },
    Key {
        table: TABLE.0,
        name: "max_scale",
        default: "1000",
        values: "1 to 3000, ten-thousandths of memory",
        about: "The largest vm.watermark_scale_factor. 1000 keeps up to a tenth of memory free at the \
                low mark and a fifth at the high one, while there is demand for it.",
        set: |config, value| {
            integer(value, 1..=3000).map(|scale| config.watermarks.max_scale = scale)
        },
    },
    Key {
        table: TABLE.0,
        name: "compact",
        default: "true",
        values: "true or false",
        about: "With model trend memory is compacted ahead of demand for huge pages, when whole blocks run out. \
                The default model does not ask for compaction.",
        set: |config, value| boolean(value).map(|on| config.watermarks.compact = on),
    },
    Key {
        table: TABLE.0,
        name: "reclaim",
        default: "true",
        values: "true or false",
        about: "File pages are reclaimed ahead of demand through the root cgroup's memory.reclaim, where \
                the kernel has it: then a third of the gap between the marks keeps the same stock.",
        set: |config, value| boolean(value).map(|on| config.watermarks.reclaim = on),
    },
    Key {
        table: TABLE.0,
        name: "keep_reap_margin",
        default: "false",
        values: "true or false",
        about: "As much memory is kept free as others may take while a killed process's memory comes back at the \
                slowest rate seen (`bursar doctor` computes it), as far as max_scale allows. With the default model.",
        set: |config, value| boolean(value).map(|on| config.watermarks.keep_reap_margin = on),
    },
    Key {
        table: TABLE.0,
        name: "stall_time",
        default: "true",
        values: "true or false",
        about: "Who had to wait, and for how long, is measured by BPF programs on the events of reclaim \
                and compaction. Without them stalls are only counted.",
        set: |config, value| boolean(value).map(|on| config.watermarks.stall_time = on),
    },
    Key {
        table: TABLE.0,
        name: "sysctls",
        default: "[]",
        values: "at most 16 of \"NAME=NUMBER\", with names that `bursar check` knows",
        about: "Set once when acting begins, and put back at the end: [\"vm.swappiness=10\", \
                \"vm.compaction_proactiveness=30\"].",
        set: |config, value| sysctls(value).map(|list| config.watermarks.sysctls = list),
    },
    Key {
        table: TABLE.0,
        name: "sysctls_while",
        default: "[]",
        values: "at most 16 of \"CONDITION: NAME=NUMBER\", CONDITION being huge_pages, memory, swap, cpus or held(WHO), \
                 then >= or <, then bytes or CPUs",
        about: "A sysctl that has a value while something holds, looked at every ten seconds while acting: \
                [\"huge_pages >= 4G: vm.swappiness=10\", \"held(alice) >= 8G: vm.compaction_proactiveness=0\"]. Of \
                several rules for one sysctl the first that holds counts; while none does it stands as before.",
        set: |config, value| {
            let mut rules = Vec::new();
            for text in texts(value, "[\"huge_pages >= 4G: vm.swappiness=10\"]")? {
                rules.push(SysctlRule::parse(text)?);
            }
            config.watermarks.sysctls_while = rules;
            Ok(())
        },
    },
    Key {
        table: TABLE.0,
        name: "negative_dentries_permille",
        default: "0",
        values: "0 to 100, thousandths of memory that is not huge pages; 0 is no cap",
        about: "How much memory remembered names of files that do not exist may take. Kept by the \
                kernel where it can (fs.negative-dentry-limit); elsewhere fs.dentry-negative is set \
                while there are more, or it is only said. Computed again when huge pages change.",
        set: |config, value| {
            integer(value, 0..=100)
                .map(|share| config.watermarks.negative_dentries_permille = share)
        },
    },
];

/// An array of texts, as in the example.
fn texts<'a>(value: &'a Value, example: &str) -> Result<Vec<&'a str>, Wrong> {
    let remedy = format!("write an array of settings, {example}");
    let Some(array) = value.as_array() else {
        let message = format!("is {}, not an array", kind(value));
        return Err(Wrong::new(message, remedy));
    };
    if array.len() > MAX_SYSCTLS {
        let message = format!("has {} settings", array.len());
        return Err(Wrong::new(message, format!("write at most {MAX_SYSCTLS}")));
    }
    let texts = array.iter().map(|entry| {
        let wrong = || Wrong::new(format!("contains {}", kind(entry)), remedy.clone());
        entry.as_str().ok_or_else(wrong)
    });
    texts.collect()
}

fn sysctls(value: &Value) -> Result<Vec<(Sysctl, i64)>, Wrong> {
    let mut list: Vec<(Sysctl, i64)> = Vec::new();
    for text in texts(value, "[\"vm.swappiness=10\"]")? {
        let setting = setting(text)?;
        if list.iter().any(|(sysctl, _)| *sysctl == setting.0) {
            let message = format!("sets {} twice", setting.0.name());
            return Err(Wrong::new(message, "keep one of them"));
        }
        list.push(setting);
    }
    Ok(list)
}
