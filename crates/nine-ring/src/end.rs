//! One end of a channel: its rings, the generations of both sides, and the sleep flags (docs/channels.md, "Lives",
//! "Waiting").
//!
//! In: pieces and the caller's state changes. Out: pieces, the state of the other side, and whether its doorbell must
//! be rung. Always holds: an end belongs to one thread at a time.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::{Bad, Layout, Place, at};
use crate::ring::{Fault, Note, Piece, Reader, Writer, used};
use crate::sys::Memory;

/// One end of a channel.
#[derive(Debug)]
pub struct End {
    memory: Memory,
    layout: Layout,
    side: ChannelSide,
    out: Writer,
    come: Reader,
    /// The host's generation, as known to this end.
    epoch: u32,
    /// The guest's generation, as known to this end. The host has 0 before the first guest.
    join: u32,
    /// Host only: whether it serves this guest, so that the guest may end.
    serves: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelSide {
    Host,
    Guest,
}

/// The state of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Unchanged.
    Same,
    /// It sends nothing after the pieces in the ring.
    Ended,
    /// It has restarted, and in-flight pieces are lost. A host then calls [`End::serve`]; a guest joins again.
    Another,
}

/// Reads the statistics of a channel from its memory. The other side can write any values there. Do not read while
/// [`End::serve`] prepares the rings.
#[derive(Clone, Debug)]
pub struct Watch(Memory, Layout);

/// A guest that has asked to join and is not served yet.
#[derive(Debug)]
pub struct Guest {
    end: End,
}

impl End {
    /// Opens a channel in the memory as the host, whatever the memory contains. No guest is served yet.
    ///
    /// # Panics
    /// If the memory is smaller than the layout.
    pub fn open(memory: Memory, layout: Layout) -> Self {
        assert!(layout.size <= memory.len(), "memory of {} bytes for {}", memory.len(), layout.size);
        let before = Layout::read(&memory).map_or(0, |_| memory.word(at::EPOCH).load(Relaxed));
        // A guest that has already asked to join will be served. A guest of the old host sees the new epoch and asks
        // again.
        let join = if before == 0 { 0 } else { memory.word(at::JOIN).load(Relaxed) };
        layout.write(&memory);
        memory.word(at::JOIN).store(join, Relaxed);
        let epoch = following(before);
        memory.word(at::EPOCH).store(epoch, Release);
        Layout::write_magic(&memory);
        Self::new(memory, layout, ChannelSide::Host, epoch, 0)
    }

    fn new(memory: Memory, layout: Layout, side: ChannelSide, epoch: u32, join: u32) -> Self {
        let up = (layout.up, at::UP_TAKEN);
        let down = (layout.down, at::DOWN_TAKEN);
        let (out, come) = if side == ChannelSide::Host { (down, up) } else { (up, down) };
        let out = Writer::new(memory.clone(), out.0, layout.lines, out.1);
        let come = Reader::new(memory.clone(), come.0, layout.lines, come.1);
        Self { memory, layout, side, out, come, epoch, join, serves: join != 0 }
    }

    /// Creates an end for rings at offset `first`, without a first page.
    #[cfg(all(test, any(nine_loom, nine_shuttle)))]
    pub(crate) fn bare(memory: Memory, first: usize, lines: u32, is_host: bool) -> Self {
        let layout = Layout {
            kind: crate::Kind::Bytes,
            lines,
            pages: 0,
            name: [0; 32],
            up: first,
            down: first + lines as usize * crate::layout::LINE,
            arena: 0,
            size: memory.len(),
        };
        Self::new(memory, layout, if is_host { ChannelSide::Host } else { ChannelSide::Guest }, 1, 1)
    }

    /// Makes `line` the next line in both rings.
    #[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
    pub(crate) fn begin_at(&mut self, line: u32) {
        self.out.begin_at(line);
        self.come.begin_at(line);
    }

    /// Returns the layout of the channel.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the memory of a range and its offset there, for callers that copy the data themselves. `None` if the
    /// range is not in the arena.
    pub fn place(&self, place: Place) -> Option<(&Memory, usize)> {
        Some((&self.memory, self.layout.place(place)?))
    }

    /// Returns a reader of the channel's statistics.
    pub fn watch(&self) -> Watch {
        Watch(self.memory.clone(), self.layout)
    }

    /// Writes a piece, see [`Writer::put`]. Call [`End::must_ring`] afterwards.
    ///
    /// # Panics
    /// If the piece is longer than [`MOST`](crate::MOST).
    #[inline]
    pub fn put(&mut self, bytes: &[u8], note: Note) -> Result<bool, Fault> {
        self.out.put(bytes, note)
    }

    /// Whether a piece fits, see [`Writer::has_room`].
    pub fn has_room(&mut self, len: usize) -> Result<bool, Fault> {
        self.out.has_room(len)
    }

    /// Whether the other side has read everything.
    pub fn is_drained(&self) -> bool {
        self.out.is_drained()
    }

