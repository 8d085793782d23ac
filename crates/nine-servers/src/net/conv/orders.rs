//! What a text written to a `ctl` says, and what comes of it.
//!
//! In: texts, of one line. Out: answers, or a call or an announcement that the driver begins with.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_io::quote;
use nine_io::server::{Who, check_cost};
use nine_io::synth::Ask;
use nine_net::Clock;
use nine_net::lock::lock;
use nine_proto::{Errno, Error, Result};

use super::super::TEXT_MAX;
use super::super::policy::{self, Policy, Want};
use super::super::stack::{Asks, Later, Network, PATIENCE, Place, Setting};
use super::{Begun, Conv, Done, Phase, failed};

/// Milliseconds of `keepalive` at most: the kernel has 15 bits for the seconds.
const KEEPALIVE_MAX: u64 = 32_767_000;
/// Ports that the kernel chooses until one is found that no line denies.
const PORTS: usize = 8;

/// What comes of a text.
pub(super) enum Order {
    Done,
    Begin(Later<Result<Begun>>, &'static str),
}

impl Conv {
    /// Does what a text written to `ctl` says.
    pub(super) fn control(self: &Arc<Self>, ask: Ask) {
        let allowed = |text: &str| check_cost(text, ask.visitor.who.is_proven()).map(|()| text.to_owned());
        let said = text(&ask).and_then(allowed).and_then(|text| self.order(&text));
        match said {
            Ok(Order::Done) => ask.done(Ok(())),
            Err(error) => {
                // For who speaks a dialect that has only numbers. What a connection has is its own.
                let mut state = lock(&self.state);
                if !matches!(state.phase, Phase::Connected { .. }) {
                    state.error = error.to_string();
                }
                drop(state);
                ask.fail(error);
            }
            Ok(Order::Begin(begun, says)) => {
                let mut state = lock(&self.state);
                if !matches!(state.phase, Phase::Idle) {
                    let error = state.phase.in_use();
                    drop(state);
                    return ask.fail(error);
                }
                state.phase = Phase::Asking { ask, begun, says };
                drop(state);
                // Sockets belong to the driver's core.
                Waker::from(self.bell.clone()).wake();
            }
        }
    }

