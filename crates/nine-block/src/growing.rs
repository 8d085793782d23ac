//! A device to which others are appended while it is in use.
//!
//! In: devices, one after the other. Out: their concatenation, as a [`Concat`].
//!
//! Always holds: an operation ends on the device on which it began. Sectors keep their numbers.

use std::sync::Arc;

use crate::device::{Device, Io, Shape};
use crate::error::{Error, Kind, Result};
use crate::join::Concat;
use crate::owner::SectorOwner;
use crate::sync::{Mutex, lock};

/// A growing concatenation.
pub struct Growing(Mutex<GrowingState>);

struct GrowingState {
    of: Vec<Arc<dyn Device>>,
    now: Arc<dyn Device>,
    owners: Vec<Arc<dyn SectorOwner>>,
}

impl Growing {
    /// Creates one with a single device.
    pub fn new(of: Arc<dyn Device>) -> Self {
        Self(Mutex::new(GrowingState { of: vec![of.clone()], now: of, owners: Vec::new() }))
    }

    /// Appends a device. The size of the device before it is fixed from now on.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the device has no sectors, or promises less: it is read-only, or not durable.
    pub fn add(&self, device: Arc<dyn Device>) -> Result<()> {
        let mut state = lock(&self.0);
        let (is, new) = (state.now.shape(), device.shape());
        let why = match () {
            () if new.read_only && !is.read_only => "it is read only",
            () if !new.durable && is.durable => "its flush makes nothing durable",
            () if new.sectors == 0 => "it has no sectors",
            () => "",
        };
        if !why.is_empty() {
            return Err(Error::new(Kind::Unsupported, why).of(device.name()));
        }
        let of: Vec<Arc<dyn Device>> = state.of.iter().cloned().chain([device]).collect();
        state.now = Arc::new(Concat::new(of.clone())?);
        state.of = of;
        state.owners.iter().for_each(|owner| state.now.owned_by(owner.clone()));
        Ok(())
    }

    fn now(&self) -> Arc<dyn Device> {
        lock(&self.0).now.clone()
    }
}

impl Device for Growing {
    fn shape(&self) -> Shape {
        self.now().shape()
    }

    fn unbacked(&self) -> u64 {
        self.now().unbacked()
    }

    fn submit(&self, io: Io) {
        self.now().submit(io);
    }

    fn name(&self) -> String {
        self.now().name()
    }

    fn status(&self) -> String {
        self.now().status()
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let mut state = lock(&self.0);
        state.now.owned_by(owner.clone());
        state.owners.push(owner);
    }

    fn trouble(&self) -> Vec<String> {
        self.now().trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.now().control(words)
    }
}
