//! A client that sends single messages in a session with streams, and manual data connections, over links and sockets.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::Poll;

use nine_net::Transport;
use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_proto::msg::{Data as Bytes, Names, OnlyIds, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, NOUID, Tag};

/// The answer to a Tsclose: count, errno, text.
pub type Verdict = (u64, u32, String);

/// The errno of a refusal.
pub type Refused = u32;

/// A client that sends single messages. It stores answers until they are requested.
pub struct Talk {
    io: Box<dyn Transport>,
    come: Vec<u8>,
    kept: VecDeque<Vec<u8>>,
    tag: u16,
}

impl Talk {
    /// Creates a client. Fid 1 is the root.
    pub async fn new(io: impl Transport) -> Self {
        Self::speaking(io, Dialect::LS).await
    }

    /// The same in this dialect.
    pub async fn speaking(io: impl Transport, dialect: Dialect) -> Self {
        let (come, kept) = (Vec::new(), VecDeque::new());
        let mut talk = Self { io: Box::new(io), come, kept, tag: 0 };
        talk.version(dialect.name()).await;
        talk.attach(1).await.expect("the server lets in");
        talk
    }

    /// Starts a new session. Returns the agreed version.
    pub async fn version(&mut self, version: &str) -> String {
        let message = Tmsg::Version { msize: 256 * 1024, version: version.as_bytes() };
        self.send(NOTAG.0, message).await.unwrap();
        let frame = self.answer_to(NOTAG.0).await.expect("the server answers");
        match Rmsg::decode(&frame, Dialect::L) {
            Ok((_, Rmsg::Version { version, .. })) => String::from_utf8_lossy(version).into(),
            other => panic!("{other:?}"),
        }
    }

    pub async fn send(&mut self, tag: u16, message: Tmsg<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        message.encode(Tag(tag), Dialect::L, &mut bytes);
        write_all(&mut *self.io, &bytes).await
    }

    /// Returns an unused tag.
    pub fn tag(&mut self) -> u16 {
        self.tag += 1;
        self.tag
    }

    /// Sends a message. Returns its tag.
    pub async fn begin(&mut self, message: Tmsg<'_>) -> u16 {
        let tag = self.tag();
        self.send(tag, message).await.unwrap();
        tag
    }

