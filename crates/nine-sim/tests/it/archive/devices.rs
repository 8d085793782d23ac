//! Generated device expressions for c and w, over parts of a disk, some of them reached over an Ethernet; members of
//! mirrors fail and come back.
//!
//! In: chance. Out: devices and their drivers. At most one member of each expression is away at a time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use nine_block::{Device, How, Io, Kind, OpenMirrors, Part, Result, Shape, Start, Table};
use nine_net::Env;
use nine_sim::Rng;

use crate::archive::far::PartEthernet;
use crate::archive::world::{Life, MS};

/// Parts of a disk.
const PARTS: usize = 8;
/// Sectors of a block of partitions and joins: at least that of an archive.
const BLOCK: u32 = 32;

/// An expression over the parts of a disk, `d0` to `d7`; `e0` to `e7` are the same over an Ethernet.
pub struct DeviceExpression {
    pub text: String,
    /// Mirrors and their labels are there.
    is_made: bool,
    /// A part that may be away.
    away: Option<AwayMember>,
    /// The device that was built last.
    device: Option<Arc<dyn Device>>,
    /// Parts that are in it.
    parts: usize,
    start: Start,
    /// The Ethernet of this life, and chance for the next.
    ether: Option<PartEthernet>,
    rng: Rng,
    /// How often a member went.
    pub losses: Arc<AtomicU64>,
}

/// A part that may be away: it fails, or its cable is out.
#[derive(Clone)]
struct AwayMember {
    part: usize,
    has_cable: bool,
    is_away: Arc<AtomicBool>,
}

/// A part, which may fail.
struct Member {
    of: Part,
    away: Arc<AtomicBool>,
}

impl Device for Member {
    fn shape(&self) -> Shape {
        self.of.shape()
    }

    fn submit(&self, io: Io) {
        match self.away.load(Relaxed) {
            true => io.fail(Kind::Failed, "it is away"),
            false => self.of.submit(io),
        }
    }

    fn name(&self) -> String {
        self.of.name()
    }
}

/// An expression of this depth; each part is in it once. `mirrored` gets each part that is the second member of a
/// mirror with labels: a member of `bare{}` that misses a write stays wrong.
fn expression(rng: &mut Rng, depth: usize, next: &mut usize, mirrored: &mut Vec<usize>) -> String {
    if depth == 0 {
        *next += 1;
        let letter = if rng.one_in(4) { 'e' } else { 'd' };
        return format!("{letter}{}", *next - 1);
    }
    let mut inner = |rng: &mut Rng, next: &mut usize| expression(rng, depth - 1, next, mirrored);
    match rng.below(9) {
        0 => format!("({}{})", inner(rng, next), inner(rng, next)),
        1 => format!("[{}{}]", inner(rng, next), inner(rng, next)),
        2 => format!("p({})5.90", inner(rng, next)),
        3 => format!("(buffer 256K {})", inner(rng, next)),
        4 => format!("bare{{{}{}}}", inner(rng, next), inner(rng, next)),
        _ => {
            let first = inner(rng, next);
            let from = *next;
            let second = expression(rng, depth - 1, next, mirrored);
            // One that is of one part goes as a whole.
            mirrored.extend((*next == from + 1).then_some(from));
            format!("{{{first}{second}}}")
        }
    }
}

impl DeviceExpression {
    pub fn new(rng: &mut Rng) -> Self {
        let (mut next, mut mirrored) = (0, Vec::new());
        let depth = 1 + rng.below(3);
        let text = expression(rng, depth, &mut next, &mut mirrored);
        let mut made = Self {
            text,
            is_made: false,
            away: None,
            device: None,
            parts: next,
            start: Start::Careful,
            ether: None,
            rng: rng.fork(),
            losses: Arc::default(),
        };
        if !mirrored.is_empty() {
            let part = mirrored[rng.below(mirrored.len())];
            let has_cable = made.is_far(part) && rng.one_in(2);
            made.away = Some(AwayMember { part, has_cable, is_away: Arc::default() });
        }
        made
    }

    /// The same expression, with the same members.
    pub fn copy(&self) -> Self {
        let (text, away, device) = (self.text.clone(), self.away.clone(), self.device.clone());
        let (ether, rng, losses) = (self.ether.clone(), self.rng.clone(), self.losses.clone());
        Self {
            text,
            is_made: self.is_made,
            away,
            device,
            parts: self.parts,
            start: self.start,
            ether,
            rng,
            losses,
        }
    }

    /// One none of whose members goes, and one of its parts: if `of_mirror`, a member of a mirror with labels.
    pub fn with_part(rng: &mut Rng, of_mirror: bool) -> (Self, usize) {
        loop {
            let mut made = Self::new(rng);
            match made.away.take() {
                Some(member) if of_mirror => return (made, member.part),
                _ if of_mirror => {}
                _ => {
                    let part = rng.below(made.parts);
                    return (made, part);
                }
            }
        }
    }

