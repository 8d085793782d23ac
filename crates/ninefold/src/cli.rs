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

/// Serve files over 9P, and use files of 9P servers.
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
    Watch(Watch),
    Mount(Box<Mount>),
    Unmount(Unmount),
    Ns(Ns),
    Mux(Mux),
    Top(Top),
    Fs(Fs),
    Block(Block),
    Aoe(Aoe),
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
            Self::Watch(_) => "watch",
            Self::Mount(_) => "mount",
            Self::Unmount(_) => "unmount",
            Self::Ns(_) => "ns",
            Self::Mux(_) => "mux",
            Self::Top(_) => "top",
            Self::Fs(_) => "fs",
            Self::Block(_) => "block",
            Self::Aoe(_) => "aoe",
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

/// Serve a directory, a tree in memory, an archive or a name space, until SIGTERM
///
/// Without options: the current directory, on a unix socket for this user, and on loopback TCP, which is read-only
/// unless the client shows the token printed at start.
#[derive(Debug, Args)]
pub struct Serve {
    /// The tree to serve: `disk:/path` or just a path, `ram:` or `ram:SIZE`, `fs:` (your own archive, created if it
    /// does not exist) or `fs:ARCHIVE`, or a name space file (`NAME.ns`, or any regular file) [default: the current
    /// directory]
    #[arg(value_name = "SERVER")]
    pub exports: Vec<Export>,
    #[command(flatten)]
    pub serving: Serving,
}

