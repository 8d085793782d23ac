//! The limit: frames of the same lengths over the same packet sockets, with the same system calls, but without a
//! protocol and a disk.
//!
//! In: a request; its first two bytes are the length of the answer. Out: an answer of that length.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use nine_net::ether::{ETHER_TYPE, Ether, Mac, Packet, Room};
use nine_net::nonet::Link;
use nine_net::{Env, rt};
use nine_sim::delay::Side;

use super::cables::{EtherCable, EtherTestbed};
use super::job::{BlockJob, BlockOp, OperationMeter, SECTOR};
use crate::child;

/// AoE bytes before the data: the size of a frame without data.
const HEADER: usize = 22;
/// Frames in one receive or send call.
const FRAMES_PER_CALL_MAX: usize = 32;
/// Frames in flight, as many as our target queues.
const FRAMES_IN_FLIGHT_MAX: usize = 64;
/// A frame that has not arrived after this time is lost.
const LOST: Duration = Duration::from_millis(200);

/// Answers requests on an interface, forever.
pub fn answer(interface: &str) -> io::Result<()> {
    rt::block_on(async |_| {
        let mut lane = FrameSocket::open(interface)?;
        child::ready();
        let zeros = vec![0; lane.ether.mtu()];
        poll_fn(|cx| {
            loop {
                let came = ready!(lane.receive(cx))?;
                lane.waiting.extend(came);
                while !lane.waiting.is_empty() {
                    ready!(lane.send(cx, &[], &zeros))?;
                }
            }
        })
        .await
    })?
}

/// A packet socket with buffers for received frames, and the answers to send: destination and length.
struct FrameSocket {
    ether: Ether,
    rooms: Vec<Vec<u8>>,
    waiting: Vec<(Mac, usize)>,
}

impl FrameSocket {
    fn open(interface: &str) -> io::Result<Self> {
        let ether = Ether::open(interface, ETHER_TYPE)?;
        let rooms = vec![vec![0; ether.mtu()]; FRAMES_PER_CALL_MAX];
        Ok(Self { ether, rooms, waiting: Vec::new() })
    }

    /// Receives frames. Returns their senders and the lengths they request.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<(Mac, usize)>>> {
        let mut all = self.rooms.iter_mut();
        let mut rooms: [Room<'_>; FRAMES_PER_CALL_MAX] =
            std::array::from_fn(|_| Room::new(all.next().map_or(&mut [], Vec::as_mut_slice)));
        let n = ready!(self.ether.poll_recv_many(cx, &mut rooms))?;
        let came = rooms[..n].iter().filter_map(|room| Some((room.came?.1, asked(room.bytes))));
        Poll::Ready(Ok(came.collect()))
    }

    /// Sends as many waiting answers as possible at once.
    fn send(&mut self, cx: &mut Context<'_>, head: &[u8], data: &[u8]) -> Poll<io::Result<()>> {
        let count = self.waiting.len().min(FRAMES_PER_CALL_MAX);
        let nothing = Packet { to: Mac([0; 6]), parts: [&[], &[]] };
        let mut packets = [nothing; FRAMES_PER_CALL_MAX];
        for (packet, (to, len)) in packets.iter_mut().zip(&self.waiting) {
            *packet = Packet { to: *to, parts: [head, &data[..(*len).min(data.len()) - head.len()]] };
        }
        let sent = ready!(self.ether.poll_send_many(cx, &packets[..count]))?;
        self.waiting.drain(..sent.min(count));
        Poll::Ready(Ok(()))
    }
}

fn asked(question: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([question[0], question[1]]))
}

/// Returns the data lengths of an operation's frames, split as our initiator does.
fn pieces(size: u64, mtu: u32) -> Vec<usize> {
    let most = (u64::from(mtu) - 36) / SECTOR * SECTOR;
    let whole = std::iter::repeat_n(most as usize, (size / most) as usize);
    whole.chain(Some((size % most) as usize).filter(|rest| *rest > 0)).collect()
}

/// Runs the closest equivalent of a job on a cable; the other end [answers](answer).
pub fn turn(ground: &EtherTestbed, cable: &EtherCable, job: &BlockJob) -> io::Result<f64> {
    let to = cable.mac(Side::There)?;
    ground.far.run(Side::Here, || {
        rt::block_on(async |env| {
            let socket = FrameSocket::open(&cable.name)?;
            let pieces = pieces(job.size, cable.mtu);
            let all = pieces.len() * job.depth;
            let mut asker = FrameRequester {
                socket,
                to,
                op: job.op,
                pieces,
                next: 0,
                room: all.min(FRAMES_IN_FLIGHT_MAX),
                data: vec![0; 1 << 14],
            };
            let mut meter = OperationMeter::new(job);
            let (mut came, mut last) = (0, Instant::now());
            let mut late = env.sleep_until(env.now() + LOST);
            poll_fn(|cx| {
                loop {
                    while asker.ask(cx)? {}
                    // After a silence, send again.
                    if late.as_mut().poll(cx).is_ready() {
                        if last.elapsed() >= LOST {
                            asker.room = all.min(FRAMES_IN_FLIGHT_MAX);
                            last = Instant::now();
                        }
                        late = env.sleep_until(env.now() + LOST);
                        continue;
                    }
                    let answers = ready!(asker.socket.receive(cx))?.len();
                    (asker.room, last) =
                        ((asker.room + answers).min(all.min(FRAMES_IN_FLIGHT_MAX)), Instant::now());
                    for _ in 0..answers {
                        came += 1;
                        if came % asker.pieces.len() == 0 && !meter.done() {
                            return Poll::Ready(io::Result::Ok(()));
                        }
                    }
                }
            })
            .await?;
            meter.figure()
        })?
    })?
}

/// The requesting side.
struct FrameRequester {
    socket: FrameSocket,
    to: Mac,
    op: BlockOp,
    pieces: Vec<usize>,
    next: usize,
    /// Frames that may be sent now.
    room: usize,
    data: Vec<u8>,
}

impl FrameRequester {
    /// Sends requests of one length, as many as allowed. Returns whether any were sent.
    fn ask(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.room == 0 {
            return Ok(false);
        }
        let len = self.pieces[self.next % self.pieces.len()];
        let (question, answer) = match self.op {
            BlockOp::Read => (HEADER, HEADER + len),
            BlockOp::Write => (HEADER + len, HEADER),
        };
        let rest =
            self.pieces[self.next % self.pieces.len()..].iter().take_while(|other| **other == len).count();
        let count =
            if self.pieces.len() == 1 { self.room } else { rest.min(self.room) }.min(FRAMES_PER_CALL_MAX);
        self.socket.waiting = vec![(self.to, question); count];
        let mut head = [0; HEADER];
        head[..2].copy_from_slice(&(answer as u16).to_be_bytes());
        match self.socket.send(cx, &head, &self.data) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => return Ok(false),
        }
        let sent = count - self.socket.waiting.len();
        self.next += sent;
        self.room -= sent;
        Ok(sent > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_cut_as_our_initiator_cuts_them() {
        assert_eq!(pieces(4096, 9000), [4096]);
        assert_eq!(pieces(4096, 1500), [1024; 4]);
        assert_eq!(pieces(64 << 10, 9000), [[8704; 7].as_slice(), &[4608]].concat());
    }

    #[test]
    fn a_question_says_how_long_its_answer_is() {
        assert_eq!(asked(&[0x22, 0x16, 9, 9]), 0x2216);
    }
}