    fn order(self: &Arc<Self>, text: &str) -> Result<Order> {
        let quoted = match text.split_whitespace().next() {
            Some("connect" | "announce" | "bind") => quote::words(text)?,
            // Causes and modules have their own ideas of an apostrophe.
            _ => Vec::new(),
        };
        let words: Vec<&str> = match quoted[..] {
            [] => text.split_whitespace().collect(),
            _ => quoted.iter().map(|word| &**word).collect(),
        };
        let number = |what: &str, text: &str, least: u64, most: u64| match text.parse::<u64>() {
            Ok(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(Error::new(Errno::EINVAL, format!("{what}: a number from {least} to {most} is due"))),
        };
        let wrong = |text: &str| Err(Error::new(Errno::EINVAL, text));
        let set = |setting| lock(&self.state).set(setting).map(|()| Order::Done);
        if quoted.iter().any(|word| word.contains(char::is_control)) {
            return wrong("no control characters in an address");
        }
        match words[..] {
            [] => wrong("short control request"),
            ["connect", to] => {
                let from = lock(&self.state).bound.clone();
                Ok(self.begin(Want::Dial, to, from))
            }
            ["connect", to, from] => Ok(self.begin(Want::Dial, to, Some(from.into()))),
            ["announce", at] => Ok(self.begin(Want::Announce, at, None)),
            ["connect" | "announce"] => wrong("an address is due: ADDRESS!PORT"),
            ["connect", ..] => wrong("what is due is ADDRESS!PORT, and the local ADDRESS!PORT or PORT"),
            ["announce", ..] => wrong("one address is due: ADDRESS!PORT; what has a blank in it is quoted"),
            ["bind", from] => {
                let mut state = lock(&self.state);
                match state.phase {
                    Phase::Idle => state.bound = Some(from.into()),
                    ref phase => return Err(phase.in_use()),
                }
                Ok(Order::Done)
            }
            ["bind", ..] => wrong("a local address is due: ADDRESS!PORT or PORT"),
            // The network has taken a call already; who is not wanted is hung up on.
            ["accept", ..] => Ok(Order::Done),
            ["hangup"] | ["reject", ..] => {
                let mut done = Done::default();
                let mut state = lock(&self.state);
                let gone = self.end(&mut state, &mut done);
                state.error = "hungup".into();
                drop(state);
                drop(gone);
                self.answer(done);
                Ok(Order::Done)
            }
            // What Plan 9 programs ask for, and the kernel has its own mind about.
            ["checksum" | "tcpporthogdefense", _] | ["ignoreadvice"] => Ok(Order::Done),
            ["headers"] => {
                self.with(|state, done| state.headers(&self.protocol.shared, done)).map(|()| Order::Done)
            }
            ["keepalive"] => set(Setting::Keepalive(Duration::from_secs(30))),
            ["keepalive", ms] => {
                set(Setting::Keepalive(Duration::from_millis(number("keepalive", ms, 0, KEEPALIVE_MAX)?)))
            }
            ["ttl", n] => set(Setting::Ttl(number("ttl", n, 1, 255)? as u8)),
            ["tos", n] => set(Setting::Tos(number("tos", n, 0, 255)? as u8)),
            _ => self.with(|state, _| state.module(text.trim(), &self.protocol.shared, &self.user)),
        }
    }

    /// Calls or announces what a text means, once the driver comes to it; a call from this end's address `from`.
    fn begin(&self, want: Want, text: &str, from: Option<String>) -> Order {
        let (protocol, who, text) = (self.protocol.clone(), self.owner.who.clone(), text.to_owned());
        let says = if want == Want::Dial { "Syn_sent" } else { "Announcing" };
        let begun = Box::pin(async move {
            let (network, clock) = (&protocol.network, &*protocol.shared.clock);
            // For all places that a name may mean together.
            let end = clock.now() + PATIENCE;
            let asks = Asks { policy: protocol.shared.policy_now().await, who: who.clone(), want };
            let found = within(clock, end, async { network.resolve(&text, &asks).await.map_err(failed) });
            let places = found.await?;
            // That may have taken its time.
            let policy = protocol.shared.policy_now().await;
            let mut last = Error::new(Errno::ENOENT, "can't translate address");
            for (left, place) in (1..=places.len() as u32).rev().zip(places) {
                // One that is silent leaves the others their part.
                let until = clock.now() + end.saturating_sub(clock.now()) / left;
                match within(clock, until, reach(network, &policy, &who, want, place, from.as_deref())).await
                {
                    Err(error) => last = error,
                    begun => return begun,
                }
            }
            Err(last)
        });
        Order::Begin(begun, says)
    }
}

/// What comes of it until then.
async fn within<T>(clock: &dyn Clock, until: Duration, of: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut late, mut of) = (clock.sleep_until(until), pin!(of));
    poll_fn(|cx| match of.as_mut().poll(cx) {
        Poll::Pending => {
            late.as_mut().poll(cx).map(|()| Err(Error::new(Errno::ETIMEDOUT, "connection timed out")))
        }
        done => done,
    })
    .await
}

/// Calls or announces one place, where the policy allows it.
async fn reach(
    network: &Arc<dyn Network>,
    policy: &Policy,
    who: &Who,
    want: Want,
    place: Place,
    from: Option<&str>,
) -> Result<Begun> {
    // As it is written, before anybody looks at what is there, and where it leads: what is refused says no more.
    policy.check(want, network.name(), &place, who)?;
    let written = place.clone();
    let place = network.real(place, want).await.map_err(failed)?;
    policy
        .check(want, network.name(), &place, who)
        .map_err(|_| policy::no(want, network.name(), &written))?;
    if want == Want::Dial {
        let from = from.map(|text| place.opposite(text)).transpose().map_err(failed)?;
        // Who chooses an address of this end takes it, as who is called there does.
        from.iter().try_for_each(|at| policy.check(Want::Announce, network.name(), at, who))?;
        return network.dial(place, from).await.map(Begun::Call).map_err(failed);
    }
    let free = place.is_free();
    // Those that are denied are held till one is found that is not, so that another is chosen each time.
    let mut denied = Vec::new();
    loop {
        let announced = network.announce(place.clone()).await.map_err(failed)?;
        // Which port it is is known only now.
        let real = if free { Place::of(&announced.local()) } else { None };
        match real.map_or(Ok(()), |at| policy.check_chosen(network.name(), &at, who)) {
            Ok(()) => return Ok(Begun::Announced(announced)),
            Err(error) if denied.len() + 1 == PORTS => return Err(error),
            Err(_) => denied.push(announced),
        }
    }
}

/// The one text that was written.
fn text(ask: &Ask) -> Result<&str> {
    if ask.data.len() > TEXT_MAX {
        return Err(Error::new(Errno::EINVAL, format!("a control request has at most {TEXT_MAX} bytes")));
    }
    match *ask.lines()? {
        [] => Ok(""),
        [line] => Ok(line.trim_matches('\0')),
        _ => Err(Error::new(Errno::EINVAL, "one control request at a time")),
    }
}
