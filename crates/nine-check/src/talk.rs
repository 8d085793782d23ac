//! Operations of a client in the messages of each dialect, so that a case for all dialects is written once.
//!
//! In: fids and names. Out: the results in a common form. An operation fails the case if the server refuses it.

use nine_proto::msg::{Data, Names, OnlyUStr, Rmsg, Tmsg};
use nine_proto::{Attr, Dialect, Entries, Fid, GetMask, Numeric, OpenFlags, Qid, Str, mode};

use crate::case::{CaseResult, fail, hold};
use crate::conn::{CheckedConnection, ReceivedReply};

/// A directory entry: a name and its qid.
pub(crate) type NamedQid = (Vec<u8>, Qid);

impl CheckedConnection {
    /// Negotiates a version, which must be this dialect.
    pub(crate) async fn version(&mut self, msize: u32, dialect: Dialect) -> CaseResult {
        (self.dialect, self.agreed) = (Dialect::P2000, false);
        self.msize = self.msize.max(msize);
        let asked = dialect.name().as_bytes();
        match self.ok(Tmsg::Version { msize, version: asked }).await?.msg() {
            Rmsg::Version { msize: agreed, version } if version == asked => {
                (self.dialect, self.msize, self.agreed) = (dialect, agreed.min(msize), true);
                Ok(())
            }
            _ => fail(format!("the server does not agree to {} and msize {msize}", dialect.name())),
        }
    }

