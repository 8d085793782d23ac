//! Several messages that a client sends in one flight, with failing walks and opens, and cancelled at any moment: no
//! fid is left. Also the amount of data that a client has in flight.

use std::time::Duration;

use nine_io::client::{Client, Error, File, Options, Reader, Writer};
use nine_net::Env;
use nine_proto::{Dialect, Errno, GetMask, NOGID, NOUID, OpenFlags};
use nine_sim::{Rng, Shape, seeds, tries_all};

use crate::stream::book::Plan;
use crate::stream::world::{at_rest, far, pattern, stage};

/// Runs one random operation in one flight. Returns its result.
async fn one(client: &Client, root: &File, rng: &mut Rng) -> (usize, usize, Result<u64, Error>) {
    let paths = ["f", "missing", "f/x", "missing/x/y", "forbidden", "", "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q"];
    let (kind, at) = (rng.below(7), rng.below(paths.len()));
    let path = paths[at];
    let flags = [OpenFlags::READ, OpenFlags::RDWR][rng.below(2)];
    let done = match kind {
        0 => root.open(path, flags).await.map(|_| 0),
        1 => root.walk_attr(path, GetMask::BASIC).await.map(|(_, attr)| attr.size),
        2 => root.open_read(path, flags, 100).await.map(|(_, data)| data.len() as u64),
        3 => root.create(format!("{path}n{}", rng.below(4)), flags, 0o644, NOGID).await.map(|_| 0),
        4 => match client
            .attach_then("u", NOUID, "", async |root| root.walk_attr(path, GetMask::BASIC).await)
            .await
        {
            Ok((_root, walked)) => walked.map(|(_, attr)| attr.size),
            Err(error) => Err(error),
        },
        5 => root.open_or_create(path, flags, 0o644).await.map(|_| 0),
        _ => root.walk(path).await.map(|_| 0),
    };
    (kind, at, done)
}

#[test]
fn what_fails_or_is_given_up_in_one_flight_leaves_no_fid() {
    let (mut given_up, mut failed, mut well) = (0, 0, 0);
    for seed in seeds(30) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        let counts = world.run(async move {
            b.put("f", &pattern(1000));
            b.put("forbidden", b"");
            b.plan(Plan { late: Some(Duration::from_millis(1)), ..Plan::default() });
            let dialects = vec![[Dialect::LS, Dialect::US, Dialect::P2000S, Dialect::L][rng.below(4)]];
            let few = rng.one_in(3);
            let options = Options { dialects, calls: if few { 2 } else { 1024 }, ..s.options() };
            let shape = Shape { piece: [7, 50, 1000][rng.below(3)], ..far(4) };
            let (client, root) = s.client(shape, options).await;
            let (mut given_up, mut failed, mut well) = (0, 0, 0);
            for _ in 0..60 {
                let hurry = rng.one_in(2);
                let time = Duration::from_micros(if hurry { rng.below(9_000) as u64 } else { 60_000_000 });
                let mut own = rng.fork();
                match s.within(time, one(&client, &root, &mut own)).await {
                    None => {
                        assert!(hurry, "an answer is missing");
                        given_up += 1;
                    }
                    Some((_, _, Ok(_))) => well += 1,
                    Some((kind, path, Err(error))) => {
                        let known = [
                            Errno::ENOENT,
                            Errno::ENOTDIR,
                            Errno::EACCES,
                            Errno::EISDIR,
                            Errno::EEXIST,
                            Errno::EBADF,
                            Errno::EINVAL,
                            // For a read of a directory.
                            Errno::EOPNOTSUPP,
                        ];
                        assert!(known.contains(&error.errno()), "{kind} {path}: {error}");
                        failed += 1;
                    }
                }
                if rng.one_in(3) {
                    s.sleep(Duration::from_millis(30)).await;
                    assert_eq!(client.fids(), 1, "of the root");
                }
            }
            s.sleep(Duration::from_millis(100)).await;
            assert_eq!((client.fids(), client.under_way()), (1, (0, 0)));
            drop(root);
            s.sleep(Duration::from_millis(100)).await;
            assert_eq!(client.fids(), 0);
            let of_server: Vec<_> = s.service.core.clients().iter().map(|client| client.fids).collect();
            assert_eq!(of_server, [0]);
            (given_up, failed, well)
        });
        given_up += counts.0;
        failed += counts.1;
        well += counts.2;
        book.plan(Plan::default());
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
    assert!(!tries_all(30) || given_up > 100 && failed > 100 && well > 100);
}

#[test]
fn what_is_found_to_be_under_way_is_never_more_than_was_said() {
    for seed in seeds(12) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            const SIZE: usize = 6 << 20;
            let bytes = pattern(SIZE);
            let window = [128 * 1024, 300_000, 1 << 20][rng.below(3)];
            let late = Duration::from_micros([100, 5_000, 100_000][rng.below(3)]);
            b.put("f", &bytes);
            b.put("g", b"");
            b.plan(Plan { late: Some(late), short: [0, 50_000][rng.below(2)], ..Plan::default() });
            let shape = Shape { window: [20_000, 4 << 20][rng.below(2)], ..far(10) };
            let (client, root) = s.client(shape, Options { window, ..s.options() }).await;
            let most = 2 * window + 256 * 1024;
            let file = root.open("f", OpenFlags::READ).await.unwrap();
            b.most();
            let mut reader = Reader::new(&file, 0, SIZE as u64);
            let (mut come, mut n) = (0, 0);
            while let Some(data) = reader.next().await {
                let data = data.unwrap();
                assert!(data == bytes[come..come + data.len()]);
                come += data.len();
                n += 1;
                if n % 20 == 0 && rng.one_in(3) {
                    // A reader that pauses is not permanently treated as a slow link.
                    s.sleep(Duration::from_millis(rng.below(500) as u64)).await;
                }
                assert!(b.most() <= most, "{} of {most} are under way", b.most());
            }
            assert_eq!(come, SIZE);
            let out = root.open("g", OpenFlags::WRITE).await.unwrap();
            let mut writer = Writer::new(&out, 0);
            for piece in bytes.chunks(70_000) {
                writer.push(piece.to_vec().into()).await.unwrap();
                assert!(b.most() <= most, "{} of {most} are under way", b.most());
            }
            writer.finish().await.unwrap();
            assert!(b.get("g") == bytes);
            assert!(client.under_way() == (0, 0) && s.env.now() < Duration::from_secs(600));
        });
        at_rest(&world, &site, 2);
    }
}
