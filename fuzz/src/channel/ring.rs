//! One end of a channel under test, with an honest end at the other side.

use std::collections::VecDeque;

use nine_ring::{End, Guest, Life, MOST, Memory, Note, PAGE, linux};

use super::{Eyes, Part, Scribble, layout, piece};

/// Runs the actions.
pub fn ring(data: &[u8]) {
    let Some((&first, mut moves)) = data.split_first() else { return };
    let pages = [0, 1, 4][usize::from(first >> 2) % 3];
    let (memory, _file) = linux::create(layout(pages).size + PAGE).expect("a memory file");
    let eyes = Eyes::of(memory.len());
    let mut host = End::open(memory.clone(), layout(pages));
    // The memory that a guest joins may have any contents, and may not be a channel.
    let mut wild = 0;
    while first & 3 == 3 && wild < 4 {
        let Some((&[when, a, b, c], rest)) = moves.split_first_chunk::<4>() else { break };
        moves = rest;
        let scribble = Scribble::new([a | 1, b, c], rest, memory.len());
        if when < 128 {
            scribble.write(&memory)
        } else {
            eyes.arm(usize::from(when & 15), scribble)
        }
        wild += 1;
    }
    let Ok(guest) = eyes.turn(LOOKS, || Guest::join(memory.clone())) else {
        return assert!(wild > 0, "a channel that is one is joined");
    };
    host.serve();
    let Some(guest) = guest.served() else { return assert!(wild > 0, "who has joined is served") };
    let is_host = first & 1 == 0;
    let (judged, honest) = if is_host { (host, guest) } else { (guest, host) };
    let size = judged.layout().size;
    assert!(size <= memory.len(), "a channel is in its memory");
    eyes.resize(size);
    let clean = if wild > 0 { None } else { Some(Life::Same) };
    let world = World {
        memory,
        eyes,
        is_host,
        judged,
        honest,
        is_apart: false,
        knocks: None,
        coming: (wild == 0).then(VecDeque::new),
        going: (wild == 0).then(VecDeque::new),
        life: clean,
        page: wild == 0,
        asleep: (wild == 0).then_some(false),
        n: 0,
    };
    world.play(moves);
}

type Sent = (Vec<u8>, Note);

struct World {
    memory: Memory,
    eyes: Eyes,
    is_host: bool,
    judged: End,
    honest: End,
    /// The honest end has begun another life, and does nothing until both have met.
    is_apart: bool,
    /// A guest that is not served yet.
    knocks: Option<Guest>,
    /// Data that the honest end has written and that was not read. `None` if it was overwritten.
    coming: Option<VecDeque<Sent>>,
    going: Option<VecDeque<Sent>>,
    /// State of the honest end's life, unless it was overwritten.
    life: Option<Life>,
    /// Whether the first page is as the host has written it.
    page: bool,
    /// Whether the end under test has announced that it sleeps.
    asleep: Option<bool>,
    n: u32,
}

impl World {
    fn play(mut self, mut moves: &[u8]) {
        while let Some((&[kind, a, b, c], rest)) = moves.split_first_chunk::<4>() {
            moves = rest;
            match kind % 16 {
                0..=2 if !self.is_apart => self.say([a, b, c]),
                0..=5 => self.take(),
                6 | 7 => self.put([a, b, c]),
                8 | 9 if !self.is_apart => self.hear(),
                10 => self.scribble(None, [a, b, c], rest),
                11 => self.scribble(Some(usize::from(kind >> 4) + usize::from(c & 48)), [a, b, c], rest),
                8 | 9 | 12 => self.live(a),
                13 => self.sleep(a),
                14 => self.another(),
                _ => self.leave(a),
            }
        }
        // All written data arrives.
        while self.coming.as_ref().is_some_and(|coming| !coming.is_empty()) {
            self.take();
        }
        while !self.is_apart && self.going.as_ref().is_some_and(|going| !going.is_empty()) {
            self.hear();
        }
    }

    fn say(&mut self, how: [u8; 3]) {
        self.n += 1;
        let (bytes, note) = piece(how, self.n, self.honest.layout().arena_len() as u32);
        let put = self.honest.put(&bytes, note);
        if let Some(coming) = &mut self.coming {
            assert_eq!(put, Ok(has_room(coming, bytes.len())));
            if put == Ok(true) {
                coming.push_back((bytes, note));
            }
        }
    }

    fn take(&mut self) {
        let mut bytes = [0; MOST];
        let took = self.eyes.turn(LOOKS, || self.judged.take(&mut bytes));
        if let Ok(Some(piece)) = &took {
            assert!(piece.len <= MOST);
            if let Note::Data(place) | Note::Room(place) = piece.note {
                assert!(self.judged.place(place).is_some(), "{place:?} is not in the arena");
            }
        }
        if let Some(coming) = &mut self.coming {
            let took =
                took.expect("nobody wrote over it").map(|piece| (bytes[..piece.len].to_vec(), piece.note));
            assert_eq!(took, coming.pop_front());
        }
    }

    fn put(&mut self, how: [u8; 3]) {
        self.n += 1;
        let (bytes, note) = piece(how, self.n, self.judged.layout().arena_len() as u32);
        let put = self.eyes.turn(LOOKS, || self.judged.put(&bytes, note));
        if let Some(going) = &mut self.going {
            assert_eq!(put, Ok(has_room(going, bytes.len())));
            if put == Ok(true) {
                going.push_back((bytes, note));
            }
        }
    }

