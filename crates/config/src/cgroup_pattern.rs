// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patterns of paths of control groups, as they are written.

use bursar_model::CgroupHierarchy;
use toml_edit::Value;

use crate::finding::Wrong;
use crate::value::kind;

/// At most so many patterns.
pub const MAX_CGROUPS: usize = 64;
/// PATH_MAX without its NUL.
const LONGEST: usize = 4095;
const REMEDY: &str = "write paths of version 2 in an array, [\"/system.slice/slurmstepd.scope/*\"], or of version 1's \
                      memory controller, [\"memory:/slurm/*\"]";

/// An array of patterns.
pub(crate) fn cgroup_patterns(value: &Value) -> Result<Vec<String>, Wrong> {
    let Some(array) = value.as_array() else {
        return Err(Wrong::new(
            format!("is {}, not an array", kind(value)),
            REMEDY,
        ));
    };
    if array.len() > MAX_CGROUPS {
        let message = format!("has {} patterns", array.len());
        return Err(Wrong::new(message, format!("write at most {MAX_CGROUPS}")));
    }
    array.iter().map(pattern).collect()
}

fn pattern(value: &Value) -> Result<String, Wrong> {
    let Some(text) = value.as_str() else {
        return Err(Wrong::new(format!("contains {}", kind(value)), REMEDY));
    };
    let wrong = |why: &str| Err(Wrong::new(format!("{text:?} {why}"), REMEDY));
    let (_, path) = CgroupHierarchy::of_pattern(text);
    if let Some((controller, _)) = path.split_once(':')
        && !controller.contains('/')
    {
        let remedy =
            "of version 1 the memory controller's groups can be exempt, [\"memory:/slurm/*\"]";
        return Err(Wrong::new(
            format!("{text:?} names a group of the controller {controller}"),
            remedy,
        ));
    }
    if !path.starts_with('/') {
        return wrong("is not absolute");
    }
    if text.len() > LONGEST || text.contains('\0') {
        return wrong("is not a path");
    }
    let mut names = path.split('/').skip(1).peekable();
    let mut has_name = false;
    while let Some(name) = names.next() {
        // A slash at the end is no name.
        let is_end = name.is_empty() && names.peek().is_none();
        if matches!(name, "." | "..") || (name.is_empty() && !is_end) {
            return wrong("has an empty name, . or .. in it");
        }
        has_name |= !name.trim_matches('*').is_empty();
    }
    if !has_name {
        let remedy = "name a group: nobody would be limited";
        return Err(Wrong::new(format!("{text:?} is every group"), remedy));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, Wrong> {
        cgroup_patterns(&text.parse().unwrap())
    }

    #[test]
    fn a_pattern_names_a_group() {
        let text = r#"["/system.slice/slurmstepd.scope/*", "/a/b?/", "memory:/slurm/*"]"#;
        assert_eq!(read(text).unwrap().len(), 3);
        for (text, why) in [
            (r#"["/"]"#, "is every group"),
            (r#"["/*"]"#, "is every group"),
            (r#"["/*/*"]"#, "is every group"),
            (r#"["a/b"]"#, "is not absolute"),
            (r#"["/a/../b"]"#, "has an empty name, . or .. in it"),
            (r#"["/a//b"]"#, "has an empty name, . or .. in it"),
            (r#"["memory:/*"]"#, "is every group"),
            (r#"["memory:slurm"]"#, "is not absolute"),
            (
                r#"["cpuset:/slurm/*"]"#,
                "names a group of the controller cpuset",
            ),
            (r#""/a""#, "is a string, not an array"),
            ("[1]", "contains an integer"),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.message.ends_with(why), "{text}: {wrong:?}");
        }
    }
}
