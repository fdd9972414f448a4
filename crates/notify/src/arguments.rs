// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be typed.

use std::path::PathBuf;

use clap::Parser;

use crate::config::DEFAULT_PATH;

/// Follow bursard's events and tell people by mail, webhook and programs
#[derive(Debug, Parser)]
#[command(name = "bursar-notify", version)]
pub(crate) struct Arguments {
    /// What to tell, to whom and how
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub(crate) config: PathBuf,
    /// Read the configuration and its templates, say what is wrong, and end
    #[arg(long, conflicts_with_all = ["status", "metrics"])]
    pub(crate) check: bool,
    /// Print as JSON what was told, dropped and missed, and what waits, and end
    #[arg(long)]
    pub(crate) status: bool,
    /// Print the same in Prometheus's text format, and end; nothing where there is no configuration
    #[arg(long, conflicts_with = "status")]
    pub(crate) metrics: bool,
    /// With --metrics: write them to this file, replaced as a whole, instead of to stdout; without a configuration
    /// the file is removed
    #[arg(long, value_name = "PATH", requires = "metrics")]
    pub(crate) textfile: Option<PathBuf>,
}
