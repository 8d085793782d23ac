//! A blocking client that sends single messages, and data connections controlled by the test.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use nine_proto::msg::{Data as Bytes, Names, OnlyIds, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, Tag};

/// The answer to Tsclose: count, errno, text.
pub type Verdict = (u64, u32, String);

/// The errno of a refusal.
pub type Refused = u32;

/// A session; fid 1 is the root.
pub struct Talk {
    io: TcpStream,
    /// Requests that are sent when the client waits for an answer.
    out: Vec<u8>,
    /// Answers to other requests, received early.
    kept: VecDeque<Vec<u8>>,
    tag: u16,
}

impl Talk {
    /// Starts a session with a server that answers `version` to the proposal of streams.
    pub fn new(io: TcpStream, version: &str) -> Talk {
        let mut talk = Talk { io, out: Vec::new(), kept: VecDeque::new(), tag: 0 };
        talk.version(version);
        talk
    }

    /// Negotiates the version.
    pub fn version(&mut self, version: &str) {
        let wish = Tmsg::Version { msize: 256 * 1024, version: Dialect::LS.name().as_bytes() };
        wish.encode(NOTAG, Dialect::L, &mut self.out);
        let frame = self.answer_to(NOTAG);
        match Rmsg::decode(&frame, Dialect::L) {
            Ok((_, Rmsg::Version { version: agreed, .. })) => assert_eq!(agreed, version.as_bytes()),
            other => panic!("{other:?}"),
        }
        let n_uname = OnlyIds(rustix::process::geteuid().as_raw());
        let attach = Tmsg::Attach { fid: Fid(1), afid: NOFID, uname: b"", aname: b"", n_uname };
        self.done(attach).expect("the server lets in");
    }

    /// Queues a request with an unused tag.
    pub fn begin(&mut self, message: Tmsg<'_>) -> Tag {
        self.tag += 1;
        message.encode(Tag(self.tag), Dialect::L, &mut self.out);
        Tag(self.tag)
    }

    fn answer_to(&mut self, tag: Tag) -> Vec<u8> {
        self.io.write_all(&std::mem::take(&mut self.out)).expect("the server is there");
        let is = |frame: &Vec<u8>| nine_proto::frame::tag_of(frame) == tag;
        if let Some(at) = self.kept.iter().position(is) {
            return self.kept.remove(at).expect("found just now");
        }
        loop {
            let mut size = [0; 4];
            self.io.read_exact(&mut size).expect("the server answers");
            let mut frame = vec![0; u32::from_le_bytes(size) as usize];
            frame[..4].copy_from_slice(&size);
            self.io.read_exact(&mut frame[4..]).expect("a whole answer");
            if is(&frame) {
                return frame;
            }
            self.kept.push_back(frame);
        }
    }

    /// Waits for an answer, and extracts a value from it.
    pub fn taken<R>(&mut self, tag: Tag, take: impl Fn(&Rmsg<'_>) -> Option<R>) -> Result<R, Refused> {
        let frame = self.answer_to(tag);
        let (_, message) = Rmsg::decode(&frame, Dialect::L).expect("the server sends what is 9P");
        match (take(&message), &message) {
            (Some(taken), _) => Ok(taken),
            (None, Rmsg::Lerror { ecode }) => Err(*ecode),
            (None, other) => panic!("{other:?}"),
        }
    }

    /// Sends a request with an answer that only confirms it.
    pub fn done(&mut self, message: Tmsg<'_>) -> Result<(), Refused> {
        let tag = self.begin(message);
        self.taken(tag, |answer| (!matches!(answer, Rmsg::Lerror { .. })).then_some(()))
    }

    pub fn begin_walk(&mut self, fid: u32, name: &str) -> Tag {
        let names: &[&[u8]] = &[name.as_bytes()];
        let names = Names::Slice(if name.is_empty() { &[] } else { names });
        self.begin(Tmsg::Walk { fid: Fid(1), newfid: Fid(fid), names })
    }

    /// Queues a walk of this fid to a name in the root, and its open: flags 0 to read, 1 to write, 2 for both.
    pub fn begin_open(&mut self, fid: u32, name: &str, flags: u32) -> Tag {
        self.begin_walk(fid, name);
        self.begin(Tmsg::Lopen { fid: Fid(fid), flags })
    }

    pub fn open(&mut self, fid: u32, name: &str, flags: u32) {
        let tag = self.begin_open(fid, name, flags);
        self.taken(tag, |answer| matches!(answer, Rmsg::Lopen { .. }).then_some(()))
            .expect("it can be opened");
    }

    pub fn clunk(&mut self, fid: u32) {
        self.done(Tmsg::Clunk { fid: Fid(fid) }).expect("it was there");
    }

    /// Queues Tstream, to read from the file or to write to it.
    pub fn begin_stream(&mut self, fid: u32, read: bool) -> Tag {
        self.begin(Tmsg::Stream { fid: Fid(fid), isread: read.into(), offset: 0 })
    }

    /// Waits for an offer and returns its token.
    pub fn offer(&mut self, tag: Tag) -> Result<String, Refused> {
        let offer = self.taken(tag, |answer| match answer {
            Rmsg::Stream { data: Bytes::Bytes(data) } => Some(String::from_utf8(data.to_vec()).unwrap()),
            _ => None,
        });
        let (addr, token) =
            offer.as_ref().map_err(|errno| *errno)?.split_once(' ').expect("where, and a token");
        assert!(addr.starts_with("tcp!*!") && token.len() == 32, "{addr} {token}");
        Ok(token.to_owned())
    }

    pub fn stream(&mut self, fid: u32, read: bool) -> Result<String, Refused> {
        let tag = self.begin_stream(fid, read);
        self.offer(tag)
    }

    /// Sends Tsclose and returns its answer.
    pub fn close(&mut self, fid: u32, count: u64) -> Result<Verdict, Refused> {
        let tag = self.begin(Tmsg::Sclose { fid: Fid(fid), count });
        self.taken(tag, |answer| match answer {
            Rmsg::Sclose { count, errno, ename } => {
                Some((*count, *errno, String::from_utf8_lossy(ename).into()))
            }
            _ => None,
        })
    }

    /// Reads up to `count` bytes.
    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, Refused> {
        let tag = self.begin(Tmsg::Read { fid: Fid(fid), offset, count });
        self.taken(tag, |answer| match answer {
            Rmsg::Read { data: Bytes::Bytes(data) } => Some(data.to_vec()),
            _ => None,
        })
    }
}

/// A data connection.
pub struct Data(TcpStream);

impl Data {
    /// Presents this token on a new connection.
    pub fn shown(mut io: TcpStream, token: &str) -> Data {
        io.write_all(format!("9PS1{token}").as_bytes()).expect("a connection takes a token");
        Data(io)
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Closes the sending direction.
    pub fn close(&self) {
        // A server that has failed has closed the connection.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Reads exactly `count` bytes.
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("the server sends");
        bytes
    }

    /// Reads until the connection ends, in whatever way.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut all) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        }
        all
    }
}
