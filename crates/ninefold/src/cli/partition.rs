//! Command line of `partition`: programs that reach their files through shared memory, also those that other servers
//! run (docs/part.md).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nine_servers::machine::{QEMU, ROOT, SELF};

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

/// Run a program that inherits a channel, or an image in a virtual machine, and serve it 9P there, until it ends; or,
/// with --on, run it on other machines
///
/// A program finds the channel by NINEFOLD_CHANNEL (docs/channels.md; crates/nine-guest is a client for it, in Rust
/// and in C), and beside it has its standard files and nothing else that is open here. An image (docs/guest.md) is
/// known by what stands in it; QEMU runs it, with KVM where that works. Both see the default server, or what SERVER
/// says, which this command serves by itself. Programs that it starts may have the channel after it, one at a time.
/// SIGTERM, SIGINT and SIGHUP are passed on; they end a machine.
///
/// With --on, servers that have `part:` in their name spaces run it (docs/part.md): it is sent to each, what it writes
/// appears here, line by line and with the server's name before it where there are several, and signals are passed on
/// to all; a second one ends this command, and all that it runs. A server that goes away is said, and the others go on.
///
/// Exit status: that of the program or the machine, or 128 and the number of the signal that ended it; 127 there is no
/// such file, 126 it cannot be run, 125 the machine has ended without a status. Of several the highest; 255 for one
/// whose server has gone.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct PartitionRun {
    /// Before `--`, what it sees: as for `serve`, but that a name space file's lines about listeners do not count here;
    /// the default server if not given. Without `--`: an image and its arguments
    #[arg(value_name = "SERVER")]
    pub words: Vec<OsString>,
    /// How this end of the channel waits for the program, and a machine for us
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    pub wait: Waiting,
    /// It changes nothing
    #[arg(long)]
    pub read_only: bool,
    /// Of a machine: one more channel of this name, which shows that server
    #[arg(long = "channel", value_name = "NAME=SERVER", value_parser = channel)]
    pub channels: Vec<(String, Export)>,
    /// Of a machine: what executes it; `auto` is KVM where that works, else TCG
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub accel: AccelChoice,
    /// Of a machine: its memory, in bytes, or 64M, 1G
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = memory)]
    pub memory: u32,
    /// Of a machine: QEMU
    #[arg(long, value_name = "PROGRAM", default_value = QEMU, env = "NINEFOLD_QEMU")]
    pub qemu: PathBuf,
    /// Of a machine: one more word for QEMU, behind ours; what it names by `path=` is QEMU's to change
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub qemu_word: Vec<OsString>,
    /// Of a machine: the first of its words, if that is not to be its file
    #[arg(long, value_name = "WORD")]
    pub name: Option<OsString>,
    /// Of a machine, or with --on: a variable of its environment
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<String>,
    /// Servers that run it: their addresses, or where their partitions are, like 9p+tls://node1/part or :/n/node1/part;
    /// /part if the address has no path
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with_all = HERE)]
    pub on: Vec<OsString>,
    /// With --on: PROGRAM is one of theirs
    #[arg(long, requires = "on")]
    pub there: bool,
    /// With --on: what comes on the standard input goes to all; without it they find the end
    #[arg(long, requires = "on")]
    pub input: bool,
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
    /// The program or the image, and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
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

/// Who executes a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccelChoice {
    Auto,
    Kvm,
    Tcg,
}

fn channel(text: &str) -> Result<(String, Export), String> {
    let (name, server) = text.split_once('=').ok_or("write NAME=SERVER")?;
    if nine_proto::check_name(name.as_bytes()).is_err() || name.len() > 32 {
        return Err(format!("`{name}` is no name of a channel: at most 32 bytes, as a file's"));
    }
    if matches!(name, ROOT | SELF) {
        return Err(format!("there is a channel `{name}` already"));
    }
    Ok((name.into(), server.parse()?))
}

/// Parses a size of memory in MiB.
fn memory(text: &str) -> Result<u32, String> {
    match nine_text::parse_size(text).map_err(|error| error.to_string())? >> 20 {
        size @ 8..=2048 => Ok(size as u32),
        _ => Err("a machine has from 8M to 2G".into()),
    }
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() && !text.contains('\n') => Ok(text.into()),
        _ => Err("write NAME=VALUE, in one line".into()),
    }
}

/// Options for machines and programs that run here.
const HERE: [&str; 8] = ["wait", "read_only", "channels", "accel", "memory", "qemu", "qemu_word", "name"];

const USAGE: &str = "ninefold partition run [OPTIONS] [SERVER] -- PROGRAM|IMAGE [ARG]...
       ninefold partition run [OPTIONS] IMAGE [ARG]...
       ninefold partition run [OPTIONS] --on ADDR[,ADDR]... -- PROGRAM|IMAGE [ARG]...";

const EXAMPLES: &str = "\
Examples:
  cargo build --release -p nine-guest --examples      # cat and null, two programs that have a channel
  ninefold partition run -- target/release/examples/cat README.md
  ninefold partition run /srv/music -- target/release/examples/cat list
  ninefold partition run home.ns -- sh -c 'cat <notes | target/release/examples/cat -w lib/notes'
  cargo xtask images                                  # images of machines
  ninefold partition run target/images/hello
  ninefold partition run --memory 64M home.ns -- target/images/sum data/in data/out
  ninefold partition run --on 9p+tls://node1,9p+tls://node2 -- ./job --fast
  ninefold partition run --on :/part --there -- uname -a";
