//! Command line of `partition`: programs that reach their files through shared memory, also those that other servers
//! run (docs/part.md).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nine_servers::machine::{QEMU, ROOT, SELF};

use crate::config::{Remote, Waiting};
use crate::serve::Export;

/// Run programs that use a name space through a channel, here or on other machines
#[derive(Debug, Args)]
pub struct Partition {
    #[command(subcommand)]
    pub verb: PartitionVerb,
}

#[derive(Debug, Subcommand)]
pub enum PartitionVerb {
    Run(Box<PartitionRun>),
    /// List the sessions of a server's partitions: number, user, program, state
    Ls(PartitionLs),
    /// End a session of a server's partitions, and all its processes
    Kill(PartitionKill),
}

/// Run a program with a 9P channel, or an image in a virtual machine, here or on other machines
///
/// The command serves 9P on the channel until the program ends. The program finds the channel by NINEFOLD_CHANNEL
/// (docs/channels.md; crates/nine-guest is a client for it, in Rust and in C), and inherits the standard files and
/// nothing else. An image (docs/guest.md) is recognized by its contents; QEMU runs it, with KVM if that works. Both see
/// the default server, or SERVER, which this command serves by itself. Programs that the program starts may use the
/// channel after it, one at a time. SIGTERM, SIGINT and SIGHUP are passed on; they end a machine.
///
/// With --on, servers with `part:` in their name spaces run it (docs/part.md). The program is sent to each server. Its
/// output appears here line by line, after the server's name if there are several. Signals are passed on to all; a
/// second one ends this command, and all programs. If a server goes away, that is reported, and the others continue.
///
/// Exit status: that of the program or the machine, or 128 and the number of the signal that ended it; 127 no such
/// file, 126 it cannot be run, 125 the machine ended without a status. Of several servers the highest; 255 for one that
/// went away.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct PartitionRun {
    /// Before `--`, the tree that it sees: as for `serve`, but lines about listeners in a name space file do not count
    /// [default: the default server]. Without `--`: an image and its arguments
    #[arg(value_name = "SERVER")]
    pub words: Vec<OsString>,
    /// How this end of the channel waits for the program, and a machine for this end
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    pub wait: Waiting,
    /// Refuse all changes
    #[arg(long)]
    pub read_only: bool,
    /// Machine: one more channel of this name, which shows that server
    #[arg(long = "channel", value_name = "NAME=SERVER", value_parser = channel)]
    pub channels: Vec<(String, Export)>,
    /// Machine: accelerator; `auto` is KVM if that works, else TCG
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub accel: AccelChoice,
    /// Machine: memory, in bytes, or 64M, 1G
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = memory)]
    pub memory: u32,
    /// Machine: path of QEMU
    #[arg(long, value_name = "PROGRAM", default_value = QEMU, env = "NINEFOLD_QEMU")]
    pub qemu: PathBuf,
    /// Machine: one more argument for QEMU, after all others; QEMU may write files that it names by `path=`
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub qemu_word: Vec<OsString>,
    /// Machine: its argument 0 [default: the path of its file]
    #[arg(long, value_name = "WORD")]
    pub name: Option<OsString>,
    /// Machine, or with --on: an environment variable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<String>,
    /// Servers that run it: their addresses, or the paths of their partitions, like 9p+tls://node1/part or
    /// :/n/node1/part; /part if the address has no path
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with_all = HERE)]
    pub on: Vec<OsString>,
    /// With --on: PROGRAM is a program of the servers
    #[arg(long, requires = "on")]
    pub there: bool,
    /// With --on: send the standard input to all; without it they read end of file
    #[arg(long, requires = "on")]
    pub input: bool,
    /// With --on: a command for the ctl of each session before it runs, like `memory 64M` or `cpus 0-1`
    #[arg(long, value_name = "TEXT", requires = "on")]
    pub ctl: Vec<String>,
    /// With --on: send the program to the first server only, which sends it to at most N others, and each of these to
    /// its share of the rest. The policies of the servers must name the others (`nodes`), as written here
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
    /// The server, or the path of its partitions [default: /part of the default server]
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Args)]
pub struct PartitionKill {
    /// The server, or the path of its partitions
    #[arg(value_name = "ADDR")]
    pub addr: OsString,
    /// Number of the session
    #[arg(value_name = "N")]
    pub number: u64,
    #[command(flatten)]
    pub remote: Remote,
}

/// Accelerator of a machine.
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
  cargo build --release -p nine-guest --examples      # cat and null: programs with a channel
  ninefold partition run -- target/release/examples/cat README.md
  ninefold partition run /srv/music -- target/release/examples/cat list
  ninefold partition run home.ns -- sh -c 'cat <notes | target/release/examples/cat -w lib/notes'
  cargo xtask images                                  # images of machines
  ninefold partition run target/images/hello
  ninefold partition run --memory 64M home.ns -- target/images/sum data/in data/out
  ninefold partition run --on 9p+tls://node1,9p+tls://node2 -- ./job --fast
  ninefold partition run --on :/part --there -- uname -a";
