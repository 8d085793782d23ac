//! Generates one fuzz input from (corpus, target, seed, iteration), and nothing else.
//!
//! 9P consists of length fields. Besides flipping, inserting, deleting and splicing bytes, size[4] of every second
//! input is corrected at the end: a message with a wrong size is refused early and tests no further code.

/// Returns the input of this iteration.
pub fn input(corpus: &[Vec<u8>], target: &str, seed: u64, iteration: u64) -> Vec<u8> {
    let mut rng = Rng::new(target, seed, iteration);
    // State machines read their actions from bytes, and golden messages contain few different ones.
    let mut input = match rng.below(4) {
        0 => (0..rng.below(NOISE)).map(|_| rng.below(256) as u8).collect(),
        _ => pick(corpus, &mut rng).to_vec(),
    };
    for _ in 0..rng.below(6) {
        mutate(&mut input, corpus, &mut rng);
    }
    input.truncate(LONGEST);
    if rng.below(2) == 0 && input.len() >= 4 {
        let size = (input.len() as u32).to_le_bytes();
        input[..4].copy_from_slice(&size);
    }
    input
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(input.len() + 1);
    match rng.below(7) {
        0 if at < input.len() => input[at] ^= 1 << rng.below(8),
        1 if at < input.len() => input[at] = EDGES[rng.below(EDGES.len())] as u8,
        2 => input.insert(at, rng.below(256) as u8),
        3 => drop(input.drain(at..(at + 1 + rng.below(8)).min(input.len()).max(at))),
        4 => {
            let other = pick(corpus, rng);
            input.truncate(at);
            input.extend_from_slice(&other[rng.below(other.len() + 1)..]);
        }
        5 => input.extend_from_slice(pick(corpus, rng)),
        _ => {
            let width = [2, 4, 8][rng.below(3)];
            let value = EDGES[rng.below(EDGES.len())].to_le_bytes();
            if let Some(field) = input.get_mut(at..at + width) {
                field.copy_from_slice(&value[..width]);
            }
        }
    }
}

/// Returns a message of the corpus, or a Tversion if the corpus is empty.
fn pick<'a>(corpus: &'a [Vec<u8>], rng: &mut Rng) -> &'a [u8] {
    match corpus.len() {
        0 => &TVERSION[..],
        n => &corpus[rng.below(n)],
    }
}

/// xorshift64*: random enough, and short.
struct Rng(u64);

impl Rng {
    fn new(target: &str, seed: u64, iteration: u64) -> Self {
        let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
        for word in target.bytes().map(u64::from).chain([seed, iteration]) {
            // The 1 avoids zero, a state that never changes.
            rng.0 = (rng.0 ^ word.wrapping_mul(0xbf58_476d_1ce4_e5b9)) | 1;
            rng.next();
        }
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// `size[4] Tversion tag[2] msize[4] version[s]`.
const TVERSION: [u8; 19] = *b"\x13\0\0\0\x64\xff\xff\0\x20\0\0\x06\09P2000";

/// Values at which length fields may break.
const EDGES: [u64; 12] =
    [0, 1, 2, 7, 16, 17, 255, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

/// Longer inputs than a small msize find nothing new and take more time.
const LONGEST: usize = 8192;

const NOISE: usize = 1024;
