//! A host written by hand: a few files in memory, over one end of a channel, on a thread; and variants of its
//! behaviour.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nine_guest::{Client, Dialect, Errno, OpenFlags, Options, Process, Qid};
use nine_proto::msg::{Data, OnlyU, Qids, Rmsg, Tmsg};
use nine_proto::{Attr, Base, DirBuf, Dirent, Fid, Numeric, Stat, StatIds, Tag, mode};
use nine_ring::linux::{self, Bell, Passed};
use nine_ring::{End, Kind, Layout, Life, MOST, Memory, Note, Place};

/// The behaviour of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostBehaviour {
    pub dialects: &'static [Dialect],
    pub msize: u32,
    pub iounit: u32,
    /// The maximum bytes of a read or write.
    pub most: usize,
    /// It puts no data into the arena.
    pub inline: bool,
    /// It sends messages in pieces of at most this many bytes.
    pub cut: usize,
    /// It answers this many requests together, the last one first, if as many have arrived.
    pub batch: usize,
    /// It polls and never sleeps.
    pub poll: bool,
}

pub const MILD: HostBehaviour = HostBehaviour {
    dialects: &[Dialect::L, Dialect::U, Dialect::P2000],
    msize: 1 << 20,
    iounit: 0,
    most: usize::MAX,
    inline: false,
    cut: MOST,
    batch: 1,
    poll: false,
};

/// A host's reply to a flush of a request it holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushReply {
    /// The answer, then the Rflush.
    Answer,
    /// An error (EINTR), then the Rflush.
    Interrupted,
    /// The Rflush.
    Rflush,
    Nothing,
}

/// The memory and the other resources of a channel's host.
pub struct TestChannel {
    pub memory: Memory,
    pub file: OwnedFd,
    pub layout: Layout,
    /// The doorbells of the host and of the guest.
    pub bells: [Bell; 2],
}

impl TestChannel {
    pub fn new(lines: u32, pages: u32) -> Self {
        Self::of(Layout::new(Kind::GuestAsks, lines, pages, "test"))
    }

    pub fn of(layout: Layout) -> Self {
        let (memory, file) = linux::create(layout.size).unwrap();
        Self { memory, file, layout, bells: [Bell::new().unwrap(), Bell::new().unwrap()] }
    }

    /// Returns the guest's descriptors, and the host's end of its life.
    pub fn pass(&self) -> (Passed, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let [ring, wait] = [&self.bells[0], &self.bells[1]].map(|bell| bell.try_clone().unwrap());
        let memory = self.file.try_clone().unwrap();
        (Passed { memory, wait, ring, life: theirs.into() }, ours.into())
    }

    pub fn host(&self, temper: HostBehaviour, life: OwnedFd) -> TestHost {
        let end = End::open(self.memory.clone(), self.layout);
        let [wait, ring] = [&self.bells[0], &self.bells[1]].map(|bell| bell.try_clone().unwrap());
        TestHost {
            end,
            wait,
            ring,
            life,
            temper,
            session: HostSession::default(),
            files: HostFiles::new(),
            asked: Vec::new(),
            holds: Box::new(|_| false),
            held: Vec::new(),
            flushed: FlushReply::Rflush,
        }
    }
}

/// Starts a host on a thread, and joins a guest.
pub fn started(
    lines: u32,
    pages: u32,
    temper: HostBehaviour,
    options: Options,
) -> (Client<Process>, HostThread) {
    let channel = TestChannel::new(lines, pages);
    let (passed, life) = channel.pass();
    let mut host = channel.host(temper, life);
    let thread = std::thread::spawn(move || {
        host.serve();
        host
    });
    let client = Process::new(passed).unwrap().client_with(options);
    (client.unwrap(), HostThread { thread })
}

