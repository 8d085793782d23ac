//! The control messages of a conversation.
//!
//! In: texts of one line. Out: answers, or a connect or an announce for the driver to start.

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
use super::super::stack::{Asks, CONNECT_TIMEOUT, Later, Network, Place, Setting};
use super::{CallAnswers, CallPhase, NetConversation, StartedCall, failed};

/// The maximum of `keepalive` in milliseconds: the kernel has 15 bits for the seconds.
const KEEPALIVE_MAX: u64 = 32_767_000;
/// The number of ports that the kernel may choose until one is not denied by the policy.
const PORT_TRIES_MAX: usize = 8;

/// The result of a control message.
pub(super) enum CtlOutcome {
    Done,
    Begin(Later<Result<StartedCall>>, &'static str),
}

impl NetConversation {
    /// Executes a text written to `ctl`.
    pub(super) fn control(self: &Arc<Self>, ask: Ask) {
        let allowed = |text: &str| check_cost(text, ask.visitor.who.is_proven()).map(|()| text.to_owned());
        let said = text(&ask).and_then(allowed).and_then(|text| self.order(&text));
        match said {
            Ok(CtlOutcome::Done) => ask.done(Ok(())),
            Err(error) => {
                // For dialects that transmit only error numbers, `err` has the text. A connection's own error is not
                // replaced.
                let mut state = lock(&self.state);
                if !matches!(state.phase, CallPhase::Connected { .. }) {
                    state.error = error.to_string();
                }
                drop(state);
                ask.fail(error);
            }
            Ok(CtlOutcome::Begin(begun, says)) => {
                let mut state = lock(&self.state);
                if !matches!(state.phase, CallPhase::Idle) {
                    let error = state.phase.in_use();
                    drop(state);
                    return ask.fail(error);
                }
                state.phase = CallPhase::Asking { ask, begun, says };
                drop(state);
                // Sockets belong to the driver's core.
                Waker::from(self.bell.clone()).wake();
            }
        }
    }

    fn order(self: &Arc<Self>, text: &str) -> Result<CtlOutcome> {
        let quoted = match text.split_whitespace().next() {
            Some("connect" | "announce" | "bind") => quote::words(text)?,
            // Reasons and modules do not use these quoting rules.
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
        let set = |setting| lock(&self.state).set(setting).map(|()| CtlOutcome::Done);
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
                    CallPhase::Idle => state.bound = Some(from.into()),
                    ref phase => return Err(phase.in_use()),
                }
                Ok(CtlOutcome::Done)
            }
            ["bind", ..] => wrong("a local address is due: ADDRESS!PORT or PORT"),
            // The network has accepted the call already; `reject` hangs up.
            ["accept", ..] => Ok(CtlOutcome::Done),
            ["hangup"] | ["reject", ..] => {
                let mut done = CallAnswers::default();
                let mut state = lock(&self.state);
                let gone = self.end(&mut state, &mut done);
                state.error = "hungup".into();
                drop(state);
                drop(gone);
                self.answer(done);
                Ok(CtlOutcome::Done)
            }
            // Accepted for Plan 9 programs; the kernel decides about these itself.
            ["checksum" | "tcpporthogdefense", _] | ["ignoreadvice"] => Ok(CtlOutcome::Done),
            ["headers"] => {
                self.with(|state, done| state.headers(&self.protocol.shared, done)).map(|()| CtlOutcome::Done)
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

    /// Prepares a connect or an announce for the driver. `from` is the local address of a connect.
    fn begin(&self, want: Want, text: &str, from: Option<String>) -> CtlOutcome {
        let (protocol, who, text) = (self.protocol.clone(), self.owner.who.clone(), text.to_owned());
        let says = if want == Want::Dial { "Syn_sent" } else { "Announcing" };
        let begun = Box::pin(async move {
            let (network, clock) = (&protocol.network, &*protocol.shared.clock);
            // The timeout for all addresses of a name together.
            let end = clock.now() + CONNECT_TIMEOUT;
            let asks = Asks { policy: protocol.shared.policy_now().await, who: who.clone(), want };
            let found = within(clock, end, async { network.resolve(&text, &asks).await.map_err(failed) });
            let places = found.await?;
            // Read again, since the lookup may have taken time.
            let policy = protocol.shared.policy_now().await;
            let mut last = Error::new(Errno::ENOENT, "can't translate address");
            for (left, place) in (1..=places.len() as u32).rev().zip(places) {
                // Each address gets an equal part of the remaining time.
                let until = clock.now() + end.saturating_sub(clock.now()) / left;
                match within(clock, until, reach(network, &policy, &who, want, place, from.as_deref())).await
                {
                    Err(error) => last = error,
                    begun => return begun,
                }
            }
            Err(last)
        });
        CtlOutcome::Begin(begun, says)
    }
}

/// Returns the result of a future, or ETIMEDOUT.
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

/// Connects to or announces one address, if the policy allows it.
async fn reach(
    network: &Arc<dyn Network>,
    policy: &Policy,
    who: &Who,
    want: Want,
    place: Place,
    from: Option<&str>,
) -> Result<StartedCall> {
    // Checked as written, before links are followed, so that a refusal reveals nothing about the file.
    policy.check(want, network.name(), &place, who)?;
    let written = place.clone();
    let place = network.real(place, want).await.map_err(failed)?;
    policy
        .check(want, network.name(), &place, who)
        .map_err(|_| policy::no(want, network.name(), &written))?;
    if want == Want::Dial {
        let from = from.map(|text| place.opposite(text)).transpose().map_err(failed)?;
        // A client that chooses the local address occupies it like an announce, so the policy for that applies too.
        from.iter().try_for_each(|at| policy.check(Want::Announce, network.name(), at, who))?;
        return network.dial(place, from).await.map(StartedCall::Call).map_err(failed);
    }
    let free = place.is_free();
    // Denied ports are held until another one is found, so that the kernel chooses a new one each time.
    let mut denied = Vec::new();
    loop {
        let announced = network.announce(place.clone()).await.map_err(failed)?;
        // The kernel has chosen the port only now.
        let real = if free { Place::of(&announced.local()) } else { None };
        match real.map_or(Ok(()), |at| policy.check_chosen(network.name(), &at, who)) {
            Ok(()) => return Ok(StartedCall::Announced(announced)),
            Err(error) if denied.len() + 1 == PORT_TRIES_MAX => return Err(error),
            Err(_) => denied.push(announced),
        }
    }
}

/// Returns the one control message of a write.
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
