//! Channels of a virtual machine (docs/guest.md): one memory on the board of an emulated computer, QEMU's ivshmem,
//! whose server this is.
//!
//! In: the layouts of the channels. Out: the host's ends of them, and the descriptors that QEMU inherits.
//!
//! Always holds: when QEMU closes its end of the socket, the machine is gone. The socket is each channel's hangup.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nine_ring::linux::{self, Bell};
use nine_ring::{End, Layout};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{Channel, Waits};
use crate::transport::Peer;

/// The device's numbers of its peers.
const HOST: i64 = 0;
const GUEST: i64 = 1;
/// Version of the protocol between server and device.
const VERSION: i64 = 0;
/// In place of a peer: the message carries the memory.
const MEMORY: i64 = -1;

/// The channels of a virtual machine: a memory, two bells per channel, and a socket.
#[derive(Debug)]
pub struct Board {
    memory: OwnedFd,
    size: usize,
    channels: usize,
    socket: OwnedFd,
}

impl Board {
    /// Creates channels, one after the other in one memory, and opens them. Returns the host's ends.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(layouts: &[Layout], waits: Waits, peer: &Peer) -> io::Result<(Vec<Channel>, Self)> {
        // A base address register needs a power of two.
        let size = layouts.iter().map(|layout| layout.size).sum::<usize>().next_power_of_two();
        let (memory, file) = linux::create(size)?;
        let (ours, theirs) = UnixStream::pair()?;
        let bells = || layouts.iter().map(|_| Bell::new()).collect::<io::Result<Vec<_>>>();
        let (host, guest) = (bells()?, bells()?);
        tell(&ours, VERSION, None)?;
        tell(&ours, GUEST, None)?;
        let bells_of =
            |peer, bells: &[Bell]| bells.iter().try_for_each(|bell| tell(&ours, peer, Some(bell.as_fd())));
        // QEMU starts the guest when it has the memory, and reads later messages from its main loop. A ring of a bell
        // that QEMU does not have yet is lost, so the host's bells come first. QEMU takes the guest's bells only after
        // the memory, and loses nothing: an eventfd that is signalled already wakes QEMU when it starts to watch it.
        bells_of(HOST, &host)?;
        tell(&ours, MEMORY, Some(file.as_fd()))?;
        bells_of(GUEST, &guest)?;
        let mut at = 0;
        let mut channels = Vec::with_capacity(layouts.len());
        for ((layout, wait), ring) in layouts.iter().zip(host).zip(guest) {
            let end = End::open(memory.part(at, layout.size).expect("it is in the memory"), *layout);
            at += layout.size;
            channels.push(Channel::new(end, wait, ring, ours.try_clone()?.into(), waits, peer.clone())?);
        }
        Ok((channels, Self { memory: file, size, channels: layouts.len(), socket: theirs.into() }))
    }

    /// Makes the descriptors inheritable by the next child process. Of all other descriptors, it gets only its standard
    /// files.
    pub fn for_child(self) -> io::Result<Slot> {
        linux::close_all_on_exec()?;
        let Self { memory, size, channels, socket } = self;
        Ok(Slot { memory: rustix::io::dup(memory)?, size, channels, socket: rustix::io::dup(socket)? })
    }
}

/// Descriptors of a [`Board`] that the next child process inherits. Drop it after the start.
#[derive(Debug)]
pub struct Slot {
    memory: OwnedFd,
    size: usize,
    channels: usize,
    socket: OwnedFd,
}

impl Slot {
    /// The descriptor of the memory file, and its size in bytes, a power of two.
    pub fn memory(&self) -> (RawFd, usize) {
        (self.memory.as_raw_fd(), self.size)
    }

    /// The descriptor of the connection to the ivshmem server, which has sent all its messages; and the number of bells
    /// of each side.
    pub fn socket(&self) -> (RawFd, usize) {
        (self.socket.as_raw_fd(), self.channels)
    }
}

/// Sends a message of the server: a number, and its descriptor. A new socket has room for all of them.
fn tell(socket: &UnixStream, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_slice();
    assert!(fds.is_empty() || beside.push(SendAncillaryMessage::ScmRights(fds)), "room for one");
    let bytes = number.to_le_bytes();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut beside, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use nine_ring::{Guest, Kind};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    use super::*;
    use crate::transport::Proof;

    /// Reads a message as the device does: a number, and a descriptor.
    fn heard(socket: &OwnedFd) -> (i64, Option<OwnedFd>) {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let came = rustix::net::recvmsg(socket, &mut parts, &mut beside, RecvFlags::empty()).unwrap();
        assert_eq!(came.bytes, 8);
        let fd = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        (i64::from_le_bytes(bytes), fd)
    }

    #[test]
    fn the_device_hears_of_memory_and_bells_and_finds_each_channel_by_its_name() {
        let layouts = ["root", "self"].map(|name| Layout::new(Kind::GuestAsks, 64, 3, name));
        let sum: usize = layouts.iter().map(|layout| layout.size).sum();
        crate::rt::block_on(async |_| {
            let peer = Peer { addr: "machine".into(), proof: Proof::None };
            let (channels, board) = Board::open(&layouts, Waits::Interrupt, &peer).unwrap();
            assert_eq!(channels.len(), 2);
            assert!(board.size.is_power_of_two() && board.size >= sum);
            assert_eq!([heard(&board.socket).0, heard(&board.socket).0], [0, 1]);
            let bell = |peer| {
                let (number, bell) = heard(&board.socket);
                assert_eq!(number, peer);
                Bell::from(bell.unwrap())
            };
            // A guest may ring as soon as the device has the memory, so the host's bells come before it.
            let [_, ours] = [bell(HOST), bell(HOST)];
            let (number, file) = heard(&board.socket);
            assert_eq!(number, MEMORY);
            let memory = linux::map(file.unwrap()).unwrap();
            assert_eq!(memory.len(), board.size);
            let [_, theirs] = [bell(GUEST), bell(GUEST)];
            let (_, second) = Layout::find(&memory, "self").unwrap();
            let guest = Guest::join(second).unwrap();
            assert!(!guest.must_ring());
            let mut channels = channels;
            std::future::poll_fn(|cx| channels[1].poll_join(cx)).await.unwrap();
            let end = guest.served().unwrap();
            end.may_sleep();
            assert!(!theirs.hear());
            let put = nine_ring::Note::None;
            std::future::poll_fn(|cx| channels[1].poll_put(cx, b"news", put)).await.unwrap();
            channels[1].settle();
            assert!(theirs.hear());
            // And in the other direction, for an end that sleeps.
            let mut buf = [0; nine_ring::MOST];
            let (mut end, mut wanted) = (end, false);
            let piece = std::future::poll_fn(|cx| {
                let came = channels[1].poll_take(cx, &mut buf);
                if came.is_pending() && !std::mem::replace(&mut wanted, true) {
                    end.put(b"question", nine_ring::Note::None).unwrap();
                    assert!(end.must_ring());
                    ours.ring();
                }
                came
            });
            assert_eq!(piece.await.unwrap().unwrap().len, 8);
            drop(board);
            let gone = std::future::poll_fn(|cx| channels[0].poll_join(cx)).await;
            assert!(gone.is_err());
        })
        .unwrap();
    }
}
