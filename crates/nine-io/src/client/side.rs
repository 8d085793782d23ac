//! The states of a [`Stream`](super::Stream)'s data connection: requested, dialled, token shown, open; or given
//! up.
//!
//! Always holds: an unused offer is withdrawn. A failed connection is logged once, and for [`PAUSE_MS`] no other is
//! tried.

use std::future::{Future, ready as at_once};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_net::{Addr, Transport};
use nine_proto::Errno;
use nine_proto::msg::Tmsg;
use nine_proto::stream::accept;

use super::answer::Answer;
use super::call::ClientCall;
use super::error::{Error, Result};
use super::file::File;
use super::stream::Direction;
use crate::buf::FrameBuffer;

/// Dials data connections.
pub trait Dial: Send + Sync + 'static {
    /// Dials the address that a server offers, a dial string like `tcp!*!564`. The host `*` stands for the host of the
    /// 9P connection, with the other end `peer`. It uses the same transport and the same TLS. It must end within about
    /// a second, and must refuse other hosts.
    fn dial(&self, peer: &str, addr: &str) -> Dialing;
}

/// A dial of a data connection in progress.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>>;

/// Resolves the address `addr` that the server `peer` offers ([`Dial::dial`]). A server can only offer itself.
///
/// # Errors
/// If one of them is no address, or if the offer is another host (`PermissionDenied`).
pub fn offered(peer: &str, addr: &str) -> io::Result<Addr> {
    let parse = |text: &str| text.parse::<Addr>().map_err(|error| io::Error::other(error.to_string()));
    match (parse(peer)?, parse(addr)?) {
        (
            Addr::Tcp { host, .. } | Addr::Tls { host, .. },
            Addr::Tcp { host: meant, port } | Addr::Tls { host: meant, port },
        ) if meant == "*" || meant == host => Ok(Addr::Tcp { host, port }),
        _ => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the server offers {addr}, which is not where it is itself"),
        )),
    }
}

/// For how long no data connection is tried after a failed one, in ms.
pub(super) const PAUSE_MS: u64 = 60_000;

