// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask`: the tasks that are not the product.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    about = "The project's tasks"
)]
enum Xtask {
    /// Guests: boot Debian's own kernels in QEMU and run programs in them
    #[command(subcommand)]
    Vm(xtask::vm::Vm),
    /// A whole Debian with systemd, ssh, cron and users: play an administrator's scenarios in it
    #[command(subcommand)]
    Debian(xtask::debian::Debian),
}

fn main() -> ExitCode {
    let done = match Xtask::parse() {
        Xtask::Vm(vm) => vm.run(),
        Xtask::Debian(debian) => debian.run(),
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_one_that_clap_takes() {
        Xtask::command().debug_assert();
    }
}
