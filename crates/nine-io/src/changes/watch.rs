//! A client's end of it.

use nine_proto::{Errno, OpenFlags};

use super::line::{Change, Cursor, Line, parse_line};
use super::{NAME, PATHS_MAX};
use crate::client::{Error, File, Result};

/// Bytes of a read: more than the longest line that a server of ours writes, so that the count of a message decides.
const COUNT: u32 = 4 * PATHS_MAX as u32 + 128;

/// An open file of changes, for who reads it from the beginning.
pub struct Watch {
    file: File,
    cursor: Option<Cursor>,
}

impl Watch {
    /// Opens it in a tree, to read what changes from now on, or from where another one was.
    ///
    /// # Errors
    /// ENOENT: the server tells no changes. EINVAL: it has not come so far. ENFILE: too many read them.
    pub async fn open(root: &File, from: Option<&Cursor>) -> Result<Self> {
        let name = from.map_or_else(|| NAME.to_owned(), Cursor::name);
        let file = root.open(name, OpenFlags::READ).await?;
        Ok(Self { file, cursor: None })
    }

    /// The next lines, one at least: waits for them. A line that is none is said as a [`Change::Lost`].
    pub async fn next(&mut self) -> Result<Vec<Line>> {
        let bytes = self.file.read(0, COUNT.min(self.file.iounit())).await?;
        let Some(text) = bytes.strip_suffix(b"\n") else {
            return Err(Error::Remote(nine_proto::Error::new(Errno::EPROTO, "changes end within a line")));
        };
        let next = self.cursor.as_ref().map_or(0, |cursor| cursor.next);
        let lines = text.split(|&byte| byte == b'\n');
        let lines: Vec<_> =
            lines.map(|line| parse_line(line).unwrap_or(Line::Change(next, Change::Lost(next)))).collect();
        lines.iter().for_each(|line| self.pass(line));
        Ok(lines)
    }

    /// Where it is: behind the lines that it has given. `None`: nothing was read.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    fn pass(&mut self, line: &Line) {
        match (line, &mut self.cursor) {
            (Line::Here(cursor), at) => *at = Some(cursor.clone()),
            // What is lost is behind; and what is blind at the beginning has the number of what comes.
            (Line::Change(number, Change::Lost(_) | Change::Blind(_)), Some(at)) => at.next = *number,
            (Line::Change(number, _), Some(at)) => at.next = number.saturating_add(1),
            (Line::Change(..), None) => {}
        }
    }
}
