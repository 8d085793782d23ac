//! Growth of a worm while its archive is served.
//!
//! In: a device to append; or the file of both devices, if it is longer than its partition table says. Out: more
//! sectors at the worm's end, now and after the next start.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use nine_block::{Device, Growing, Part, SECTOR};
use nine_fs::Grow;
use nine_net::Env;

use crate::blocks::Over;
use crate::disks::{Open, Parts};

/// The source of new sectors.
#[derive(Clone)]
pub enum From {
    /// Devices that the command names.
    Devices,
    /// Space at the end of the file that holds both devices.
    File(PathBuf, Arc<dyn Device>),
}

/// Returns the function that grows this worm.
pub fn by(from: From, growing: Arc<Growing>, over: Over) -> Grow {
    Arc::new(move |words| {
        let (from, growing, over, words) = (from.clone(), growing.clone(), over.clone(), words.to_owned());
        Box::pin(async move {
            let grown = match (&from, &*words) {
                (From::Devices, "") => Ok(()),
                (From::Devices, words) => add(words, &growing, over).await,
                (From::File(path, whole), "") => longer(path, whole, &growing).await,
                (From::File(path, _), _) => Err(anyhow::anyhow!(
                    "{}: a file grows by itself: make it larger, and say `grow` alone",
                    path.display()
                )),
            };
            grown.map_err(|error| format!("{error:#}"))
        })
    })
}

async fn add(words: &str, growing: &Growing, over: Over) -> Result<()> {
    let env = over.env;
    let parts = Parts::open(OsStr::new(words), Open::Write, &over)?;
    ensure!(!parts.has_ram(), "what is in memory is gone with this program");
    parts.are_blank().await?;
    let mut set = [0; 16];
    env.entropy(&mut set);
    let make = parts.has_made().then_some(set);
    let before = growing.name();
    growing.add(parts.build(env, make).await?.device)?;
    tracing::warn!(
        "the worm is {} now: write that for {before} where the archive is mounted, or it does not start again",
        growing.name()
    );
    Ok(())
}

/// Extends the worm's partition over the space after it in the file, and appends the space to the worm.
async fn longer(path: &Path, whole: &Arc<dyn Device>, growing: &Growing) -> Result<()> {
    whole.look().await?;
    let end = whole.shape().sectors / UNIT * UNIT;
    let table = whole.read(1, 1).await?;
    let text = table.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = str::from_utf8(text).context("its table is no text")?;
    let (mut lines, mut from) = (String::new(), None);
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["part", "worm", start, old] => {
                from = Some(old.parse::<u64>().context("its table")?);
                lines += &format!("part worm {start} {end}\n");
            }
            ["part", name, _, other] => {
                let is_behind = other.parse::<u64>().is_ok_and(|other| from.is_some_and(|from| other > from));
                ensure!(!is_behind, "the partition `{name}` is behind the worm");
                lines += &format!("{line}\n");
            }
            _ => lines += &format!("{line}\n"),
        }
    }
    let Some(from) = from else { bail!("{}: its table has no worm", path.display()) };
    if end <= from {
        return Ok(());
    }
    let mut bytes = lines.into_bytes();
    ensure!(bytes.len() as u64 <= SECTOR, "its table has no room");
    bytes.resize(SECTOR as usize, 0);
    // The table is one sector, so this write is atomic.
    whole.write(1, Bytes::from(bytes)).await?;
    whole.flush().await?;
    let name = format!("p({})\"worm\" from {from} on", whole.name());
    let part = Part::new(whole.clone(), name, from, end - from)?;
    Ok(growing.add(Arc::new(part))?)
}

/// Unit of partition sizes, sectors.
const UNIT: u64 = 2048;
