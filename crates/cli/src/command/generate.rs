// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar generate`, for packagers and `make install`: man pages and completions out of the one
//! definition of what can be typed, and out of the reference.

mod reference;
mod roff;
mod synopsis;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::output;

/// Generate man pages and shell completions
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write bursar.1, bursar-status.1 and so on, or the pages of another section
    Man {
        /// The folder to write into; made where it is missing
        folder: PathBuf,
        /// The section: 1 for commands, 3 for C functions, 5 for files
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
        section: u8,
    },
    /// Write a shell's completions to stdout
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.what {
            What::Man { folder, section } => match section {
                1 => man_pages(&folder),
                _ => reference::write(&folder, section),
            }
            .map_err(|error| {
                Failure::failed(format!("cannot write man pages to {folder:?}: {error}"))
            }),
            What::Completions { shell } => output::say(&completions(shell)),
        }
    }
}

/// The tree of commands as man pages and completions show it.
fn tree() -> Command {
    let mut tree = Arguments::command();
    tree.build();
    tree
}

fn man_pages(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Arguments::command(), folder)?;
    let tree = tree();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|it| it.to_str());
        if name.is_some_and(|it| it.starts_with("bursar") && it.ends_with(".1")) {
            let page = fs::read_to_string(&path)?;
            if !page.contains(SECTIONS) {
                fs::write(&path, finished(&page, name.unwrap_or_default(), &tree))?;
            }
        }
    }
    Ok(())
}

/// A page as clap_mangen has made it, with what that leaves out or calls by a name of its own.
fn finished(page: &str, file: &str, tree: &Command) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let name = file.trim_end_matches(".1");
    let synopsis = called(tree, name).map(synopsis::synopsis);
    let mut is_synopsis = false;
    let lines = page.lines().map(|line| match line.strip_prefix(".TH ") {
        _ if std::mem::replace(&mut is_synopsis, line == ".SH SYNOPSIS") => {
            synopsis.clone().unwrap_or_else(|| line.to_owned())
        }
        Some(heading) => {
            let title = heading.split_whitespace().next().unwrap_or("bursar");
            format!(".TH {title} 1 \"\" \"bursar {version}\" \"bursar\"")
        }
        None if line == ".SH EXTRA" => ".SH NOTES".to_owned(),
        None => line.to_owned(),
    });
    let text: Vec<String> = lines.collect();
    // Before possible values: one empty line, as mandoc wants it.
    let text = text.join("\n").replace("\n.br\n\n.br\n", "\n.sp\n");
    format!("{}\n{}{SECTIONS}", text.trim_end(), exit_status(file))
}

/// The command whose man page is called so.
fn called<'a>(tree: &'a Command, name: &str) -> Option<&'a Command> {
    if tree.get_display_name().unwrap_or_else(|| tree.get_name()) == name {
        return Some(tree);
    }
    tree.get_subcommands().find_map(|it| called(it, name))
}

/// Statuses that mean the same for every command, or something more for this one.
fn exit_status(file: &str) -> String {
    let common = [
        ("0", "Done."),
        ("1", "Failed; also: nobody has the name that was given."),
        ("2", "Wrong usage or a wrong configuration."),
        ("3", "Not permitted."),
        ("4", "bursard cannot be reached."),
        (
            "141",
            "In a shell: SIGPIPE, since nobody reads the answer any more.",
        ),
    ];
    let own = OWN_STATUSES.iter().filter(|(of, ..)| *of == file);
    let own: Vec<_> = own.map(|(_, status, text)| (*status, *text)).collect();
    let is_common = |status| !own.iter().any(|(it, _)| *it == status);
    let all = common.into_iter().filter(|(status, _)| is_common(*status));
    let lines = all.chain(own.iter().copied());
    let lines: String = lines
        .map(|(status, text)| format!(".TP\n{status}\n{text}\n"))
        .collect();
    format!(".SH \"EXIT STATUS\"\n{lines}")
}

const OWN_STATUSES: &[(&str, &str, &str)] = &[
    (
        "bursar-check.1",
        "1",
        "With \\-\\-live: somebody would be killed.",
    ),
    (
        "bursar-limit-apply.1",
        "2",
        "With \\-\\-check: entries would change. Else wrong usage or a wrong file.",
    ),
    (
        "bursar-faults-verify.1",
        "1",
        "Not proven: there were faults, or the program ended before the time was over.",
    ),
    (
        "bursar-faults-measure.1",
        "1",
        "A number of faults is not the one that must come.",
    ),
    ("bursar-run.1", "any other", "The command's own."),
    (
        "bursar-wait.1",
        "124",
        "The time given with \\-\\-timeout has passed.",
    ),
];

/// What is true of every command.
const SECTIONS: &str = r#".SH ENVIRONMENT
.TP
BURSAR_SOCKET
The control socket, as \-\-socket.
.TP
LC_ALL, LC_CTYPE, LANG
Whether the terminal has more than ASCII.
.TP
TZ
The time zone of times that are shown and given.
.SH FILES
.TP
/etc/bursar/limits.toml, /etc/bursar/limits.toml.d/*.toml
Who may hold how much.
.TP
/etc/bursar/bursar.toml, /etc/bursar/bursar.toml.d/*.toml
bursard's configuration.
.TP
/var/lib/bursar
What has happened, and the limits that were last in force.
.TP
/run/bursar/bursar.sock
bursard's control socket.
.SH "SEE ALSO"
.BR bursar (1),
.BR bursar.toml (5),
.BR limits.toml (5),
.BR bursard (8),
.BR systemctl (1),
.BR journalctl (1)
"#;

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tree(), "bursar", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Vec<Command> {
        fn collect(command: &Command, all: &mut Vec<Command>) {
            all.push(command.clone());
            for sub in command.get_subcommands() {
                collect(sub, all);
            }
        }
        let mut all = Vec::new();
        collect(&tree(), &mut all);
        all
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_and_every_argument_says_what_it_is_for() {
        for command in commands() {
            let name = command
                .get_bin_name()
                .unwrap_or_else(|| command.get_name())
                .to_owned();
            assert!(command.get_about().is_some(), "{name} has no about text");
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{name} {argument} has no help"
                );
            }
        }
    }

    #[test]
    fn the_help_of_every_command_fits_in_a_hundred_columns() {
        for command in commands() {
            let mut command = command.term_width(100);
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(
                        line.chars().count() <= 100,
                        "{}: {line:?}",
                        command.get_name()
                    );
                }
            }
        }
    }

    #[test]
    fn every_visible_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        man_pages(folder.path()).unwrap();
        for command in commands().iter().filter(|command| !command.is_hide_set()) {
            let name = command.get_display_name().unwrap_or("bursar").to_owned();
            if name.starts_with("bursar-generate") {
                continue;
            }
            let page = fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
            let (_, synopsis) = page.split_once(".SH SYNOPSIS\n").unwrap();
            let synopsis = synopsis.lines().next().unwrap();
            assert_eq!(synopsis, super::synopsis::synopsis(command), "{name}");
            for section in [
                "SYNOPSIS",
                "\"EXIT STATUS\"",
                "ENVIRONMENT",
                "FILES",
                "\"SEE ALSO\"",
            ] {
                let count = page.matches(&format!(".SH {section}")).count();
                assert_eq!(count, 1, "{name}: {section}");
            }
        }
    }

    #[test]
    fn completions_know_every_visible_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions(shell);
            for name in [
                "limit", "status", "quota", "events", "why", "doctor", "kill",
            ] {
                assert!(script.contains(name), "{shell}: {name}");
            }
        }
    }
}
