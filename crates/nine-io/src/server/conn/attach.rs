//! Attaches of a connection, which decide its client's identity.

use std::sync::Arc;

use nine_proto::session::server::Request as SessionRequest;
use nine_proto::{Op, Result};

use super::super::desk;
use super::super::gate::{self, AdmittedClient};
use super::super::req::{FidEntry, Who};
use super::super::trees::tell;
use super::Connection;
use crate::audit;
use crate::buf::MessageFrame;
use crate::limits::ClientPrincipal;

impl Connection {
    /// Determines the client of a Tattach or a Tauth.
    pub(super) fn introduce(&mut self, request: &SessionRequest<FidEntry, MessageFrame>) -> Result<Arc<Who>> {
        let proof = &self.peer.proof;
        match request.op() {
            Op::Attach { uname, aname, uid } => {
                let afid = request.fid2().map(|held| &held.node);
                let ask = || {
                    let admitted = self.gate.admit(proof, uname, uid, aname, afid, &*self.names)?;
                    self.trees.keep(&self.gate, gate::tree(aname), &admitted)?;
                    Ok(admitted)
                };
                let known = |who: &Arc<Who>| Ok(AdmittedClient { who: self.gate.known(who), token: false });
                let admitted = self.known.as_ref().map_or_else(ask, known);
                if !self.own {
                    tell(self.id, &self.peer, uname, aname, &admitted);
                }
                if let Ok(AdmittedClient { who, .. }) = &admitted {
                    self.user = audit::line(who.name.as_bytes()).into();
                    self.seen.attached(&who.name, self.session.dialect());
                }
                let AdmittedClient { who, .. } = admitted?;
                let who = Arc::new(Who { seat: self.seat, prefix: self.prefix.clone(), ..who });
                let principal = ClientPrincipal::of(&who);
                if let Some(entry) = self.unattached.take() {
                    match self.core.take_place(&principal) {
                        Ok(place) => self.place = place,
                        Err(error) => {
                            // It stays the first to be evicted.
                            self.unattached = Some(entry);
                            return Err(error);
                        }
                    }
                    self.core.unattached().attached(&entry);
                }
                self.charge_to(&principal);
                Ok(who)
            }
            // A client proves itself by writes to an afid; the attach decides its rights.
            _ => {
                let (seat, prefix) = (self.seat, self.prefix.clone());
                Ok(Arc::new(Who { seat, prefix, ..Who::none(proof.clone()) }))
            }
        }
    }
}

/// Whether it is an attach to the connection control files.
pub(super) fn asks_for_desk(request: &SessionRequest<FidEntry, MessageFrame>) -> bool {
    matches!(request.op(), Op::Attach { aname, .. } if gate::split_token(aname).1 == desk::ANAME)
}
