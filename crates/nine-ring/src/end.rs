//! One end of a channel: its rings, the lives of both sides, and who sleeps (docs/channels.md, "Lives", "Waiting").
//!
//! Concurrency: one thread has an end.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::{Bad, Layout, Place, at};
use crate::ring::{Fault, Note, Piece, Reader, Writer, used};
use crate::sys::Memory;

/// One end of a channel.
#[derive(Debug)]
pub struct End {
    memory: Memory,
    layout: Layout,
    side: Side,
    out: Writer,
    come: Reader,
    /// The life of the host that this end knows.
    epoch: u32,
    /// The life of the guest that this end knows; the host: 0 before the first one.
    join: u32,
    /// The host: it serves this guest, who may end.
    serves: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host,
    Guest,
}

/// How the other side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// As before.
    Same,
    /// It sends nothing more than what lies in the ring.
    Ended,
    /// It is another one: what was under way is lost. The host serves it by [`End::serve`]; a guest joins again.
    Another,
}

/// The numbers of a channel, as its memory has them: of those that the other side writes, what it likes. Nobody looks
/// while [`End::serve`] makes the rings ready.
#[derive(Clone, Debug)]
pub struct Watch(Memory, Layout);

/// A guest that has knocked and is not served yet.
#[derive(Debug)]
pub struct Guest {
    end: End,
}

impl End {
    /// Opens a channel in the memory, whatever was there: its size is the layout's at least. It serves nobody yet.
    ///
    /// # Panics
    /// The memory is smaller.
    pub fn open(memory: Memory, layout: Layout) -> Self {
        assert!(layout.size <= memory.len(), "memory of {} bytes for {}", memory.len(), layout.size);
        let before = Layout::read(&memory).map_or(0, |_| memory.word(at::EPOCH).load(Relaxed));
        // Who knocks already is served; who was served before sees another epoch, and knocks again.
        let join = if before == 0 { 0 } else { memory.word(at::JOIN).load(Relaxed) };
        layout.write(&memory);
        memory.word(at::JOIN).store(join, Relaxed);
        let epoch = following(before);
        memory.word(at::EPOCH).store(epoch, Release);
        Layout::write_magic(&memory);
        Self::new(memory, layout, Side::Host, epoch, 0)
    }

    fn new(memory: Memory, layout: Layout, side: Side, epoch: u32, join: u32) -> Self {
        let up = (layout.up, at::UP_TAKEN);
        let down = (layout.down, at::DOWN_TAKEN);
        let (out, come) = if side == Side::Host { (down, up) } else { (up, down) };
        let out = Writer::new(memory.clone(), out.0, layout.lines, out.1);
        let come = Reader::new(memory.clone(), come.0, layout.lines, come.1);
        Self { memory, layout, side, out, come, epoch, join, serves: join != 0 }
    }