/// Starts hosts on threads, for channels of these names in one memory. `ready` prepares their files. Joins a guest of
/// each.
pub fn several(
    names: &[&str],
    mut ready: impl FnMut(&str, &mut HostFiles),
) -> (Vec<Client<Process>>, Vec<HostThread>) {
    let layouts: Vec<_> = names.iter().map(|name| Layout::new(Kind::GuestAsks, 64, 4, name)).collect();
    let (memory, file) = linux::create(layouts.iter().map(|layout| layout.size).sum()).unwrap();
    let mut at = 0;
    let hosts: Vec<_> = (layouts.iter().zip(names))
        .map(|(layout, name)| {
            let part = memory.part(at, layout.size).unwrap();
            at += layout.size;
            let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
            let channel =
                TestChannel { memory: part, file: file.try_clone().unwrap(), layout: *layout, bells };
            let (passed, life) = channel.pass();
            let mut host = channel.host(MILD, life);
            ready(name, &mut host.files);
            let thread = std::thread::spawn(move || {
                host.serve();
                host
            });
            (passed, HostThread { thread })
        })
        .collect();
    let join = |((passed, thread), name): ((Passed, HostThread), &&str)| {
        (Process::new(passed).unwrap().client_named(name, Options::default()).unwrap(), thread)
    };
    hosts.into_iter().zip(names).map(join).unzip()
}

pub struct HostThread {
    thread: JoinHandle<TestHost>,
}

impl HostThread {
    /// Returns the host after the guest has left.
    pub fn join(self) -> TestHost {
        self.thread.join().unwrap()
    }
}

pub struct TestHost {
    pub end: End,
    pub wait: Bell,
    pub ring: Bell,
    pub life: OwnedFd,
    pub temper: HostBehaviour,
    pub session: HostSession,
    pub files: HostFiles,
    /// Requests not answered yet.
    asked: Vec<HostRequest>,
    /// Returns whether it holds a message back.
    pub holds: Box<dyn FnMut(&Tmsg<'_>) -> bool + Send>,
    /// Requests that it holds back, by their tags.
    held: Vec<(Tag, HostRequest)>,
    pub flushed: FlushReply,
}

struct HostRequest {
    message: Vec<u8>,
    data: Option<Place>,
    room: Option<Place>,
}

#[derive(Default)]
pub struct HostSession {
    dialect: Option<Dialect>,
    pub fids: HashMap<u32, usize>,
    inbox: Vec<u8>,
    /// The number of messages with data or room in the arena.
    pub placed: u32,
    /// The number of walks to the file `late`; the second one does not find it.
    late: u32,
    /// The number of opened files.
    pub opens: u32,
    /// The length of each write.
    pub writes: Vec<usize>,
}

pub struct HostFiles(pub Vec<HostTreeFile>);

pub struct HostTreeFile {
    pub parent: usize,
    pub name: &'static str,
    pub mode: u32,
    pub bytes: Vec<u8>,
    /// The special bits of its qid.
    pub special: u8,
}

impl HostFiles {
    fn new() -> Self {
        let node = |name, mode, special| HostTreeFile { parent: 0, name, mode, bytes: Vec::new(), special };
        Self(vec![
            node("/", mode::S_IFDIR | 0o755, 0),
            node("sub", mode::S_IFDIR | 0o755, 0),
            node("data", mode::S_IFREG | 0o644, 0),
            node("null", mode::S_IFCHR | 0o666, 0),
            node("event", mode::S_IFREG | 0o666, Qid::EVENT),
            node("denied", mode::S_IFREG, 0),
            HostTreeFile { parent: 1, ..node("leaf", mode::S_IFREG | 0o600, 0) },
        ])
    }

    /// Adds a file to the root, or replaces its bytes.
    pub fn put(&mut self, name: &'static str, bytes: &[u8]) {
        self.0.retain(|node| node.name != name || node.parent != 0);
        let bytes = bytes.to_vec();
        self.0.push(HostTreeFile { parent: 0, name, mode: mode::S_IFREG | 0o644, bytes, special: 0 });
    }

    /// Adds a directory with a file to the root. Reads after the first entries fail.
    pub fn put_broken(&mut self) {
        let parent = self.0.len();
        let node = |parent, name, mode| HostTreeFile { parent, name, mode, bytes: Vec::new(), special: 0 };
        self.0.push(node(0, "broken", mode::S_IFDIR | 0o755));
        self.0.push(node(parent, "told", mode::S_IFREG | 0o644));
    }

    /// Adds a directory to the root that lists only itself, endlessly.
    pub fn put_endless(&mut self) {
        let mode = mode::S_IFDIR | 0o755;
        self.0.push(HostTreeFile { parent: 0, name: "endless", mode, bytes: Vec::new(), special: 0 });
    }

