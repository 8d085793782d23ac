//! Shell completions and man pages, generated from the definition of the command line.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output::Output;

/// Prints the completion script for a shell.
pub fn completions(shell: Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ninefold", &mut text);
    let mut out = Output::new();
    out.bytes(&text)?;
    out.flush()
}

/// Writes `ninefold.1` and one page for each verb into `dir`.
pub fn man(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(|| dir.display().to_string())
}
