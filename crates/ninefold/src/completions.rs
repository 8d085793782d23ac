//! What the command line's own definition is good for beside reading it: completions for shells, and man pages.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output::Output;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ninefold", &mut text);
    let mut out = Output::new();
    out.bytes(&text)?;
    out.flush()
}

/// Writes `ninefold.1` and a page for each verb.
pub fn man(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(|| dir.display().to_string())
}