    /// Returns the contents of the file of this name.
    pub fn bytes(&self, name: &str) -> &[u8] {
        &self.0.iter().find(|node| node.name == name).unwrap().bytes
    }

    fn qid(&self, n: usize) -> Qid {
        let dir = if self.0[n].mode & mode::S_IFMT == mode::S_IFDIR { Qid::DIR } else { 0 };
        Qid { ty: dir | self.0[n].special, vers: 0, path: n as u64 }
    }
}

impl TestHost {
    /// Serves one guest after the other until the last one has gone.
    pub fn serve(&mut self) {
        self.serve_until(|_| false);
    }

    /// The same, or until `is_enough`.
    pub fn serve_until(&mut self, is_enough: impl Fn(&Self) -> bool) {
        let mut looks = 0u32;
        loop {
            let life = self.end.life();
            if life == Life::Another {
                self.end.serve();
                self.session = HostSession::default();
                self.asked.clear();
                self.held.clear();
                self.rouse();
            }
            while self.turn() {}
            if is_enough(self) {
                return;
            }
            if life == Life::Ended {
                return;
            }
            if self.temper.poll {
                looks += 1;
                let is_glance = looks.is_multiple_of(4096);
                if is_glance
                    && linux::wait(&self.wait, &self.life, Some(Duration::ZERO)).is_ok_and(|there| !there)
                {
                    return;
                }
                std::hint::spin_loop();
                continue;
            }
            self.end.may_sleep();
            let is_awake = self.end.is_ready() || self.end.life() != Life::Same;
            let is_there = is_awake || linux::wait(&self.wait, &self.life, None).unwrap();
            self.end.is_awake();
            if !is_there {
                return;
            }
        }
    }

    pub fn rouse(&self) {
        if self.end.must_ring() {
            self.ring.ring();
        }
    }

    /// Takes a piece, if there is one, and answers complete messages.
    pub fn turn(&mut self) -> bool {
        let mut bytes = [0; MOST];
        let Some(piece) = self.end.take(&mut bytes).unwrap() else {
            let is_any = !self.asked.is_empty();
            self.answer_all();
            return is_any;
        };
        self.rouse();
        let (mut data, mut room) = (None, None);
        match piece.note {
            Note::None => {}
            Note::Data(place) => data = Some(place),
            Note::Room(place) => room = Some(place),
        }
        self.session.placed += u32::from(data.is_some() || room.is_some());
        let inbox = &mut self.session.inbox;
        assert!(inbox.is_empty() || piece.note == Note::None, "a note amid a message");
        inbox.extend_from_slice(&bytes[..piece.len]);
        while let Some(size) = inbox.first_chunk().map(|size| u32::from_le_bytes(*size) as usize) {
            let here = size - data.map_or(0, |data| data.count as usize);
            if inbox.len() < here {
                break;
            }
            let message = inbox.drain(..here).collect();
            self.asked.push(HostRequest { message, data, room });
        }
        if self.asked.len() >= self.temper.batch {
            self.answer_all();
        }
        true
    }

    fn answer_all(&mut self) {
        for request in std::mem::take(&mut self.asked).into_iter().rev() {
            let mut message = request.message;
            if let Some(place) = request.data {
                // It must read the data; most hosts would not copy it.
                let (memory, at) = self.end.place(place).unwrap();
                let mut data = vec![0; place.count as usize];
                memory.read(at, &mut data);
                message.extend_from_slice(&data);
            }
            let dialect = self.session.dialect.unwrap_or(Dialect::P2000);
            let (tag, asked) = Tmsg::decode(&message, dialect).expect("a client knows how to ask");
            assert!(self.held.iter().all(|(held, _)| *held != tag), "{tag} is in use");
            if let Tmsg::Flush { oldtag } = asked {
                self.flush(tag, oldtag);
            } else if (self.holds)(&asked) {
                self.held.push((tag, HostRequest { message, data: None, room: request.room }));
            } else {
                self.answer(tag, asked, request.room);
            }
        }
    }