/// A data connection in one of its states.
pub(super) enum DataConnection {
    /// There is none.
    None,
    /// It was refused or given up, and the offer is being withdrawn.
    Leaving(ClientCall<'static>),
    /// An abandoned earlier stream of this fid is being closed first.
    Clearing(ClientCall<'static>, StreamParameters),
    Asked(ClientCall<'static>, Option<StreamParameters>, EarlyDial),
    Dialling(Dialing, Bytes),
    /// Connected; these first bytes are still to be sent.
    Showing(Box<dyn Transport>, Bytes),
    Open {
        transport: Box<dyn Transport>,
        /// Its answer shows how the stream ended.
        verdict: ClientCall<'static>,
        told: Option<StreamVerdict>,
        buf: Option<Arc<FrameBuffer>>,
        /// The sender has sent all bytes, or the connection is cut.
        ended: bool,
    },
}

/// The content of an Rsclose (bytes, and the reason for the end), or the error if there is no answer.
pub(super) type StreamVerdict = Result<(u64, Option<nine_proto::Error>)>;

/// The parameters of a Tstream.
#[derive(Clone, Copy)]
pub(super) struct StreamParameters {
    offset: u64,
    isread: u8,
}

impl DataConnection {
    pub(super) fn begin(file: &File, offset: u64, direction: Direction) -> Self {
        if !file.client().has_streams() || file.is_sequential() {
            return Self::None;
        }
        let wanted = StreamParameters { offset, isread: u8::from(direction == Direction::Read) };
        Self::Asked(wanted.ask(file), Some(wanted), EarlyDial::dial(file))
    }

    /// Waits for the server's verdict at the end.
    pub(super) fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<&StreamVerdict> {
        let Self::Open { verdict: call, told, .. } = self else {
            unreachable!("asked for the verdict where there is none")
        };
        if told.is_none() {
            *told = Some(match ready!(Pin::new(call).poll(cx)) {
                Ok(Answer::Sclosed { count, error }) => Ok((count, error)),
                Ok(other) => other.never(),
                Err(error) => Err(error),
            });
        }
        Poll::Ready(told.as_ref().expect("it is there"))
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Advances towards a connection. Ready: it is open, or there will be none.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, file: &File) -> Poll<()> {
        loop {
            match self {
                Self::None | Self::Open { .. } => return Poll::Ready(()),
                Self::Leaving(call) => {
                    if Pin::new(call).poll(cx).is_ready() {
                        *self = Self::None;
                    }
                    return Poll::Ready(());
                }
                Self::Clearing(call, wanted) => {
                    let _ = ready!(Pin::new(call).poll(cx));
                    *self = Self::Asked(wanted.ask(file), None, EarlyDial(None));
                }
                Self::Asked(call, again, early) => match ready!(early.poll(cx, Pin::new(call))) {
                    Ok(Answer::Data(offer)) => match accept(&offer) {
                        Some((addr, begin)) => {
                            let dial =
                                file.client().0.options.streams.as_ref().expect("asked for because of it");
                            let dialling = match early.0.take() {
                                Some((guess, dialling, _)) if guess == addr => dialling,
                                _ => dial.dial(file.client().peer(), addr),
                            };
                            *self = Self::Dialling(dialling, begin.into());
                        }
                        None => self.leave(file, &"the server's offer is no dial string and token"),
                    },
                    Ok(other) => other.never(),
                    Err(Error::Remote(error)) if error.errno == Errno::EBUSY && again.is_some() => {
                        let wanted = again.take().expect("it is there");
                        *self = Self::Clearing(sclose(file, 0), wanted);
                    }
                    // The server may have no streams left for now.
                    Err(error) => {
                        tracing::debug!(peer = %file.client().peer(), "no stream: {error}");
                        *self = Self::None;
                    }
                },
                Self::Dialling(dial, begin) => match ready!(dial.as_mut().poll(cx)) {
                    Ok(transport) => *self = Self::Showing(transport, std::mem::take(begin)),
                    Err(error) => self.leave(file, &error),
                },
                Self::Showing(transport, begin) if !begin.is_empty() => {
                    match ready!(transport.poll_write(cx, &[IoSlice::new(begin)])) {
                        Ok(n) => drop(begin.split_to(n)),
                        Err(error) => self.leave(file, &error),
                    }
                }
                Self::Showing(transport, _) => {
                    if let Err(error) = ready!(transport.poll_flush(cx)) {
                        self.leave(file, &error);
                        continue;
                    }
                    let Self::Showing(transport, _) = std::mem::replace(self, Self::None) else {
                        unreachable!()
                    };
                    let mut verdict = sclose(file, u64::MAX);
                    // Sent now, so that the answer arrives with the last byte, or as soon as an error occurs.
                    verdict.begin(cx);
                    *self = Self::Open { transport, verdict, told: None, buf: None, ended: false };
                }
            }
        }
    }

    /// Gives the data connection up, and tries none for a while.
    pub(super) fn leave(&mut self, file: &File, why: &dyn std::fmt::Display) {
        let client = file.client();
        if client.without_streams() {
            tracing::warn!(
                peer = %client.peer(),
                "no data connection ({why}): files go over the 9P connection, which may be slower"
            );
        }
        *self = Self::Leaving(sclose(file, 0));
    }
}

/// A data connection that is dialled before the server has named its address, because most use their own port: the
/// guessed address, the connection, and whether it is complete.
pub(super) struct EarlyDial(Option<(String, Dialing, bool)>);

impl EarlyDial {
    pub(super) fn dial(file: &File) -> Self {
        let peer = file.client().peer();
        let port = peer.strip_prefix("tcp!").or(peer.strip_prefix("tls!")).and_then(|at| at.rsplit_once('!'));
        let dial = file.client().0.options.streams.as_ref();
        Self(port.zip(dial).map(|((_, port), dial)| {
            let guess = format!("tcp!*!{port}");
            let dialling = dial.dial(peer, &guess);
            (guess, dialling, false)
        }))
    }

    /// Polls the answer to a Tstream, and dials meanwhile.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        call: Pin<&mut ClientCall<'static>>,
    ) -> Poll<Result<Answer>> {
        let answer = call.poll(cx);
        if let Some((_, dialling, done @ false)) = &mut self.0
            && let Poll::Ready(dialled) = dialling.as_mut().poll(cx)
        {
            (*dialling, *done) = (Box::pin(at_once(dialled)), true);
        }
        answer
    }
}

impl StreamParameters {
    pub(super) fn ask(self, file: &File) -> ClientCall<'static> {
        file.call(Tmsg::Stream { fid: file.fid(), isread: self.isread, offset: self.offset })
    }
}

pub(super) fn sclose(file: &File, count: u64) -> ClientCall<'static> {
    file.call(Tmsg::Sclose { fid: file.fid(), count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_the_host_of_the_session_and_other_hosts_are_refused() {
        let offered = |peer, addr| offered(peer, addr).map(|addr| addr.to_string());
        assert_eq!(offered("tcp!10.0.0.1!564", "tcp!*!5641").unwrap(), "tcp!10.0.0.1!5641");
        assert_eq!(offered("tls!::1!564", "tcp!*!564").unwrap(), "tcp!::1!564");
        assert_eq!(offered("tcp!10.0.0.1!564", "tcp!10.0.0.1!22").unwrap(), "tcp!10.0.0.1!22");
        for addr in ["tcp!10.0.0.2!564", "tcp!localhost!22", "unix!/run/x", "x", ""] {
            assert!(offered("tcp!10.0.0.1!564", addr).is_err(), "{addr}");
        }
        assert!(offered("unix!/run/x", "tcp!*!564").is_err());
    }
}
