//! Command line of `mux`: name spaces of running servers.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::config::Remote;

/// Show or change the name space of a running server
///
/// Shows the mounts, the servers behind them, and the connected clients. With a statement, changes the name space,
/// which only its owner may do. docs/namespace.md describes the statements.
#[derive(Debug, Args)]
#[command(subcommand_precedence_over_arg = true)]
pub struct Mux {
    /// The server [default: the default server]
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// Words after a mistyped statement
    #[arg(hide = true)]
    pub rest: Vec<OsString>,
    /// Use the name space of this name [default: that of this user]
    #[arg(long, value_name = "NAME", conflicts_with = "aname")]
    pub space: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Repeat every second
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
    /// Make the files at NEW visible at OLD, too: [-abcd] NEW OLD
    Bind(Words),
    /// Remove a mount or a bind: [NEW] OLD
    Unmount(Words),
    /// Close the connections to a server: SERVER
    Hangup(Words),
    /// Push a module on the connections to a server, now and later: SERVER MODULE [ARGUMENTS]
    Push(Words),
    /// Pop the last pushed module from the connections to a server: SERVER
    Pop(Words),
}

/// A statement of a name space file.
#[derive(Debug, Args)]
pub struct Words {
    /// A statement as in a name space file
    #[arg(value_name = "WORD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}
