//! Command line of `mux`: name spaces of running servers.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::config::Remote;

/// Show or change the name space of a running server
///
/// Shows what is mounted where, the servers behind it, and who is connected; or, with a statement, changes it, which
/// only its owner may: docs/namespace.md tells what the words mean.
#[derive(Debug, Args)]
#[command(subcommand_precedence_over_arg = true)]
pub struct Mux {
    /// The server; the default one if not given
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// The name space of this name; the one that this user gets if not given
    #[arg(long, value_name = "NAME", conflicts_with = "aname")]
    pub space: Option<String>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// Again every second
    #[arg(long)]
    pub watch: bool,
    #[command(flatten)]
    pub remote: Remote,
    #[command(subcommand)]
    pub verb: Option<MuxVerb>,
}

#[derive(Debug, Subcommand)]
pub enum MuxVerb {
    /// Mount a server: [-abcd] [-n N] [-u USER] SERVER OLD [ANAME]
    Mount(Words),
    /// Have what is at NEW be seen at OLD, too: [-abcd] NEW OLD
    Bind(Words),
    /// Take away what was mounted or bound: [NEW] OLD
    Unmount(Words),
    /// End the connections to a server: SERVER
    Hangup(Words),
    /// Push a module on the connections to a server, now and later: SERVER MODULE [ARGUMENTS]
    Push(Words),
    /// Pop what was pushed last on the connections to a server: SERVER
    Pop(Words),
}

/// A line of a name space file, in words.
#[derive(Debug, Args)]
pub struct Words {
    /// As in a name space file
    #[arg(value_name = "WORD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}
