//! Exports a device to other machines on the Ethernet.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nine_block::Device;
use nine_net::lock::{Mutex, lock};
use nine_net::nonet::Link;

use super::TURNS;
use crate::carrier::{Carrier, all_gone};
use crate::target::{Counts, Setup, Target};

/// Handle of an exported device. Its driver continues after the handle is dropped.
#[derive(Clone)]
pub struct Export(Arc<Mutex<Target>>);

impl Export {
    /// Returns text for people: the device, its lists and counters.
    pub fn status(&self) -> String {
        lock(&self.0).status()
    }

    /// Returns the frame counters.
    pub fn counts(&self) -> Counts {
        lock(&self.0).counts()
    }
}

/// Exports a device on these links.
pub fn export<L: Link>(links: Vec<L>, setup: Setup, device: Arc<dyn Device>) -> (Export, ExportDriver<L>) {
    let carriers: Vec<_> = links.into_iter().map(Carrier::new).collect();
    let ports = carriers.iter().map(Carrier::interface).collect();
    let target = Arc::new(Mutex::new(Target::new(setup, device, ports)));
    (Export(target.clone()), ExportDriver { target, carriers })
}

/// Runs an [`Export`] until the driver is dropped, or ends with an error when all links are gone.
#[must_use = "nothing happens unless it is run"]
pub struct ExportDriver<L> {
    target: Arc<Mutex<Target>>,
    carriers: Vec<Carrier<L>>,
}

impl<L: Link> ExportDriver<L> {
    /// Checks whether links are gone or have another MTU. A driver that only listens does not notice a lost link, so
    /// call this now and then, before you poll it.
    pub fn check(&mut self) {
        for (port, carrier) in self.carriers.iter_mut().enumerate() {
            carrier.check().into_iter().for_each(|interface| lock(&self.target).is_now(port, interface));
        }
    }
}

impl<L: Link> Future for ExportDriver<L> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { target, carriers } = self.get_mut();
        lock(target).wakes(cx.waker());
        for _ in 0..TURNS {
            if let Some(error) = all_gone(carriers) {
                return Poll::Ready(Err(error));
            }
            let mut more = false;
            let mut machine = lock(target);
            for (port, carrier) in carriers.iter_mut().enumerate() {
                more |= carrier.receive(cx, |from, packet| machine.receive(port, from, packet));
            }
            while let Some(out) = machine.transmit() {
                carriers[out.port].put(out);
            }
            drop(machine);
            for carrier in carriers.iter_mut() {
                more |= carrier.send(cx);
            }
            if !more {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
