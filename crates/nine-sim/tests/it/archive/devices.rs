//! Generated device expressions for c and w, over parts of a disk; members of mirrors fail and come back.
//!
//! In: chance. Out: devices and their drivers. At most one member of each expression is away at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use nine_block::{Device, How, Io, Kind, OpenMirrors, Part, Result, Shape, Start, Table};
use nine_net::Env;
use nine_sim::Rng;

use crate::archive::world::{Life, MS};

/// Parts of a disk.
const PARTS: usize = 8;
/// Sectors of a block of partitions and joins: at least that of an archive.
const BLOCK: u32 = 32;

/// An expression over the parts of a disk, `d0` to `d7`.
pub struct DeviceExpression {
    pub text: String,
    /// Mirrors and their labels are there.
    is_made: bool,
    /// A part that may be away, and whether it is.
    away: Option<(usize, Arc<AtomicBool>)>,
    /// The device that was built last.
    device: Option<Arc<dyn Device>>,
    /// How often a member went.
    pub losses: Arc<AtomicU64>,
}

/// A part, which may be away.
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
        return format!("d{}", *next - 1);
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
        let away = (!mirrored.is_empty()).then(|| (mirrored[rng.below(mirrored.len())], Arc::default()));
        Self { text, is_made: false, away, device: None, losses: Arc::default() }
    }

    /// The same expression, with the same members.
    pub fn copy(&self) -> Self {
        let (text, away, device) = (self.text.clone(), self.away.clone(), self.device.clone());
        Self { text, is_made: self.is_made, away, device, losses: self.losses.clone() }
    }

    /// A member goes, if one may.
    pub fn goes(&self) {
        if let Some((_, away)) = &self.away {
            away.store(true, Relaxed);
            self.losses.fetch_add(1, Relaxed);
        }
    }

    /// Whether a member is away.
    pub fn is_away(&self) -> bool {
        self.away.iter().any(|(_, away)| away.load(Relaxed))
    }

    /// It is there again.
    pub fn comes(&self) {
        self.away.iter().for_each(|(_, away)| away.store(false, Relaxed));
    }

    /// The devices over that disk, at work where `env` is given; else they are only looked at.
    pub async fn over(&mut self, disk: Arc<dyn Device>, env: Option<&Life>) -> Result<Arc<dyn Device>> {
        disk.look().await?;
        let sectors = disk.shape().sectors / PARTS as u64;
        let mut table = Table::default();
        let away = self.away.clone();
        table.letter("d", move |arg| {
            let nine_block::Arg::Numbers(numbers) = arg else { panic!("it has a number") };
            let at = numbers[0] as usize;
            let part = Part::new(disk.clone(), format!("d{at}"), at as u64 * sectors, sectors);
            let away = away.iter().find(|(member, _)| *member == at).map(|(_, away)| away.clone());
            Box::pin(async move {
                Ok(Arc::new(Member { of: part?, away: away.unwrap_or_default() }) as Arc<dyn Device>)
            })
        });
        let rest: nine_block::Rest = match env {
            Some(env) => {
                let clock = env.clock();
                Arc::new(move |_| clock.sleep_until(clock.now() + 5 * MS))
            }
            None => Arc::new(|_| Box::pin(std::future::pending())),
        };
        let how = How {
            block: BLOCK,
            start: Start::Careful,
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