    /// The sectors of a part, on a disk of so many.
    pub fn part(at: usize, sectors: u64) -> Range<u64> {
        let each = sectors / PARTS as u64;
        at as u64 * each..(at as u64 + 1) * each
    }

    /// Whether this part is reached over the Ethernet.
    fn is_far(&self, part: usize) -> bool {
        self.text.contains(&format!("e{part}"))
    }

    /// Its mirrors start from now on, though a member that cannot be used might be newer.
    pub fn starts_anyway(&mut self) {
        self.start = Start::Anyway;
    }

    /// A member goes, if one may.
    pub fn goes(&self) {
        if let Some(member) = &self.away {
            member.is_away.store(true, Relaxed);
            self.losses.fetch_add(1, Relaxed);
            self.plugs();
        }
    }

    /// Whether a member is away.
    pub fn is_away(&self) -> bool {
        self.away.iter().any(|member| member.is_away.load(Relaxed))
    }

    /// It is there again.
    pub fn comes(&self) {
        self.away.iter().for_each(|member| member.is_away.store(false, Relaxed));
        self.plugs();
    }

    /// The cable of a member that has one is out while it is away.
    fn plugs(&self) {
        for member in self.away.iter().filter(|member| member.has_cable) {
            self.ether.iter().for_each(|ether| ether.unplugs(member.part, self.is_away()));
        }
    }

    /// How its devices are, for messages.
    pub fn status(&self) -> String {
        let status = self.device.as_ref().map(|device| device.status()).unwrap_or_default();
        format!("{}\n{status}", self.text)
    }

    /// The parts of that disk; those that are reached over an Ethernet, if `life` is given.
    fn parts(&mut self, disk: &Arc<dyn Device>, life: Option<&Life>) -> Result<Vec<Arc<dyn Device>>> {
        let sectors = disk.shape().sectors;
        let ether = life.map(|_| PartEthernet::new(&mut self.rng));
        let parts = (0..PARTS).map(|at| {
            let Range { start, end } = Self::part(at, sectors);
            let of = Part::new(disk.clone(), format!("d{at}"), start, end - start)?;
            let fails = self.away.iter().find(|member| member.part == at && !member.has_cable);
            let away = fails.map(|member| member.is_away.clone()).unwrap_or_default();
            let member: Arc<dyn Device> = Arc::new(Member { of, away });
            Ok(match (life, &ether) {
                (Some(life), Some(ether)) if self.is_far(at) => ether.reaches(life, at, member),
                _ => member,
            })
        });
        let parts = parts.collect();
        if ether.is_some() {
            self.ether = ether;
            self.plugs();
        }
        parts
    }

    /// The devices over that disk, at work where `env` is given; else they are only looked at.
    pub async fn over(&mut self, disk: Arc<dyn Device>, env: Option<&Life>) -> Result<Arc<dyn Device>> {
        disk.look().await?;
        let parts = self.parts(&disk, env)?;
        let mut table = Table::default();
        for letter in ["d", "e"] {
            let parts = parts.clone();
            table.letter(letter, move |arg| {
                let nine_block::Arg::Numbers(numbers) = arg else { panic!("it has a number") };
                let part = parts[numbers[0] as usize].clone();
                Box::pin(async move {
                    part.look().await?;
                    Ok(part)
                })
            });
        }
        let rest: nine_block::Rest = match env {
            Some(env) => {
                let clock = env.clock();
                Arc::new(move |_| clock.sleep_until(clock.now() + 5 * MS))
            }
            None => Arc::new(|_| Box::pin(std::future::pending())),
        };
        let how = How {
            block: BLOCK,
            start: self.start,
            watch: env.is_none(),
            make: (!self.is_made && env.is_some()).then_some([7; 16]),
            told: Arc::new(|_| ()),
            rest,
            owned: true,
            mirrors: OpenMirrors::default(),
        };
        let built = table.build(&self.text, &how).await;
        let built = built.map_err(|wrong| nine_block::Error::new(Kind::Failed, wrong))?;
        self.is_made |= env.is_some();
        if let Some(env) = env {
            built.drivers.into_iter().for_each(|driver| env.spawn(driver));
        }
        self.device = Some(built.device.clone()).filter(|_| env.is_some());
        Ok(built.device)
    }

    /// Members that are out are told to return: those of a mirror that nothing is around, or one other.
    pub fn returns(&self) {
        let words: [&[&str]; 3] = [&["return", "1"], &["0", "return", "1"], &["1", "return", "1"]];
        if let Some(device) = &self.device {
            // Most of them are no mirror's, or nobody is out.
            words.iter().for_each(|words| drop(device.control(words)));
        }
    }
}
