//! Measures the time of an answer that costs the host almost nothing: `echo [WRITES] [SIZE...]`. The host is a thread
//! on the second processor, which answers every request with the same Rwrite. For comparison it measures the limit, a
//! word in one line sent to and fro.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use nine_guest::{OpenFlags, Options, Process, Wait};
use nine_proto::Dialect;
use nine_proto::msg::{Qids, Rmsg, Tmsg};
use nine_ring::linux::{self, Bell, Passed};
use nine_ring::{End, Kind, Layout, Life, MOST, Note};

fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    if rustix::thread::sched_setaffinity(None, &set).is_err() {
        eprintln!("processor {processor} is not to be had: the threads go where they like");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let writes: u32 = args.next().map_or(Ok(1_000_000), |writes| writes.parse())?;
    let mut sizes = args.map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    if sizes.is_empty() {
        sizes = vec![0, 25, 64, 128, 256, 512, 1024, 4096, 16 << 10, 64 << 10, 256 << 10];
    }
    println!("a line to and fro: {:.0} ns", ping(writes));
    let layout = Layout::new(Kind::GuestAsks, 256, 1024, "echo");
    for size in sizes {
        let (memory, file) = linux::create(layout.size)?;
        let bells = [Bell::new()?, Bell::new()?];
        let (ours, theirs): (OwnedFd, OwnedFd) = UnixStream::pair().map(|(a, b)| (a.into(), b.into()))?;
        let passed =
            Passed { memory: file, wait: bells[1].try_clone()?, ring: bells[0].try_clone()?, life: theirs };
        let mut end = End::open(memory, layout);
        let host = std::thread::spawn(move || {
            pin(1);
            echo(&mut end);
            drop((ours, bells));
        });
        pin(0);
        let options = Options { wait: Wait::Poll, ..Options::default() };
        let mut client = Process::new(passed)?.client_with(options)?;
        let root = client.attach("", "")?;
        let file = client.open(&root, "null", OpenFlags::WRITE)?;
        let data = vec![1; size];
        let buffer = client.buffer(size)?;
        let copied = best(writes, size, || client.write(&file, 0, &data))?;
        let placed = best(writes, size, || client.write_from(&file, 0, &buffer, ..))?;
        println!("write of {size} bytes: {copied:.0} ns, as it lies in the arena {placed:.0} ns");
        drop(client);
        host.join().expect("the host ends with its guest");
    }
    Ok(())
}

/// Answers every request, as a host with one file, until the guest leaves.
fn echo(end: &mut End) {
    let mut bytes = [0; MOST];
    let mut answer = Vec::new();
    let mut rest = 0;
    let mut data = vec![0; 256 << 10];
    loop {
        match end.take(&mut bytes).expect("a guest keeps the rules") {
            Some(piece) if rest > 0 => rest -= piece.len,
            Some(piece) if bytes[4] == 118 => {
                // An Rwrite contains the number of bytes of the Twrite.
                let size = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
                match piece.note {
                    // The data is read, as by a host that copies it.
                    Note::Data(place) => {
                        let (memory, at) = end.place(place).expect("in the arena");
                        memory.read(at, &mut data[..place.count as usize]);
                    }
                    _ => rest = size - piece.len,
                }
                let mut head = [11, 0, 0, 0, 119, bytes[5], bytes[6], 0, 0, 0, 0];
                head[7..].copy_from_slice(&bytes[19..23]);
                while rest == 0 && !end.put(&head, Note::None).expect("a guest keeps the rules") {}
            }
            Some(piece) => {
                let (tag, asked) = Tmsg::decode(&bytes[..piece.len], Dialect::L).expect("a message");
                let root = [Default::default()];
                let [qid] = root;
                answer.clear();
                match asked {
                    Tmsg::Version { msize, .. } => Rmsg::Version { msize, version: b"9P2000.L" },
                    Tmsg::Attach { .. } => Rmsg::Attach { qid },
                    Tmsg::Walk { .. } => Rmsg::Walk { qids: Qids::Slice(&root) },
                    Tmsg::Lopen { .. } => Rmsg::Lopen { qid, iounit: 0 },
                    _ => Rmsg::Clunk {},
                }
                .encode(tag, Dialect::L, &mut answer);
                assert!(end.put(&answer, Note::None).expect("a guest keeps the rules"));
            }
            None => match end.life() {
                Life::Same => std::hint::spin_loop(),
                Life::Another => end.serve(),
                Life::Ended => return,
            },
        }
        let _ = end.must_ring();
    }
}

/// Returns the nanoseconds of one write in the best thousandth of them. A busy machine has such a thousandth too.
fn best(
    writes: u32,
    size: usize,
    mut write: impl FnMut() -> nine_guest::Result<usize>,
) -> nine_guest::Result<f64> {
    let batch = writes / 1000 / (1 + size as u32 / 4096) + 1;
    let mut best = f64::INFINITY;
    for _ in 0..1000 {
        let begun = Instant::now();
        for _ in 0..batch {
            assert_eq!(write()?, size);
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(batch));
    }
    Ok(best)
}

/// Returns the nanoseconds of one round trip of two words in two lines, in the best thousandth of the rounds.
fn ping(rounds: u32) -> f64 {
    #[repr(align(128))]
    struct SharedLine(AtomicU32);
    let (there, back) = (SharedLine(AtomicU32::new(0)), SharedLine(AtomicU32::new(0)));
    let each = rounds / 1000 + 1;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for n in 1..=each * 1000 {
                while there.0.load(Ordering::Acquire) != n {}
                back.0.store(n, Ordering::Release);
            }
        });
        pin(0);
        let mut best = f64::INFINITY;
        for batch in 0..1000 {
            let begun = Instant::now();
            for n in 1..=each {
                there.0.store(batch * each + n, Ordering::Release);
                while back.0.load(Ordering::Acquire) != batch * each + n {}
            }
            best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(each));
        }
        best
    })
}
