//! The client's side of a change file.

use nine_proto::{Errno, OpenFlags};

use super::line::{Change, Cursor, Line, parse_line};
use super::{NAME, PATHS_MAX};
use crate::client::{Error, File, Result};

/// Bytes of a read: more than the longest line of our servers, so that the message size is the limit.
const COUNT: u32 = 4 * PATHS_MAX as u32 + 128;

/// An open change file, for one reader.
pub struct Watch {
    file: File,
    cursor: Option<Cursor>,
}

impl Watch {
    /// Opens it below the root of a tree, to read changes from now on, or from the position of an earlier reader.
    ///
    /// # Errors
    /// ENOENT: the server publishes no changes. EINVAL: the position is in the future. ENFILE: too many readers.
    pub async fn open(root: &File, from: Option<&Cursor>) -> Result<Self> {
        let name = from.map_or_else(|| NAME.to_owned(), Cursor::name);
        let file = root.open(name, OpenFlags::READ).await?;
        Ok(Self { file, cursor: None })
    }

    /// Returns the next lines, at least one, and waits for them. An invalid line becomes a [`Change::Lost`].
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

    /// The position after the lines returned so far; `None` before the first read.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    fn pass(&mut self, line: &Line) {
        match (line, &mut self.cursor) {
            (Line::Here(cursor), at) => *at = Some(cursor.clone()),
            // A `lost` line's number is that of the next change, and so is the number of a `blind` line at the start.
            (Line::Change(number, Change::Lost(_) | Change::Blind(_)), Some(at)) => at.next = *number,
            (Line::Change(number, _), Some(at)) => at.next = number.saturating_add(1),
            (Line::Change(..), None) => {}
        }
    }
}
