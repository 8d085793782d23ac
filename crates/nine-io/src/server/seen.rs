//! The status of a connection, readable from outside without involving its task.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nine_proto::Dialect;

use crate::sync::{Mutex, lock};

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// The connection's number, as in the log and in [`ReqId::conn`](super::ReqId::conn).
    pub id: u64,
    /// The client's address.
    pub peer: Box<str>,
    /// The user of the latest attach; empty before the first.
    pub user: Box<str>,
    /// The dialect, once a user has attached.
    pub dialect: Option<Dialect>,
    /// Time of the connect since 1970; zero if unknown.
    pub since: Duration,
    /// Messages received from it.
    pub requests: u64,
    /// Those of them that are not answered yet.
    pub outstanding: usize,
    /// Its fids.
    pub fids: usize,
    /// Bytes received from it.
    pub received: u64,
    /// Bytes sent to it.
    pub sent: u64,
}

/// Sums over clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
    /// Number of clients.
    pub clients: u64,
    /// Messages received from them.
    pub requests: u64,
    /// Bytes received from them.
    pub received: u64,
    /// Bytes sent to them.
    pub sent: u64,
}

impl ClientTotals {
    pub(super) fn with(self, client: &ClientStatus) -> Self {
        Self {
            clients: self.clients + 1,
            requests: self.requests + client.requests,
            received: self.received + client.received,
            sent: self.sent + client.sent,
        }
    }
}

/// The connection writes it; any thread may read it.
pub(super) struct PublishedStatus {
    peer: Box<str>,
    user: Mutex<(Box<str>, Option<Dialect>)>,
    since: AtomicU64,
    requests: AtomicU64,
    outstanding: AtomicUsize,
    fids: AtomicUsize,
    received: AtomicU64,
    sent: AtomicU64,
}

impl PublishedStatus {
    pub(super) fn new(peer: &str) -> Self {
        Self {
            peer: peer.into(),
            user: Mutex::new((Box::default(), None)),
            since: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            outstanding: AtomicUsize::new(0),
            fids: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    pub(super) fn began(&self, wall: Duration) {
        self.since.store(wall.as_secs(), Ordering::Relaxed);
    }

    pub(super) fn attached(&self, user: &str, dialect: Option<Dialect>) {
        *lock(&self.user) = (user.into(), dialect);
    }

    pub(super) fn moved(&self, requests: u64, fids: usize, outstanding: usize) {
        self.requests.store(requests, Ordering::Relaxed);
        self.fids.store(fids, Ordering::Relaxed);
        self.outstanding.store(outstanding, Ordering::Relaxed);
    }

    pub(super) fn carried(&self, received: u64, sent: u64) {
        self.received.store(received, Ordering::Relaxed);
        self.sent.store(sent, Ordering::Relaxed);
    }

    pub(super) fn status(&self, id: u64) -> ClientStatus {
        let (user, dialect) = lock(&self.user).clone();
        ClientStatus {
            id,
            peer: self.peer.clone(),
            user,
            dialect,
            since: Duration::from_secs(self.since.load(Ordering::Relaxed)),
            requests: self.requests.load(Ordering::Relaxed),
            outstanding: self.outstanding.load(Ordering::Relaxed),
            fids: self.fids.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
        }
    }
}
