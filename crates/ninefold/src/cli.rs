//! The command line, parsed by clap: one struct for each verb. The doc comments are the help texts.
//!
//! Options that may also come from the environment or a file are in [`config`](crate::config) and flattened in here.
//! Completions and man pages are generated from the same definitions.

mod history;
mod keys;
mod mount;
mod mux;
mod partition;
mod top;
mod turns;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use nine_aoe::frame::Address;
use nine_net::ether::Mac;

use crate::archive::Place;
use crate::config::{General, Remote, Serving};
use crate::serve::Export;

pub use history::{FsDiff, FsHistory, FsRestore, FsYesterday, Past};
pub use keys::{Keys, KeysVerb};
pub use mount::{Mount, Ns, Passthrough, Unmount};
pub use mux::{Mux, MuxVerb, Words};
pub use partition::{AccelChoice, Partition, PartitionKill, PartitionLs, PartitionRun, PartitionVerb};
pub use top::Top;
pub use turns::{FsArbiter, FsAt, FsTakeover};

/// File servers and their files, over 9P.
#[derive(Debug, Parser)]
#[command(name = "ninefold", version, max_term_width = 100, arg_required_else_help = true, after_help = AFTER)]
pub struct Cli {
    #[command(flatten)]
    pub general: General,
    #[command(subcommand)]
    pub verb: Verb,
}

/// Parses the command line. If it is wrong, prints an explanation and exits.
pub fn parse() -> Cli {
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some(helper) = mount::helper(&words) else { return Cli::parse_from(words) };
    let mut cli = Cli::parse_from(helper.line);
    if let Verb::Mount(mount) = &mut cli.verb {
        (mount.fake, mount.sloppy) = (helper.fake, helper.sloppy);
    }
    cli
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    Serve(Serve),
    Ls(Ls),
    Cat(Cat),
    Get(Get),
    Put(Put),
    Cp(Cp),
    Mv(Mv),
    Rm(Rm),
    Mkdir(Mkdir),
    Stat(Stat),
    Write(Write),
    Tree(Tree),
    Mount(Box<Mount>),
    Unmount(Unmount),
    Ns(Ns),
    Watch(Watch),
    Mux(Mux),
    Top(Top),
    Aoe(Aoe),
    Block(Block),
    Fs(Fs),
    Cec(Cec),
    Partition(Partition),
    Keys(Keys),
    CheckServer(CheckServer),
    Config(Config),
    Completions(Completions),
    Man(Man),
}

impl Verb {
    /// Returns whether the verb runs until it is stopped, so that its log is its output.
    pub fn serves(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Aoe(Aoe { verb: AoeVerb::Target(_) }))
    }

    /// Returns the verb's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Serve(_) => "serve",
            Self::Ls(_) => "ls",
            Self::Cat(_) => "cat",
            Self::Get(_) => "get",
            Self::Put(_) => "put",
            Self::Cp(_) => "cp",
            Self::Mv(_) => "mv",
            Self::Rm(_) => "rm",
            Self::Mkdir(_) => "mkdir",
            Self::Stat(_) => "stat",
            Self::Write(_) => "write",
            Self::Tree(_) => "tree",
            Self::Mount(_) => "mount",
            Self::Unmount(_) => "unmount",
            Self::Ns(_) => "ns",
            Self::Watch(_) => "watch",
            Self::Mux(_) => "mux",
            Self::Top(_) => "top",
            Self::Aoe(_) => "aoe",
            Self::Block(_) => "block",
            Self::Fs(_) => "fs",
            Self::Cec(_) => "cec",
            Self::Partition(_) => "partition",
            Self::Keys(_) => "keys",
            Self::CheckServer(_) => "check-server",
            Self::Config(_) => "config",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }
}

/// Serve a directory, a tree in memory, an archive, or a name space of many servers, until SIGTERM
///
/// Without any option: the current directory, on a unix socket for this user, and on loopback TCP, read-only
/// unless the token printed at start is shown.
#[derive(Debug, Args)]
pub struct Serve {
    /// What to serve: `disk:/path` or just a path, `ram:` or `ram:SIZE`, `fs:` (your own archive, made if there is
    /// none) or `fs:ARCHIVE`, or a name space file (`NAME.ns`, or any regular file); the current directory if not
    /// given
    #[arg(value_name = "SERVER")]
    pub exports: Vec<Export>,
    #[command(flatten)]
    pub serving: Serving,
}

