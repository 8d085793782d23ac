//! Reads and writes that need not wait: the file is called directly, past the session.
//!
//! In: a Tread or a Twrite of an open file that can be called ([`Direct`](crate::Direct)), while its client has no
//! other request in flight. Out: the answer, or nothing; then the session serves the request. Always holds: an answer
//! given here equals the session's answer and leaves the session's state unchanged. So errors go through the session.

use nine_proto::msg::{Data, Rmsg};
use nine_proto::session::server::Out;
use nine_proto::{Fid, NOTAG, frame};

use super::Connection;
use crate::buf::{MessageFrame, WRITE_HEAD};
use crate::direct::Called;
use crate::payload::Payload;

const TREAD: u8 = 116;
const TWRITE: u8 = 118;

impl Connection {
    /// Calls the file and returns whether it has answered. `None`: it was not called.
    pub(super) fn call(&mut self, frame: &MessageFrame) -> Option<bool> {
        let bytes = frame.as_ref();
        let number = frame::type_of(bytes);
        // A client in this process has called the file already.
        if !matches!(number, TREAD | TWRITE) || bytes.len() < WRITE_HEAD || self.own {
            return None;
        }
        let is_quiet = self.session.outstanding() == 0 && self.later == 0 && self.tx.is_empty();
        if !is_quiet || !self.streams.by_fid.is_empty() || tracing::enabled!(tracing::Level::TRACE) {
            return None;
        }
        // `size[4] type[1] tag[2] fid[4] offset[8] count[4]`
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (tag, fid, count) = (frame::tag_of(bytes), Fid(word(7)), word(19));
        let offset = u64::from(word(11)) | u64::from(word(15)) << 32;
        let dialect = self.session.dialect()?;
        let (held, flags) = self.session.opened_file(fid)?;
        let in_file = offset.checked_add(count.into()).is_some_and(|end| i64::try_from(end).is_ok());
        if tag == NOTAG || !in_file || held.desk {
            return None;
        }
        let data = &bytes[WRITE_HEAD..];
        if number == TREAD {
            let most = self.session.msize() - frame::IOHDRSZ;
            let most = most.min(self.ceiling().try_into().unwrap_or(u32::MAX));
            if !flags.reads() || !data.is_empty() {
                return None;
            }
            let direct = self.server.direct(&held.node, flags)?;
            let count = count.min(most);
            let data = match direct.read(None, offset, count) {
                Called::Done(Ok(data)) if data.len() <= count as usize => data,
                Called::Done(Ok(_)) => {
                    tracing::error!("the file server gives more bytes than were asked for (fix the server)");
                    return Some(false);
                }
                _ => return Some(false),
            };
            let head = Rmsg::Read { data: Data::Count(data.len() as u32) };
            head.encode_before(data.len(), tag, dialect, self.tx.bytes());
            self.tx.payload(data);
        } else {
            if !flags.writes() || held.who.read_only {
                return None;
            }
            let data = match frame.data() {
                Some(placed) if data.is_empty() && self.server.takes_placed(&held.node) => {
                    Payload::Placed(placed.clone())
                }
                None if data.is_empty() => Payload::EMPTY,
                None => Payload::Bytes(frame.share(data)),
                Some(_) => return None,
            };
            if data.len() != count as usize {
                return None;
            }
            let direct = self.server.direct(&held.node, flags)?;
            let Called::Done(Ok(n)) = direct.write_now(offset, &data) else { return Some(false) };
            Rmsg::Write { count: n as u32 }.encode(tag, dialect, self.tx.bytes());
        }
        Some(true)
    }
}