    fn hear(&mut self) {
        let mut bytes = [0; MOST];
        let took = self.honest.take(&mut bytes);
        if let Some(going) = &mut self.going {
            let took =
                took.expect("nobody wrote over it").map(|piece| (bytes[..piece.len].to_vec(), piece.note));
            assert_eq!(took, going.pop_front());
        }
    }

    fn scribble(&mut self, after: Option<usize>, how: [u8; 3], rest: &[u8]) {
        let scribble = Scribble::new(how, rest, self.judged.layout().size);
        match after {
            None => scribble.write(&self.memory),
            Some(after) => self.eyes.arm(after, scribble),
        }
        match (scribble.part(), self.is_host) {
            (Part::Up, true) | (Part::Down, false) => self.coming = None,
            (Part::Up, false) | (Part::Down, true) => self.going = None,
            (Part::Lives, _) => self.life = None,
            (Part::Sleeps, _) => self.asleep = None,
            // An end that has joined reads neither again.
            (Part::Page, _) => self.page = false,
            (Part::Arena, _) => {}
        }
    }

    fn live(&mut self, a: u8) {
        let life = self.eyes.turn(8, || self.judged.life());
        assert!(self.life.is_none_or(|known| known == life), "{life:?}, and it is {:?}", self.life);
        if a & 1 == 0 {
            _ = self.eyes.turn(LOOKS, || self.judged.has_room(usize::from(a) * 15));
        }
        if life == Life::Another {
            self.meet();
        }
    }

    fn sleep(&mut self, a: u8) {
        match a % 3 {
            0 => {
                self.eyes.turn(1, || self.judged.may_sleep());
                self.asleep = self.asleep.map(|_| true);
            }
            1 => {
                self.eyes.turn(1, || self.judged.is_awake());
                self.asleep = self.asleep.map(|_| false);
            }
            _ => {
                let rings = self.honest.must_ring();
                assert!(self.asleep.is_none_or(|asleep| asleep == rings), "who sleeps is rung, nobody else");
                self.asleep = self.asleep.map(|_| false);
                _ = self.eyes.turn(1, || self.judged.must_ring());
            }
        }
    }

    /// The honest end announces the end.
    fn leave(&mut self, a: u8) {
        if a & 1 == 0 {
            self.eyes.turn(1, || self.judged.end());
        } else if !self.is_apart {
            self.honest.end();
            if self.life == Some(Life::Same) {
                self.life = Some(Life::Ended);
            }
        }
    }

    /// The honest end begins another life.
    fn another(&mut self) {
        if self.is_host {
            let Ok(guest) = Guest::join(self.memory.clone()) else { return };
            self.knocks = Some(guest);
        } else {
            self.honest = End::open(self.memory.clone(), *self.honest.layout());
            self.asleep = self.asleep.map(|_| false);
            self.page = !self.eyes.is_armed(Part::Page);
            // It reports that it has read nothing.
            self.going = None;
        }
        self.life = self.life.map(|_| Life::Another);
        self.is_apart = true;
    }

    /// Both begin again: earlier writes have no effect any more.
    fn meet(&mut self) {
        self.is_apart = false;
        let is_sure = |part| !self.eyes.is_armed(part);
        let (up, down) = (is_sure(Part::Up), is_sure(Part::Down));
        let lives = self.life.is_some() && is_sure(Part::Lives);
        let is_sure = lives && self.page;
        if self.is_host {
            self.eyes.turn(16, || self.judged.serve());
            let Some(guest) = self.knocks.take().and_then(|guest| guest.served()) else {
                (self.coming, self.going, self.life) = (None, None, None);
                return;
            };
            if guest.layout() != self.judged.layout() {
                (self.coming, self.going) = (None, None);
                self.life = None;
                return;
            }
            self.honest = guest;
        } else {
            self.eyes.resize(self.memory.len());
            let joined = self.eyes.turn(LOOKS, || Guest::join(self.memory.clone()));
            self.honest.serve();
            let guest = joined.ok().and_then(|guest| self.eyes.turn(8, || guest.served()));
            let Some(guest) = guest else {
                assert!(!is_sure, "who joins is served");
                (self.coming, self.going, self.life) = (None, None, None);
                self.eyes.resize(self.judged.layout().size);
                return;
            };
            self.judged = guest;
            self.eyes.resize(self.judged.layout().size);
            if self.judged.layout() != self.honest.layout() {
                (self.coming, self.going, self.life) = (None, None, None);
                return;
            }
        }
        let (coming, going) = if self.is_host { (up, down) } else { (down, up) };
        // If a guest is served late, its rings may have been written before.
        self.coming = (coming && lives).then(VecDeque::new);
        self.going = (going && lives).then(VecDeque::new);
        self.life = lives.then_some(Life::Same);
    }
}

/// Whether a ring has room for one more piece.
fn has_room(sent: &VecDeque<Sent>, len: usize) -> bool {
    let lines = |len: usize| 1 + len.saturating_sub(48).div_ceil(60);
    sent.iter().map(|(bytes, _)| lines(bytes.len())).sum::<usize>() + lines(len) <= super::LINES as usize
}

/// Maximum number of accesses for one piece: two at each line.
const LOOKS: usize = 160;