    /// Walks. Returns the qids of the names that were reached.
    pub(crate) async fn walk(&mut self, fid: Fid, newfid: Fid, names: &[Str<'_>]) -> CaseResult<Vec<Qid>> {
        match self.ok(walk(fid, newfid, names)).await?.msg() {
            Rmsg::Walk { qids } => Ok(qids.iter().collect()),
            _ => fail("an Rwalk was expected"),
        }
    }

    /// The same. Every name must be reached. Returns the last qid.
    pub(crate) async fn walk_whole(&mut self, fid: Fid, newfid: Fid, names: &[Str<'_>]) -> CaseResult<Qid> {
        let mut qid = Qid::default();
        // At most sixteen names in a message (walk(5)).
        let mut from = fid;
        for part in if names.is_empty() { vec![names] } else { names.chunks(16).collect() } {
            let qids = self.walk(from, newfid, part).await?;
            hold(qids.len() == part.len(), || {
                format!("a walk of {} names that exist ended after {}", part.len(), qids.len())
            })?;
            (from, qid) = (newfid, qids.last().copied().unwrap_or_default());
        }
        Ok(qid)
    }

    /// Returns whether the name is in the directory. No fid stays in use.
    pub(crate) async fn exists(&mut self, dir: Fid, name: Str<'_>) -> CaseResult<bool> {
        let got = self.call(walk(dir, PROBE, &[name])).await?;
        if got.is_error() {
            return Ok(false);
        }
        self.clunk(PROBE).await.map(|()| true)
    }

    pub(crate) fn topen(&self, fid: Fid, flags: OpenFlags) -> Tmsg<'static> {
        if self.dialect.is_l() {
            return Tmsg::Lopen { fid, flags: flags.to_wire() };
        }
        Tmsg::Open { fid, mode: flags.to_mode(self.dialect.is_u()) }
    }

    pub(crate) async fn open(&mut self, fid: Fid, flags: OpenFlags) -> CaseResult<Qid> {
        opened(&self.ok(self.topen(fid, flags)).await?)
    }

    /// Returns the message that creates a plain file and opens it. The directory's fid moves to the file, which must
    /// not exist.
    pub(crate) fn tcreate<'a>(&self, dir: Fid, name: Str<'a>, flags: OpenFlags, bits: u32) -> Tmsg<'a> {
        if self.dialect.is_l() {
            let flags = flags | OpenFlags::CREAT | OpenFlags::EXCL;
            return Tmsg::Lcreate { fid: dir, name, flags: flags.to_wire(), mode: bits, gid: self.gid };
        }
        Tmsg::Create {
            fid: dir,
            name,
            perm: bits,
            mode: flags.to_mode(self.dialect.is_u()),
            extension: OnlyUStr(b""),
        }
    }

    /// Creates a file with this content. `fid` is open on it, for reading and writing.
    pub(crate) async fn make(
        &mut self,
        dir: Fid,
        fid: Fid,
        name: Str<'_>,
        content: &[u8],
    ) -> CaseResult<Qid> {
        self.walk(dir, fid, &[]).await?;
        let qid = opened(&self.ok(self.tcreate(fid, name, OpenFlags::RDWR, 0o644)).await?)?;
        self.write_all(fid, 0, content).await?;
        Ok(qid)
    }

    /// The same; no fid stays in use.
    pub(crate) async fn put(&mut self, dir: Fid, name: Str<'_>, content: &[u8]) -> CaseResult<Qid> {
        let qid = self.make(dir, PROBE, name, content).await?;
        self.clunk(PROBE).await?;
        Ok(qid)
    }

    /// Creates a directory; no fid stays in use.
    pub(crate) async fn mkdir(&mut self, dir: Fid, name: Str<'_>) -> CaseResult<Qid> {
        self.mkdir_with(dir, name, 0o755).await
    }

    pub(crate) async fn mkdir_with(&mut self, dir: Fid, name: Str<'_>, bits: u32) -> CaseResult<Qid> {
        if self.dialect.is_l() {
            let asked = Tmsg::Mkdir { dfid: dir, name, mode: bits, gid: self.gid };
            return match self.ok(asked).await?.msg() {
                Rmsg::Mkdir { qid } => Ok(qid),
                _ => fail("an Rmkdir was expected"),
            };
        }
        self.walk(dir, PROBE, &[]).await?;
        let perm = mode::DMDIR | bits;
        let asked = Tmsg::Create { fid: PROBE, name, perm, mode: 0, extension: OnlyUStr(b"") };
        let qid = opened(&self.ok(asked).await?)?;
        self.clunk(PROBE).await?;
        Ok(qid)
    }

    pub(crate) async fn clunk(&mut self, fid: Fid) -> CaseResult {
        self.ok(Tmsg::Clunk { fid }).await.map(drop)
    }

    /// Removes a name, with its file.
    pub(crate) async fn unlink(&mut self, dir: Fid, name: Str<'_>) -> CaseResult {
        match self.try_unlink(dir, name).await? {
            None => Ok(()),
            Some(got) => fail(format!("what was to be removed was not: {}", got.text())),
        }
    }

    /// The same. Returns the refusal, if there is one. A .L server may have only Tunlinkat, or only Tremove.
    pub(crate) async fn try_unlink(&mut self, dir: Fid, name: Str<'_>) -> CaseResult<Option<ReceivedReply>> {
        let qid = self.walk_whole(dir, PROBE, &[name]).await?;
        let got = self.call(Tmsg::Remove { fid: PROBE }).await?;
        if !got.is_unsupported() {
            return Ok(got.is_error().then_some(got));
        }
        // It is unknown whether the unsupported message has clunked the fid.
        self.call(Tmsg::Clunk { fid: PROBE }).await?;
        let flags = if qid.is_dir() { REMOVEDIR } else { 0 };
        let got = self.call(Tmsg::Unlinkat { dirfid: dir, name, flags }).await?;
        Ok(got.is_error().then_some(got))
    }

    /// Sends one read.
    pub(crate) async fn read(&mut self, fid: Fid, offset: u64, count: u32) -> CaseResult<Vec<u8>> {
        let got = self.ok(Tmsg::Read { fid, offset, count }).await?;
        let Rmsg::Read { data } = got.msg() else { return fail("an Rread was expected") };
        let data = data.bytes();
        hold(data.len() <= count as usize, || format!("{count} bytes were asked for, {} came", data.len()))?;
        Ok(data.to_vec())
    }

    /// Reads everything from the start, up to 1 MiB.
    pub(crate) async fn content(&mut self, fid: Fid) -> CaseResult<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < 1 << 20 {
            let part = self.read(fid, all.len() as u64, self.msize - IOHDRSZ).await?;
            if part.is_empty() {
                break;
            }
            all.extend(part);
        }
        Ok(all)
    }

    /// Reads a file by its name; no fid stays in use.
    pub(crate) async fn content_of(&mut self, dir: Fid, name: Str<'_>) -> CaseResult<Vec<u8>> {
        self.walk_whole(dir, PROBE, &[name]).await?;
        self.open(PROBE, OpenFlags::READ).await?;
        let content = self.content(PROBE).await?;
        self.clunk(PROBE).await?;
        Ok(content)
    }

    /// Sends one write. Returns the number of bytes accepted.
    pub(crate) async fn write(&mut self, fid: Fid, offset: u64, data: &[u8]) -> CaseResult<u32> {
        match self.ok(Tmsg::Write { fid, offset, data: Data::Bytes(data) }).await?.msg() {
            Rmsg::Write { count } => {
                hold(count as usize <= data.len(), || {
                    format!("{} bytes were sent, {count} are said to be written", data.len())
                })?;
                Ok(count)
            }
            _ => fail("an Rwrite was expected"),
        }
    }

    pub(crate) async fn write_all(&mut self, fid: Fid, mut offset: u64, mut data: &[u8]) -> CaseResult {
        while !data.is_empty() {
            let most = data.len().min((self.msize - IOHDRSZ) as usize);
            let n = self.write(fid, offset, &data[..most]).await?;
            hold(n > 0, || format!("a write of {most} bytes took none"))?;
            data = &data[n as usize..];
            offset += u64::from(n);
        }
        Ok(())
    }

    /// Returns the attributes of a file.
    pub(crate) async fn attr(&mut self, fid: Fid) -> CaseResult<Attr> {
        let asked = self.tattr(fid);
        match self.ok(asked).await?.msg() {
            Rmsg::Getattr { attr } => Ok(attr),
            Rmsg::Stat { stat } => Ok(stat.to_attr(self.dialect, &Numeric)),
            _ => fail("attributes were expected"),
        }
    }

    /// Returns the message that requests attributes. It changes nothing, and needs only the fid.
    pub(crate) fn tattr(&self, fid: Fid) -> Tmsg<'static> {
        if self.dialect.is_l() { Tmsg::Getattr { fid, mask: GetMask::BASIC.0 } } else { Tmsg::Stat { fid } }
    }

    /// Changes permissions.
    pub(crate) async fn chmod(&mut self, fid: Fid, bits: u32) -> CaseResult {
        let dir = self.attr(fid).await?.mode & mode::S_IFMT == mode::S_IFDIR;
        let asked = if self.dialect.is_l() {
            crate::cases::setattr(fid, 1, |set| set.mode = bits)
        } else {
            let kept = if dir { mode::DMDIR } else { 0 };
            Tmsg::Wstat { fid, stat: nine_proto::Stat { mode: bits | kept, ..nine_proto::Stat::DONT_TOUCH } }
        };
        self.ok(asked).await.map(drop)
    }

    /// Lists a directory without "." and ".."; no fid stays in use.
    pub(crate) async fn list(&mut self, dir: Fid) -> CaseResult<Vec<NamedQid>> {
        self.walk(dir, PROBE, &[]).await?;
        self.open(PROBE, OpenFlags::READ).await?;
        let entries = self.entries(PROBE, self.msize - IOHDRSZ).await?;
        self.clunk(PROBE).await?;
        Ok(entries)
    }

    /// Lists an open directory from its start, in reads of `count` bytes.
    pub(crate) async fn entries(&mut self, fid: Fid, count: u32) -> CaseResult<Vec<NamedQid>> {
        let (mut all, mut offset) = (Vec::new(), 0);
        for _ in 0..READS_MAX {
            let (entries, next) = self.some_entries(fid, offset, count).await?;
            let Some(next) = next else { return Ok(all) };
            all.extend(entries);
            offset = next;
        }
        fail(format!("a directory without an end: {} entries after {READS_MAX} reads", all.len()))
    }

    /// Sends one read of a directory. Returns its entries without "." and "..", and the next offset; `None` at the
    /// end.
    pub(crate) async fn some_entries(
        &mut self,
        fid: Fid,
        offset: u64,
        count: u32,
    ) -> CaseResult<(Vec<NamedQid>, Option<u64>)> {
        let l = self.dialect.is_l();
        let asked = if l { Tmsg::Readdir { fid, offset, count } } else { Tmsg::Read { fid, offset, count } };
        let got = self.ok(asked).await?;
        let data = dir_data(&got)?;
        hold(data.len() <= count as usize, || {
            format!("{count} bytes of a directory were asked for, {} came", data.len())
        })?;
        let mut entries = Vec::new();
        let mut cookie = offset;
        for entry in Entries::new(data, self.dialect) {
            let (entry, _) = entry.or_else(|_| fail("the directory data are no whole entries"))?;
            cookie = entry.cookie;
            if !matches!(entry.name, b"." | b"..") {
                entries.push((entry.name.to_vec(), entry.qid));
            }
        }
        let next = if l { cookie } else { offset + data.len() as u64 };
        Ok((entries, (!data.is_empty()).then_some(next)))
    }
}

