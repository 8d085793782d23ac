//! Command line of the `fs` verbs for archives that several machines may serve.

use clap::Args;

use super::FsOf;
use crate::archive::Spec;

/// Make, or look at, the disk on which machines agree which of them is the main one of an archive
///
/// It takes 128 KiB of a disk that all machines reach, and that fails with neither of them: a target on an Ethernet of
/// a third one. See docs/archive.md, "Two machines".
#[derive(Debug, Args)]
pub struct FsArbiter {
    /// A device as in docs/block.md (e5.0), a file that is there, or an object of a store: s3"attic/turns"
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// The machines that may be the main one, 2 to 15; without names: what is there is shown
    #[arg(value_name = "MACHINE", num_args = 0..)]
    pub machines: Vec<String>,
    /// Seconds after which a machine that says nothing is not the main one any more
    #[arg(long, value_name = "SECONDS", default_value = "4")]
    pub period: f64,
    /// Whatever is there now
    #[arg(long)]
    pub force: bool,
    /// What machines have written on it cannot be read any more: it is made anew, with the same machines, while none of
    /// them is at work
    #[arg(long, conflicts_with_all = ["machines", "force"])]
    pub again: bool,
    /// With --again: the newest epoch on the worm, as `ninefold fs status` shows it
    #[arg(long, value_name = "EPOCH", default_value = "0", requires = "again")]
    pub behind: u64,
    /// Interfaces to the Ethernet of its disk there: e1.0
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
}

/// Make a machine that stands by the main one of an archive
///
/// Refused while the main one is alive.
#[derive(Debug, Args)]
pub struct FsTakeover {
    /// The main one is dead, whatever the arbiter says, or it is not there: if that is not so, what both change is lost
    /// on one of them
    #[arg(long)]
    pub main_is_dead: bool,
    #[command(flatten)]
    pub of: FsOf,
}

/// An archive that nobody serves, to be worked on.
#[derive(Debug, Args)]
pub struct FsAt {
    /// The path of a file, or `c CACHE WORM`, with `,arbiter=DISK,machine=NAME` where machines take turns; what
    /// `serve fs:` makes if not given
    #[arg(value_name = "ARCHIVE", default_value = "", hide_default_value = true)]
    pub archive: Spec,
    /// Interfaces to the Ethernet of its disks there: e1.0
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub over: Vec<String>,
    /// Of machines that take turns no other one is at work, though that cannot be asked: you answer for it
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
