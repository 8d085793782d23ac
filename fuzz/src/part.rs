//! Partitions: images, policies, and words of an argument list.

use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use nine_servers::machine::image_end;
use nine_servers::part::{Policy, quote, words};

/// A file with these bytes.
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

/// Any bytes are an image or not, and a policy or wrong at an existing line. Words are the same after quoting and
/// parsing.
pub fn part(data: &[u8]) {
    let mut elf = [&b"\x7fELF\x02\x01"[..], data].concat();
    if elf.len() > 64 {
        // Make it an image for the right machine, with program headers after the ELF header.
        (elf[18], elf[19], elf[54], elf[55]) = (62, 0, 56, 0);
        elf[32..40].copy_from_slice(&64u64.to_le_bytes());
    }
    for bytes in [data, &elf] {
        // Not an image, an image, or one that no machine can start. Reading it never needs more than its length.
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
