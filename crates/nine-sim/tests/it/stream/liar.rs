//! Servers that violate the protocol of streams, and networks that disturb it: a client gets an error, and never waits
//! without end.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use nine_io::client::{Client, Dial, Dialing, Direction, Error, File, HEAD, Options, Stream};
use nine_io::server::{Core, Gate, Service};
use nine_net::{Env, Transport};
use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_proto::msg::{Data, Qids, Rmsg, Tmsg};
use nine_proto::{Attr, Dialect, GetMask, NOUID, OpenFlags, Qid, Tag};
use nine_sim::{End, Links, Shape, SimEnv, World, seeds, tries_all};

use crate::stream::world::{Fate, Site, at_rest, far, near, pattern, stage};

const SIZE: usize = 9 << 20;
/// Bytes that a data connection should carry.
const REST: usize = SIZE - HEAD as usize;

/// The server's behaviour on data connections, and its verdicts.
#[derive(Clone)]
struct Plan {
    offer: Vec<u8>,
    /// For a read: it sends this many bytes, and then closes or not.
    sends: (usize, bool),
    /// For a write: it accepts this many bytes, and then closes.
    takes: usize,
    verdict: Verdict,
    /// Delay of answers to Twrites.
    slow: Duration,
}

#[derive(Clone)]
enum Verdict {
    /// After a second.
    Is(u64, u32, &'static str),
    Refused(u32),
    Never,
    /// The count that the client has sent, once it has sent one.
    Echo,
}

impl Default for Plan {
    fn default() -> Self {
        let offer = format!("tcp!*!564 {}", "0".repeat(32)).into();
        let verdict = Verdict::Is(REST as u64, 0, "");
        Self { offer, sends: (REST, true), takes: usize::MAX, verdict, slow: Duration::ZERO }
    }
}

/// A server of one file, which is a pattern, and which discards writes.
struct Liar {
    env: SimEnv,
    links: Links,
    plan: Plan,
    /// Tscloses that wait for one with a count.
    waiting: RefCell<Vec<Tag>>,
}

/// Answers, with the times at which they are sent.
type Later = Vec<(Duration, Vec<u8>)>;

struct Way {
    near: Mutex<Vec<End>>,
}

impl Dial for Way {
    fn dial(&self, _: &str, addr: &str) -> Dialing {
        let near = match addr {
            "tcp!*!564" => self.near.lock().unwrap().pop().ok_or(io::ErrorKind::ConnectionRefused),
            _ => Err(io::ErrorKind::PermissionDenied),
        };
        Box::pin(async { near.map(|near| Box::new(near) as Box<dyn Transport>).map_err(io::Error::from) })
    }
}

/// Returns a client of such a server, with its file open.
async fn lied_to(world: &World, plan: Plan) -> (Client, File) {
    let env = world.env();
    let liar =
        Rc::new(Liar { env: env.clone(), links: Links::new(world), plan, waiting: RefCell::default() });
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (near, far) = liar.links.link(Shape { window: 1 << 20, ..near() });
        ends.push(near);
        let liar = liar.clone();
        env.spawn(Box::pin(async move { liar.data(far).await }));
    }
    let (near, far) = liar.links.link(Shape { window: 1 << 20, ..near() });
    let serves = liar.clone();
    env.spawn(Box::pin(async move { serves.session(far).await }));
    let way = Arc::new(Way { near: Mutex::new(ends) });
    let options = Options { dialects: vec![Dialect::L], clock: Some(env.clock()), ..Options::default() };
    let (client, driver) = Client::connect(near, options.with_streams(way)).await.unwrap();
    env.spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("u", NOUID, "").await.unwrap();
    let file = root.open("f", OpenFlags::RDWR).await.unwrap();
    (client, file)
}

