//! Streams in simulated worlds: data, verdicts and all kinds of faults between them.

mod book;
mod cuts;
mod files;
mod flight;
mod liar;
mod order;
mod real;
mod relay;
mod talk;
mod tokens;
mod world;

use std::sync::Arc;
use std::time::Duration;

use nine_io::client::{Direction, File, Stream};
use nine_net::Env;
use nine_proto::{NOGID, OpenFlags};
use nine_servers::Ram;
use nine_sim::{World, seeds};
use world::{Fate, Site, far, pattern};

const SIZE: usize = 18 << 20;

fn ram() -> Arc<Ram> {
    Arc::new(Ram::new(256 << 20))
}

/// Creates a file with these bytes, and opens it for reading.
async fn filled(root: &File, bytes: &[u8]) -> File {
    let file = root.create("f", OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
    file.write_all_at(0, bytes).await.unwrap();
    root.open("f", OpenFlags::READ).await.unwrap()
}

async fn all(stream: &mut Stream<&File>) -> Result<Vec<u8>, nine_io::client::Error> {
    let mut bytes = Vec::new();
    while let Some(data) = stream.next().await {
        bytes.extend_from_slice(&data?);
    }
    Ok(bytes)
}

#[test]
fn a_stream_brings_every_byte_once_and_in_order() {
    for seed in seeds(3) {
        let world = World::new(seed);
        let site = Site::new(&world, ram());
        world.run(async move {
            let (_client, root) = site.client(far(50), site.options()).await;
            let bytes = pattern(SIZE);
            let file = filled(&root, &bytes).await;
            site.fate(Fate::Come(far(50)));
            for offset in [0, 1, 15_000_000] {
                let mut stream = file.stream(offset, Direction::Read).await.unwrap();
                let mut carried = false;
                let mut come = Vec::new();
                while let Some(data) = stream.next().await {
                    carried |= stream.has_connection();
                    come.extend_from_slice(&data.unwrap());
                }
                assert!(come == bytes[offset as usize..] && stream.moved() == come.len() as u64);
                assert_eq!(carried, bytes.len() as u64 - offset >= 8 << 20);
            }
            assert_eq!(site.offers(), ["tcp!*!564"; 2]);
        });
    }
}

#[test]
fn a_stream_takes_every_byte_once_and_in_order() {
    for seed in seeds(3) {
        let world = World::new(seed);
        let site = Site::new(&world, ram());
        world.run(async move {
            let (_client, root) = site.client(far(50), site.options()).await;
            site.fate(Fate::Come(far(50)));
            let bytes = pattern(SIZE);
            let file = root.create("f", OpenFlags::RDWR, 0o644, NOGID).await.unwrap();
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            for piece in bytes.chunks(100_000) {
                assert_eq!(stream.swrite(piece).await.unwrap(), piece.len());
            }
            assert!(stream.has_connection());
            assert_eq!(stream.sclose().await.unwrap(), SIZE as u64);
            let mut back = file.stream(0, Direction::Read).await.unwrap();
            assert!(all(&mut back).await.unwrap() == bytes);
        });
    }
}

#[test]
fn without_a_data_connection_all_goes_over_the_session() {
    for (seed, fate) in seeds(2).flat_map(|seed| [(seed, Fate::Refused), (seed, Fate::Silent)]) {
        let world = World::new(seed);
        let site = Site::new(&world, ram());
        world.run(async move {
            let (_client, root) = site.client(far(20), site.options()).await;
            site.fate(fate);
            let bytes = pattern(SIZE);
            let file = root.create("f", OpenFlags::RDWR, 0o644, NOGID).await.unwrap();
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            stream.swrite(&bytes).await.unwrap();
            assert_eq!(stream.sclose().await.unwrap(), SIZE as u64);
            let begun = site.env.now();
            let mut back = file.stream(0, Direction::Read).await.unwrap();
            assert!(all(&mut back).await.unwrap() == bytes);
            // The second one is not even tried.
            assert_eq!(site.offers().len(), 1);
            assert!(site.env.now() - begun < Duration::from_secs(1));
        });
    }
}
