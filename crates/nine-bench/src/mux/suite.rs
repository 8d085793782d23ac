//! The message suite of Hickey's figures: one of every message of 9P2000 except auth and flush (a walk twice, because a
//! create opens, too), on a file of its own.

use std::rc::Rc;

use nine_proto::msg::{Data, Names, OnlyIds, OnlyUStr, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, Stat, Tag};

use crate::wire::MessageCycle;

/// A client's suite, on one server after the other. Its connection must be fresh.
pub struct MessageSuite {
    /// Paths of the servers below the root; an empty path is the root itself.
    servers: Rc<[String]>,
    at: usize,
    file: String,
}

const ROOT: Fid = Fid(0);
const FILE: Fid = Fid(1);
const MSIZE: u32 = 8192;
const DATA: &[u8] = &[b'x'; 64];
const RDWR: u8 = 2;

impl MessageSuite {
    /// Creates the suite of the client with this number.
    pub fn new(client: usize, servers: &Rc<[String]>) -> Self {
        Self { servers: servers.clone(), at: 0, file: format!("c{client:04}") }
    }
}

impl MessageCycle for MessageSuite {
    fn put(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        let path = [self.servers[self.at].as_bytes(), self.file.as_bytes()];
        let path = if path[0].is_empty() { &path[1..] } else { &path[..] };
        let (dir, name) = (&path[..path.len() - 1], self.file.as_bytes());
        let walk = |names| Tmsg::Walk { fid: ROOT, newfid: FILE, names: Names::Slice(names) };
        let message = match n {
            0 => Tmsg::Version { msize: MSIZE, version: Dialect::P2000.name().as_bytes() },
            1 => Tmsg::Attach { fid: ROOT, afid: NOFID, uname: b"bench", aname: b"", n_uname: OnlyIds(0) },
            2 => walk(dir),
            3 => Tmsg::Create { fid: FILE, name, perm: 0o644, mode: RDWR, extension: OnlyUStr(b"") },
            4 => Tmsg::Write { fid: FILE, offset: 0, data: Data::Bytes(DATA) },
            5 => Tmsg::Read { fid: FILE, offset: 0, count: DATA.len() as u32 },
            6 => Tmsg::Stat { fid: FILE },
            7 => Tmsg::Wstat { fid: FILE, stat: Stat { mode: 0o600, ..Stat::DONT_TOUCH } },
            8 => Tmsg::Clunk { fid: FILE },
            9 => walk(path),
            10 => Tmsg::Open { fid: FILE, mode: RDWR },
            11 => Tmsg::Remove { fid: FILE },
            _ => {
                self.at = (self.at + 1) % self.servers.len();
                return false;
            }
        };
        let tag = if n == 0 { NOTAG } else { Tag(0) };
        message.encode(tag, Dialect::P2000, out);
        true
    }
}