impl Liar {
    async fn data(&self, mut end: End) {
        let mut buf = vec![0; 64 * 1024];
        let Ok(n) = poll_fn(|cx| end.poll_read(cx, &mut buf)).await else { return };
        if n == 0 {
            return;
        }
        let bytes = pattern(SIZE + (1 << 20));
        let (sends, closes) = self.plan.sends;
        let mut rest = &bytes[HEAD as usize..HEAD as usize + sends];
        let mut taken = n.saturating_sub(36);
        loop {
            if !rest.is_empty() {
                let Ok(n) = poll_fn(|cx| end.poll_write(cx, &[IoSlice::new(rest)])).await else { return };
                rest = &rest[n..];
                continue;
            }
            if closes && self.plan.takes == usize::MAX || taken >= self.plan.takes {
                return;
            }
            match poll_fn(|cx| end.poll_read(cx, &mut buf)).await {
                Ok(n) if n > 0 => taken += n,
                _ => return,
            }
        }
    }

    async fn session(&self, mut end: End) {
        let bytes = pattern(SIZE);
        let (mut come, mut buf, mut out) = (Vec::new(), vec![0; 64 * 1024], Vec::<u8>::new());
        let mut later = Later::new();
        let mut timer: Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        loop {
            let n = poll_fn(|cx| {
                loop {
                    let now = self.env.now();
                    later.sort_by_key(|(due, _)| *due);
                    while later.first().is_some_and(|(due, _)| *due <= now) {
                        out.extend(later.remove(0).1);
                    }
                    timer = later.first().map(|(due, _)| self.env.sleep_until(*due));
                    while !out.is_empty() {
                        match end.poll_write(cx, &[IoSlice::new(&out)]) {
                            Poll::Ready(Ok(n)) => drop(out.drain(..n)),
                            Poll::Ready(Err(_)) => return Poll::Ready(0),
                            Poll::Pending => break,
                        }
                    }
                    match end.poll_read(cx, &mut buf) {
                        Poll::Ready(n) => return Poll::Ready(n.unwrap_or(0)),
                        Poll::Pending => {}
                    }
                    match timer.as_mut().map(|timer| timer.as_mut().poll(cx)) {
                        Some(Poll::Ready(())) => {}
                        _ => return Poll::Pending,
                    }
                }
            })
            .await;
            if n == 0 {
                return;
            }
            come.extend_from_slice(&buf[..n]);
            while let Split::Whole(n) = split(&come, MSIZE_MAX).unwrap() {
                let frame: Vec<u8> = come.drain(..n).collect();
                let (tag, message) = Tmsg::decode(&frame, Dialect::LS).unwrap();
                let (delay, answer) = self.answer(tag, &message, &bytes);
                later.push((self.env.now() + delay, answer));
            }
        }
    }

    fn answer(&self, tag: Tag, message: &Tmsg<'_>, bytes: &[u8]) -> (Duration, Vec<u8>) {
        let qid = Qid { ty: 0, vers: 0, path: 1 };
        let mut delay = Duration::ZERO;
        let mut out = Vec::new();
        let mut say = |message: Rmsg<'_>| message.encode(tag, Dialect::LS, &mut out);
        match *message {
            Tmsg::Version { .. } => say(Rmsg::Version { msize: 1 << 20, version: b"9P2000.L.s" }),
            Tmsg::Attach { .. } => say(Rmsg::Attach { qid: Qid { ty: Qid::DIR, ..qid } }),
            Tmsg::Walk { names, .. } => {
                let qids: Vec<Qid> = names.iter().map(|_| qid).collect();
                say(Rmsg::Walk { qids: Qids::Slice(&qids) });
            }
            Tmsg::Lopen { .. } => say(Rmsg::Lopen { qid, iounit: 0 }),
            Tmsg::Getattr { .. } => {
                let attr = Attr { valid: GetMask::BASIC, qid, size: SIZE as u64, ..Attr::default() };
                say(Rmsg::Getattr { attr });
            }
            Tmsg::Read { offset, count, .. } => {
                let from = (offset as usize).min(bytes.len());
                let to = (from + count as usize).min(bytes.len());
                say(Rmsg::Read { data: Data::Bytes(&bytes[from..to]) });
            }
            Tmsg::Write { data, .. } => {
                delay = self.plan.slow;
                say(Rmsg::Write { count: data.bytes().len() as u32 });
            }
            Tmsg::Stream { .. } => say(Rmsg::Stream { data: Data::Bytes(&self.plan.offer) }),
            Tmsg::Sclose { count, .. } => match self.plan.verdict {
                Verdict::Is(count, errno, ename) => {
                    delay = Duration::from_secs(1);
                    say(Rmsg::Sclose { count, errno, ename: ename.as_bytes() });
                }
                Verdict::Refused(ecode) => say(Rmsg::Lerror { ecode }),
                Verdict::Echo if count == u64::MAX => self.waiting.borrow_mut().push(tag),
                Verdict::Echo => {
                    say(Rmsg::Sclose { count, errno: 0, ename: b"" });
                    for tag in self.waiting.take() {
                        let ename = b"Broken pipe";
                        Rmsg::Sclose { count, errno: 32, ename }.encode(tag, Dialect::LS, &mut out);
                    }
                }
                Verdict::Never => {}
            },
            Tmsg::Clunk { .. } => say(Rmsg::Clunk {}),
            Tmsg::Flush { .. } => say(Rmsg::Flush {}),
            ref other => panic!("{}", other.label()),
        }
        (delay, out)
    }
}

