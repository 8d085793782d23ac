//! `cs` and `dns`: a query is written and its answers are read, one at a time (ndb(8), dial(2)).
//!
//! Always holds: one query at a time. Its answers stay until the next one is written. Offsets run through the
//! concatenated answers, and one read returns at most one answer. So it works both for programs that read on at the
//! present offset and for those that seek to 0 after the write.

use std::mem;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nine_io::quote;
use nine_io::server::ReqId;
use nine_io::synth::{Ask, Handle, Visitor};
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Error, Result};

use super::driver::{DriverJob, DriverWaker};
use super::policy::Want;
use super::stack::{Asks, Later, Network, Place};
use super::{NetShared, TEXT_MAX};
use crate::net::conv::failed;

/// The lookup function of `cs` or `dns`.
pub(super) type LookupFn = fn(&[Arc<dyn Network>], &str, Asks) -> Later<Result<Vec<String>>>;

/// The maximum number of answers to a query; further ones are dropped.
const ANSWERS_MAX: usize = 64;

/// One open `cs` or `dns`.
pub(super) struct NameQuery {
    finds: LookupFn,
    networks: Arc<[Arc<dyn Network>]>,
    shared: Arc<NetShared>,
    visitor: Arc<Visitor>,
    bell: Arc<DriverWaker>,
    state: Mutex<NameQueryState>,
}

#[derive(Default)]
struct NameQueryState {
    answers: Vec<Bytes>,
    /// The lookup in progress, and the write that waits for it.
    asking: Option<(Ask, Later<Result<Vec<String>>>)>,
}

impl NameQuery {
    pub(super) fn new(
        shared: &Arc<NetShared>,
        networks: &Arc<[Arc<dyn Network>]>,
        visitor: &Arc<Visitor>,
        finds: LookupFn,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            finds,
            networks: networks.clone(),
            shared: shared.clone(),
            visitor: visitor.clone(),
            bell: DriverWaker::new(me.clone(), &shared.queue),
            state: Mutex::default(),
        })
    }
}

impl Handle for NameQuery {
    fn read(&self, ask: Ask) {
        let mut offset = ask.offset;
        let answer = lock(&self.state).answers.iter().find_map(|answer| {
            match offset.checked_sub(answer.len() as u64) {
                Some(rest) => {
                    offset = rest;
                    None
                }
                None => Some(answer.slice(offset as usize..)),
            }
        });
        ask.give(answer.unwrap_or_default());
    }

    fn write(&self, ask: Ask) {
        let question: Later<_> = match ask.text().map(|text| text.trim_end_matches(['\n', '\0'])) {
            Ok(text) if text.contains(char::is_control) => {
                return ask.fail(Error::new(Errno::EINVAL, "no control characters in a question"));
            }
            Ok(text) if text.len() <= TEXT_MAX => {
                let (shared, networks, finds) = (self.shared.clone(), self.networks.clone(), self.finds);
                let (who, text) = (self.visitor.who.clone(), text.to_owned());
                Box::pin(async move {
                    let asks = Asks { policy: shared.policy_now().await, who, want: Want::Dial };
                    finds(&networks, &text, asks).await
                })
            }
            Ok(_) => return ask.fail(Error::new(Errno::EINVAL, "the question is too long")),
            Err(error) => return ask.fail(error),
        };
        let mut state = lock(&self.state);
        if state.asking.is_some() {
            drop(state);
            return ask.fail(Error::new(Errno::EBUSY, "a question is being answered"));
        }
        state.answers.clear();
        state.asking = Some((ask, question));
        drop(state);
        Waker::from(self.bell.clone()).wake();
    }

    fn cancel(&self, id: ReqId) -> bool {
        let asked = {
            let mut state = lock(&self.state);
            if state.asking.as_ref().is_some_and(|(ask, _)| ask.id() == id) {
                state.asking.take()
            } else {
                None
            }
        };
        if let Some((ask, _)) = asked {
            ask.fail(Errno::EINTR.into());
        }
        true
    }
}

