//! Trivial devices: none, and a read-only one.

use std::sync::Arc;

use bytes::Bytes;

use crate::device::{Device, Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;

/// A device without sectors.
pub struct Nothing;

impl Device for Nothing {
    fn shape(&self) -> Shape {
        Shape { sectors: 0, atom: 1, most: 1, read_only: false, durable: true }
    }

    fn submit(&self, io: Io) {
        let result = io.judge(&self.shape()).map(|()| Bytes::new()).map_err(|error| error.of("n"));
        io.end(result);
    }

    fn name(&self) -> String {
        "n".into()
    }
}

/// A device that refuses writes to another one.
pub struct ReadOnly(Arc<dyn Device>);

impl ReadOnly {
    /// Creates a read-only view of a device.
    pub fn new(of: Arc<dyn Device>) -> Self {
        Self(of)
    }
}

impl Device for ReadOnly {
    fn shape(&self) -> Shape {
        Shape { read_only: true, ..self.0.shape() }
    }

    fn submit(&self, io: Io) {
        match (io.op, io.judge(&self.shape())) {
            (_, Err(error)) => io.end(Err(error.of(self.name()))),
            // Nothing was written.
            (Op::Flush, _) => io.end(Ok(Bytes::new())),
            _ => self.0.submit(io),
        }
    }

    fn name(&self) -> String {
        format!("ro{}", self.0.name())
    }

    fn status(&self) -> String {
        above(self, &[&self.0])
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.0.owned_by(owner);
    }

    fn trouble(&self) -> Vec<String> {
        self.0.trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.0.control(words)
    }
}

/// Returns the status of a device that is made of others.
pub(crate) fn above(device: &dyn Device, of: &[&Arc<dyn Device>]) -> String {
    let Shape { sectors, read_only, .. } = device.shape();
    let mut text =
        format!("{} {sectors} sectors{}\n", device.name(), if read_only { ", read only" } else { "" });
    of.iter().for_each(|of| text.push_str(&within(&of.status())));
    text
}

/// Indents lines by two blanks.
pub(crate) fn within(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Passes a command to one of several devices. Its first word is the device's number.
pub(crate) fn control_one(device: &dyn Device, of: &[Arc<dyn Device>], words: &[&str]) -> Result<()> {
    let one =
        words.split_first().and_then(|(first, rest)| Some((of.get(first.parse::<usize>().ok()?)?, rest)));
    match one {
        Some((one, rest)) => one.control(rest),
        None => {
            let word = words.first().copied().unwrap_or_default();
            let text = format!("no `{word}`; it knows 0 to {}, and then words for that one", of.len() - 1);
            Err(Error::new(Kind::Unsupported, text).of(device.name()))
        }
    }
}
