//! The work of clients: files to fill, and operations at random offsets.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use nine_io::client::Writer;
use nine_proto::msg::{Data, Names, Tmsg};
use nine_proto::{Fid, NOGID, OpenFlags, Tag};

use super::stand::ArchiveTestbed;
use super::{CLIENT_IO_LEN, pattern};
use crate::files::file_name;
use crate::server::MeasuredServer;
use crate::wire::{CycleLoad, LeanConnection, MessageCycle, encoded};

/// The fid of a connection's open file.
pub(super) const OPEN: Fid = Fid(1);

/// Pseudo-random numbers, the same each time.
#[derive(Clone, Copy)]
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Operations on a file's blocks, sequential or random.
pub(super) struct BlockAccess {
    pub tag: Tag,
    pub chance: SeededRandom,
    /// Number of blocks of the file, and the size of a block in bytes.
    pub count: u64,
    pub size: usize,
    /// One of this many operations is a write.
    pub writes: Option<u64>,
    pub data: Vec<u8>,
}

impl BlockAccess {
    pub fn new(tag: Tag, file: u64, size: usize, writes: Option<u64>) -> Self {
        let chance = SeededRandom::new(u64::from(tag.0) + 7);
        Self { tag, chance, count: file / size as u64, size, writes, data: pattern(size, u64::from(tag.0)) }
    }

    /// Returns the offset of the next operation and whether it is a write; then `data` is prepared
    /// for it.
    pub fn next(&mut self) -> (u64, bool) {
        let offset = self.chance.below(self.count) * self.size as u64;
        let is_write = self.writes.is_some_and(|of| self.chance.below(of) == 0);
        // No two blocks may be equal.
        self.data[..8].copy_from_slice(&offset.to_le_bytes());
        (offset, is_write)
    }
}

impl MessageCycle for BlockAccess {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        if n > 0 {
            return false;
        }
        let (offset, is_write) = self.next();
        let message = match is_write {
            true => Tmsg::Write { fid: OPEN, offset, data: Data::Bytes(&self.data) },
            false => Tmsg::Read { fid: OPEN, offset, count: self.size as u32 },
        };
        out.extend_from_slice(&encoded(&message, self.tag));
        true
    }
}

/// Walks to a random file of a directory, opens it, reads its beginning and clunks it.
pub(super) struct FileVisits {
    pub tag: Tag,
    pub chance: SeededRandom,
    /// The directory, and its number of files.
    pub dir: Fid,
    pub files: u32,
    /// Bytes to read; with `None` the file is not opened.
    pub read: Option<u32>,
}

impl MessageCycle for FileVisits {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        let fid = Fid(1000 + u32::from(self.tag.0));
        let message = match (n, self.read) {
            (0, _) => {
                let name = file_name(self.chance.below(self.files.into()) as u32);
                let names = [name.as_bytes()];
                let walk = Tmsg::Walk { fid: self.dir, newfid: fid, names: Names::Slice(&names) };
                out.extend_from_slice(&encoded(&walk, self.tag));
                return true;
            }
            (1, None) | (3, Some(_)) => Tmsg::Clunk { fid },
            (1, Some(_)) => Tmsg::Lopen { fid, flags: OpenFlags::READ.to_wire() },
            (2, Some(count)) => Tmsg::Read { fid, offset: 0, count },
            _ => return false,
        };
        out.extend_from_slice(&encoded(&message, self.tag));
        true
    }
}

/// Opens a connection with an open file of the root.
pub(super) fn on_file(server: &MeasuredServer, name: &str) -> io::Result<LeanConnection> {
    let mut conn = server.dial()?;
    conn.walk(Fid(0), OPEN, name.as_bytes())?;
    conn.call(&Tmsg::Lopen { fid: OPEN, flags: OpenFlags::RDWR.to_wire() })?;
    Ok(conn)
}

/// Creates a load of operations on a file's blocks.
pub(super) fn load(
    server: &MeasuredServer,
    name: &str,
    depth: u16,
    blocks: impl Fn(Tag) -> BlockAccess,
) -> io::Result<CycleLoad<BlockAccess>> {
    CycleLoad::new(vec![on_file(server, name)?], depth, |_, tag| blocks(tag))
}

/// Writes `size` bytes at an offset of a file, which is created if it does not exist.
pub(super) fn write(
    server: &MeasuredServer,
    name: &str,
    offset: u64,
    size: u64,
    seed: u64,
) -> io::Result<()> {
    let (client, root) = server.client()?;
    let file = match root.open(name, OpenFlags::WRITE) {
        Ok(file) => file,
        Err(_) => root.create(name, OpenFlags::WRITE, 0o644, NOGID)?,
    };
    let piece = Bytes::from(pattern(CLIENT_IO_LEN, seed));
    client.wait(async {
        let mut writer = Writer::new(file.file(), offset);
        let mut left = size;
        while left > 0 {
            let some = left.min(CLIENT_IO_LEN as u64);
            writer.push(piece.slice(..some as usize)).await?;
            left -= some;
        }
        writer.finish().await?;
        Ok(())
    })
}

/// Waits until all dumps are on the worm and the archive has no more background work.
pub(super) fn settled(stand: &ArchiveTestbed) -> io::Result<()> {
    copied(stand)?;
    let mut before = String::new();
    loop {
        stand.sync()?;
        let status = stand.ask("status")?;
        let cache = status.lines().find(|line| line.starts_with("cache ")).unwrap_or_default().to_string();
        if cache == before {
            return Ok(());
        }
        before = cache;
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Waits until all dumps are on the worm.
pub(super) fn copied(stand: &ArchiveTestbed) -> io::Result<()> {
    while stand.ask("dumps")?.contains("on its way") {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Writes these files of the root, 32 at a time.
pub(super) fn write_files(
    server: &MeasuredServer,
    files: impl Iterator<Item = u32>,
    size: u64,
    seed: u64,
) -> io::Result<()> {
    let (client, root) = server.client()?;
    let root = root.file();
    client.wait(async {
        let write = async |n: u32| {
            let data = pattern(size as usize, u64::from(n) << 8 | seed);
            let flags = OpenFlags(OpenFlags::WRITE.0 | OpenFlags::TRUNC.0);
            let file = root.open_or_create(file_name(n), flags, 0o644).await?;
            file.write_all_at(0, &data).await?;
            file.close().await
        };
        let write = &write;
        let mut under_way = futures_util::stream::StreamExt::buffer_unordered(
            futures_util::stream::iter(files.map(write)),
            32,
        );
        while let Some(done) = futures_util::stream::StreamExt::next(&mut under_way).await {
            done?;
        }
        Ok(())
    })
}
