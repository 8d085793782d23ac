//! Random device expressions for c and w, over parts of a disk, some of them reached through an Ethernet. Members of
//! mirrors fail and return.
//!
//! In: random numbers. Out: devices and their drivers. At most one member of each expression is away at a time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use nine_block::{Device, How, Io, Kind, OpenMirrors, Part, Result, Shape, Start, Table};
use nine_net::Env;
use nine_sim::Rng;

use crate::archive::far::PartEthernet;
use crate::archive::world::{Life, MS};

/// Number of parts of a disk.
const PARTS: usize = 8;
/// Block size of partitions and joins, in sectors: at least that of an archive.
const BLOCK: u32 = 32;

/// An expression over the parts of a disk, `d0` to `d7`; `e0` to `e7` are the same parts through an Ethernet.
pub struct DeviceExpression {
    pub text: String,
    /// Mirrors and their labels were created.
    is_made: bool,
    /// The part that may be away.
    away: Option<AwayMember>,
    /// The most recently built device.
    device: Option<Arc<dyn Device>>,
    /// Number of parts in the expression.
    parts: usize,
    start: Start,
    /// The Ethernet of this life, and the random stream for the next.
    ether: Option<PartEthernet>,
    rng: Rng,
    /// How often a member went away.
    pub losses: Arc<AtomicU64>,
}

/// A part that may be away: it fails, or its cable is unplugged.
#[derive(Clone)]
struct AwayMember {
    part: usize,
    has_cable: bool,
    is_away: Arc<AtomicBool>,
}

/// A part that may fail.
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

/// Returns an expression of this depth that uses each part once. `mirrored` receives each part that is the second
/// member of a mirror with labels. A member of `bare{}` would stay wrong after a missed write.
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
            // A member that consists of one part can leave as a whole.
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

    /// Returns the same expression with the same members.
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

    /// Returns an expression whose members do not leave, and one of its parts: if `of_mirror`, a member of a mirror
    /// with labels.
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

    /// Returns the sectors of a part, on a disk with `sectors` sectors.
    pub fn part(at: usize, sectors: u64) -> Range<u64> {
        let each = sectors / PARTS as u64;
        at as u64 * each..(at as u64 + 1) * each
    }

    /// Whether this part is reached through the Ethernet.
    fn is_far(&self, part: usize) -> bool {
        self.text.contains(&format!("e{part}"))
    }

    /// From now on the mirrors start even if an unusable member might be newer.
    pub fn starts_anyway(&mut self) {
        self.start = Start::Anyway;
    }

    /// The member goes away, if there is one that may.
    pub fn goes(&self) {
        if let Some(member) = &self.away {
            member.is_away.store(true, Relaxed);
            self.losses.fetch_add(1, Relaxed);
            self.plugs();
        }
    }

    /// Whether the member is away.
    pub fn is_away(&self) -> bool {
        self.away.iter().any(|member| member.is_away.load(Relaxed))
    }

    /// The member returns.
    pub fn comes(&self) {
        self.away.iter().for_each(|member| member.is_away.store(false, Relaxed));
        self.plugs();
    }

    /// Unplugs the cable of a member that has one while it is away, and plugs it in otherwise.
    fn plugs(&self) {
        for member in self.away.iter().filter(|member| member.has_cable) {
            self.ether.iter().for_each(|ether| ether.unplugs(member.part, self.is_away()));
        }
    }

    /// Returns the state of its devices, for messages.
    pub fn status(&self) -> String {
        let status = self.device.as_ref().map(|device| device.status()).unwrap_or_default();
        format!("{}\n{status}", self.text)
    }

    /// Returns the parts of that disk. If `life` is given, some are reached through an Ethernet.
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

    /// Builds the devices over that disk. With `env` their drivers run; without it they are only inspected.
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

    /// Asks absent members to return: in a mirror at the top, or in one of its two members.
    pub fn returns(&self) {
        let words: [&[&str]; 3] = [&["return", "1"], &["0", "return", "1"], &["1", "return", "1"]];
        if let Some(device) = &self.device {
            // Usually there is no such mirror, or no member is out.
            words.iter().for_each(|words| drop(device.control(words)));
        }
    }
}