/// List directories
#[derive(Debug, Args)]
pub struct Ls {
    /// One per line with mode, links, owner, group, length and time of change
    #[arg(short)]
    pub long: bool,
    /// Also names that begin with a dot
    #[arg(short)]
    pub all: bool,
    /// Directories and what is below them
    #[arg(short = 'R')]
    pub recursive: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Files and directories; the root if not given
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Write files to the standard output
#[derive(Debug, Args)]
pub struct Cat {
    /// Files of a server
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// How trees are copied: the same for `get`, `put` and `cp`.
#[derive(Clone, Debug, Args)]
pub struct Copying {
    /// Directories with everything in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Keep owner, group and set-id bits, too; mode and time of change are always kept
    #[arg(short, long)]
    pub preserve: bool,
    /// Go on where the same copy was interrupted
    ///
    /// A file that is not whole is called `.NAME.ninefold-` and 16 digits, and stays when the copy ends before its
    /// time. It is continued while its source has the same length and time of change (in 9P2000 and 9P2000.u: to the
    /// second); else it is begun anew. On a server its last 16 MiB are written again, for they may have gaps. What has
    /// arrived with the length and time of its source is passed over. After a crash of the machine that keeps a part,
    /// add --verify.
    #[arg(long)]
    pub resume: bool,
    /// Compare each file with its source before it gets its name
    ///
    /// What has been written is read back and compared by SHA-256 with what was sent, a part that was there with what
    /// the source has. A file that differs, or that has changed meanwhile, is an error, and what was in its place
    /// stays.
    #[arg(long)]
    pub verify: bool,
    /// No progress, and no word while a server is silent
    #[arg(short, long)]
    pub quiet: bool,
}

/// Copy a file from a server to this machine
#[derive(Debug, Args)]
pub struct Get {
    /// A file or, with -r, a directory of a server
    #[arg(value_name = "REMOTE")]
    pub from: OsString,
    /// Where to; if not given, the same name in the current directory
    #[arg(value_name = "LOCAL")]
    pub to: Option<PathBuf>,
    #[command(flatten)]
    pub copying: Copying,
    #[command(flatten)]
    pub remote: Remote,
}

/// Copy a file of this machine to a server
///
/// Until it is whole, a file is called `.ninefold-` and 16 digits there; one that stays, because the copy was killed
/// or the server went away, may be removed. With --resume it has a name that is found again.
#[derive(Debug, Args)]
pub struct Put {
    /// A file or, with -r, a directory of this machine
    #[arg(value_name = "LOCAL")]
    pub from: PathBuf,
    /// Where to: a new name, or a directory that exists
    #[arg(value_name = "REMOTE")]
    pub to: OsString,
    #[command(flatten)]
    pub copying: Copying,
    #[command(flatten)]
    pub remote: Remote,
}

/// Copy files and trees from, to and between servers
#[derive(Debug, Args)]
pub struct Cp {
    /// What to copy, and last where to; a plain path is of this machine, `:/path` of the default server
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub copying: Copying,
    #[command(flatten)]
    pub remote: Remote,
}

/// Move or rename files of a server
#[derive(Debug, Args)]
pub struct Mv {
    /// What to move, and last where to: a new name, or a directory that exists
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Remove files of a server
#[derive(Debug, Args)]
pub struct Rm {
    /// Directories with everything in them
    #[arg(short, long)]
    pub recursive: bool,
    /// What does not exist is no failure
    #[arg(short, long)]
    pub force: bool,
    /// What to remove
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Make directories on a server
#[derive(Debug, Args)]
pub struct Mkdir {
    /// Also those above; what exists is no failure
    #[arg(short, long)]
    pub parents: bool,
    /// Permissions, octal [default: 777 less the umask]
    #[arg(short, long, value_name = "MODE", value_parser = octal)]
    pub mode: Option<u32>,
    /// Names of the new directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Show what is known about files
#[derive(Debug, Args)]
pub struct Stat {
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Files of a server; links are shown themselves
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Tell what changes below a directory of a server, a line for each change, until it is interrupted
///
/// The lines are those of docs/changes.md. A connection that is lost is made again, and nothing is missed.
#[derive(Debug, Args)]
pub struct Watch {
    /// Begin where another reader was, as its last line says: EPOCH.N
    #[arg(long, value_name = "EPOCH.N")]
    pub from: Option<String>,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// A directory of a server
    #[arg(value_name = "PATH", default_value = "/")]
    pub path: OsString,
    #[command(flatten)]
    pub remote: Remote,
}

/// Write the standard input to a file of a server, in place
#[derive(Debug, Args)]
pub struct Write {
    /// At its end; its old content stays
    #[arg(short, long)]
    pub append: bool,
    /// Make the file if it does not exist
    #[arg(long)]
    pub create: bool,
    /// The file
    #[arg(value_name = "PATH")]
    pub path: OsString,
    #[command(flatten)]
    pub remote: Remote,
}

/// Draw directories as trees
#[derive(Debug, Args)]
pub struct Tree {
    /// Go down this many levels
    #[arg(short = 'L', long = "levels", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub levels: Option<u32>,
    /// Also names that begin with a dot
    #[arg(short)]
    pub all: bool,
    /// Directories; the root if not given
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Serve, find, read and write disks on the same Ethernet (ATA over Ethernet)
///
/// Needs CAP_NET_RAW: be root, or `setcap cap_net_raw+ep` on this program. AoE knows no users and no secrets: whoever
/// is on the Ethernet reads and writes what is served there. docs/aoe.md has the way from one machine to another.
#[derive(Debug, Args)]
pub struct Aoe {
    #[command(subcommand)]
    pub verb: AoeVerb,
}

#[derive(Debug, Subcommand)]
pub enum AoeVerb {
    Target(AoeTarget),
    Discover(AoeDiscover),
    /// Show what a disk says of itself
    Identify(AoeDisk),
    /// Show the ways to a disk, its config string, and whom it is for
    Stat(AoeDisk),
    Config(AoeConfig),
    Mask(AoeMask),
    Reserve(AoeReserve),
    Read(AoeRead),
    Write(AoeWrite),
    /// Make durable what was written to a disk
    Flush(AoeDisk),
}

/// Serve a disk to an Ethernet, until SIGTERM
///
/// What has been acknowledged is flushed at the end. On SIGHUP it looks how large the disk is by now, and where another
/// file has its path, copies everything to that one and goes on with it. When its sockets and disks are open, it gives
/// up all capabilities. It does not start where another disk answers at its address.
#[derive(Debug, Args)]
pub struct AoeTarget {
    /// Where it is found: SHELF.SLOT
    #[arg(value_name = "SHELF.SLOT")]
    pub address: Address,
    /// A file, a block device, or a device expression as in docs/block.md: (w"/srv/a"w"/srv/b")
    #[arg(value_name = "DEVICE")]
    pub device: OsString,
    /// Interfaces that it is served on
    #[arg(value_name = "IFACE", required = true)]
    pub interfaces: Vec<String>,
    /// Its config string, by which `discover --string` finds it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub string: String,
    /// It is not written
    #[arg(long)]
    pub read_only: bool,
    /// Only these cards are answered
    #[arg(long, value_name = "MAC", value_delimiter = ',')]
    pub mask: Vec<Mac>,
    /// Frames that are in hand at once
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..))]
    pub buffers: u16,
    /// A socket for its owner: `ninefold cat --server unix!PATH :SHELF.SLOT/ctl` shows how the device is, and words
    /// that are written there (`return 1` for a mirror) are done
    #[arg(long, value_name = "PATH")]
    pub ctl: Option<PathBuf>,
    /// What tells the disk from any other, at most 20 characters; if not given, made of this machine and the file or
    /// device. It is to stay the same where a disk is copied or moved
    #[arg(long)]
    pub serial: Option<String>,
}

/// Make mirrors and fake worms, and show how they are
///
/// Devices are written as docs/block.md says: {w"/srv/a"w"/srv/b"}
#[derive(Debug, Args)]
pub struct Block {
    #[command(subcommand)]
    pub verb: BlockVerb,
}

#[derive(Debug, Subcommand)]
pub enum BlockVerb {
    /// Make the mirrors and fake worms of an expression: what is on their disks is lost
    Make(BlockMake),
    /// Open a device, and show how it is and what it is made of
    Status(BlockDevice),
}

/// A device, and the way to its disks.
#[derive(Debug, Args)]
pub struct BlockDevice {
    /// A file, a block device, or a device expression
    #[arg(value_name = "DEVICE")]
    pub device: OsString,
    /// Interfaces to the Ethernet of its disks there: e1.0
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

#[derive(Debug, Args)]
pub struct BlockMake {
    #[command(flatten)]
    pub device: BlockDevice,
    /// Also on disks that do not begin with zeros
    #[arg(long)]
    pub force: bool,
}

/// Make archives, dump them, show how they are, and bring back what was
///
/// An archive is a file system of which every dump stays for ever: docs/archive.md. `ream` and `check` work on its
/// devices while nobody serves it; the others ask the server, through its /fs. `yesterday`, `history`, `diff` and
/// `restore` are about files, and read the dumps.
#[derive(Debug, Args)]
pub struct Fs {
    #[command(subcommand)]
    pub verb: FsVerb,
}

#[derive(Debug, Subcommand)]
pub enum FsVerb {
    Ream(FsReam),
    Check(FsCheck),
    Recover(FsRecover),
    Dump(FsDump),
    /// Make durable what was changed up to now
    Sync(FsOf),
    Status(FsStatus),
    Dumps(FsDumps),
    /// Talk with an archive's console, line by line: `help` says what it knows
    Con(FsOf),
    Grow(FsGrow),
    Copyworm(FsCopyworm),
    Arbiter(FsArbiter),
    Takeover(FsTakeover),
    /// Let another machine become the main one of an archive: all is put in its place, and this one follows
    Handover(FsOf),
    Ctl(FsCtl),
    Yesterday(FsYesterday),
    History(FsHistory),
    Diff(FsDiff),
    Restore(FsRestore),
}

/// Make an archive: what is on its devices is lost
#[derive(Debug, Args)]
pub struct FsReam {
    /// The path of a file, which is made if it is not there; or `c CACHE WORM`, two devices as in docs/block.md:
    /// 'c w"/dev/nvme0n1" {e1.0e2.0}'; or `c n DISK`, one without a cache
    #[arg(value_name = "ARCHIVE")]
    pub archive: Place,
    /// What it is called
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub name: String,
    /// Bytes of a block: 8K, 16K, 32K or 64K
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = nine_text::parse_size)]
    pub block: u64,
    /// Of a file: a quarter for the cache, at most 16 GiB, the rest for the worm [default: the smaller of 64 GiB and
    /// half of what is free]
    #[arg(long, value_name = "SIZE", value_parser = nine_text::parse_size)]
    pub size: Option<u64>,
    /// Allocate the whole file now; a sparse file's writes fail when its disk is full
    #[arg(long)]
    pub reserve: bool,
    /// What is read from the worm is kept on the cache: right where the worm is slower
    #[arg(long)]
    pub no_fastworm: bool,
    /// By which its dumps are dated, like Europe/Berlin: written into the line that is printed [default: the system's]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Whatever is there now
    #[arg(long)]
    pub force: bool,
    /// Interfaces to the Ethernet of its disks there: e1.0
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

/// Look whether an archive is whole, while nobody serves it
///
/// Nothing is written, and what was not finished stays so; `ninefold fs ctl check` does it while it is served. Exit
/// status 1 if there are faults.
#[derive(Debug, Args)]
pub struct FsCheck {
    #[command(flatten)]
    pub at: FsAt,
    /// Names and what is counted of the newest moment alone
    #[arg(long, conflicts_with_all = ["blocks", "dumps", "repair"])]
    pub quick: bool,
    /// Read the content of all files, too
    #[arg(long, conflicts_with = "dumps")]
    pub blocks: bool,
    /// Read the content of all files of all dumps
    #[arg(long)]
    pub dumps: bool,
    /// Mend what can be mended without loss; each mend is printed before it is done
    #[arg(long)]
    pub repair: bool,
    /// Print what `--repair` would do, and do nothing
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
}

/// Give an archive a new cache, where the old one is lost or broken: it goes on from a dump that is on its worm
///
/// What was changed after that dump is lost; what is on the worm stays. It is done while nobody serves the archive.
#[derive(Debug, Args)]
pub struct FsRecover {
    #[command(flatten)]
    pub at: FsAt,
    /// The dump from which it goes on, like 2026/1121; newer ones stay below /dump [default: the newest]
    #[arg(long, value_name = "DUMP")]
    pub dump: Option<String>,
    /// What is read from the worm is kept on the cache: right where the worm is slower
    #[arg(long)]
    pub no_fastworm: bool,
    /// Also where the cache is whole
    #[arg(long)]
    pub force: bool,
}

/// An archive of a server.
#[derive(Debug, Args)]
pub struct FsOf {
    /// The server; the default one if not given
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// Which of its archives, if there are several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Keep all there is now for ever, and print the name by which it is found below /dump
///
/// Exits with 3 if the dump is made but must wait on the cache device, because the worm is full or fails.
#[derive(Debug, Args)]
pub struct FsDump {
    /// Until it is on the worm
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// Show an archive's size, use and work in progress; faults come first
#[derive(Debug, Args)]
pub struct FsStatus {
    /// Print only faults, and exit with 1 if there are any
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// List the dumps: name, time, blocks on the worm
#[derive(Debug, Args)]
pub struct FsDumps {
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// Use what a worm has become larger by, or put another device behind it, while it is served
///
/// Of an archive in one file: make the file larger (truncate -s +100G), and say this. A device that is put behind is
/// printed as it is to be written for the worm where the archive is mounted.
#[derive(Debug, Args)]
pub struct FsGrow {
    /// A device as in docs/block.md, on which nothing is: 'w"/dev/sdc"'
    #[arg(value_name = "DEVICE")]
    pub device: Option<String>,
    /// Which archive, if there are several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Copy a worm to another device: to a larger disk, or out of the house
///
/// It goes dump by dump and may be interrupted: said again, it copies what is new. The archive may be served meanwhile;
/// who moves it copies while it is served, stops the server, copies what has come since, and names the new device.
#[derive(Debug, Args)]
pub struct FsCopyworm {
    /// The worm: a device as in docs/block.md, or the file of an archive
    #[arg(value_name = "WORM")]
    pub from: String,
    /// Where it goes: a device on which nothing is, or an older copy
    #[arg(value_name = "DEVICE")]
    pub to: String,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Interfaces to the Ethernet of its disks there: e1.0
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

/// Tell an archive something: `schedule every 2h`, `quota glenda 1073741824`, `newuser glenda`
#[derive(Debug, Args)]
pub struct FsCtl {
    /// Which archive, if there are several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
    /// A command; without one, those that there are are shown
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Reach the console of a server on the same Ethernet (CEC), or list who has one
///
/// Without --shelf and --ea: who answers, a line each with shelf, card, interface and name. Needs CAP_NET_RAW: be root,
/// or `setcap cap_net_raw+ep` on this program. CEC is clear text: whoever hears the Ethernet hears the password.
/// docs/cec.md tells how a server offers its console (`ninefold serve --cec`), and of Plan 9's.
#[derive(Debug, Args)]
pub struct Cec {
    /// Interfaces; all Ethernets if not given
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
    /// The server with this number, or of this name
    #[arg(short, long, value_name = "SHELF", allow_hyphen_values = true)]
    pub shelf: Option<String>,
    /// The server with this card
    #[arg(short, long, value_name = "MAC")]
    pub ea: Option<Mac>,
    /// The control character behind which `q` quits, `i` sends it, `.` goes on
    #[arg(short = 'c', long, value_name = "C", default_value = "\\", value_parser = crate::verbs::escape)]
    pub escape: char,
    /// Ask until somebody answers
    #[arg(short, long)]
    pub persist: bool,
    /// The password is the first line of this file, which others cannot read; else it is asked for at the terminal
    #[arg(long, value_name = "FILE", env = "NINEFOLD_CEC_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,
    /// Seconds to listen for answers
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Seconds without a word behind the last line of the standard input, where that is no terminal, until it ends
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub linger: u64,
    /// A list of one JSON object per line
    #[arg(long, conflicts_with_all = ["shelf", "ea"])]
    pub json: bool,
}

/// Find the disks on the same Ethernet
#[derive(Debug, Args)]
pub struct AoeDiscover {
    /// Interfaces; all Ethernets if not given
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
    /// Only those with this config string
    #[arg(long, value_name = "TEXT", conflicts_with = "prefix")]
    pub string: Option<String>,
    /// Only those whose config string begins so
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Seconds to listen
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
}

/// A disk, and the way to it.
#[derive(Debug, Args)]
pub struct AoeDisk {
    /// The disk
    #[arg(value_name = "SHELF.SLOT")]
    pub address: Address,
    /// Interfaces to its Ethernet; several are used at once
    #[arg(value_name = "IFACE", required = true)]
    pub interfaces: Vec<String>,
    /// Seconds without an answer after which it counts as gone
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
}

/// Show or set the config string of a disk
#[derive(Debug, Args)]
pub struct AoeConfig {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// From now on it is this
    #[arg(long, value_name = "TEXT", group = "what")]
    pub set: Option<String>,
    /// The same, unless it has another one
    #[arg(long, value_name = "TEXT", group = "what")]
    pub set_if_empty: Option<String>,
    /// Fail unless it is this
    #[arg(long, value_name = "TEXT", group = "what")]
    pub is: Option<String>,
    /// Fail unless it begins so
    #[arg(long, value_name = "TEXT", group = "what")]
    pub begins: Option<String>,
}

/// Show or change which cards a disk answers
///
/// A disk whose list is empty answers everybody. The target keeps the list until it ends; `aoe target --mask` is where
/// it begins.
#[derive(Debug, Args)]
pub struct AoeMask {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// These are answered, too
    #[arg(long, value_name = "MAC", value_delimiter = ',')]
    pub add: Vec<Mac>,
    /// These are not any more
    #[arg(long, value_name = "MAC", value_delimiter = ',')]
    pub delete: Vec<Mac>,
}

/// Show or change which cards may use a disk
///
/// A disk that nobody has reserved is everybody's. The target keeps the list until it ends.
#[derive(Debug, Args)]
pub struct AoeReserve {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Only these may, if nobody else has it; without a MAC: the cards of these interfaces
    #[arg(long, value_name = "MAC", value_delimiter = ',', num_args = 0..=1, group = "what")]
    pub set: Option<Vec<Mac>>,
    /// The same, whoever has it
    #[arg(long, value_name = "MAC", value_delimiter = ',', num_args = 0..=1, group = "what")]
    pub force: Option<Vec<Mac>>,
    /// Everybody may, if nobody else has it
    #[arg(long, group = "what")]
    pub release: bool,
}

/// Write a disk, or a part of it, to the standard output
#[derive(Debug, Args)]
pub struct AoeRead {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Where it begins: bytes, or 64K, 64M, 2G, 4T
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = nine_text::parse_size)]
    pub offset: u64,
    /// How much; if not given, to the end
    #[arg(long, value_name = "SIZE", value_parser = nine_text::parse_size)]
    pub length: Option<u64>,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Write the standard input to a disk, and flush it
#[derive(Debug, Args)]
pub struct AoeWrite {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Where it begins: bytes, or 64K, 64M, 2G, 4T; whole sectors of 512
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = nine_text::parse_size)]
    pub offset: u64,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Check whether a server keeps to 9P
///
/// Runs a suite of cases, each of which proves a sentence of the manual, over the wire, in every dialect that the
/// server offers (or in that of --dialect), in a directory of its own that is removed afterwards. --timeout is for one
/// case, 5 seconds if not given. What the server has not, or does not let us do, is skipped, with the reason. Exit
/// status: 0 nothing failed, 1 something did, 2 the suite could not be run.
#[derive(Debug, Args)]
pub struct CheckServer {
    /// Only cases in whose name this stands: `walk/`, `flush`, `partial`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub only: String,
    /// Show the cases and what they prove, and run none
    #[arg(long)]
    pub list: bool,
    /// One JSON object per case, then one for all
    #[arg(long)]
    pub json: bool,
    /// Also cases that pass
    #[arg(short, long)]
    pub verbose: bool,
    /// The server, and the directory in which ours is made
    #[arg(value_name = "PATH", required_unless_present = "list")]
    pub path: Option<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Check or show the configuration
#[derive(Debug, Args)]
pub struct Config {
    #[command(subcommand)]
    pub verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Say whether a configuration file, and certificates that it names, are right, or what is wrong
    Check {
        /// The file; if not given, those that are read at every start
        file: Option<PathBuf>,
        /// A name space file, too
        #[arg(long, value_name = "FILE")]
        space: Option<PathBuf>,
    },
    /// Print what files and environment come to
    Show,
}

/// Print the completions for a shell
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell
    pub shell: Shell,
}

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub struct Man {
    /// The directory; it is made if it does not exist
    pub dir: PathBuf,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permissions are an octal number up to 7777, like 755".into()),
    }
}

const AFTER: &str = "\
Addresses: unix:/run/x.sock/dir/file  9p://[TOKEN@]HOST[:PORT]/file  9p+tls://HOST/file
           tcp!HOST!PORT/file  tls!HOST!PORT/file  il!HOST!PORT/file  vsock!CID!PORT/file
`:/file`, or /file where only a file of a server makes sense, is one of the default server:
--server, else $NINEFOLD_SERVER, else the configuration, else the channel that `ninefold partition run` has passed,
else the unix socket of `ninefold serve`.

Exit status: 0 all done, 1 something failed, 2 the command line is wrong; 130 and 143: SIGINT or SIGTERM ended
`get`, `put` or `cp`, and what was not whole is removed, or stays for --resume.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn permissions_are_octal() {
        assert_eq!(octal("0755"), Ok(0o755));
        assert!(octal("9").is_err() && octal("17777").is_err());
    }
}