/// Returns the bytes that a client reads, and the result.
async fn all(file: &File) -> (Vec<u8>, Result<(), Error>) {
    let mut stream = match file.stream(0, Direction::Read).await {
        Ok(stream) => stream,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut all = Vec::new();
    while let Some(data) = stream.next().await {
        match data {
            Ok(data) => all.extend_from_slice(&data),
            Err(error) => {
                // It stays at its end.
                assert!(stream.next().await.is_none());
                return (all, Err(error));
            }
        }
    }
    (all, Ok(()))
}

async fn put<F>(stream: &mut Stream<F>, bytes: &[u8]) -> Result<(), Error>
where
    F: Deref<Target = File> + Clone + Unpin,
{
    for piece in bytes.chunks(100_000) {
        stream.push(piece.to_vec().into()).await?;
    }
    stream.finish().await
}

async fn within<T>(env: &SimEnv, seconds: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut timer = env.sleep_until(env.now() + Duration::from_secs(seconds));
    let mut work = std::pin::pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Runs a client of such a server. Then nothing may be left.
fn with<W, Fut>(seed: u64, plan: Plan, work: W)
where
    W: FnOnce(SimEnv, Client, File) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let world = Rc::new(World::new(seed));
    let (inner, env) = (world.clone(), world.env());
    world.run(async move {
        let (client, file) = lied_to(&inner, plan).await;
        drop(inner);
        work(env, client, file).await;
    });
    world.settle();
    // Two of its data connections may never have been dialled.
    assert!(world.tasks() <= 2, "{} tasks are left", world.tasks());
}

#[test]
fn the_honest_answer_of_this_server_is_taken() {
    for sends in [(REST, true), (REST, false)] {
        with(0, Plan { sends, ..Plan::default() }, |env, _, file| async move {
            let (come, ended) = within(&env, 5, all(&file)).await.expect("it says that this is all");
            assert!(ended.is_ok() && come == pattern(SIZE));
        });
    }
    let verdict = Verdict::Echo;
    with(0, Plan { verdict, sends: (0, false), ..Plan::default() }, |env, _, file| async move {
        let mut stream = file.stream(0, Direction::Write).await.unwrap();
        within(&env, 5, put(&mut stream, &pattern(SIZE))).await.expect("it takes all").unwrap();
        assert_eq!(stream.moved(), SIZE as u64);
    });
}

#[test]
fn what_is_no_offer_is_no_reason_to_fail() {
    let token = "0".repeat(32);
    let offers: [Vec<u8>; 12] = [
        b"".into(),
        b"x".into(),
        b" ".into(),
        vec![b'x'; 60_000],
        vec![0xff; 60_000],
        format!("tcp!*!564 {}", "0".repeat(31)).into(),
        format!("tcp!*!564 {}", "0".repeat(60_000)).into(),
        format!("tcp!*!564  {token}").into(),
        format!(" {token}").into(),
        format!("tcp!evil!22 {token}").into(),
        format!("tcp!*!564\n{token}").into(),
        format!("tcp!*!564 {}", "g".repeat(32)).into(),
    ];
    for offer in offers {
        with(1, Plan { offer, ..Plan::default() }, |env, _, file| async move {
            let (come, ended) = within(&env, 5, all(&file)).await.expect("it goes over the session");
            assert!(ended.is_ok() && come == pattern(SIZE));
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            within(&env, 5, put(&mut stream, &pattern(SIZE))).await.expect("so does this").unwrap();
            assert_eq!(stream.sclose().await.unwrap(), SIZE as u64);
        });
    }
}

#[test]
fn no_part_is_taken_for_the_whole_and_a_verdict_is_enough_to_end() {
    let half = REST / 2;
    let says = |count: usize, errno, text| Verdict::Is(count as u64, errno, text);
    for (sends, verdict) in [
        // It sends nothing.
        ((0, false), says(0, 110, "Connection timed out")),
        ((0, false), says(0, 5, "")),
        ((0, true), says(REST, 0, "")),
        ((0, false), Verdict::Refused(22)),
        ((0, true), Verdict::Refused(22)),
        ((0, true), says(0, 0, "something has failed")),
        // It sends less than it reports, or more.
        ((half, true), says(REST, 0, "")),
        ((half, true), says(half + 1, 0, "")),
        ((half, true), Verdict::Refused(5)),
        ((half, true), says(u64::MAX as usize, 0, "")),
        ((half, true), says(half, 5, "Input/output error")),
        ((half, true), says(half, 0xffff_ffff, "undefined")),
        ((half, false), says(half, 5, "Input/output error")),
        ((half, false), Verdict::Refused(22)),
        ((half, true), says(half - 1, 0, "")),
        ((half, false), says(half - 1, 0, "")),
        ((half, false), says(0, 0, "")),
        ((REST + 1, true), says(REST, 0, "")),
        ((REST + 1, false), says(REST, 0, "")),
        ((REST + (1 << 20), false), says(REST, 0, "")),
        // It reports nothing.
        ((half, true), Verdict::Never),
        ((half, false), Verdict::Never),
        ((0, false), Verdict::Never),
    ] {
        let counted = match verdict {
            Verdict::Is(count, 0, "") => Some(count),
            _ => None,
        };
        with(2, Plan { sends, verdict, ..Plan::default() }, move |env, client, file| async move {
            let ended = within(&env, 30, all(&file)).await;
            let (come, ended) = ended.unwrap_or_else(|| panic!("{sends:?}: the verdict is not heard"));
            let bytes = pattern(SIZE + (1 << 20));
            assert!(bytes.starts_with(&come));
            // The rest of a correct part is read over the session. A server that counts fewer bytes than it sent is not
            // believed.
            let lies = sends.0 > REST || matches!(counted, Some(count) if count < sends.0 as u64);
            assert_eq!(ended.is_err(), lies, "{sends:?}");
            assert!(lies || come.len() == SIZE, "{sends:?}: {} bytes look whole", come.len());
            // The session survives, and the file can be read.
            assert!(client.dead().is_none());
            let mut some = [0; 1000];
            assert_eq!(file.read_at(5000, &mut some).await.unwrap(), 1000);
            assert!(some == bytes[5000..6000]);
            assert_eq!(client.fids(), 1);
        });
    }
}

#[test]
fn who_is_kept_waiting_can_leave() {
    for (takes, direction) in [(usize::MAX, Direction::Read), (0, Direction::Write)] {
        let plan = Plan { sends: (0, false), verdict: Verdict::Never, ..Plan::default() };
        with(3, plan, move |env, client, file| async move {
            let mut stream = file.stream(0, direction).await.unwrap();
            let work = async {
                match direction {
                    Direction::Read => while stream.next().await.is_some() {},
                    Direction::Write => drop(put(&mut stream, &pattern(SIZE)).await),
                }
            };
            let ended = within(&env, 60, work).await;
            assert_eq!(ended.is_some(), direction == Direction::Read, "takes {takes}");
            drop(stream);
            let mut some = [0; 1000];
            assert_eq!(within(&env, 1, file.read_at(5000, &mut some)).await.unwrap().unwrap(), 1000);
            within(&env, 1, file.close()).await.unwrap().unwrap();
            assert!(client.dead().is_none());
        });
    }
}

#[test]
fn a_writer_believes_what_is_stored_and_never_more_than_it_has_sent() {
    let says = |count: usize, errno, text| Verdict::Is(count as u64, errno, text);
    for (takes, verdict, safe) in [
        (usize::MAX, says(REST, 28, "No space left on device"), REST),
        (usize::MAX, says(REST - 1, 0, ""), REST - 1),
        (usize::MAX, says(0, 28, ""), 0),
        (usize::MAX, says(0, 0, ""), 0),
        (usize::MAX, Verdict::Refused(22), 0),
        (0, says(0, 5, "Input/output error"), 0),
        (1, says(1, 5, "Input/output error"), 1),
        (1 << 20, says(1000, 28, "No space left on device"), 1000),
        (1 << 20, says(1000, 0, ""), 1000),
        (1 << 20, Verdict::Refused(5), 0),
    ] {
        let plan = Plan { takes, sends: (0, false), verdict, ..Plan::default() };
        with(4, plan, move |env, client, file| async move {
            let mut stream = Stream::begin(&file, 0, SIZE as u64, Direction::Write);
            let ended = within(&env, 30, put(&mut stream, &pattern(SIZE))).await;
            assert!(ended.expect("it comes to an end").is_err(), "takes {takes}");
            assert_eq!(stream.moved(), HEAD + safe as u64, "takes {takes}");
            // The error is permanent.
            assert!(stream.push(vec![0; 10].into()).await.is_err() && stream.finish().await.is_err());
            assert!(client.dead().is_none());
        });
    }
    // More than was ever sent.
    for count in [REST as u64 + 1, u64::MAX] {
        let verdict = Verdict::Is(count, 0, "");
        with(5, Plan { sends: (0, false), verdict, ..Plan::default() }, |env, _, file| async move {
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            let ended = within(&env, 30, put(&mut stream, &pattern(SIZE))).await;
            drop(ended.expect("it comes to an end"));
            assert!(stream.moved() <= SIZE as u64);
        });
    }
}

#[test]
fn a_head_that_is_slower_than_the_data_connection_is_waited_for() {
    for ms in [1, 300, 5_000] {
        let (slow, verdict) = (Duration::from_millis(ms), Verdict::Echo);
        with(6, Plan { slow, verdict, sends: (0, false), ..Plan::default() }, |env, _, file| async move {
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            within(&env, 600, put(&mut stream, &pattern(SIZE))).await.expect("it ends").unwrap();
            assert_eq!(stream.moved(), SIZE as u64);
            // A second call gets the same answer.
            stream.finish().await.unwrap();
            assert_eq!(stream.sclose().await.unwrap(), SIZE as u64);
        });
    }
}

#[test]
fn what_the_head_has_stored_counts_also_when_the_data_connection_fails_first() {
    for (takes, verdict, safe) in [
        (1000, Verdict::Is(1000, 28, "No space left on device"), 1000),
        (1000, Verdict::Is(0, 0, ""), 0),
        (usize::MAX, Verdict::Is(5, 5, "Input/output error"), 5),
        (0, Verdict::Refused(22), 0),
    ] {
        let slow = Duration::from_secs(5);
        let plan = Plan { slow, takes, verdict, sends: (0, false), ..Plan::default() };
        with(7, plan, move |env, _, file| async move {
            let mut stream = Stream::begin(&file, 0, SIZE as u64, Direction::Write);
            let ended = within(&env, 600, put(&mut stream, &pattern(SIZE))).await.expect("it ends");
            assert!(ended.is_err());
            assert_eq!(stream.moved(), HEAD + safe, "takes {takes}");
        });
    }
}

#[test]
fn two_streams_of_one_file_are_both_whole_or_say_why_not() {
    for seed in seeds(6) {
        let (world, book, site) = stage(seed);
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            b.put("f", &pattern(SIZE));
            if seed % 2 == 0 {
                b.plan(crate::stream::book::Plan {
                    late: Some(Duration::from_millis(2)),
                    ..Default::default()
                });
            }
            let (client, root) = s.client(far(5), s.options()).await;
            s.fate(Fate::Come(Shape { window: 500_000, ..far(5) }));
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let second = async {
                s.sleep(Duration::from_millis(10 * seed)).await;
                all(&file).await
            };
            let both = futures_util::future::join(all(&file), second);
            let both = s.within(Duration::from_secs(60), both).await.expect("both come to an end");
            for (come, ended) in [both.0, both.1] {
                assert!(pattern(SIZE).starts_with(&come));
                assert!(come.len() == SIZE || ended.is_err(), "{} bytes look whole", come.len());
                assert!(ended.is_ok(), "reads disturb nobody: {ended:?}");
            }
            file.close().await.unwrap();
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// Two writers of one file, each in its own part. The second one may cost the first its connection, but no data.
#[test]
fn two_streams_that_write_one_file_are_told_what_is_stored() {
    for seed in seeds(8) {
        let (world, book, site) = stage(seed);
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            b.put("f", b"");
            if seed % 2 == 0 {
                b.plan(crate::stream::book::Plan {
                    late: Some(Duration::from_millis(2)),
                    ..Default::default()
                });
            }
            let (client, root) = s.client(far(5), s.options()).await;
            s.fate(Fate::Come(Shape { window: 300_000, ..far(5) }));
            let file = Arc::new(root.open("f", OpenFlags::RDWR).await.unwrap());
            let ended: Rc<RefCell<Vec<(usize, usize)>>> = Rc::default();
            for half in [0, 1] {
                let (file, s, b, ended) = (file.clone(), s.clone(), b.clone(), ended.clone());
                s.env.clone().spawn(Box::pin(async move {
                    s.sleep(Duration::from_millis(7 * seed * half as u64)).await;
                    let (from, to) = (half * SIZE, (half + 1) * SIZE);
                    let bytes = &pattern(to)[from..];
                    let mut stream = Stream::begin(file, from as u64, to as u64, Direction::Write);
                    let done = put(&mut stream, bytes).await;
                    let stored = stream.moved() as usize;
                    assert!(done.is_err() || stored == SIZE);
                    assert!(b.get("f")[from..from + stored] == bytes[..stored]);
                    ended.borrow_mut().push((half, stored));
                }));
            }
            s.sleep(Duration::from_secs(60)).await;
            ended.borrow_mut().sort_unstable();
            let [(0, first), (1, second)] = ended.borrow()[..] else { panic!("not both have ended") };
            // The later one keeps its connection.
            assert!(first.max(second) == SIZE && first.min(second) >= HEAD as usize, "{first} {second}");
            drop(file);
            s.sleep(Duration::from_secs(1)).await;
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn who_loses_the_session_at_any_moment_of_the_dial_is_told() {
    let mut failed = 0;
    for seed in seeds(20) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let told = world.run(async move {
            book.put("f", &pattern(SIZE));
            let (client, root) = s.client(far(2), s.options()).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            s.fate(Fate::Come(Shape { piece: 10_000, ..far(2) }));
            let time = Duration::from_micros(rng.below(5_000) as u64);
            let (c, env) = (client.clone(), s.env.clone());
            let direction = if rng.one_in(2) { Direction::Read } else { Direction::Write };
            s.env.spawn(Box::pin(async move {
                env.sleep_until(env.now() + time).await;
                c.abort(io::ErrorKind::ConnectionReset.into());
            }));
            let work = async {
                let mut stream = Stream::begin(&file, 0, SIZE as u64, direction);
                match direction {
                    Direction::Read => {
                        let mut come = 0;
                        while let Some(data) = stream.next().await {
                            come += data?.len();
                        }
                        assert_eq!(come, SIZE);
                        Ok(())
                    }
                    Direction::Write => put(&mut stream, &pattern(SIZE)).await,
                }
            };
            // A complete transfer ends without an error, a cut one with an error.
            let ended = s.within(Duration::from_secs(30), work).await.expect("nobody waits for ever");
            ended.is_err()
        });
        failed += usize::from(told);
        at_rest(&world, &site, 2);
    }
    assert!(failed > 10 || !tries_all(20));
}

#[test]
fn a_network_that_lets_no_data_connection_through_costs_a_second_once() {
    for (fate, seconds) in [(Fate::Refused, 0.2), (Fate::Silent, 1.3)] {
        let (world, book, site) = stage(0);
        let s = site.clone();
        world.run(async move {
            book.put("f", &pattern(SIZE));
            let (client, root) = s.client(far(10), s.options()).await;
            s.fate(fate);
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            for n in 0..3 {
                let begun = s.env.now();
                let (come, ended) = all(&file).await;
                assert!(ended.is_ok() && come == pattern(SIZE));
                let took = (s.env.now() - begun).as_secs_f64();
                assert!(took < if n == 0 { seconds } else { 0.2 }, "the {n}th took {took} s");
            }
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            put(&mut stream, &pattern(SIZE)).await.unwrap();
            assert_eq!((s.offers().len(), client.has_streams()), (1, false));
            // Its offer was cancelled: the fid is free.
            assert_eq!(s.offers(), ["tcp!*!564"]);
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn what_is_swallowed_on_its_way_is_waited_for_until_the_offer_is_void() {
    for window in [100_000, 1 << 30] {
        for direction in [Direction::Read, Direction::Write] {
            let (world, book, site) = stage(0);
            let s = site.clone();
            let b = book.clone();
            world.run(async move {
                let bytes = pattern(SIZE);
                b.put("f", &bytes);
                let (client, root) = s.client(far(10), s.options()).await;
                s.fate(Fate::Swallowed(Shape { window, ..far(10) }));
                let file = root.open("f", OpenFlags::RDWR).await.unwrap();
                let limit = nine_io::server::OFFER_TIME + Duration::from_secs(2);
                match direction {
                    Direction::Read => {
                        let (come, ended) = s.within(limit, all(&file)).await.expect("the server says so");
                        assert!(ended.is_ok() && come == bytes, "the session brings it");
                    }
                    Direction::Write => {
                        let mut stream = Stream::begin(&file, 0, SIZE as u64, direction);
                        let ended = s.within(limit, put(&mut stream, &bytes)).await;
                        assert!(ended.expect("the server says so").is_err());
                        assert_eq!(stream.moved(), HEAD);
                        drop(stream);
                        // The next one uses the session.
                        let mut stream = Stream::begin(&file, HEAD, SIZE as u64 + HEAD, direction);
                        let rest = put(&mut stream, &bytes[HEAD as usize..]);
                        s.within(limit, rest).await.expect("it goes on").unwrap();
                        assert!(b.get("f") == bytes);
                    }
                }
                assert_eq!((s.offers().len(), client.has_streams()), (1, false));
                file.close().await.unwrap();
                assert_eq!(client.fids(), 1);
            });
            at_rest(&world, &site, 2);
        }
    }
}

/// If the server is known by a port, that port is dialled before the server has answered.
#[test]
fn what_is_dialled_before_it_is_offered_is_used_or_let_go() {
    let here = Fate::Come(far(10));
    for (addr, fate, dials, carried) in [
        ("tcp!*!564", here.clone(), vec!["tcp!*!564"], true),
        ("tcp!*!5640", here, vec!["tcp!*!564", "tcp!*!5640"], true),
        ("tcp!*!564", Fate::Refused, vec!["tcp!*!564"], false),
        ("tcp!*!5640", Fate::Refused, vec!["tcp!*!564", "tcp!*!5640"], false),
        ("tcp!*!564", Fate::Silent, vec!["tcp!*!564"], false),
        ("tcp!*!5640", Fate::Silent, vec!["tcp!*!564", "tcp!*!5640"], false),
        ("nonsense", Fate::Refused, vec!["tcp!*!564", "nonsense"], false),
    ] {
        for direction in [Direction::Read, Direction::Write] {
            let world = World::new(0);
            let book = crate::stream::book::Book::new(&world);
            let service = Service::new(book.clone(), Gate::default(), Core::default());
            let site = Site::offering(&world, service, addr);
            let (s, b, fate, dials) = (site.clone(), book.clone(), fate.clone(), dials.clone());
            world.run(async move {
                let bytes = pattern(SIZE);
                b.put("f", &bytes);
                let (client, root) = s.client_of("tcp!far!564", far(10), s.options()).await;
                s.fate(fate);
                let file = root.open("f", OpenFlags::RDWR).await.unwrap();
                let mut stream = Stream::begin(&file, 0, SIZE as u64, direction);
                let mut by_side = false;
                match direction {
                    Direction::Read => {
                        let mut come = Vec::new();
                        while let Some(data) = stream.next().await {
                            come.extend_from_slice(&data.unwrap());
                            by_side |= stream.has_connection();
                        }
                        assert!(come == bytes);
                    }
                    Direction::Write => {
                        for piece in bytes.chunks(100_000) {
                            stream.push(piece.to_vec().into()).await.unwrap();
                            by_side |= stream.has_connection();
                        }
                        assert_eq!(stream.sclose().await.unwrap(), SIZE as u64);
                    }
                }
                assert_eq!((s.offers(), by_side), (dials.iter().map(|&d| d.to_owned()).collect(), carried));
                // The server is not even asked, and the early connection is closed.
                let asked =
                    Stream::begin(&file, u64::MAX - (1 << 24), u64::MAX, Direction::Read).next().await;
                assert!(asked.is_none_or(|read| read.is_err()));
                file.close().await.unwrap();
                assert_eq!(client.fids(), 1);
            });
            world.settle();
            let core = &site.service.core;
            assert_eq!((world.tasks(), core.connected(), core.borrowed()), (2, 0, 0));
            book.assert_clean(0);
        }
    }
}

/// The dialler gets the peer and the server's address string. They are not processed before.
#[test]
fn the_star_is_for_the_dialler_to_fill_in() {
    struct Asks(Mutex<Vec<(String, String)>>);
    impl Dial for Asks {
        fn dial(&self, peer: &str, addr: &str) -> Dialing {
            self.0.lock().unwrap().push((peer.into(), addr.into()));
            Box::pin(async { Err(io::ErrorKind::PermissionDenied.into()) })
        }
    }
    let (world, book, site) = stage(0);
    let s = site.clone();
    world.run(async move {
        book.put("f", &pattern(SIZE));
        let asks = Arc::new(Asks(Mutex::default()));
        let (_client, root) = s.client(far(10), s.options().with_streams(asks.clone())).await;
        let file = root.open("f", OpenFlags::READ).await.unwrap();
        assert!(all(&file).await.1.is_ok());
        assert_eq!(*asks.0.lock().unwrap(), [("sim".to_owned(), "tcp!*!564".to_owned())]);
    });
    at_rest(&world, &site, 2);
}

#[test]
fn a_server_without_streams_is_read_and_written_without_them() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        let world = World::new(0);
        let book = crate::stream::book::Book::new(&world);
        let site = Site::plain(&world, book.clone());
        let s = site.clone();
        world.run(async move {
            book.put("f", &pattern(SIZE));
            let plain = Options { dialects: vec![dialect], streams: None, ..s.options() };
            let (client, root) = s.client(far(10), plain.with_streams(s.ways.clone())).await;
            assert!(!client.has_streams() && client.dialect() == dialect);
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let (come, ended) = all(&file).await;
            assert!(ended.is_ok() && come == pattern(SIZE));
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            put(&mut stream, &pattern(SIZE)).await.unwrap();
            assert!(s.offers().is_empty());
        });
    }
}