    fn flush(&mut self, tag: Tag, oldtag: Tag) {
        if self.flushed == FlushReply::Nothing {
            return;
        }
        if let Some(n) = self.held.iter().position(|(held, _)| *held == oldtag) {
            let (_, HostRequest { message, room, .. }) = self.held.remove(n);
            match self.flushed {
                FlushReply::Answer => {
                    let (_, asked) = Tmsg::decode(&message, self.session.dialect.unwrap()).unwrap();
                    self.answer(oldtag, asked, room);
                }
                FlushReply::Interrupted => self.send(oldtag, &Rmsg::Lerror { ecode: Errno::EINTR.0 }, None),
                FlushReply::Rflush | FlushReply::Nothing => {}
            }
        }
        self.send(tag, &Rmsg::Flush {}, None);
    }

    pub fn send(&mut self, tag: Tag, answer: &Rmsg<'_>, room: Option<Place>) {
        let dialect = self.session.dialect.unwrap_or(Dialect::P2000);
        let mut bytes = Vec::new();
        answer.encode(tag, dialect, &mut bytes);
        if let (Rmsg::Read { data } | Rmsg::Readdir { data }, Some(room), false) =
            (answer, room, self.temper.inline)
        {
            let data = data.bytes();
            let place = Place { at: room.at, count: data.len() as u32 };
            let (memory, at) = self.end.place(place).unwrap();
            memory.write(at, data);
            self.put(&bytes[..11], Note::Data(place));
            return;
        }
        for part in bytes.chunks(self.temper.cut) {
            self.put(part, Note::None);
        }
    }

    pub fn put(&mut self, bytes: &[u8], note: Note) {
        while !self.end.put(bytes, note).unwrap() {
            assert_eq!(self.end.life(), Life::Same, "the guest has gone without its answers");
            std::thread::yield_now();
        }
        self.rouse();
    }

    fn answer(&mut self, tag: Tag, asked: Tmsg<'_>, room: Option<Place>) {
        let mut list = Vec::new();
        let done = self.do_it(asked, &mut list);
        match done {
            Ok(answer) => self.send(tag, &answer, room),
            Err(errno) if self.session.dialect.is_some_and(Dialect::is_l) => {
                self.send(tag, &Rmsg::Lerror { ecode: errno.0 }, None)
            }
            Err(errno) => {
                self.send(tag, &Rmsg::Error { ename: errno.text().as_bytes(), errno: OnlyU(errno.0) }, None)
            }
        }
    }

