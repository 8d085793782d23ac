//! The frames of CEC: four bytes and data (`docs/cec.md`, Frame).
//!
//! In: the bytes after an Ethernet header. Out: a [`Frame`]; the text of an offer.

/// The Ethernet type of CEC.
pub const ETHER_TYPE: u16 = 0xbcbc;
/// Bytes before the data: `type[1] conn[1] seq[1] len[1]`.
pub const HEADER: usize = 4;
/// Maximum number of data bytes that we send in a frame, as in Plan 9's servers.
pub const DATA_MAX: usize = 250;
/// Bytes of data in our inita, and in the initb that answers it.
pub(crate) const COOKIE: usize = 4;
/// Bytes of the shortest packet: 60 with its header. Plan 9's client does not read a shorter offer.
const PACKET_LEN_MIN: usize = 46;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A client asks for a connection.
    Inita = 0,
    /// The server agrees.
    Initb = 1,
    /// The client confirms the initb.
    Initc = 2,
    /// Typed input, or output to show.
    Data = 3,
    /// Acknowledges the data with this number.
    Ack = 4,
    /// Asks servers to answer.
    Discover = 5,
    /// A server's answer to it.
    Offer = 6,
    /// The connection is closed, or unknown.
    Reset = 7,
}

impl Kind {
    /// All of them, by their numbers.
    pub const ALL: [Self; 8] = [
        Self::Inita,
        Self::Initb,
        Self::Initc,
        Self::Data,
        Self::Ack,
        Self::Discover,
        Self::Offer,
        Self::Reset,
    ];
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The type.
    pub kind: Kind,
    /// The connection.
    pub conn: u8,
    /// The number of the data.
    pub seq: u8,
    /// At most 255 bytes.
    pub data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame without a number and without data.
    pub fn bare(kind: Kind, conn: u8) -> Self {
        Self { kind, conn, seq: 0, data: &[] }
    }

    /// Parses a packet. `None`: it is not a frame, or its type is unknown.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let (&[kind, conn, seq, len], rest) = packet.split_first_chunk::<HEADER>()?;
        let kind = *Kind::ALL.get(usize::from(kind))?;
        Some(Self { kind, conn, seq, data: rest.get(..usize::from(len))? })
    }

    /// Writes the packet, padded.
    ///
    /// # Panics
    /// Data of more than 255 bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let len = u8::try_from(self.data.len()).expect("the data of a frame has at most 255 bytes");
        let mut packet = vec![self.kind as u8, self.conn, self.seq, len];
        packet.extend_from_slice(self.data);
        packet.resize(packet.len().max(PACKET_LEN_MIN), 0);
        packet
    }
}

/// A server's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    /// The shelf number set by an administrator; -1: none.
    pub shelf: i32,
    /// Its name. May be empty.
    pub name: String,
}

impl Offer {
    /// Writes the data of a frame. Truncates a long name.
    pub fn text(&self) -> String {
        let mut text = format!("{} {}", self.shelf, self.name);
        text.truncate(text.floor_char_boundary(DATA_MAX));
        text
    }

    /// Parses the data of a frame. Drops bytes that are not text or would control a terminal.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let text = data.split(|byte| matches!(byte, 0 | 1)).next()?;
        let text = String::from_utf8_lossy(text);
        let (shelf, name) = text.split_once([' ', '\t']).unwrap_or((&text, ""));
        let name = name.trim().chars().filter(|c| !c.is_control()).collect();
        Some(Self { shelf: shelf.parse().ok()?, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_laid_out_as_the_table_says() {
        let frame = Frame { kind: Kind::Data, conn: 7, seq: 9, data: b"ab" };
        let packet = frame.bytes();
        assert_eq!((&packet[..6], packet.len()), (&[3, 7, 9, 2, b'a', b'b'][..], 46));
        assert_eq!(Frame::parse(&packet), Some(frame));
        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((kind as usize, Frame::parse(&Frame::bare(kind, 1).bytes()).unwrap().kind), (n, kind));
        }
        let long = Frame { data: &[5; 255], ..frame };
        assert_eq!((long.bytes().len(), Frame::parse(&long.bytes())), (259, Some(long)));
    }

    #[test]
    fn what_says_more_than_it_has_is_no_frame() {
        for packet in [&[][..], &[3, 1, 1], &[3, 1, 1, 1], &[8, 1, 1, 0], &[255; 300][..]] {
            assert_eq!(Frame::parse(packet), None, "{packet:?}");
        }
        assert!(Frame::parse(&[3, 1, 1, 0]).is_some());
    }

    #[test]
    fn an_offer_is_read_as_plan_9_reads_it() {
        let offer = |shelf, name: &str| Some(Offer { shelf, name: name.into() });
        assert_eq!(Offer::parse(b"-1 fs"), offer(-1, "fs"));
        assert_eq!(Offer::parse(b"5\tshelf5\x01more"), offer(5, "shelf5"));
        assert_eq!(Offer::parse(b"7"), offer(7, ""));
        assert_eq!(Offer::parse(b"7 a\x1b[2Jb\0zz"), offer(7, "a[2Jb"));
        assert_eq!(Offer::parse(b"x y").or(Offer::parse(b"")), None);
        let long = Offer { shelf: 1, name: "\u{e9}".repeat(200) };
        assert!(long.text().len() <= DATA_MAX && Offer::parse(long.text().as_bytes()).is_some());
    }
}
