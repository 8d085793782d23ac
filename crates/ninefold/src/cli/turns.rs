//! Command line of the `fs` verbs for archives that several machines may serve.

use clap::Args;

use super::FsOf;
use crate::archive::Spec;

/// Create or show the disk by which several machines agree on the primary of an archive
///
/// The arbiter takes 128 KiB of a disk that all machines reach and that does not fail with any of them: a target of a
/// third machine. docs/archive.md, "Two machines", describes the setup.
#[derive(Debug, Args)]
pub struct FsArbiter {
    /// A device as in docs/block.md (e5.0), an existing file, or an object of a store: s3"attic/turns"
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Machines that may be the primary, 2 to 15; without names the current ones are shown
    #[arg(value_name = "MACHINE", num_args = 0..)]
    pub machines: Vec<String>,
    /// Seconds after which a silent machine is no longer the primary
    #[arg(long, value_name = "SECONDS", default_value = "4")]
    pub period: f64,
    /// Overwrite existing data
    #[arg(long)]
    pub force: bool,
    /// Create it again, with the same machines, because its records are unreadable; none of the machines may be at work
    #[arg(long, conflicts_with_all = ["machines", "force"])]
    pub again: bool,
    /// With --again: the newest epoch on the worm, as `ninefold fs status` shows it
    #[arg(long, value_name = "EPOCH", default_value = "0", requires = "again")]
    pub behind: u64,
    /// Interfaces to the Ethernet of its AoE disk (e1.0)
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

/// Make a standby the primary of an archive
///
/// Refused while the primary is alive.
#[derive(Debug, Args)]
pub struct FsTakeover {
    /// Take over without the arbiter's consent: you know that the primary is dead. If it is not, changes of one of the
    /// two machines are lost
    #[arg(long)]
    pub main_is_dead: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// An archive that is not being served.
#[derive(Debug, Args)]
pub struct FsAt {
    /// The path of a file, or `c CACHE WORM`, with `,arbiter=DISK,machine=NAME` if several machines share it [default:
    /// the archive of `serve fs:`]
    #[arg(value_name = "ARCHIVE", default_value = "", hide_default_value = true)]
    pub archive: Spec,
    /// Interfaces to the Ethernet of its AoE disks (e1.0)
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
    /// Do not ask the arbiter of a shared archive: you know that no other machine is at work
    #[arg(long)]
    pub main_is_dead: bool,
}

impl FsAt {
    /// Returns the archive; removes repeated interfaces.
    pub fn spec(mut self) -> (Spec, bool) {
        let over = &mut self.archive.options.over;
        let new: Vec<String> = self.over.into_iter().filter(|name| !over.contains(name)).collect();
        over.extend(new);
        (self.archive, self.main_is_dead)
    }
}
