//! A device of an expression that could not be opened. It is opened again when it is looked at.
//!
//! In: operations, and a function that opens the device. Out: errors, until the device is open; then operations of that
//! device. A driver opens it ([`Built::drivers`](super::Built)), because opening may need the program's own tasks.

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

/// A device that is not there yet.
pub(super) struct AbsentDevice {
    name: String,
    state: Arc<Mutex<AbsentState>>,
}

struct AbsentState {
    device: Option<Arc<dyn Device>>,
    /// Owners for the device, when it is open.
    owners: Vec<Arc<dyn SectorOwner>>,
    /// Why it is not there.
    why: Error,
    /// The error has not been reported yet, because the attempt was just made.
    is_news: bool,
    /// Looks that wait for an attempt to open it.
    looks: Vec<Io>,
    waker: Option<Waker>,
    /// The driver is running. Before that the expression around it is still being built, and no driver would open it.
    is_run: bool,
}

/// Held by the driver. When it is dropped, waiting looks fail.
struct DriverEnd(Arc<Mutex<AbsentState>>);

impl Drop for DriverEnd {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.is_run = false;
        let (looks, why) = (std::mem::take(&mut state.looks), state.why.clone());
        drop(state);
        looks.into_iter().for_each(|io| io.end(Err(told(why.clone()))));
    }
}

/// An attempt to open the device.
pub(super) type OpenAttempt = Pin<Box<dyn Future<Output = Result<Built>> + Send>>;

impl AbsentDevice {
    /// Creates it after opening the device `name` has failed with `why`.
    pub(super) fn new(
        name: String,
        why: Error,
        open: impl Fn() -> OpenAttempt + Send + 'static,
    ) -> (Self, Driver) {
        let (owners, looks) = (Vec::new(), Vec::new());
        let state =
            AbsentState { device: None, owners, why, is_news: true, looks, waker: None, is_run: false };
        let state = Arc::new(Mutex::new(state));
        (Self { name, state: state.clone() }, driver(state, open))
    }

    fn device(&self) -> Option<Arc<dyn Device>> {
        lock(&self.state).device.clone()
    }
}

fn driver(state: Arc<Mutex<AbsentState>>, open: impl Fn() -> OpenAttempt + Send + 'static) -> Driver {
    let (mut opening, mut beside) = (None::<OpenAttempt>, Vec::<Driver>::new());
    let end = DriverEnd(state);
    Box::pin(poll_fn(move |cx| {
        let DriverEnd(state) = &end;
        lock(state).is_run = true;
        beside.retain_mut(|driver| driver.as_mut().poll(cx).is_pending());
        loop {
            let Some(future) = &mut opening else {
                let mut state = lock(state);
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
            let mut state = lock(state);
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

/// Any error means that the device is not there, except that another owner has reserved it: a mirror must not start
/// then.
fn told(why: Error) -> Error {
    match why.kind {
        Kind::Reserved => why,
        _ => Error { kind: Kind::Down, ..why },
    }
}

impl Device for AbsentDevice {
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
        // The first look after the failure reports it at once, because opening may have waited long.
        if io.op == Op::Look && !std::mem::take(&mut state.is_news) && state.is_run {
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

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;
    use crate::call::Call;

    #[test]
    fn looks_wait_for_a_driver_that_runs_and_for_no_other() {
        let mut cx = Context::from_waker(Waker::noop());
        let why = Error::new(Kind::Failed, "it is away");
        let (absent, mut driver) = AbsentDevice::new("d0".into(), why, || Box::pin(std::future::pending()));
        let absent: &dyn Device = &absent;
        let mut look = |call: &mut Call| match Pin::new(call).poll(&mut cx) {
            Poll::Ready(result) => Some(result.expect_err("it is not there").kind),
            Poll::Pending => None,
        };
        // Mirrors around it look while they are opened.
        for _ in 0..3 {
            assert_eq!(look(&mut absent.look()), Some(Kind::Down));
        }
        assert!(driver.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let mut waits = absent.look();
        assert_eq!(look(&mut waits), None);
        drop(driver);
        assert_eq!(look(&mut waits), Some(Kind::Down));
        assert_eq!(look(&mut absent.look()), Some(Kind::Down));
    }
}
