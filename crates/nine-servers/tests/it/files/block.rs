//! Disks, as clients see them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use nine_block::{Device, Io, Ram, SECTOR, Shape};
use nine_io::client::File;
use nine_proto::{Dialect, Errno, GetMask, OpenFlags};
use nine_servers::{Blocks, HostDisk};

use crate::files::world::{ALL, content, errno, list, serve};

const RDWR: OpenFlags = OpenFlags::RDWR;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 251 + seed) as u8).collect()
}

/// Runs `main` with a disk named `d`.
fn world(dialect: Dialect, device: Arc<dyn Device>, main: impl AsyncFnOnce(File)) {
    let blocks = Blocks::new(Duration::from_secs(1)).told_by(|who, _| who.owner = true);
    blocks.add("d", device, vec![("config".into(), Box::new(|| "shelf of disks\n".into()))]);
    serve(blocks, dialect, main);
}

#[test]
fn any_bytes_are_written_and_read_wherever_they_begin() {
    for dialect in ALL {
        world(dialect, Arc::new(Ram::new(100)), async |root| {
            assert_eq!(list(&root.walk("d").await.unwrap()).await, ["config", "ctl", "data"]);
            let data = root.open("d/data", RDWR).await.unwrap();
            let attr = root.walk_attr("d/data", GetMask::BASIC).await.unwrap().1;
            assert_eq!(attr.size, 51_200);
            let mut expected = vec![0; 51_200];
            for (n, (at, len)) in [(0, 512), (513, 1), (1000, 3000), (511, 2), (51_199, 1), (5120, 10_240)]
                .into_iter()
                .enumerate()
            {
                let piece = bytes(len, n);
                data.write(at as u64, &piece).await.unwrap();
                expected[at..at + len].copy_from_slice(&piece);
            }
            data.fsync(false).await.unwrap();
            assert!(content(&data).await == expected);
            assert_eq!(data.read(51_100, 1000).await.unwrap(), expected[51_100..]);
            assert!(data.read(60_000, 10).await.unwrap().is_empty());
            assert_eq!(errno(data.write(51_199, b"ab").await), Errno::ENOSPC);
            assert_eq!(
                content(&root.open("d/config", OpenFlags::READ).await.unwrap()).await,
                b"shelf of disks\n"
            );
        });
    }
}

#[test]
fn parts_of_one_sector_written_at_once_are_all_there() {
    world(Dialect::L, Arc::new(Ram::new(8)), async |root| {
        let data = root.open("d/data", RDWR).await.unwrap();
        let pieces: Vec<_> = (0..64u8).map(|n| [n + 1; 7]).collect();
        let writes = pieces.iter().enumerate().map(|(n, piece)| data.write(100 + 7 * n as u64, piece));
        for written in join_all(writes).await {
            written.unwrap();
        }
        assert!(data.read(100, 448).await.unwrap() == pieces.concat());
    });
}

#[test]
fn a_disk_that_grows_is_as_large_when_it_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, bytes(5120, 0)).unwrap();
    let disk = Arc::new(HostDisk::open(&path, false).unwrap());
    world(Dialect::L, disk, async |root| {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(10_240).unwrap();
        let data = root.open("d/data", RDWR).await.unwrap();
        assert_eq!(errno(data.write(5120, b"x").await), Errno::ENOSPC);
        let ctl = root.open("d/ctl", RDWR).await.unwrap();
        ctl.write(0, b"look\n").await.unwrap();
        data.write(5120, b"x").await.unwrap();
        assert_eq!(errno(ctl.write(0, b"dance\n").await), Errno::EOPNOTSUPP);
        data.fsync(false).await.unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap()[5118..5122],
            [bytes(5120, 0)[5118], bytes(5120, 0)[5119], b'x', 0]
        );
    });
}

/// A read-only disk that answers by the requested address.
struct AddressDisk;

impl Device for AddressDisk {
    fn shape(&self) -> Shape {
        Shape { sectors: 4, atom: 1, most: 4, read_only: true, durable: false }
    }

    fn name(&self) -> String {
        "odd".into()
    }

    fn submit(&self, io: Io) {
        match io.at {
            0 => io.end(Ok(Bytes::from(vec![7; SECTOR as usize]))),
            // Fewer bytes than requested.
            1 => io.end(Ok(Bytes::from_static(b"x"))),
            _ => drop(io),
        }
    }
}

#[test]
fn what_a_broken_disk_answers_is_an_error_and_never_an_end() {
    world(Dialect::L, Arc::new(AddressDisk), async |root| {
        assert_eq!(errno(root.open("d/data", RDWR).await), Errno::EACCES);
        let data = root.open("d/data", OpenFlags::READ).await.unwrap();
        assert_eq!(data.read(0, 512).await.unwrap(), vec![7; 512]);
        assert_eq!(errno(data.read(512, 512).await), Errno::EIO);
        assert_eq!(errno(data.read(1024, 512).await), Errno::EIO);
    });
}
