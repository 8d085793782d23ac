//! The verbs: each takes its arguments and returns a [`Tally`].
//!
//! The error of one operand is printed at once, and the next operand follows. An error that would repeat for all (no
//! server, or a closed standard output) ends the verb.

mod aoe;
mod block;
mod cat;
mod cec;
mod check;
mod config;
mod fs;
mod keys;
mod ls;
mod mkdir;
mod mux;
mod mv;
mod partition;
mod rm;
mod stat;
#[cfg(feature = "top")]
mod top;
mod tree;
mod watch;
mod write;

use anyhow::{Result, bail};
use nine_io::client::{Entry, Error, File};
use nine_mux::HIDDEN_FILES;
use nine_proto::{Errno, GetMask, OpenFlags, mode};
use rustix::fs::Mode;

use crate::cli::{Cli, Partition, PartitionVerb, Verb};
use crate::config::{Config, Level, LogFormat};
use crate::dial::Sessions;
use crate::fail::Tally;
use crate::operand::Place;
use crate::serve::partition as here;
use crate::{completions, copy, log, serve};

pub use cec::escape;

/// Runs the verb of the command line.
pub fn run(cli: Cli) -> Result<Tally> {
    let Cli { general, verb } = cli;
    crate::fail::verb(verb.name());
    let config = match &verb {
        // These verbs report errors in the files themselves, or do not need the files.
        Verb::Config(_) | Verb::Completions(_) | Verb::Man(_) => Config::default(),
        _ => Config::load(&general)?,
    };
    let usual = if verb.serves() { Level::Info } else { Level::Warn };
    log::start(
        general.log.or(config.log).unwrap_or(usual),
        general.log_format.or(config.log_format).unwrap_or(LogFormat::Text),
    );
    match verb {
        Verb::Serve(args) => serve::run(args, &config, &general)?,
        Verb::Ls(args) => return ls::run(args, &config),
        Verb::Cat(args) => return cat::run(args, &config),
        Verb::Get(args) => return copy::get(args, &config),
        Verb::Put(args) => return copy::put(args, &config),
        Verb::Cp(args) => return copy::cp(args, &config),
        Verb::Mv(args) => return mv::run(args, &config),
        Verb::Rm(args) => return rm::run(args, &config),
        Verb::Mkdir(args) => return mkdir::run(args, &config),
        Verb::Stat(args) => return stat::run(args, &config),
        Verb::Write(args) => return write::run(args, &config),
        Verb::Tree(args) => return tree::run(args, &config),
        Verb::Mount(args) => serve::mount::run(*args, &config)?,
        Verb::Unmount(args) => nine_gate::fuse::unmount(&args.dir, args.lazy)?,
        Verb::Ns(args) => serve::ns::run(args, &config)?,
        Verb::Watch(args) => return watch::run(args, &config),
        Verb::Mux(args) => return mux::run(args, &config),
        #[cfg(feature = "top")]
        Verb::Top(args) => return top::run(args, &config),
        #[cfg(not(feature = "top"))]
        Verb::Top(_) => {
            anyhow::bail!("this program was built without the verb `top`: build it with `--features top`")
        }
        Verb::Aoe(args) => aoe::run(args)?,
        Verb::Block(args) => block::run(args)?,
        Verb::Fs(args) => return fs::run(args, &config),
        Verb::Cec(args) => cec::run(args)?,
        Verb::Partition(Partition { verb }) => match verb {
            PartitionVerb::Run(args) if args.on.is_empty() => here::run(*args, &config)?,
            PartitionVerb::Run(args) => partition::run(*args, &config)?,
            PartitionVerb::Ls(args) => return partition::ls(args, &config),
            PartitionVerb::Kill(args) => return partition::kill(args, &config),
        },
        Verb::Keys(args) => keys::run(args)?,
        Verb::CheckServer(args) => return check::run(args, &config),
        Verb::Config(args) => config::run(args, &general)?,
        Verb::Completions(args) => completions::completions(args.shell)?,
        Verb::Man(args) => completions::man(&args.dir)?,
    }
    Ok(Tally::default())
}

/// Returns the entries of a directory, sorted by name, with their attributes if requested.
async fn sorted(dir: &File, attrs: Option<GetMask>) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut reading = dir.read_dir().await?;
    match attrs {
        Some(mask) => {
            while let Some(block) = reading.next_with_attrs(mask).await {
                entries.extend(block?);
            }
        }
        None => {
            while let Some(entry) = reading.next().await {
                entries.push(entry?);
            }
        }
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Walks to the directory with the files of a mux, or with those of a server that is served without one.
async fn mux_files(sessions: &Sessions, place: &Place) -> Result<File> {
    let is_walk = |error: &anyhow::Error| error.downcast_ref::<Error>().is_some();
    // Only a server without a mux has this name. There `mux` is a name like any other.
    match sessions.walk(&place.below(HIDDEN_FILES.as_bytes()), true).await {
        Err(error) if is_walk(&error) => {}
        other => return other,
    }
    let place = place.below(b"mux");
    match sessions.walk(&place, true).await {
        Err(error) if error.downcast_ref().is_some_and(|e: &Error| e.errno() == Errno::ENOENT) => {
            bail!(
                "there is no {place}: its name space file says nomux, or only the owner of this server sees it"
            )
        }
        other => other,
    }
}

/// Reads a small file of a directory, at most [`TEXT_MAX`] bytes.
async fn text(dir: &File, name: &str) -> Result<String> {
    let file = dir.open(name, OpenFlags::READ).await?;
    let mut bytes = vec![0; TEXT_MAX as usize];
    let n = file.read_at(0, &mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
}

/// Returns whether the entry is hidden without `-a`.
fn is_hidden(entry: &Entry) -> bool {
    entry.name.starts_with(b".")
}

/// Returns whether a mode is that of a symbolic link.
fn is_link(st_mode: u32) -> bool {
    st_mode & mode::S_IFMT == mode::S_IFLNK
}

/// Returns the umask of this process, which servers do not know.
fn own_umask() -> u32 {
    // The umask can only be read by setting it. This is safe while there is one thread.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    umask.bits()
}

/// Limit of a small file, bytes.
const TEXT_MAX: u32 = 16 << 20;
