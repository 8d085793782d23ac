//! Command line of the `fs` verbs that read dumps.

use std::ffi::OsString;

use clap::Args;

use crate::config::Remote;

/// Options that locate the dumps of a file.
#[derive(Debug, Args)]
pub struct Past {
    /// Root of all dumps, if the server does not report it: a directory with years in it, on the same server
    #[arg(long, value_name = "PLACE")]
    pub dump: Option<OsString>,
    /// Root of the dumped tree, with --dump [default: `archive` beside the dumps]
    #[arg(long, value_name = "PLACE", requires = "dump")]
    pub archive: Option<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Print the paths of files in yesterday's dump, or in that of another date
///
/// Like yesterday(1) of Plan 9: prints the path of each file in the newest dump up to the end of that day. You can also
/// name a file by its path in any dump.
///
/// A DATE is 2026/1121 or 2026/11211 (exactly that dump), 2026-11-21, '2026-11-21 17:30', 17:30, today, yesterday, '3
/// days ago', '2 hours ago' or latest, in the time zone of the archive. Unless it names a dump, it selects the newest
/// dump up to then.
#[derive(Debug, Args)]
pub struct FsYesterday {
    /// Print the changes since then, as `fs diff -u`
    #[arg(short, conflicts_with = "copy")]
    pub diff: bool,
    /// Restore the files over the current ones, as `fs restore --force`
    #[arg(short)]
    pub copy: bool,
    /// Number of days ago
    #[arg(short, value_name = "N", conflicts_with = "date")]
    pub number: Option<u32>,
    /// Use the dump of this date
    #[arg(long, value_name = "DATE")]
    pub date: Option<String>,
    /// Files of an archive; a DATE may precede them
    #[arg(value_name = "FILE", required = true)]
    pub words: Vec<OsString>,
    #[command(flatten)]
    pub past: Past,
}

/// List all versions of a file or directory, newest first
///
/// Shows for each version the first and the last dump that has it, its modification time, length and owner; `now` is
/// the current tree. Also shows when the file was removed, and when it was created again.
#[derive(Debug, Args)]
pub struct FsHistory {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// A file of an archive, existing or removed
    #[arg(value_name = "PATH")]
    pub path: OsString,
    #[command(flatten)]
    pub past: Past,
}

/// Show added (+), removed (-) and changed (~) files since a dump
///
/// Prints the two paths that are compared, then one line for each file at and below PATH; `m` is a file with the same
/// content and another mode, owner or modification time. Content is read only if version, length and times do not
/// decide. `fs yesterday` describes DATE.
#[derive(Debug, Args)]
pub struct FsDiff {
    /// Date of the old version
    #[arg(value_name = "DATE")]
    pub date: String,
    /// A file or directory of an archive
    #[arg(value_name = "PATH")]
    pub path: OsString,
    /// Date of the new version [default: now]
    #[arg(long, value_name = "DATE")]
    pub to: Option<String>,
    /// Print the differing lines of text files, for patch(1)
    #[arg(short, conflicts_with = "json")]
    pub unified: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub past: Past,
}

/// Restore a file or a tree from a dump
///
/// Restores modes, times, links and extended attributes, and owners if that is permitted. A file is written beside its
/// place, and renamed when it is complete. Unchanged files are skipped. If the content of any file differs, nothing is
/// restored without --force, which also restores a different mode, owner and time. Files that are not in the dump stay.
/// `fs yesterday` describes DATE.
#[derive(Debug, Args)]
pub struct FsRestore {
    /// Date of the dump
    #[arg(value_name = "DATE")]
    pub date: String,
    /// A file or directory of an archive, existing or removed
    #[arg(value_name = "PATH")]
    pub path: OsString,
    /// Another destination, here or on any server: an existing directory, or a new name
    #[arg(long, value_name = "PLACE")]
    pub to: Option<OsString>,
    /// Overwrite files that differ
    #[arg(long)]
    pub force: bool,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub past: Past,
}
