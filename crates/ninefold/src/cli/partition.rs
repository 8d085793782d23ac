//! `partition`: programs that have their files through shared memory, and those that other servers run (docs/part.md).

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::config::{Remote, Waiting};
use crate::serve::Export;

/// Programs whose files are those of a name space, here or on other machines
#[derive(Debug, Args)]
pub struct Partition {
    #[command(subcommand)]
    pub verb: PartitionVerb,
}

#[derive(Debug, Subcommand)]
pub enum PartitionVerb {
    Run(Box<PartitionRun>),
    /// List the sessions of a server's partitions: number, user, program, how it is
    Ls(PartitionLs),
    /// End a session of a server's partitions, and all that it runs
    Kill(PartitionKill),
}

/// Run a program that inherits a channel, and serve it 9P there, until it ends; or, with --on, run it on other machines
///
/// The program finds the channel by NINEFOLD_CHANNEL (docs/channels.md; crates/nine-guest is a client for it, in Rust
/// and in C), and beside it has its standard files and nothing else that is open here. It sees the default server, or
/// what SERVER says, which this command serves by itself. Programs that it starts may have the channel after it, one at
/// a time. SIGTERM, SIGINT and SIGHUP are passed on.
///
/// With --on, servers that have `part:` in their name spaces run it (docs/part.md): it is sent to each, what the
/// programs write appears here, line by line and with the server's name before it where there are several, and signals
/// are passed on to all; a second one ends this command, and all that it runs. A server that goes away is said, and the
/// others go on.
///
/// Exit status: the program's, or 128 and the number of the signal that ended it; 127 there is no such program, 126 it
/// cannot be run. Of several the highest; 255 for one whose server has gone.
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
    /// Servers that run it: their addresses, or where their partitions are, like 9p+tls://node1/part or :/n/node1/part;
    /// /part if the address has no path
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with_all = ["export", "wait", "read_only"])]
    pub on: Vec<OsString>,
    /// With --on: PROGRAM is one of theirs
    #[arg(long, requires = "on")]
    pub there: bool,
    /// With --on: what comes on the standard input goes to all; without it they find the end
    #[arg(long, requires = "on")]
    pub input: bool,
    /// With --on: a variable of its environment
    #[arg(long, short, value_name = "NAME=VALUE", requires = "on")]
    pub env: Vec<String>,
    /// With --on: a text for each session's ctl before it runs, like `memory 64M` or `cpus 0-1`
    #[arg(long, value_name = "TEXT", requires = "on")]
    pub ctl: Vec<String>,
    /// With --on: the program goes to the first server, which gives it to at most N others, and each of these to its
    /// share of the rest. The policies of the servers name each other (`nodes`), as they are named here
    #[arg(
        long,
        value_name = "N",
        requires = "on",
        conflicts_with = "there",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub tree: Option<u32>,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub program: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Args)]
pub struct PartitionLs {
    /// The server, or where its partitions are; the default one's /part if not given
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Args)]
pub struct PartitionKill {
    /// The server, or where its partitions are
    #[arg(value_name = "ADDR")]
    pub addr: OsString,
    /// The session
    #[arg(value_name = "N")]
    pub number: u64,
    #[command(flatten)]
    pub remote: Remote,
}

const EXAMPLES: &str = "\
Examples:
  cargo build --release -p nine-guest --examples      # cat and null, two programs that have a channel
  ninefold partition run -- target/release/examples/cat README.md
  ninefold partition run /srv/music -- target/release/examples/cat list
  ninefold partition run home.ns -- sh -c 'cat <notes | target/release/examples/cat -w lib/notes'
  ninefold partition run --on 9p+tls://node1,9p+tls://node2 -- ./job --fast
  ninefold partition run --on :/part --there -- uname -a";
