// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYNOPSIS of a man page: as clap_mangen has it, but with what an option's value is called, in the order of the
//! help, and with what may be said several times.

use clap::{Arg, ArgAction, Command};

/// One line of man(7).
pub(super) fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![bold(name)];
    let is_said = |it: &&Arg| !it.is_hide_set() && !is_answered(it);
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_said).collect();
    let own = arguments.iter().filter(|it| !it.is_global_set());
    let general = arguments.iter().filter(|it| it.is_global_set());
    let options = own.chain(general).filter(|it| !it.is_positional());
    words.extend(options.map(|it| option(it)));
    words.extend(
        arguments
            .iter()
            .filter(|it| it.is_positional())
            .map(|it| positional(it)),
    );
    if command.has_subcommands() {
        words.push(italic("COMMAND"));
    }
    words.join(" ")
}

/// By clap itself.
fn is_answered(argument: &Arg) -> bool {
    matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

fn option(argument: &Arg) -> String {
    let name = match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, short) => short.map_or_else(String::new, |it| format!("-{it}")),
    };
    let text = match argument.get_action().takes_values() {
        true => format!("{} {}", bold(&name), italic(&value(argument))),
        false => bold(&name),
    };
    optional(text, argument)
}

fn positional(argument: &Arg) -> String {
    let is_many = argument
        .get_num_args()
        .is_some_and(|it| it.max_values() > 1)
        || matches!(argument.get_action(), ArgAction::Append);
    let many = if is_many { " ..." } else { "" };
    let behind = if argument.is_last_set() {
        format!("{} ", bold("--"))
    } else {
        String::new()
    };
    optional(
        format!("{behind}{}{many}", italic(&value(argument))),
        argument,
    )
}

fn optional(text: String, argument: &Arg) -> String {
    match argument.is_required_set() {
        true => text,
        false => format!("[{text}]"),
    }
}

fn value(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    match names {
        [] => argument.get_id().as_str().to_uppercase(),
        names => names.join(" "),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escaped(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::generate::tree;

    /// As it is read.
    fn read(path: &[&str]) -> String {
        let mut command = tree();
        for name in path {
            command = command.find_subcommand(name).unwrap().clone();
        }
        let text = synopsis(&command);
        let text = text.replace("\\fB", "").replace("\\fI", "");
        text.replace("\\fR", "").replace("\\-", "-")
    }

    #[test]
    fn values_have_their_names_and_many_are_said_to_be() {
        let general = "[--socket PATH] [--json]";
        let table = [
            (
                &["history"][..],
                format!("bursar history [--user NAME] [--since T] {general} [WHO]"),
            ),
            (
                &["faults", "watch"],
                format!(
                    "bursar faults watch [--account WHO] [--for SECONDS] [--interval SECONDS] [--quiet] [--time-each] \
                     {general} [PID ...] [-- CMD ...]"
                ),
            ),
            (&["limit"], format!("bursar limit {general} COMMAND")),
            (
                &["limit", "clear"],
                format!("bursar limit clear [--force] [--temporary] [--reason TEXT] {general} WHO"),
            ),
        ];
        for (path, expected) in table {
            assert_eq!(read(path), expected);
        }
        assert!(read(&["limit", "set"]).ends_with(" WHO SIZE|RESOURCE=BARRIER:LIMIT ..."));
        assert!(read(&["run"]).ends_with(" -- CMD ..."));
    }
}