    /// Rings behind so many bytes, without a first page.
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
        Self::new(memory, layout, if is_host { Side::Host } else { Side::Guest }, 1, 1)
    }

    /// Has all lines before this one behind it.
    #[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
    pub(crate) fn begin_at(&mut self, line: u32) {
        self.out.begin_at(line);
        self.come.begin_at(line);
    }

    /// What is where.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory of a place, for whoever copies by himself. `None`: it is not in the arena.
    pub fn place(&self, place: Place) -> Option<(&Memory, usize)> {
        Some((&self.memory, self.layout.place(place)?))
    }

    /// What may be looked at beside it.
    pub fn watch(&self) -> Watch {
        Watch(self.memory.clone(), self.layout)
    }

    /// See [`Writer::put`]. Then [`End::must_ring`].
    ///
    /// # Panics
    /// It is longer than [`MOST`](crate::MOST).
    #[inline]
    pub fn put(&mut self, bytes: &[u8], note: Note) -> Result<bool, Fault> {
        self.out.put(bytes, note)
    }

    /// See [`Writer::has_room`].
    pub fn has_room(&mut self, len: usize) -> Result<bool, Fault> {
        self.out.has_room(len)
    }

    /// Whether the other side has taken all that was put.
    pub fn is_drained(&self) -> bool {
        self.out.is_drained()
    }

    /// See [`Reader::is_ready`].
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.come.is_ready()
    }

    /// See [`Reader::take`]. Then [`End::must_ring`].
    ///
    /// # Panics
    /// `into` is shorter than [`MOST`](crate::MOST).
    #[inline]
    pub fn take(&mut self, into: &mut [u8]) -> Result<Option<Piece>, Fault> {
        self.come.take(&self.layout, into)
    }

    /// How the other side is. Whoever sees that it has ended looks into the ring once more: its last piece came before.
    #[inline]
    pub fn life(&self) -> Life {
        let word = |at: usize| self.memory.word(at).load(Acquire);
        match self.side {
            Side::Host if word(at::JOIN) != self.join => Life::Another,
            Side::Host if !self.serves => Life::Same,
            Side::Host if word(at::LEFT) == self.join => Life::Ended,
            Side::Guest if word(at::EPOCH) != self.epoch || word(at::SERVES) != self.join => Life::Another,
            Side::Guest if word(at::CLOSED) == self.epoch => Life::Ended,
            _ => Life::Same,
        }
    }

    /// The host: makes the rings ready for the guest that has joined. Then [`End::must_ring`]. A guest that joins again
    /// meanwhile is another one at the next [`End::life`].
    ///
    /// # Panics
    /// This is the guest's end.
    pub fn serve(&mut self) {
        assert!(self.side == Side::Host, "a host serves");
        let join = self.memory.word(at::JOIN).load(Acquire);
        for ring in [self.layout.up, self.layout.down] {
            self.memory.clear(ring, self.layout.ring_len());
        }
        for taken in [at::UP_TAKEN, at::DOWN_TAKEN] {
            self.memory.word(taken).store(0, Relaxed);
        }
        *self = Self::new(self.memory.clone(), self.layout, Side::Host, self.epoch, join);
        self.memory.word(at::SERVES).store(join, Release);
    }

    /// The host, when it has ended with a guest: begins another life, in which the next one may join. Then
    /// [`End::must_ring`].
    ///
    /// # Panics
    /// This is the guest's end.
    pub fn begin_again(&mut self) {
        assert!(self.side == Side::Host, "a host begins again");
        (self.epoch, self.serves) = (following(self.epoch), false);
        self.memory.word(at::SERVES).store(0, Relaxed);
        self.memory.word(at::EPOCH).store(self.epoch, Release);
    }

    /// Says that nothing more is put. Then [`End::must_ring`].
    pub fn end(&mut self) {
        let (at, life) = match self.side {
            Side::Host => (at::CLOSED, self.epoch),
            Side::Guest => (at::LEFT, self.join),
        };
        self.memory.word(at).store(life, Release);
    }

    /// From now on the other side rings for whatever it writes or takes. Look at everything once more before you sleep.
    pub fn may_sleep(&self) {
        self.memory.word(self.sleeps(self.side)).swap(1, AcqRel);
    }

    /// Nobody needs to ring any more.
    pub fn is_awake(&self) {
        self.memory.word(self.sleeps(self.side)).swap(0, AcqRel);
    }

    /// After anything that the other side may wait for: whether its bell is to be rung.
    #[inline]
    #[must_use]
    pub fn must_ring(&self) -> bool {
        let other = if self.side == Side::Host { Side::Guest } else { Side::Host };
        self.memory.word(self.sleeps(other)).swap(0, AcqRel) != 0
    }

    fn sleeps(&self, side: Side) -> usize {
        if side == Side::Host { at::HOST_SLEEPS } else { at::GUEST_SLEEPS }
    }
}

impl Watch {
    /// Of the host, and of the guest that it serves.
    pub fn lives(&self) -> [u32; 2] {
        [at::EPOCH, at::SERVES].map(|at| self.0.word(at).load(Relaxed))
    }

    /// Lines that were taken: those from guest to host, and back.
    pub fn taken(&self) -> [u32; 2] {
        [at::UP_TAKEN, at::DOWN_TAKEN].map(|at| self.0.word(at).load(Relaxed))
    }

    /// Lines that lie in each ring, from guest to host and back: at some moment, if both sides keep to the rules.
    pub fn used(&self) -> [u32; 2] {
        let Layout { up, down, lines, .. } = self.1;
        [(up, at::UP_TAKEN), (down, at::DOWN_TAKEN)].map(|(ring, taken)| used(&self.0, ring, lines, taken))
    }
}

impl Guest {
    /// Knocks at the channel at the beginning of the memory. Then [`Guest::must_ring`], until it is served.
    pub fn join(memory: Memory) -> Result<Self, Bad> {
        let layout = Layout::read(&memory)?;
        let epoch = memory.word(at::EPOCH).load(Acquire);
        if epoch == 0 {
            return Err(Bad::Closed);
        }
        let join = following(memory.word(at::JOIN).load(Relaxed));
        memory.word(at::JOIN).store(join, Release);
        Ok(Self { end: End::new(memory, layout, Side::Guest, epoch, join) })
    }

    /// The end, once it is served: take it once. A host that begins anew meanwhile serves, too.
    pub fn served(&self) -> Option<End> {
        let End { memory, layout, join, .. } = &self.end;
        let epoch = memory.word(at::EPOCH).load(Acquire);
        let served = memory.word(at::SERVES).load(Acquire) == *join;
        served.then(|| End::new(memory.clone(), *layout, Side::Guest, epoch, *join))
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

/// The next life; never 0.
fn following(life: u32) -> u32 {
    life.checked_add(1).unwrap_or(1)
}
