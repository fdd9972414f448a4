// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No files of a crate import each other in a circle. What a file imports is read from its paths: `use` and
//! whatever else begins with crate::, self:: or super::. What a module hands on (`pub use`) is its owner's. A module
//! and the modules inside of it are one place: what they take from each other makes no circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::sources;

/// Circles that stand, by a file that is part of them.
const ALLOWED: [(&str, &str); 1] = [(
    "crates/cli/src/arguments.rs",
    "clap's tree: arguments name the commands, which take the global arguments",
)];

type Path = Vec<String>;

/// A file of a crate as a module.
#[derive(Default)]
struct Module {
    path: String,
    /// What it names of its own crate.
    imports: BTreeSet<Path>,
    /// What it hands on: name → whose.
    exports: BTreeMap<String, Path>,
}

/// Source without comments, strings and tests.
fn code_of(lines: &[&str]) -> String {
    let mut code = String::new();
    for line in lines {
        let mut rest = *line;
        let mut is_quoted = false;
        let mut before = ' ';
        let end = rest.char_indices().find(|&(at, it)| {
            if it == '"' && before != '\\' && before != '\'' {
                is_quoted = !is_quoted;
            }
            before = it;
            !is_quoted && it == '/' && rest[at..].starts_with("//")
        });
        if let Some((at, _)) = end {
            rest = &rest[..at];
        }
        code.push_str(rest);
        code.push('\n');
    }
    code
}

/// All paths of a `use` tree: what stands in braces is put behind what stands before them.
fn leaves(tree: &str, before: &[String], out: &mut Vec<(Path, Option<String>)>) {
    let tree = tree.trim();
    if tree.is_empty() {
        return;
    }
    let brace = tree.find('{');
    let comma = {
        let mut depth = 0;
        tree.char_indices().find_map(|(at, it)| {
            match it {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => return Some(at),
                _ => {}
            }
            None
        })
    };
    if let Some(at) = comma {
        leaves(&tree[..at], before, out);
        leaves(&tree[at + 1..], before, out);
        return;
    }
    let (head, inside) = match brace {
        Some(at) => (&tree[..at], Some(&tree[at + 1..tree.rfind('}').unwrap()])),
        None => (tree, None),
    };
    let (head, alias) = match head.split_once(" as ") {
        Some((head, alias)) => (head, Some(alias.trim().to_owned())),
        None => (head, None),
    };
    let words = head.split("::").map(str::trim).filter(|it| !it.is_empty());
    let mut path = before.to_vec();
    path.extend(words.map(str::to_owned));
    match inside {
        Some(inside) => leaves(inside, &path, out),
        None => {
            if path.last().is_some_and(|it| it == "self") && path.len() > 1 {
                path.pop();
            }
            out.push((path, alias));
        }
    }
}

/// A path as written in the module `at`, from the root of the crate; `None`: of another crate.
fn absolute(path: &[String], at: &[String]) -> Option<Path> {
    let mut from = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => at.to_vec(),
        "super" => at[..at.len().checked_sub(1)?].to_vec(),
        _ => return None,
    };
    for word in &path[1..] {
        match word.as_str() {
            "super" => drop(from.pop()),
            word => from.push(word.to_owned()),
        }
    }
    Some(from)
}

fn read(path: &str, at: &[String], code: &str) -> Module {
    let mut module = Module {
        path: path.to_owned(),
        ..Module::default()
    };
    let mut rest = code;
    let mut other = String::new();
    // `use …;` first, for braces.
    while let Some(begin) = rest.find("use ") {
        let is_word = rest[..begin]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace);
        let line = rest[..begin].rsplit('\n').next().unwrap_or("").trim();
        let is_use = is_word && (line.is_empty() || line.starts_with("pub"));
        if !is_use {
            other.push_str(&rest[..begin + 4]);
            rest = &rest[begin + 4..];
            continue;
        }
        other.push_str(&rest[..begin]);
        let end = begin + rest[begin..].find(';').unwrap();
        let mut paths = Vec::new();
        leaves(&rest[begin + 4..end], &[], &mut paths);
        for (path, alias) in paths {
            let own = path.first().is_some_and(|it| {
                !["crate", "self", "super"].contains(&it.as_str()) && line.starts_with("pub")
            });
            let path = if own {
                [vec!["self".to_owned()], path].concat()
            } else {
                path
            };
            let Some(path) = absolute(&path, at) else {
                continue;
            };
            if line.starts_with("pub")
                && let Some(name) = alias.as_ref().or(path.last())
            {
                module.exports.insert(name.clone(), path.clone());
            }
            module.imports.insert(path);
        }
        rest = &rest[end + 1..];
    }
    other.push_str(rest);
    for begin in ["crate::", "super::", "self::"] {
        for (at_byte, _) in other.match_indices(begin) {
            let before = other[..at_byte].chars().next_back();
            if before.is_some_and(|it| it.is_alphanumeric() || "_:$".contains(it)) {
                continue;
            }
            let path: String = other[at_byte..]
                .chars()
                .take_while(|it| it.is_alphanumeric() || *it == '_' || *it == ':')
                .collect();
            let words: Path = path.split("::").map(str::to_owned).collect();
            module.imports.extend(absolute(&words, at));
        }
    }
    module
}

