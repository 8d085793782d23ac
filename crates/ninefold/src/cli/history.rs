//! Command line of the `fs` verbs that read dumps.

use std::ffi::OsString;

use clap::Args;

use crate::config::Remote;

/// Where the past of a file is.
#[derive(Debug, Args)]
pub struct Past {
    /// The root of all dumps, where the server does not say it: a directory of the same server, with years in it
    #[arg(long, value_name = "PLACE")]
    pub dump: Option<OsString>,
    /// The root of what was dumped, with --dump [default: `archive` beside it]
    #[arg(long, value_name = "PLACE", requires = "dump")]
    pub archive: Option<OsString>,
    #[command(flatten)]
    pub remote: Remote,
}

/// Print where files are in yesterday's dump, or that of another date
///
/// As yesterday(1) of Plan 9: the path of each file in the newest dump up to the end of that day. A file may also be
/// named by its path in any dump.
///
/// A DATE is written as 2026/1121 or 2026/11211 (just that dump), 2026-11-21, '2026-11-21 17:30', 17:30, today,
/// yesterday, '3 days ago', '2 hours ago', latest; in the time zone of the archive. What is no dump's name is the
/// newest one up to then.
#[derive(Debug, Args)]
pub struct FsYesterday {
    /// Print what has changed since, as `fs diff -u`
    #[arg(short, conflicts_with = "copy")]
    pub diff: bool,
    /// Bring the files back over what is there now, as `fs restore --force`
    #[arg(short)]
    pub copy: bool,
    /// So many days ago
    #[arg(short, value_name = "N", conflicts_with = "date")]
    pub number: Option<u32>,
    /// Of this date
    #[arg(long, value_name = "DATE")]
    pub date: Option<String>,
    /// Files of an archive; a DATE may stand before them
    #[arg(value_name = "FILE", required = true)]
    pub words: Vec<OsString>,
    #[command(flatten)]
    pub past: Past,
}

/// List all versions of a file or directory, newest first
///
/// Each with the first and the last dump that has it, the time of its last change, its length and its owner; `now` is
/// how it is today. Also when it came after it was not there, and when it was removed.
#[derive(Debug, Args)]
pub struct FsHistory {
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
    /// A file of an archive, there or removed
    #[arg(value_name = "PATH")]
    pub path: OsString,
    #[command(flatten)]
    pub past: Past,
}

/// Show what has been added (+), removed (-) or changed (~) since a dump
///
/// Which two places are compared, and one line for each file at and below PATH; `m` is a file whose content is the
/// same, and whose mode, owner or time of change is not. The content is read only where version, length and times do
/// not tell. DATE is what `fs yesterday` takes.
#[derive(Debug, Args)]
pub struct FsDiff {
    /// The old side
    #[arg(value_name = "DATE")]
    pub date: String,
    /// A file or directory of an archive
    #[arg(value_name = "PATH")]
    pub path: OsString,
    /// The new side is that of another dump [default: now]
    #[arg(long, value_name = "DATE")]
    pub to: Option<String>,
    /// The lines of texts that differ, for patch(1)
    #[arg(short, conflicts_with = "json")]
    pub unified: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub past: Past,
}

/// Bring a file or a tree back from a dump
///
/// With modes, times, links and extended attributes, and owners where that is permitted. A file is written beside its
/// place, and renamed when it is whole. What is there and is the same stays; what differs is only overwritten, and
/// gets its mode, owner and time again, with --force, and nothing is changed before all of that has been looked at.
/// What has come since stays where it is. DATE is what `fs yesterday` takes.
#[derive(Debug, Args)]
pub struct FsRestore {
    /// From which dump
    #[arg(value_name = "DATE")]
    pub date: String,
    /// A file or directory of an archive, there or removed
    #[arg(value_name = "PATH")]
    pub path: OsString,
    /// Somewhere else, here or at any server: into that directory, if it is there, or as that name
    #[arg(long, value_name = "PLACE")]
    pub to: Option<OsString>,
    /// Overwrite what differs
    #[arg(long)]
    pub force: bool,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub past: Past,
}
