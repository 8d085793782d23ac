//! `partition`: programs that have their files through shared memory.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::config::{Remote, Waiting};
use crate::serve::Export;

/// Programs whose files are those of a name space, through memory that they share with their host
#[derive(Debug, Args)]
pub struct Partition {
    #[command(subcommand)]
    pub verb: PartitionVerb,
}

#[derive(Debug, Subcommand)]
pub enum PartitionVerb {
    Run(PartitionRun),
}

/// Run a program that inherits a channel, and serve it 9P there, until it ends
///
/// The program finds the channel by NINEFOLD_CHANNEL (docs/channels.md; crates/nine-guest is a client for it, in Rust
/// and in C), and beside it has its standard files and nothing else that is open here. It sees the default server, or
/// what SERVER says, which this command serves by itself. Programs that it starts may have the channel after it, one at
/// a time. SIGTERM, SIGINT and SIGHUP are passed on.
///
/// Exit status: the program's, or 128 and the number of the signal that ended it; 127 there is no such program, 126 it
/// cannot be run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PartitionRun {
    /// What it sees: as for `serve`, but that a name space file's lines about listeners do not count here; the default
    /// server if not given
    #[arg(value_name = "SERVER")]
    pub export: Option<Export>,
    /// How this end of the channel waits for the program
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    pub wait: Waiting,
    /// It changes nothing
    #[arg(long)]
    pub read_only: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub program: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

const EXAMPLES: &str = "\
Examples:
  cargo build --release -p nine-guest --examples      # cat and null, two programs that have a channel
  ninefold partition run -- target/release/examples/cat README.md
  ninefold partition run /srv/music -- target/release/examples/cat list
  ninefold partition run home.ns -- sh -c 'cat <notes | target/release/examples/cat -w lib/notes'";