/// The module that owns what a path names: the deepest file, followed through what modules hand on.
fn owner(path: &[String], modules: &BTreeMap<Path, Module>) -> Option<Path> {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let depth = (0..=path.len())
            .rev()
            .find(|&it| modules.contains_key(&path[..it]))?;
        let module = path[..depth].to_vec();
        let Some(name) = path.get(depth) else {
            return Some(module);
        };
        match modules[&module].exports.get(name) {
            Some(to) if *to != path => {
                path = [to.clone(), path[depth + 1..].to_vec()].concat();
            }
            _ => return Some(module),
        }
    }
    None
}

/// All that can be reached from a module.
fn reached(from: &Path, arrows: &BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<Path> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from.clone()];
    while let Some(at) = next.pop() {
        for to in arrows.get(&at).into_iter().flatten() {
            if seen.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    seen
}

/// Sets of modules that reach each other, as their files and the arrows between them.
fn circles(modules: &BTreeMap<Path, Module>) -> Vec<Vec<String>> {
    let arrows: BTreeMap<Path, BTreeSet<Path>> = modules
        .iter()
        .map(|(at, module)| {
            let to = module.imports.iter().filter_map(|it| owner(it, modules));
            let beside = |it: &Path| !it.starts_with(at) && !at.starts_with(it);
            (at.clone(), to.filter(beside).collect())
        })
        .collect();
    let reach: BTreeMap<&Path, BTreeSet<Path>> = modules
        .keys()
        .map(|it| (it, reached(it, &arrows)))
        .collect();
    let mut done = BTreeSet::new();
    let mut circles = Vec::new();
    for at in modules.keys() {
        if !reach[at].contains(at) || done.contains(at) {
            continue;
        }
        let members: BTreeSet<&Path> = reach[at]
            .iter()
            .filter(|it| reach[it].contains(at))
            .collect();
        let mut circle = Vec::new();
        for one in &members {
            for other in arrows[*one].iter().filter(|it| members.contains(it)) {
                circle.push(format!("{} -> {}", modules[*one].path, modules[other].path));
            }
        }
        done.extend(members.into_iter().cloned());
        circles.push(circle);
    }
    circles
}

/// Each crate's modules.
fn crates() -> BTreeMap<String, BTreeMap<Path, Module>> {
    let mut crates: BTreeMap<String, BTreeMap<Path, Module>> = BTreeMap::new();
    for source in sources() {
        let Some((root, below)) = source.path.split_once("/src/") else {
            continue;
        };
        if !source.is_rust() {
            continue;
        }
        // Programs in src/bin are crates of their own.
        let mut words: Path = below
            .trim_end_matches(".rs")
            .split('/')
            .map(str::to_owned)
            .collect();
        let mut name = format!("{root}/src/");
        if words[0] == "bin" {
            name = format!("{root}/src/bin/{}/", words[1]);
            words.drain(..2);
        }
        if words
            .last()
            .is_some_and(|it| ["lib", "main", "mod"].contains(&it.as_str()))
        {
            words.pop();
        }
        let module = read(
            &source.path,
            &words,
            &code_of(&source.lines_outside_tests()),
        );
        crates.entry(name).or_default().insert(words, module);
    }
    crates
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let mut wrongs = Vec::new();
    for (name, modules) in crates() {
        for circle in circles(&modules) {
            println!("{name}: {circle:#?}");
            let is_allowed =
                |(file, _): &(&str, &str)| circle.iter().any(|it| it.starts_with(file));
            if !ALLOWED.iter().any(is_allowed) {
                wrongs.push(circle);
            }
        }
    }
    assert!(wrongs.is_empty(), "{wrongs:#?}");
}

#[test]
fn a_circle_is_found() {
    let module = |path: &str, at: &[&str], code: &str| {
        let at: Path = at.iter().map(|it| (*it).to_owned()).collect();
        (at.clone(), read(path, &at, code))
    };
    let of = |code: &str| {
        let modules = BTreeMap::from([
            module("lib.rs", &[], "mod a; mod b;\npub use self::b::B;\n"),
            module("a.rs", &["a"], "use std::fmt;\nuse crate::{\n    B,\n};\n"),
            module("b.rs", &["b"], code),
        ]);
        circles(&modules)
    };
    assert!(of("pub struct B;\n").is_empty());
    let both = vec!["a.rs -> b.rs".to_owned(), "b.rs -> a.rs".to_owned()];
    assert_eq!(
        of("fn b() { crate::a::look() }\n"),
        std::slice::from_ref(&both)
    );
    assert_eq!(of("use super::a::{self, A as Other};\n"), [both]);
    let commented = code_of(&["// use crate::a::A;", "let it = \"// \"; // crate::a::A"]);
    assert!(of(&commented).is_empty());
}
