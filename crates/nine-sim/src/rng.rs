//! Pseudo-random numbers from a seed: SplitMix64 (Steele, Lea, Flood 2014), whose only state is one number.

/// A stream of pseudo-random numbers. Equal seeds give equal streams.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a stream from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`. Panics if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns true with probability 1 in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns an independent stream, for a part of the world.
    pub fn fork(&mut self) -> Self {
        Self(self.bits())
    }
}