    /// Whether a piece is available, see [`Reader::is_ready`].
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.come.is_ready()
    }

    /// Reads a piece, see [`Reader::take`]. Call [`End::must_ring`] afterwards.
    ///
    /// # Panics
    /// If `into` is shorter than [`MOST`](crate::MOST).
    #[inline]
    pub fn take(&mut self, into: &mut [u8]) -> Result<Option<Piece>, Fault> {
        self.come.take(&self.layout, into)
    }

    /// Returns the state of the other side. If it has ended, read the ring once more: its last piece came before.
    #[inline]
    pub fn life(&self) -> Life {
        let word = |at: usize| self.memory.word(at).load(Acquire);
        match self.side {
            ChannelSide::Host if word(at::JOIN) != self.join => Life::Another,
            ChannelSide::Host if !self.serves => Life::Same,
            ChannelSide::Host if word(at::LEFT) == self.join => Life::Ended,
            ChannelSide::Guest if word(at::EPOCH) != self.epoch || word(at::SERVES) != self.join => {
                Life::Another
            }
            ChannelSide::Guest if word(at::CLOSED) == self.epoch => Life::Ended,
            _ => Life::Same,
        }
    }

    /// Host: prepares the rings for the guest that has joined. Call [`End::must_ring`] afterwards. If a guest joins
    /// during this, the next [`End::life`] reports it as another one.
    ///
    /// # Panics
    /// If this is the guest's end.
    pub fn serve(&mut self) {
        assert!(self.side == ChannelSide::Host, "a host serves");
        let join = self.memory.word(at::JOIN).load(Acquire);
        for ring in [self.layout.up, self.layout.down] {
            self.memory.clear(ring, self.layout.ring_len());
        }
        for taken in [at::UP_TAKEN, at::DOWN_TAKEN] {
            self.memory.word(taken).store(0, Relaxed);
        }
        *self = Self::new(self.memory.clone(), self.layout, ChannelSide::Host, self.epoch, join);
        self.memory.word(at::SERVES).store(join, Release);
    }

    /// Host: starts a new generation after a guest has ended, so that another guest may join. Call [`End::must_ring`]
    /// afterwards.
    ///
    /// # Panics
    /// If this is the guest's end.
    pub fn begin_again(&mut self) {
        assert!(self.side == ChannelSide::Host, "a host begins again");
        (self.epoch, self.serves) = (following(self.epoch), false);
        self.memory.word(at::SERVES).store(0, Relaxed);
        self.memory.word(at::EPOCH).store(self.epoch, Release);
    }

    /// Announces that this side sends nothing more. Call [`End::must_ring`] afterwards.
    pub fn end(&mut self) {
        let (at, life) = match self.side {
            ChannelSide::Host => (at::CLOSED, self.epoch),
            ChannelSide::Guest => (at::LEFT, self.join),
        };
        self.memory.word(at).store(life, Release);
    }

    /// Asks the other side to ring for every piece that it writes or reads from now on. Check everything once more
    /// before you sleep.
    pub fn may_sleep(&self) {
        self.memory.word(self.sleeps(self.side)).swap(1, AcqRel);
    }

    /// Tells the other side that it need not ring.
    pub fn is_awake(&self) {
        self.memory.word(self.sleeps(self.side)).swap(0, AcqRel);
    }

    /// Whether the other side's doorbell must be rung. Call this after every change that the other side may wait for.
    #[inline]
    #[must_use]
    pub fn must_ring(&self) -> bool {
        let other = if self.side == ChannelSide::Host { ChannelSide::Guest } else { ChannelSide::Host };
        self.memory.word(self.sleeps(other)).swap(0, AcqRel) != 0
    }

    fn sleeps(&self, side: ChannelSide) -> usize {
        if side == ChannelSide::Host { at::HOST_SLEEPS } else { at::GUEST_SLEEPS }
    }
}

impl Watch {
    /// Returns the generations of the host and of the guest that it serves.
    pub fn lives(&self) -> [u32; 2] {
        [at::EPOCH, at::SERVES].map(|at| self.0.word(at).load(Relaxed))
    }

    /// Returns the numbers of acknowledged lines: from guest to host, and from host to guest.
    pub fn taken(&self) -> [u32; 2] {
        [at::UP_TAKEN, at::DOWN_TAKEN].map(|at| self.0.word(at).load(Relaxed))
    }

    /// Returns the numbers of lines in each ring, from guest to host and back. They are a snapshot, valid if both sides
    /// follow the protocol.
    pub fn used(&self) -> [u32; 2] {
        let Layout { up, down, lines, .. } = self.1;
        [(up, at::UP_TAKEN), (down, at::DOWN_TAKEN)].map(|(ring, taken)| used(&self.0, ring, lines, taken))
    }
}

impl Guest {
    /// Asks to join the channel at the start of the memory. Call [`Guest::must_ring`] until the guest is served.
    pub fn join(memory: Memory) -> Result<Self, Bad> {
        let layout = Layout::read(&memory)?;
        let epoch = memory.word(at::EPOCH).load(Acquire);
        if epoch == 0 {
            return Err(Bad::Closed);
        }
        let join = following(memory.word(at::JOIN).load(Relaxed));
        memory.word(at::JOIN).store(join, Release);
        Ok(Self { end: End::new(memory, layout, ChannelSide::Guest, epoch, join) })
    }

    /// Returns the end once the guest is served. Take it only once. A host that has restarted meanwhile counts, too.
    pub fn served(&self) -> Option<End> {
        let End { memory, layout, join, .. } = &self.end;
        let epoch = memory.word(at::EPOCH).load(Acquire);
        let served = memory.word(at::SERVES).load(Acquire) == *join;
        served.then(|| End::new(memory.clone(), *layout, ChannelSide::Guest, epoch, *join))
    }

    /// See [`End::must_ring`].
    #[must_use]
    pub fn must_ring(&self) -> bool {
        self.end.must_ring()
    }

    /// See [`End::may_sleep`].
    pub fn may_sleep(&self) {
        self.end.may_sleep();
    }

    /// See [`End::is_awake`].
    pub fn is_awake(&self) {
        self.end.is_awake();
    }
}

/// Returns the next generation, which is never 0.
fn following(life: u32) -> u32 {
    life.checked_add(1).unwrap_or(1)
}