/// Returns the directory data of an answer.
pub(crate) fn dir_data(got: &ReceivedReply) -> CaseResult<&[u8]> {
    match got.msg() {
        Rmsg::Read { data } | Rmsg::Readdir { data } => Ok(data.bytes()),
        _ => fail("directory data were expected"),
    }
}

/// Returns the qid of an answer to an open or a create.
pub(crate) fn opened(got: &ReceivedReply) -> CaseResult<Qid> {
    match got.msg() {
        Rmsg::Open { qid, .. }
        | Rmsg::Create { qid, .. }
        | Rmsg::Lopen { qid, .. }
        | Rmsg::Lcreate { qid, .. } => Ok(qid),
        _ => fail("an open file was expected"),
    }
}

pub(crate) fn walk<'a>(fid: Fid, newfid: Fid, names: &'a [Str<'a>]) -> Tmsg<'a> {
    Tmsg::Walk { fid, newfid, names: Names::Slice(names) }
}

/// A fid of the helpers above; no case uses it.
const PROBE: Fid = Fid(99);
/// `AT_REMOVEDIR` on the wire.
pub(crate) const REMOVEDIR: u32 = 0x200;
/// The length of a message around its data, in bytes.
pub(crate) const IOHDRSZ: u32 = nine_proto::frame::IOHDRSZ;
/// The maximum number of reads of one directory; no case needs as many.
const READS_MAX: usize = 2000;
