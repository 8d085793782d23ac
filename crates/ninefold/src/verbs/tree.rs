//! `tree`: draws directories as trees. Links are not followed.

use anyhow::Result;
use nine_io::client::File;

use super::{is_hidden, sorted};
use crate::ancestors::Ancestors;
use crate::cli;
use crate::config::Config;
use crate::dial;
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::Output;

pub fn run(args: cli::Tree, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        let mut tree = Tree { args, out: Output::new(), dirs: 0, files: 0 };
        for place in places {
            let walked = sessions.walk(&place, true).await;
            if let Some(top) = tally.check(&place, walked)? {
                tree.draw(place, &top, &mut tally).await?;
            }
        }
        let (dirs, files) = (tree.dirs, tree.files);
        if tally.failed() == 0 || dirs + files > 0 {
            tree.out.print(format_args!("\n{dirs} directories, {files} files\n"))?;
        }
        tree.out.flush()?;
        Ok(tally)
    })
}

struct Tree {
    args: cli::Tree,
    out: Output,
    dirs: u64,
    files: u64,
}

/// A pending row; the last one in the list is drawn next.
struct Row {
    place: Place,
    /// Path from the top.
    path: Vec<u8>,
    name: Box<[u8]>,
    above: Ancestors,
    is_dir: bool,
    is_last: bool,
    /// Levels below the top; the prefix of the name has this many parts.
    level: u32,
    indent: String,
}

impl Tree {
    async fn draw(&mut self, place: Place, top: &File, tally: &mut Tally) -> Result<()> {
        self.out.name(place.to_string().as_bytes())?;
        self.out.print("\n")?;
        let mut todo = Vec::new();
        let path = (Vec::new(), Ancestors::default());
        self.below(&mut todo, place, top, path, (0, String::new()), tally).await?;
        while let Some(row) = todo.pop() {
            self.out.print(&row.indent)?;
            self.out.print(if row.is_last { "└── " } else { "├── " })?;
            self.out.name(&row.name)?;
            self.out.print("\n")?;
            if !row.is_dir {
                self.files += 1;
                continue;
            }
            self.dirs += 1;
            if self.args.levels.is_none_or(|levels| row.level < levels) {
                let indent = row.indent + if row.is_last { "    " } else { "│   " };
                let path = (row.path, row.above);
                self.below(&mut todo, row.place, top, path, (row.level, indent), tally).await?;
            }
        }
        Ok(())
    }

    /// Adds a directory's content to the pending rows, to be drawn next.
    async fn below(
        &self,
        todo: &mut Vec<Row>,
        place: Place,
        top: &File,
        (path, above): (Vec<u8>, Ancestors),
        (level, indent): (u32, String),
        tally: &mut Tally,
    ) -> Result<()> {
        let read = async {
            let dir = top.walk(&path).await?;
            let above = above.with(dir.qid())?;
            anyhow::Ok((sorted(&dir, None).await?, above))
        };
        let Some((mut entries, above)) = tally.check(&place, read.await)? else { return Ok(()) };
        entries.retain(|entry| self.args.all || !is_hidden(entry));
        let begin = todo.len();
        todo.extend(entries.into_iter().rev().map(|entry| Row {
            place: place.below(&entry.name),
            path: [&path[..], b"/", &entry.name].concat(),
            above: above.clone(),
            is_dir: entry.is_dir(),
            name: entry.name,
            is_last: false,
            level: level + 1,
            indent: indent.clone(),
        }));
        if let Some(last) = todo.get_mut(begin) {
            last.is_last = true;
        }
        Ok(())
    }
}
