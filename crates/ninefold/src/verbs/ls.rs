//! `ls`: lists directories, sorted by name, one entry per line. Attributes are requested for many files at a time.

use anyhow::Result;
use futures_util::stream::{self, StreamExt};
use nine_io::client::{Entry, File};
use nine_proto::{Attr, GetMask};

use super::{is_hidden, is_link, sorted};
use crate::ancestors::Ancestors;
use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::{self, Output};

/// Limit of links that are read at once.
const LINKS: usize = 64;

pub fn run(args: cli::Ls, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let headed = places.len() > 1 || args.recursive;
        let mut ls = Ls { args, out: Output::new(), headed, blank: false };
        let mut tally = Tally::default();
        let mut dirs = Vec::new();
        for place in places {
            let shown = ls.operand(&sessions, &place).await;
            if let Some(Some(dir)) = tally.check(&place, shown)? {
                dirs.push((place, dir));
            }
        }
        for (place, dir) in dirs {
            ls.tree(place, &dir, &mut tally).await?;
        }
        ls.out.flush()?;
        Ok(tally)
    })
}

struct Ls {
    args: cli::Ls,
    out: Output,
    /// Print a directory's name above its entries.
    headed: bool,
    /// Something was printed, so a blank line must follow.
    blank: bool,
}

/// A line of output.
struct Row {
    name: Box<[u8]>,
    attr: Option<Attr>,
    target: Option<Box<[u8]>>,
}

impl Ls {
    /// Shows a file; returns a directory for later.
    async fn operand(&mut self, sessions: &Sessions, place: &Place) -> Result<Option<File>> {
        let file = sessions.walk(place, !self.args.long).await?;
        if file.qid().is_dir() {
            return Ok(Some(file));
        }
        let attr = file.getattr(GetMask::BASIC).await?;
        let target = if is_link(attr.mode) { Some(file.readlink().await?) } else { None };
        let name = place.to_string().into_bytes().into();
        self.rows(&[Row { name, attr: Some(attr), target }])?;
        self.blank = true;
        Ok(None)
    }

    /// Shows a directory and, with -R, the directories below it.
    async fn tree(&mut self, place: Place, top: &File, tally: &mut Tally) -> Result<()> {
        let mut todo = vec![(place, Vec::new(), Ancestors::default())];
        while let Some((place, path, above)) = todo.pop() {
            let listed = self.entries(top, &path, &above).await;
            let Some((entries, above)) = tally.check(&place, listed)? else { continue };
            if self.headed {
                self.out.print(if self.blank { "\n" } else { "" })?;
                self.out.name(place.to_string().as_bytes())?;
                self.out.print(":\n")?;
            }
            self.blank = true;
            if self.args.recursive {
                let dirs = entries.iter().rev().filter(|entry| entry.is_dir());
                let below = |dir: &Entry| [&path[..], b"/", &dir.name].concat();
                todo.extend(dirs.map(|dir| (place.below(&dir.name), below(dir), above.clone())));
            }
            let rows = self.with_targets(top, &path, entries).await;
            self.rows(&rows)?;
        }
        Ok(())
    }

    async fn entries(&self, top: &File, path: &[u8], above: &Ancestors) -> Result<(Vec<Entry>, Ancestors)> {
        let dir = top.walk(path).await?;
        let above = above.with(dir.qid())?;
        let attrs = (self.args.long || self.args.json).then_some(GetMask::BASIC);
        let mut entries = sorted(&dir, attrs).await?;
        entries.retain(|entry| self.args.all || !is_hidden(entry));
        Ok((entries, above))
    }

    /// Adds the targets of links, only if they are shown.
    async fn with_targets(&self, top: &File, path: &[u8], entries: Vec<Entry>) -> Vec<Row> {
        let row = async |entry: Entry| {
            let link = entry.attr.as_ref().is_some_and(|attr| is_link(attr.mode));
            let target = if link { target(top, &[path, b"/", &entry.name].concat()).await } else { None };
            Row { name: entry.name, attr: entry.attr, target }
        };
        stream::iter(entries).map(row).buffered(LINKS).collect().await
    }

    fn rows(&mut self, rows: &[Row]) -> Result<()> {
        let widths = Widths::of(rows);
        for Row { name, attr, target } in rows {
            match attr {
                Some(attr) if self.args.json => {
                    self.out.json(&output::object(name, attr, target.as_deref()))?;
                    continue;
                }
                Some(attr) if self.args.long => self.out.print(widths.long(attr))?,
                None if self.args.json || self.args.long => self.out.print("?????????? ")?,
                _ => {}
            }
            self.out.name(name)?;
            if let Some(target) = target {
                self.out.print(" -> ")?;
                self.out.name(target)?;
            }
            self.out.print("\n")?;
        }
        Ok(())
    }
}

async fn target(top: &File, path: &[u8]) -> Option<Box<[u8]>> {
    // If the link is gone or cannot be read, show it without its target.
    top.walk(path).await.ok()?.readlink().await.ok()
}

/// Column widths that fit all rows.
#[derive(Default)]
struct Widths {
    links: usize,
    uid: usize,
    gid: usize,
    size: usize,
}

impl Widths {
    fn of(rows: &[Row]) -> Self {
        let mut widths = Self::default();
        for attr in rows.iter().filter_map(|row| row.attr.as_ref()) {
            widths.links = widths.links.max(digits(attr.nlink));
            widths.uid = widths.uid.max(digits(attr.uid.into()));
            widths.gid = widths.gid.max(digits(attr.gid.into()));
            widths.size = widths.size.max(digits(attr.size));
        }
        widths
    }

    fn long(&self, attr: &Attr) -> String {
        let Self { links, uid, gid, size } = self;
        format!(
            "{} {:>links$} {:>uid$} {:>gid$} {:>size$} {} ",
            output::letters(attr.mode),
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.size,
            output::date(attr.mtime),
        )
    }
}

fn digits(n: u64) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}
