//! The data set of Hickey's section 6.2.2 (the profiling tools of Flash, SpecWeb99), and the distribution of requests.
//! Each directory has 5 MB: four classes of nine files, from 102 bytes to 921 KB.

use std::io;
use std::path::Path;

use nine_sim::Rng;

/// Files of a class.
const FILES: usize = 9;
/// Size of the smallest file of each class, bytes; the n-th file has n times that.
const CLASSES: [usize; 4] = [102, 1_024, 10_240, 102_400];
/// Requests to each class, per thousand (SpecWeb99, 2.5).
const SHARES: [usize; 4] = [350, 500, 140, 10];
/// Requests to each file of a class, per thousand of the class.
const POPULAR: [usize; FILES] = [39, 59, 88, 177, 353, 118, 71, 50, 45];

/// Creates `directories` directories.
pub fn make(dir: &Path, directories: usize) -> io::Result<()> {
    let content: Vec<u8> = (0..FILES * CLASSES[3]).map(|n| (n * 7 + n / 251) as u8).collect();
    for number in 0..directories {
        let dir = dir.join(format!("dir{number:05}"));
        std::fs::create_dir_all(&dir)?;
        for (class, size) in CLASSES.iter().enumerate() {
            for file in 1..=FILES {
                std::fs::write(dir.join(name(class, file)), &content[..size * file])?;
            }
        }
    }
    Ok(())
}

fn name(class: usize, file: usize) -> String {
    format!("class{class}_{file}")
}

/// Returns the size of the whole set, bytes.
pub fn size(directories: usize) -> u64 {
    directories as u64
        * CLASSES.iter().map(|size| (1..=FILES).map(|n| n * size).sum::<usize>() as u64).sum::<u64>()
}

/// A sequence of requests: directories by Zipf's law, classes and files by the shares above.
pub struct RequestMix {
    rng: Rng,
    /// Cumulative share of the directories.
    zipf: Vec<f64>,
    /// Request only this file.
    only: Option<(usize, usize)>,
}

impl RequestMix {
    pub fn new(seed: u64, directories: usize) -> Self {
        let mut sum = 0.0;
        let mut zipf: Vec<f64> = (1..=directories)
            .map(|n| {
                sum += 1.0 / n as f64;
                sum
            })
            .collect();
        zipf.iter_mut().for_each(|part| *part /= sum);
        Self { rng: Rng::new(seed), zipf, only: None }
    }

    /// Returns the path of the most requested file, and a sequence of requests for it alone.
    pub fn one() -> (String, Self) {
        let mut mix = Self { only: Some((1, 5)), ..Self::new(0, 1) };
        (mix.next().0, mix)
    }

    /// Returns the path of the next request, and the size of that file.
    pub fn next(&mut self) -> (String, usize) {
        let at = self.rng.bits() as f64 / u64::MAX as f64;
        let directory = self.zipf.partition_point(|part| *part < at).min(self.zipf.len() - 1);
        let (class, file) = self.only.unwrap_or_else(|| {
            (pick(&SHARES, self.rng.below(1000)), 1 + pick(&POPULAR, self.rng.below(1000)))
        });
        (format!("/dir{directory:05}/{}", name(class, file)), CLASSES[class] * file)
    }
}

/// Returns the index of the share that contains `at`, of a thousand.
fn pick(shares: &[usize], mut at: usize) -> usize {
    for (n, share) in shares.iter().enumerate() {
        if at < *share {
            return n;
        }
        at -= share;
    }
    shares.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_as_the_tables_say() {
        assert_eq!((SHARES.iter().sum::<usize>(), POPULAR.iter().sum::<usize>()), (1000, 1000));
        assert_eq!(size(2), 2 * 45 * (102 + 1_024 + 10_240 + 102_400));
        let mut mix = RequestMix::new(1, 10);
        let (mut small, mut first, mut bytes) = (0, 0, 0);
        for _ in 0..100_000 {
            let (path, size) = mix.next();
            small += usize::from(path.contains("class0"));
            first += usize::from(path.starts_with("/dir00000/"));
            bytes += size;
        }
        assert!((34_000..36_000).contains(&small), "{small}");
        // The share 1 / (1 + 1/2 + ... + 1/10).
        assert!((33_000..35_500).contains(&first), "{first}");
        assert!((12_000..17_000).contains(&(bytes / 100_000)), "{bytes}");
    }
}