impl DriverJob for NameQuery {
    fn turn(&self, cx: &mut Context<'_>) {
        let mut state = lock(&self.state);
        let Some((_, found)) = &mut state.asking else { return };
        let Poll::Ready(found) = found.as_mut().poll(cx) else { return };
        let asked = mem::take(&mut state.asking);
        let said = found.map(|answers| {
            state.answers = answers.into_iter().take(ANSWERS_MAX).map(Bytes::from).collect();
        });
        drop(state);
        if let Some((ask, _)) = asked {
            ask.done(said);
        }
    }
}

/// Answers a query `NET!HOST!SERVICE` with the files to open and the texts to write to them.
pub(super) fn cs(networks: &[Arc<dyn Network>], question: &str, asks: Asks) -> Later<Result<Vec<String>>> {
    let networks = match parse(networks, question) {
        Ok(found) => found,
        Err(error) => return Box::pin(std::future::ready(Err(error))),
    };
    Box::pin(async move {
        let (network, text, with_port) = networks;
        let announces = text.starts_with("*!");
        let asks = Asks { want: if announces { Want::Announce } else { Want::Dial }, ..asks };
        let places = network.resolve(&text, &asks).await.map_err(failed)?;
        let answer = |place: &Place| {
            let to = match place {
                Place::Ip(at) if announces => format!("*!{}", at.port()),
                Place::Ip(at) if !with_port => at.ip().to_canonical().to_string(),
                place => quote::quote(&place.to_string()),
            };
            format!("/net/{}/clone {to}", network.name())
        };
        Ok(places.iter().map(answer).collect())
    })
}

/// Returns the network, the text it must resolve, and whether that text has a port.
fn parse(networks: &[Arc<dyn Network>], question: &str) -> Result<(Arc<dyn Network>, String, bool)> {
    let no = |text: String| Err(Error::new(Errno::EINVAL, text));
    if question.starts_with('!') {
        return no("there is no network database to be asked: write NETWORK!HOST!SERVICE".into());
    }
    let (name, rest) = question.split_once('!').unwrap_or(("net", question));
    if rest.is_empty() {
        return no("bad address: write NETWORK!HOST!SERVICE".into());
    }
    // As in Plan 9, `net` is any network that takes names: TCP.
    let name = if name == "net" { "tcp" } else { name };
    let Some(network) = networks.iter().find(|network| network.name() == name) else {
        let known: Vec<&str> = networks.iter().map(|network| network.name()).collect();
        return no(format!("unknown network {name}: there are net, {}", known.join(", ")));
    };
    let with_port = name == "unix" || rest.contains('!');
    let text = if with_port { rest.to_owned() } else { format!("{rest}!0") };
    Ok((network.clone(), text, with_port))
}

/// Answers a query `NAME ip`, `NAME ipv6` or `NAME any`.
pub(super) fn dns(_: &[Arc<dyn Network>], question: &str, asks: Asks) -> Later<Result<Vec<String>>> {
    let words: Vec<&str> = question.split_whitespace().collect();
    let (name, ty) = match words[..] {
        [name, ty @ ("ip" | "ipv6" | "any")] if !name.contains('!') => (name.to_owned(), ty.to_owned()),
        _ => {
            let text =
                "write NAME ip, NAME ipv6 or NAME any: the resolver of this machine knows no other records";
            return Box::pin(std::future::ready(Err(Error::new(Errno::EINVAL, text))));
        }
    };
    Box::pin(async move {
        let found = asks.addresses(&name, None).await.map_err(failed)?;
        let answers = found.into_iter().filter_map(|ip| {
            let ip = ip.to_canonical();
            let is = if ip.is_ipv4() { "ip" } else { "ipv6" };
            (ty == "any" || ty == is).then(|| format!("{name} {is} {ip}"))
        });
        match answers.collect::<Vec<_>>() {
            none if none.is_empty() => Err(Error::new(Errno::ENOENT, "resource does not exist")),
            answers => Ok(answers),
        }
    })
}