    async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Split::Whole(n) = split(&self.come, MSIZE_MAX).map_err(io::Error::other)? {
                let rest = self.come.split_off(n);
                return Ok(std::mem::replace(&mut self.come, rest));
            }
            let mut buf = vec![0; 64 * 1024];
            let n = poll_fn(|cx| self.io.poll_read(cx, &mut buf)).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.come.extend_from_slice(&buf[..n]);
        }
    }

    /// Waits for the answer with this tag.
    pub async fn answer_to(&mut self, tag: u16) -> io::Result<Vec<u8>> {
        let is = |frame: &Vec<u8>| nine_proto::frame::tag_of(frame) == Tag(tag);
        if let Some(at) = self.kept.iter().position(is) {
            return Ok(self.kept.remove(at).expect("found just now"));
        }
        loop {
            let frame = self.receive().await?;
            if is(&frame) {
                return Ok(frame);
            }
            self.kept.push_back(frame);
        }
    }

    /// Whether an answer with this tag has arrived.
    pub async fn has_answer(&mut self, tag: u16) -> bool {
        let is = |frame: &Vec<u8>| nine_proto::frame::tag_of(frame) == Tag(tag);
        loop {
            if self.kept.iter().any(is) {
                return true;
            }
            match poll_fn(|cx| Poll::Ready(pin!(self.receive()).poll(cx))).await {
                Poll::Ready(frame) => self.kept.push_back(frame.expect("the session is there")),
                Poll::Pending => return false,
            }
        }
    }

    /// Sends a message, and extracts a value from the answer.
    pub async fn ask<R>(
        &mut self,
        message: Tmsg<'_>,
        take: impl Fn(&Rmsg<'_>) -> Option<R>,
    ) -> Result<R, Refused> {
        let tag = self.begin(message).await;
        self.taken(tag, take).await
    }

    async fn taken<R>(&mut self, tag: u16, take: impl Fn(&Rmsg<'_>) -> Option<R>) -> Result<R, Refused> {
        let frame = self.answer_to(tag).await.expect("the server answers");
        let (_, message) = Rmsg::decode(&frame, Dialect::L).expect("the server sends what is 9P");
        match (take(&message), &message) {
            (Some(taken), _) => Ok(taken),
            (None, Rmsg::Lerror { ecode }) => Err(*ecode),
            (None, other) => panic!("{other:?}"),
        }
    }

    /// Sends a message whose answer has no value.
    pub async fn done(&mut self, message: Tmsg<'_>) -> Result<(), Refused> {
        self.ask(message, |answer| (!matches!(answer, Rmsg::Lerror { .. })).then_some(())).await
    }

    pub async fn attach(&mut self, fid: u32) -> Result<(), Refused> {
        let n_uname = OnlyIds(NOUID);
        self.done(Tmsg::Attach { fid: Fid(fid), afid: NOFID, uname: b"u", aname: b"", n_uname }).await
    }

    /// Walks from the root to this file, as this fid.
    pub async fn walk(&mut self, fid: u32, name: &str) {
        let names: &[&[u8]] = &[name.as_bytes()];
        let names = Names::Slice(if name.is_empty() { &[] } else { names });
        self.done(Tmsg::Walk { fid: Fid(1), newfid: Fid(fid), names }).await.expect("it is there");
    }

    /// The same, and opens it: 0 for reading, 1 for writing, 2 for both.
    pub async fn open(&mut self, fid: u32, name: &str, flags: u32) {
        self.walk(fid, name).await;
        self.done(Tmsg::Lopen { fid: Fid(fid), flags }).await.expect("it can be opened");
    }

    pub async fn clunk(&mut self, fid: u32) -> Result<(), Refused> {
        self.done(Tmsg::Clunk { fid: Fid(fid) }).await
    }

    /// Begins a stream that reads the file (or writes it). Returns its token.
    pub async fn stream(&mut self, fid: u32, read: bool, offset: u64) -> Result<String, Refused> {
        let message = Tmsg::Stream { fid: Fid(fid), isread: read.into(), offset };
        let offer = |answer: &Rmsg<'_>| match answer {
            Rmsg::Stream { data: Bytes::Bytes(data) } => Some(String::from_utf8(data.to_vec()).unwrap()),
            _ => None,
        };
        let offer = self.ask(message, offer).await?;
        let (addr, token) = offer.split_once(' ').expect("a dial string, a space, a token");
        assert_eq!((addr, token.len()), ("tcp!*!564", 32));
        assert!(token.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{token}");
        Ok(token.to_owned())
    }

    pub async fn begin_close(&mut self, fid: u32, count: u64) -> u16 {
        self.begin(Tmsg::Sclose { fid: Fid(fid), count }).await
    }

    pub async fn verdict(&mut self, tag: u16) -> Result<Verdict, Refused> {
        let verdict = |answer: &Rmsg<'_>| match answer {
            Rmsg::Sclose { count, errno, ename } => {
                Some((*count, *errno, String::from_utf8_lossy(ename).into()))
            }
            _ => None,
        };
        self.taken(tag, verdict).await
    }

    /// Sends a Tsclose. Returns the answer.
    pub async fn close(&mut self, fid: u32, count: u64) -> Result<Verdict, Refused> {
        let tag = self.begin_close(fid, count).await;
        self.verdict(tag).await
    }

    pub async fn flush(&mut self, oldtag: u16) {
        self.done(Tmsg::Flush { oldtag: Tag(oldtag) }).await.expect("a flush succeeds");
    }

    /// Reads this many bytes, or as many as there are.
    pub async fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, Refused> {
        let data = |answer: &Rmsg<'_>| match answer {
            Rmsg::Read { data: Bytes::Bytes(data) } => Some(data.to_vec()),
            _ => None,
        };
        self.ask(Tmsg::Read { fid: Fid(fid), offset, count }, data).await
    }
}

/// A manual data connection.
pub struct Data(Box<dyn Transport>);

impl Data {
    pub fn new(io: impl Transport) -> Self {
        Self(Box::new(io))
    }

    /// Creates one that has presented its token.
    pub async fn shown(io: impl Transport, token: &str) -> Self {
        let mut data = Self::new(io);
        data.write(format!("9PS1{token}").as_bytes()).await.expect("the server takes the token");
        data
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        write_all(&mut *self.0, bytes).await
    }

    /// Returns the next bytes; none at the end.
    pub async fn read(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; most];
        let n = poll_fn(|cx| self.0.poll_read(cx, &mut buf)).await?;
        buf.truncate(n);
        Ok(buf)
    }

    /// Returns all bytes until the end, and whether it ended well.
    pub async fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        let mut all = Vec::new();
        loop {
            match self.read(256 * 1024).await {
                Ok(bytes) if bytes.is_empty() => return (all, Ok(())),
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(error) => return (all, Err(error)),
            }
        }
    }

    /// Whether the server closed it without data.
    pub async fn is_closed(&mut self) -> bool {
        self.rest().await.0.is_empty()
    }

    /// Closes our direction.
    pub async fn close(&mut self) {
        poll_fn(|cx| self.0.poll_close(cx)).await.unwrap();
    }
}

async fn write_all(io: &mut dyn Transport, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| io.poll_write(cx, &[IoSlice::new(bytes)])).await?;
        bytes = &bytes[n..];
    }
    poll_fn(|cx| io.poll_flush(cx)).await
}
