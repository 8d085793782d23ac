//! A device of an expression that was not there when it was opened. It is opened again when somebody looks.
//!
//! In: operations, and how it is opened. Out: errors, until it is there; then it is that device. Who opens is a driver
//! ([`Built::drivers`](super::Built)), since opening may need what the program's own tasks have.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Built, Driver};
use crate::device::{Device, Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;
use crate::plain::Nothing;
use crate::sync::{Mutex, lock};

/// See the module.
pub(super) struct Absent {
    name: String,
    state: Arc<Mutex<State>>,
}

struct State {
    device: Option<Arc<dyn Device>>,
    /// For the device, when it is there.
    owners: Vec<Arc<dyn SectorOwner>>,
    /// Why it is not there.
    why: Error,
    /// Nobody has been told why: it has just been tried.
    is_news: bool,
    /// Those who wait for it to be opened.
    looks: Vec<Io>,
    waker: Option<Waker>,
}

/// It is being opened.
pub(super) type Opening = Pin<Box<dyn Future<Output = Result<Built>> + Send>>;

impl Absent {
    /// Of this name; it could not be opened for this reason.
    pub(super) fn new(
        name: String,
        why: Error,
        open: impl Fn() -> Opening + Send + 'static,
    ) -> (Self, Driver) {
        let state =
            State { device: None, owners: Vec::new(), why, is_news: true, looks: Vec::new(), waker: None };
        let state = Arc::new(Mutex::new(state));
        (Self { name, state: state.clone() }, driver(state, open))
    }

    fn device(&self) -> Option<Arc<dyn Device>> {
        lock(&self.state).device.clone()
    }
}

fn driver(state: Arc<Mutex<State>>, open: impl Fn() -> Opening + Send + 'static) -> Driver {
    let (mut opening, mut beside) = (None::<Opening>, Vec::<Driver>::new());
    Box::pin(poll_fn(move |cx| {
        beside.retain_mut(|driver| driver.as_mut().poll(cx).is_pending());
        loop {
            let Some(future) = &mut opening else {
                let mut state = lock(&state);
                if state.looks.is_empty() {
                    state.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                drop(state);
                opening = Some(open());
                continue;
            };
            let Poll::Ready(result) = future.as_mut().poll(cx) else { return Poll::Pending };
            opening = None;
            let mut state = lock(&state);
            let looks = std::mem::take(&mut state.looks);
            match result {
                Ok(Built { device, drivers }) => {
                    state.device = Some(device.clone());
                    state.owners.drain(..).for_each(|owner| device.owned_by(owner));
                    drop(state);
                    looks.into_iter().for_each(|io| device.submit(io));
                    beside.extend(drivers);
                    beside.retain_mut(|driver| driver.as_mut().poll(cx).is_pending());
                }
                Err(why) => {
                    state.why = why.clone();
                    drop(state);
                    looks.into_iter().for_each(|io| io.end(Err(told(why.clone()))));
                }
            }
        }
    }))
}

/// Whatever was wrong, it is not there; but what another has to himself is not to be gone on without.
fn told(why: Error) -> Error {
    match why.kind {
        Kind::Reserved => why,
        _ => Error { kind: Kind::Down, ..why },
    }
}

impl Device for Absent {
    fn shape(&self) -> Shape {
        self.device().map_or_else(|| Nothing.shape(), |device| device.shape())
    }

    fn unbacked(&self) -> u64 {
        self.device().map_or(0, |device| device.unbacked())
    }

    fn submit(&self, io: Io) {
        let mut state = lock(&self.state);
        if let Some(device) = state.device.clone() {
            drop(state);
            return device.submit(io);
        }
        // Who opened it may have waited for long, and looks now.
        if io.op == Op::Look && !std::mem::take(&mut state.is_news) {
            state.looks.push(io);
            let waker = state.waker.take();
            drop(state);
            return waker.into_iter().for_each(Waker::wake);
        }
        let why = state.why.clone();
        drop(state);
        io.end(Err(told(why)));
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn status(&self) -> String {
        match self.device() {
            Some(device) => device.status(),
            None => format!("{} is not there: {}\n", self.name, lock(&self.state).why),
        }
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let mut state = lock(&self.state);
        match state.device.clone() {
            Some(device) => device.owned_by(owner),
            None => state.owners.push(owner),
        }
    }

    fn trouble(&self) -> Vec<String> {
        match self.device() {
            Some(device) => device.trouble(),
            None => vec![format!("{} is not there: {}", self.name, lock(&self.state).why)],
        }
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        match self.device() {
            Some(device) => device.control(words),
            None => Err(told(lock(&self.state).why.clone())),
        }
    }
}