    fn do_it<'a>(&mut self, asked: Tmsg<'_>, list: &'a mut Vec<u8>) -> Result<Rmsg<'a>, Errno> {
        let most = self.temper.most;
        let (files, fids) = (&mut self.files, &mut self.session.fids);
        let node = |fids: &HashMap<u32, usize>, fid: Fid| fids.get(&fid.0).copied().ok_or(Errno::EBADF);
        Ok(match asked {
            Tmsg::Version { msize, version } => {
                fids.clear();
                let dialect = Dialect::negotiate(version, self.temper.dialects);
                self.session.dialect = dialect;
                let name = dialect.map_or("unknown", Dialect::name);
                list.extend_from_slice(name.as_bytes());
                Rmsg::Version { msize: msize.min(self.temper.msize), version: list }
            }
            Tmsg::Attach { fid, aname, .. } => {
                if aname == b"nowhere" {
                    return Err(Errno::EACCES);
                }
                assert_eq!(fids.insert(fid.0, 0), None);
                Rmsg::Attach { qid: files.qid(0) }
            }
            Tmsg::Walk { fid, newfid, names } => {
                let mut at = node(fids, fid)?;
                let mut qids = Vec::new();
                for name in names.iter() {
                    let child = files.0.iter().position(|n| n.parent == at && n.name.as_bytes() == name);
                    self.session.late += u32::from(name == b"late");
                    // Another client creates it at that moment.
                    let child = child.filter(|_| name != b"late" || self.session.late != 2);
                    let next = if name == b".." { Some(files.0[at].parent) } else { child };
                    match next {
                        Some(next) => at = next,
                        None if qids.is_empty() => return Err(Errno::ENOENT),
                        None => break,
                    }
                    qids.push(files.qid(at));
                }
                if qids.len() == names.len() {
                    assert!(newfid == fid || !fids.contains_key(&newfid.0), "{newfid} is in use");
                    fids.insert(newfid.0, at);
                }
                for qid in &qids {
                    list.push(qid.ty);
                    list.extend_from_slice(&qid.vers.to_le_bytes());
                    list.extend_from_slice(&qid.path.to_le_bytes());
                }
                Rmsg::Walk { qids: Qids::Wire(list) }
            }
            Tmsg::Lopen { fid, .. } | Tmsg::Open { fid, .. } => {
                let n = node(fids, fid)?;
                if files.0[n].name == "denied" {
                    return Err(Errno::EACCES);
                }
                let cuts = match asked {
                    Tmsg::Lopen { flags, .. } => flags & OpenFlags::TRUNC.to_wire() != 0,
                    Tmsg::Open { mode, .. } => mode & 0x10 != 0,
                    _ => false,
                };
                if cuts {
                    files.0[n].bytes.clear();
                }
                self.session.opens += 1;
                let (qid, iounit) = (files.qid(n), self.temper.iounit);
                match asked {
                    Tmsg::Lopen { .. } => Rmsg::Lopen { qid, iounit },
                    _ => Rmsg::Open { qid, iounit },
                }
            }
            Tmsg::Lcreate { fid, name, mode: bits, .. } | Tmsg::Create { fid, name, perm: bits, .. } => {
                let parent = node(fids, fid)?;
                let there = files.0.iter().position(|n| n.parent == parent && n.name.as_bytes() == name);
                if there.is_some() && matches!(asked, Tmsg::Create { .. }) {
                    return Err(Errno::EEXIST);
                }
                let n = there.unwrap_or(files.0.len());
                if there.is_none() {
                    let name = kept_name(String::from_utf8(name.to_vec()).unwrap());
                    let mode = mode::S_IFREG | bits & 0o777;
                    files.0.push(HostTreeFile { parent, name, mode, bytes: Vec::new(), special: 0 });
                }
                files.0[n].bytes.clear();
                fids.insert(fid.0, n);
                let (qid, iounit) = (files.qid(n), self.temper.iounit);
                match asked {
                    Tmsg::Lcreate { .. } => Rmsg::Lcreate { qid, iounit },
                    _ => Rmsg::Create { qid, iounit },
                }
            }
            Tmsg::Read { fid, offset, count } if files.qid(node(fids, fid)?).is_dir() => {
                directory(files, node(fids, fid)?, self.session.dialect.unwrap(), offset, count, list);
                Rmsg::Read { data: Data::Bytes(list) }
            }
            Tmsg::Readdir { fid, offset: 1.., .. } if files.0[node(fids, fid)?].name == "broken" => {
                return Err(Errno::EIO);
            }
            Tmsg::Readdir { fid, offset, .. } if files.0[node(fids, fid)?].name == "endless" => {
                let mut entries = DirBuf::new(Dialect::L, 100, std::sync::Arc::new(Numeric));
                entries.push(&Dirent { qid: files.qid(0), cookie: offset + 1, ty: 4, name: b"." }, None);
                list.extend_from_slice(entries.bytes());
                Rmsg::Readdir { data: Data::Bytes(list) }
            }
            Tmsg::Readdir { fid, offset, count } => {
                directory(files, node(fids, fid)?, Dialect::L, offset, count, list);
                Rmsg::Readdir { data: Data::Bytes(list) }
            }
            Tmsg::Read { fid, count, .. } if files.0[node(fids, fid)?].name == "stdin" => {
                let bytes = &mut files.0[node(fids, fid)?].bytes;
                let count = (count as usize).min(bytes.len());
                list.extend(bytes.drain(..count));
                Rmsg::Read { data: Data::Bytes(list) }
            }
            Tmsg::Read { fid, offset, count } => {
                let bytes = &files.0[node(fids, fid)?].bytes;
                let from = bytes.len().min(offset as usize);
                let count = (count as usize).min(most).min(bytes.len() - from);
                list.extend_from_slice(&bytes[from..from + count]);
                Rmsg::Read { data: Data::Bytes(list) }
            }
            Tmsg::Write { fid, offset, data } => {
                let node = &mut files.0[node(fids, fid)?];
                let data = &data.bytes()[..data.bytes().len().min(most)];
                if node.name == "full" && offset as usize + data.len() > 300_000 {
                    return Err(Errno::ENOSPC);
                }
                self.session.writes.push(data.len());
                if matches!(node.name, "stdout" | "stderr") {
                    node.bytes.extend_from_slice(data);
                } else if node.mode & mode::S_IFMT == mode::S_IFREG {
                    let (offset, len) = (offset as usize, node.bytes.len());
                    node.bytes.resize(len.max(offset + data.len()), 0);
                    node.bytes[offset..offset + data.len()].copy_from_slice(data);
                }
                Rmsg::Write { count: data.len() as u32 }
            }
            Tmsg::Clunk { fid } => {
                node(fids, fid)?;
                fids.remove(&fid.0);
                Rmsg::Clunk {}
            }
            Tmsg::Remove { fid } => {
                let n = node(fids, fid)?;
                fids.remove(&fid.0);
                if files.0[n].name == "denied" {
                    return Err(Errno::EACCES);
                }
                files.0[n].parent = usize::MAX;
                Rmsg::Remove {}
            }
            Tmsg::Getattr { fid, .. } => {
                let n = node(fids, fid)?;
                Rmsg::Getattr { attr: attr(files, n) }
            }
            Tmsg::Stat { fid } => {
                let n = node(fids, fid)?;
                let qid = files.qid(n);
                let ids = StatIds::UNSET;
                let mode = mode::to_dm(files.0[n].mode, qid.ty, true);
                let (length, name) = (files.0[n].bytes.len() as u64, files.0[n].name.as_bytes());
                Rmsg::Stat { stat: Stat { qid, mode, length, name, ids, mtime: 7, ..Stat::DONT_TOUCH } }
            }
            Tmsg::Fsync { fid, .. } => {
                node(fids, fid)?;
                Rmsg::Fsync {}
            }
            Tmsg::Wstat { fid, stat } => {
                assert_eq!((stat.mode, stat.length), (u32::MAX, u64::MAX));
                node(fids, fid)?;
                Rmsg::Wstat {}
            }
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}

fn attr(files: &HostFiles, n: usize) -> Attr {
    let node = &files.0[n];
    let size = node.bytes.len() as u64;
    Attr {
        qid: files.qid(n),
        mode: node.mode,
        size,
        mtime: nine_proto::Time { sec: 7, nsec: 0 },
        ..Attr::default()
    }
}

/// Appends entries by their number, which is their cookie, or by an offset in the stat records.
fn directory(files: &HostFiles, dir: usize, dialect: Dialect, offset: u64, count: u32, list: &mut Vec<u8>) {
    let limit = if dialect.base == Base::L { count as usize } else { usize::MAX };
    let mut entries = DirBuf::new(dialect, limit, std::sync::Arc::new(Numeric));
    let from = if dialect.base == Base::L { offset } else { 0 };
    let children = (1..files.0.len()).filter(|&n| files.0[n].parent == dir && n as u64 >= from);
    for n in children {
        let attr = attr(files, n);
        let name = files.0[n].name.as_bytes();
        let ty = Dirent::type_of_mode(attr.mode);
        if !entries.push(&Dirent { qid: attr.qid, cookie: n as u64 + 1, ty, name }, Some(&attr)) {
            break;
        }
    }
    // Whole records from the offset on.
    let bytes = entries.bytes();
    let mut at = if dialect.base == Base::L { 0 } else { offset as usize };
    if dialect.base == Base::L {
        list.extend_from_slice(bytes);
        return;
    }
    while let Some(size) =
        bytes.get(at..at + 2).map(|size| usize::from(u16::from_le_bytes([size[0], size[1]])) + 2)
    {
        if list.len() + size > count as usize {
            return;
        }
        list.extend_from_slice(&bytes[at..at + size]);
        at += size;
    }
}

/// Returns bytes that differ from position to position and from call to call.
pub fn some(len: usize) -> Vec<u8> {
    static SEED: AtomicU32 = AtomicU32::new(1);
    let seed = SEED.fetch_add(1, Ordering::Relaxed) as usize;
    (0..len).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

/// Returns a static name that a leak checker does not report.
pub fn kept_name(name: String) -> &'static str {
    static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let name = name.leak();
    KEPT.lock().unwrap().push(name);
    name
}