/// List directories
#[derive(Debug, Args)]
pub struct Ls {
    /// Show mode, links, owner, group, length and modification time, one file per line
    #[arg(short, long)]
    pub long: bool,
    /// Include names that begin with a dot
    #[arg(short, long)]
    pub all: bool,
    /// List directories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Files and directories [default: the root]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Write files to the standard output
#[derive(Debug, Args)]
pub struct Cat {
    /// Files on a server
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Options for copies: the same for `get`, `put` and `cp`.
#[derive(Clone, Debug, Args)]
pub struct Copying {
    /// Copy directories with all their contents
    #[arg(short, long)]
    pub recursive: bool,
    /// Keep owner, group and set-id bits, too; mode and modification time are always kept
    #[arg(short, long)]
    pub preserve: bool,
    /// Continue an interrupted copy
    ///
    /// An incomplete file is called `.NAME.ninefold-` and 16 digits, and stays when the copy is interrupted. It is
    /// continued if its source still has the same length and modification time (9P2000 and 9P2000.u have whole
    /// seconds); otherwise the copy of this file starts again. On a server the last 16 MiB are written again, because
    /// they may have gaps. Files that have arrived with the length and time of their source are skipped. If the machine
    /// with the incomplete file has crashed, add --verify.
    #[arg(long)]
    pub resume: bool,
    /// Compare each file with its source before it gets its name
    ///
    /// Reads the copy back and compares its SHA-256 with that of the source; with --resume also of the older part. If a
    /// file differs, or changes during the copy, that is an error, and the previous file stays in place.
    #[arg(long)]
    pub verify: bool,
    /// Show no progress, and no message while a server is silent
    #[arg(short, long)]
    pub quiet: bool,
}

/// Copy files from a server to this machine
#[derive(Debug, Args)]
pub struct Get {
    /// A file on a server or, with -r, a directory
    #[arg(value_name = "REMOTE")]
    pub from: OsString,
    /// The destination [default: the same name in the current directory]
    #[arg(value_name = "LOCAL")]
    pub to: Option<PathBuf>,
    #[command(flatten)]
    pub copying: Copying,
    #[command(flatten)]
    pub remote: Remote,
}

/// Copy files from this machine to a server
///
/// Until it is complete, a file is called `.ninefold-` and 16 digits on the server. If the copy is killed or the server
/// goes away, that file stays; you may remove it. With --resume it has a name by which it is found again.
#[derive(Debug, Args)]
pub struct Put {
    /// A file on this machine or, with -r, a directory
    #[arg(value_name = "LOCAL")]
    pub from: PathBuf,
    /// The destination: a new name, or an existing directory
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
    /// Sources, then the destination; a plain path is on this machine, `:/path` on the default server
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub copying: Copying,
    #[command(flatten)]
    pub remote: Remote,
}

/// Move or rename files on a server
#[derive(Debug, Args)]
pub struct Mv {
    /// Sources, then the destination: a new name, or an existing directory
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Remove files on a server
#[derive(Debug, Args)]
pub struct Rm {
    /// Remove directories with all their contents
    #[arg(short, long)]
    pub recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    pub force: bool,
    /// Files to remove
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Create directories on a server
#[derive(Debug, Args)]
pub struct Mkdir {
    /// Create missing parents, too; accept directories that exist
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

/// Show the attributes of files
#[derive(Debug, Args)]
pub struct Stat {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Files on a server; symbolic links are not followed
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Print changes below a directory of a server, one per line, until interrupted
///
/// docs/changes.md describes the lines. A lost connection is restored, and no change is missed.
#[derive(Debug, Args)]
pub struct Watch {
    /// Start at the position in the last line of an earlier reader: EPOCH.N
    #[arg(long, value_name = "EPOCH.N")]
    pub from: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// A directory on a server
    #[arg(value_name = "PATH", default_value = "/")]
    pub path: OsString,
    #[command(flatten)]
    pub remote: Remote,
}

/// Write the standard input to a file on a server, in place
#[derive(Debug, Args)]
pub struct Write {
    /// Append to the file instead of replacing its content
    #[arg(short, long)]
    pub append: bool,
    /// Create the file if it does not exist
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
    /// Descend at most this many levels
    #[arg(short = 'L', long = "levels", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub levels: Option<u32>,
    /// Include names that begin with a dot
    #[arg(short)]
    pub all: bool,
    /// Directories [default: the root]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Serve, find, read and write disks on the same Ethernet (ATA over Ethernet)
///
/// Needs CAP_NET_RAW: be root, or run `setcap cap_net_raw+ep` on this program. AoE has no users and no secrets: every
/// machine on the Ethernet can read and write the disks served there. docs/aoe.md is a guide.
#[derive(Debug, Args)]
pub struct Aoe {
    #[command(subcommand)]
    pub verb: AoeVerb,
}

#[derive(Debug, Subcommand)]
pub enum AoeVerb {
    Target(AoeTarget),
    Discover(AoeDiscover),
    /// Show the identity of a disk
    Identify(AoeDisk),
    /// Show the paths to a disk, its config string, and which cards may use it
    Stat(AoeDisk),
    Config(AoeConfig),
    Mask(AoeMask),
    Reserve(AoeReserve),
    Read(AoeRead),
    Write(AoeWrite),
    /// Flush writes to a disk, so that they are durable
    Flush(AoeDisk),
}

/// Serve a disk on an Ethernet, until SIGTERM
///
/// The target flushes all acknowledged writes before it ends. On SIGHUP it updates the size of the disk; if the path
/// then names another file, it copies everything to that file and continues with it. It drops all capabilities when its
/// sockets and disks are open. It does not start if another disk answers at its address.
#[derive(Debug, Args)]
pub struct AoeTarget {
    /// Address of the disk: SHELF.SLOT
    #[arg(value_name = "SHELF.SLOT")]
    pub address: Address,
    /// A file, a block device, or a device expression as in docs/block.md: (w"/srv/a"w"/srv/b")
    #[arg(value_name = "DEVICE")]
    pub device: OsString,
    /// Interfaces to serve it on
    #[arg(value_name = "IFACE", required = true)]
    pub interfaces: Vec<String>,
    /// Config string, for `discover --string`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub string: String,
    /// Refuse all writes
    #[arg(long)]
    pub read_only: bool,
    /// Answer only these cards
    #[arg(long, value_name = "MAC", value_delimiter = ',')]
    pub mask: Vec<Mac>,
    /// Number of frames that the target can hold at once
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..))]
    pub buffers: u16,
    /// Unix socket for its owner: `ninefold cat --server unix!PATH :SHELF.SLOT/ctl` shows the state of the device, and
    /// commands written to that file (`return 1` for a mirror) are carried out
    #[arg(long, value_name = "PATH")]
    pub ctl: Option<PathBuf>,
    /// Serial number of the disk, at most 20 characters; pass the old one if the disk was copied or moved [default:
    /// derived from this machine and the file or device]
    #[arg(long)]
    pub serial: Option<String>,
}

/// Create mirrors and fake worms, and show their state
///
/// docs/block.md describes device expressions: {w"/srv/a"w"/srv/b"}
#[derive(Debug, Args)]
pub struct Block {
    #[command(subcommand)]
    pub verb: BlockVerb,
}

#[derive(Debug, Subcommand)]
pub enum BlockVerb {
    /// Create the mirrors and fake worms of an expression; all data on their disks is lost
    Make(BlockMake),
    /// Open a device, and show its state and its parts
    Status(BlockDevice),
}

/// A device, and the interfaces to its disks.
#[derive(Debug, Args)]
pub struct BlockDevice {
    /// A file, a block device, or a device expression
    #[arg(value_name = "DEVICE")]
    pub device: OsString,
    /// Interfaces to the Ethernet of its AoE disks (e1.0)
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

#[derive(Debug, Args)]
pub struct BlockMake {
    #[command(flatten)]
    pub device: BlockDevice,
    /// Use disks even if they do not begin with zeros
    #[arg(long)]
    pub force: bool,
}

/// Create archives, dump them, show their state, and restore files
///
/// An archive is a file system that keeps all its dumps: docs/archive.md. `ream`, `check` and `recover` work on
/// the devices of an archive that is not being served; most others ask the server, through its /fs. `yesterday`,
/// `history`, `diff` and `restore` take files, and read the dumps.
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
    /// Make all changes up to now durable
    Sync(FsOf),
    Status(FsStatus),
    Dumps(FsDumps),
    /// Open the console of an archive, line by line; `help` lists its commands
    Con(FsOf),
    Grow(FsGrow),
    Copyworm(FsCopyworm),
    Arbiter(FsArbiter),
    Takeover(FsTakeover),
    /// Release an archive, so that another machine can become the primary
    Handover(FsOf),
    Ctl(FsCtl),
    Yesterday(FsYesterday),
    History(FsHistory),
    Diff(FsDiff),
    Restore(FsRestore),
}

/// Create an archive; all data on its devices is lost
#[derive(Debug, Args)]
pub struct FsReam {
    /// The path of a file, created if it does not exist; or `c CACHE WORM`, two devices as in docs/block.md: 'c
    /// w"/dev/nvme0n1" {e1.0e2.0}'; or `c n DISK`, a disk without a cache
    #[arg(value_name = "ARCHIVE")]
    pub archive: Place,
    /// Name of the archive
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub name: String,
    /// Block size: 8K, 16K, 32K or 64K
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = nine_text::parse_size)]
    pub block: u64,
    /// Size of a file: a quarter of it, at most 16 GiB, is the cache, the rest the worm [default: the smaller of 64 GiB
    /// and half of the free space]
    #[arg(long, value_name = "SIZE", value_parser = nine_text::parse_size)]
    pub size: Option<u64>,
    /// Allocate the whole file now; writes to a sparse file fail when its disk is full
    #[arg(long)]
    pub reserve: bool,
    /// Keep data that was read from the worm on the cache: for a worm that is slower than the cache
    #[arg(long)]
    pub no_fastworm: bool,
    /// Time zone of the dumps' dates, like Europe/Berlin; it is part of the printed line [default: the system's]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Overwrite existing data
    #[arg(long)]
    pub force: bool,
    /// Interfaces to the Ethernet of its AoE disks (e1.0)
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

/// Check the consistency of an archive that is not being served
///
/// Writes nothing, and leaves unfinished work as it is. For an archive in use, run `ninefold fs ctl check`. Exit status
/// 1: there are faults.
#[derive(Debug, Args)]
pub struct FsCheck {
    #[command(flatten)]
    pub at: FsAt,
    /// Check only the names and counts of the current tree
    #[arg(long, conflicts_with_all = ["blocks", "dumps", "repair"])]
    pub quick: bool,
    /// Read the content of all files, too
    #[arg(long, conflicts_with = "dumps")]
    pub blocks: bool,
    /// Read the content of all files of all dumps
    #[arg(long)]
    pub dumps: bool,
    /// Repair faults that can be repaired without loss; each repair is printed before it is done
    #[arg(long)]
    pub repair: bool,
    /// Print the repairs of `--repair`, and change nothing
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
}

/// Create a new cache for an archive, from a dump on its worm
///
/// For an archive whose cache is lost or damaged. Changes after that dump are lost; the worm stays as it is. The
/// archive must not be in use.
#[derive(Debug, Args)]
pub struct FsRecover {
    #[command(flatten)]
    pub at: FsAt,
    /// The dump to continue from, like 2026/1121; newer ones stay below /dump [default: the newest]
    #[arg(long, value_name = "DUMP")]
    pub dump: Option<String>,
    /// Keep data that was read from the worm on the cache: for a worm that is slower than the cache
    #[arg(long)]
    pub no_fastworm: bool,
    /// Replace the cache even if it is undamaged
    #[arg(long)]
    pub force: bool,
}

/// An archive of a server.
#[derive(Debug, Args)]
pub struct FsOf {
    /// The server [default: the default server]
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// Name of the archive, if the server has several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Dump the current tree, and print the name of the dump below /dump
///
/// Exit status 3: the dump waits on the cache device, because the worm is full or fails.
#[derive(Debug, Args)]
pub struct FsDump {
    /// Return when the dump is on the worm
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// Show an archive's size, use and work in progress; faults come first
#[derive(Debug, Args)]
pub struct FsStatus {
    /// Print only faults; exit status 1 if there are any
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// List the dumps: name, time, blocks on the worm
#[derive(Debug, Args)]
pub struct FsDumps {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// Add space to the worm of a served archive: the growth of its device, or another device
///
/// If the archive is one file, enlarge the file first (truncate -s +100G). With a DEVICE, the command prints the new
/// expression of the worm: write it into the line that mounts the archive.
#[derive(Debug, Args)]
pub struct FsGrow {
    /// An empty device as in docs/block.md: 'w"/dev/sdc"'
    #[arg(value_name = "DEVICE")]
    pub device: Option<String>,
    /// Name of the archive, if the server has several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Copy a worm to another device: to a larger disk, or as a backup elsewhere
///
/// Copies one dump after the other. You can interrupt it: run again, it copies the newer dumps. The archive may be in
/// use meanwhile. To move an archive, copy while it is served, stop the server, copy again, and name the new device.
#[derive(Debug, Args)]
pub struct FsCopyworm {
    /// The worm: a device as in docs/block.md, or the file of an archive
    #[arg(value_name = "WORM")]
    pub from: String,
    /// The destination: an empty device, or an older copy
    #[arg(value_name = "DEVICE")]
    pub to: String,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Interfaces to the Ethernet of its AoE disks (e1.0)
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

/// Send a command to an archive: `schedule every 2h`, `quota glenda 1073741824`, `newuser glenda`
#[derive(Debug, Args)]
pub struct FsCtl {
    /// Name of the archive, if the server has several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
    /// A command; without one, all commands are listed
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Connect to the console of a server on the same Ethernet (CEC), or list consoles
///
/// Without --shelf and --ea: lists shelf, card, interface and name of each server that answers. Needs CAP_NET_RAW: be
/// root, or run `setcap cap_net_raw+ep` on this program. CEC is clear text: every machine on the Ethernet can read the
/// password. docs/cec.md describes how a server offers its console (`ninefold serve --cec`), and Plan 9's cec(8).
#[derive(Debug, Args)]
pub struct Cec {
    /// Interfaces [default: all Ethernets]
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
    /// Connect to the server with this number or name
    #[arg(short, long, value_name = "SHELF", allow_hyphen_values = true)]
    pub shelf: Option<String>,
    /// Connect to the server with this card
    #[arg(short, long, value_name = "MAC")]
    pub ea: Option<Mac>,
    /// Letter of the control character before a command: `q` quits, `i` sends the character, `.` continues
    #[arg(short = 'c', long, value_name = "C", default_value = "\\", value_parser = crate::verbs::escape)]
    pub escape: char,
    /// Retry until a server answers
    #[arg(short, long)]
    pub persist: bool,
    /// File with the password in its first line, not readable by others [default: ask at the terminal]
    #[arg(long, value_name = "FILE", env = "NINEFOLD_CEC_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,
    /// Seconds to listen for answers
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Seconds without output after the end of the standard input, if that is no terminal, before it disconnects
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub linger: u64,
    /// Print the list as one JSON object per line
    #[arg(long, conflicts_with_all = ["shelf", "ea"])]
    pub json: bool,
}

/// Find the disks on the same Ethernet
#[derive(Debug, Args)]
pub struct AoeDiscover {
    /// Interfaces [default: all Ethernets]
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
    /// Show only disks with this config string
    #[arg(long, value_name = "TEXT", conflicts_with = "prefix")]
    pub string: Option<String>,
    /// Show only disks whose config string has this prefix
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Seconds to listen for answers
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
}

/// A disk, and the interfaces to it.
#[derive(Debug, Args)]
pub struct AoeDisk {
    /// The disk
    #[arg(value_name = "SHELF.SLOT")]
    pub address: Address,
    /// Interfaces to its Ethernet; several are used at once
    #[arg(value_name = "IFACE", required = true)]
    pub interfaces: Vec<String>,
    /// Seconds to wait for an answer of the disk
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
}

/// Show or set the config string of a disk
#[derive(Debug, Args)]
pub struct AoeConfig {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Set it to this
    #[arg(long, value_name = "TEXT", group = "what")]
    pub set: Option<String>,
    /// Set it to this; fail if the disk has another one
    #[arg(long, value_name = "TEXT", group = "what")]
    pub set_if_empty: Option<String>,
    /// Fail unless it is this
    #[arg(long, value_name = "TEXT", group = "what")]
    pub is: Option<String>,
    /// Fail unless it begins with this
    #[arg(long, value_name = "TEXT", group = "what")]
    pub begins: Option<String>,
}

/// Show or change which cards a disk answers
///
/// A disk with an empty list answers every card. The target loses the list when it ends; `aoe target --mask` sets the
/// initial one.
#[derive(Debug, Args)]
pub struct AoeMask {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Add these cards
    #[arg(long, value_name = "MAC", value_delimiter = ',')]
    pub add: Vec<Mac>,
    /// Remove these cards
    #[arg(long, value_name = "MAC", value_delimiter = ',')]
    pub delete: Vec<Mac>,
}

/// Show or change which cards may use a disk
///
/// Every card may use a disk that is not reserved. The target loses the list when it ends.
#[derive(Debug, Args)]
pub struct AoeReserve {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Reserve the disk for these cards, unless others have it; without a MAC: for the cards of these interfaces
    #[arg(long, value_name = "MAC", value_delimiter = ',', num_args = 0..=1, group = "what")]
    pub set: Option<Vec<Mac>>,
    /// Reserve the disk for these cards, even if others have it
    #[arg(long, value_name = "MAC", value_delimiter = ',', num_args = 0..=1, group = "what")]
    pub force: Option<Vec<Mac>>,
    /// Release the disk, unless others have it
    #[arg(long, group = "what")]
    pub release: bool,
}

/// Write a disk, or a part of it, to the standard output
#[derive(Debug, Args)]
pub struct AoeRead {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Offset of the first byte: bytes, or 64K, 64M, 2G, 4T
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = nine_text::parse_size)]
    pub offset: u64,
    /// Number of bytes [default: up to the end]
    #[arg(long, value_name = "SIZE", value_parser = nine_text::parse_size)]
    pub length: Option<u64>,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Write the standard input to a disk, and flush it
#[derive(Debug, Args)]
pub struct AoeWrite {
    #[command(flatten)]
    pub disk: AoeDisk,
    /// Offset of the first byte: bytes, or 64K, 64M, 2G, 4T; a multiple of 512
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = nine_text::parse_size)]
    pub offset: u64,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Test a server for conformance to 9P
///
/// Runs a suite of cases over the wire. Each case tests a sentence of the manual, in every dialect that the server
/// offers (or in that of --dialect), in a new directory that is removed afterwards. --timeout is per case [default: 5
/// seconds]. Cases that the server does not support or permit are skipped, with the reason. Exit status: 0 no case
/// failed, 1 some failed, 2 the suite could not run.
#[derive(Debug, Args)]
pub struct CheckServer {
    /// Run only cases with this text in their name: `walk/`, `flush`, `partial`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub only: String,
    /// List the cases with their sentences, and run none
    #[arg(long)]
    pub list: bool,
    /// Print one JSON object per case, then one for the total
    #[arg(long)]
    pub json: bool,
    /// Show cases that pass, too
    #[arg(short, long)]
    pub verbose: bool,
    /// The server, and the parent of the test directory
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
    /// Check a configuration file, and the certificates that it names
    Check {
        /// The file [default: the files read at every start]
        file: Option<PathBuf>,
        /// Check a name space file, too
        #[arg(long, value_name = "FILE")]
        space: Option<PathBuf>,
    },
    /// Print the settings that result from files and environment
    Show,
}

/// Print the completions for a shell
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub struct Man {
    /// The directory; created if it does not exist
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
`:/file` is a file on the default server; so is /file where only a file on a server makes sense.
The default server is --server, else $NINEFOLD_SERVER, else that of the configuration, else the
channel passed by `ninefold partition run`, else the unix socket of `ninefold serve`.

Exit status: 0 success, 1 something failed, 2 invalid command line. 130 or 143: SIGINT or SIGTERM
ended `get`, `put` or `cp`, and incomplete files are removed, or stay for --resume.";

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
