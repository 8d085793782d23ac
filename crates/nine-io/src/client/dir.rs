//! Directories: entries in any dialect, and the attributes of many files at once.
//!
//! In .L entries come by Treaddir, and attributes by Twalk, Tgetattr and Tclunk for many names at a time. In 9P2000 and
//! .u the data of a directory consists of stat records, so attributes cost nothing.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use nine_proto::msg::Tmsg;
use nine_proto::{Attr, Entries, Errno, GetMask, OpenFlags, Qid};

use super::answer::Answer;
use super::error::{Error, Result};
use super::file::File;
use super::window::FutureWindow;

/// Maximum directory data requested at once, in bytes.
const DIR_BLOCK_MAX: u32 = 256 * 1024;
/// Maximum number of files with attribute requests in flight.
const STATS: usize = 256;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name; never "." or "..", and nothing that could lead out of the directory.
    pub name: Box<[u8]>,
    /// Its qid; the version may be 0 here.
    pub qid: Qid,
    /// `d_type` of Linux: 4 directory, 8 file, 10 symbolic link, 0 unknown.
    pub ty: u8,
    /// Its attributes, if they came with the entry.
    pub attr: Option<Attr>,
    /// The position after it, for [`File::read_dir_block`]; 0 if the dialect can only continue after a whole block.
    pub cookie: u64,
}

impl Entry {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.qid.is_dir()
    }
}

impl File {
    /// Reads the entries of this directory, which must not be open and stays so.
    pub async fn read_dir(&self) -> Result<ReadDir<'_>> {
        let open = self.open("", OpenFlags::READ).await?;
        Ok(ReadDir { dir: self, open, cookie: 0, entries: VecDeque::new(), ended: false })
    }

    /// Reads one block of entries of this open directory from `cookie` on (0: the start). Returns them and the cookie
    /// of the next block; `None` at the end. A block may be empty, because "." and ".." are left out.
    pub async fn read_dir_block(&self, cookie: u64, count: u32) -> Result<Option<(Vec<Entry>, u64)>> {
        let (fid, offset, count) = (self.fid(), cookie, count.min(self.iounit()));
        let is_l = self.client().dialect().is_l();
        let message =
            if is_l { Tmsg::Readdir { fid, offset, count } } else { Tmsg::Read { fid, offset, count } };
        let data = match self.call(message).await? {
            Answer::Data(data) => data,
            other => other.never(),
        };
        if data.is_empty() {
            return Ok(None);
        }
        let (entries, last) = self.decode(&data)?;
        let next = if is_l { last } else { cookie + data.len() as u64 };
        if next == cookie {
            return Err(botched("the server goes on with the same place of the directory"));
        }
        Ok(Some((entries, next)))
    }

    fn decode(&self, data: &Bytes) -> Result<(Vec<Entry>, u64)> {
        let dialect = self.client().dialect();
        let (mut entries, mut last) = (Vec::new(), 0);
        for entry in Entries::new(data, dialect) {
            let (entry, stat) = entry.map_err(|_| botched("the server sends malformed directory data"))?;
            last = entry.cookie;
            if matches!(entry.name, b"." | b"..") {
                continue;
            }
            if entry.name.is_empty() || entry.name.iter().any(|b| matches!(b, b'/' | 0)) {
                return Err(botched("the server lists a name that no file can have"));
            }
            let names = &*self.client().0.options.names;
            entries.push(Entry {
                name: entry.name.into(),
                qid: entry.qid,
                ty: entry.ty,
                attr: stat.map(|stat| stat.to_attr(dialect, names)),
                cookie: entry.cookie,
            });
        }
        Ok((entries, last))
    }

    /// Requests the attributes of many names in this directory, 256 at a time. So a long link costs a few round trips,
    /// not one per name. Results are in the order of the names. A name that is gone has its own error.
    pub fn stat_all<I>(&self, names: I, mask: GetMask) -> Stats<'_, I::IntoIter>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]> + Send,
    {
        Stats { dir: self, names: names.into_iter(), mask, window: FutureWindow::new() }
    }

    async fn stat_of(&self, name: &[u8], mask: GetMask) -> Result<Attr> {
        self.walk(name).await?.getattr(mask).await
    }
}

/// The entries of a directory, one by one. It buffers one block.
pub struct ReadDir<'f> {
    dir: &'f File,
    open: File,
    cookie: u64,
    entries: VecDeque<Entry>,
    ended: bool,
}

impl ReadDir<'_> {
    /// The next entry; `None` at the end and after an error.
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        while self.entries.is_empty() {
            match self.block().await? {
                Ok(entries) => self.entries = entries.into(),
                Err(error) => return Some(Err(error)),
            }
        }
        self.entries.pop_front().map(Ok)
    }

    /// Returns the next entries with their attributes (of `mask`), as many as one block has; `None` at the end and
    /// after an error. An entry that is gone when its attributes are requested is left out. After any other error an
    /// entry has no attributes.
    pub async fn next_with_attrs(&mut self, mask: GetMask) -> Option<Result<Vec<Entry>>> {
        let mut entries = match Vec::from(std::mem::take(&mut self.entries)) {
            empty if empty.is_empty() => match self.block().await? {
                Ok(entries) => entries,
                Err(error) => return Some(Err(error)),
            },
            entries => entries,
        };
        if entries.iter().all(|entry| entry.attr.is_some()) {
            return Some(Ok(entries));
        }
        let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
        let mut stats = self.dir.stat_all(names, mask);
        let mut gone = Vec::new();
        for (i, entry) in entries.iter_mut().enumerate() {
            match stats.next().await? {
                Ok(attr) => entry.attr = Some(attr),
                Err(error) if error.errno() == Errno::ENOENT => gone.push(i),
                Err(error) if error.is_disconnect() => return Some(Err(error)),
                Err(_) => {}
            }
        }
        let mut at = 0..;
        entries.retain(|_| at.next().is_none_or(|i| gone.binary_search(&i).is_err()));
        Some(Ok(entries))
    }

    async fn block(&mut self) -> Option<Result<Vec<Entry>>> {
        while !self.ended {
            match self.open.read_dir_block(self.cookie, DIR_BLOCK_MAX).await {
                Ok(Some((entries, next))) => {
                    self.cookie = next;
                    if !entries.is_empty() {
                        return Some(Ok(entries));
                    }
                }
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// The attributes of many names: see [`File::stat_all`].
pub struct Stats<'f, I> {
    dir: &'f File,
    names: I,
    mask: GetMask,
    window: FutureWindow<Pin<Box<dyn Future<Output = Result<Attr>> + Send + 'f>>>,
}

impl<'f, I> Stats<'f, I>
where
    I: Iterator,
    I::Item: AsRef<[u8]> + Send + 'f,
{
    /// The attributes of the next name; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Attr>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Attr>>> {
        while self.window.len() < STATS
            && let Some(name) = self.names.next()
        {
            let (dir, mask) = (self.dir, self.mask);
            self.window.push_back(Box::pin(async move { dir.stat_of(name.as_ref(), mask).await }));
        }
        self.window.poll_next_driving_all(cx)
    }
}

fn botched(text: &str) -> Error {
    nine_proto::Error::new(Errno::EPROTO, text).into()
}
