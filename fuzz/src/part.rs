//! Partitions: what is an image, the lines of a policy, and words.

use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use nine_servers::machine::image_end;
use nine_servers::part::{Policy, quote, words};

/// A file that is these bytes.
struct Bytes<'a>(&'a [u8]);

impl FileExt for Bytes<'_> {
    fn read_at(&self, mut buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).map_or(self.0.len(), |at| at.min(self.0.len()));
        buf.write(&self.0[from..])
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        unreachable!("nothing is written")
    }
}

/// Any bytes are an image or none, and a policy or wrong at a line that is there; words come back as they were.
pub fn part(data: &[u8]) {
    let mut elf = [&b"\x7fELF\x02\x01"[..], data].concat();
    if elf.len() > 64 {
        // For the machine that images are of, with headers behind the head.
        (elf[18], elf[19], elf[54], elf[55]) = (62, 0, 56, 0);
        elf[32..40].copy_from_slice(&64u64.to_le_bytes());
    }
    for bytes in [data, &elf] {
        // None, one, or one that no machine can be started with; its own length is enough to read it.
        let judged = image_end(&Bytes(bytes), bytes.len() as u64);
        assert!(judged.is_ok() || judged.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
    }
    let text = String::from_utf8_lossy(data);
    if let Err(why) = text.parse::<Policy>() {
        let line = why.strip_prefix("line ").and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
        assert!(line.is_some_and(|line| (1..=text.lines().count()).contains(&line)), "{why}");
    }
    if let Ok(all) = words(&text) {
        let line: Vec<String> = all.iter().map(|word| quote(word)).collect();
        assert_eq!(words(&line.join(" ")).ok(), Some(all));
    }
}
