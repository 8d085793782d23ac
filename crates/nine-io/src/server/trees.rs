//! The trees that a client has attached to under a policy, for the case that the policy changes.
//!
//! Always holds: at most [`TREES`] trees, with anames at most as long as the gate allows; further trees are
//! refused. Without a policy, or with one that does not distinguish trees, no tree is recorded.

use nine_net::{Peer, Transport};
use nine_proto::{Errno, Error, Result, Str, show};

use super::Core;
use super::gate::{AdmittedClient, Asks, Gate, Right, split_token, tree};
use crate::audit;

/// Maximum number of trees of one connection, each with one right.
const TREES: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct AttachedTrees {
    kept: Vec<AttachedTree>,
    /// The value of the core's `judged` at the last decision.
    judged: u64,
}

#[derive(PartialEq, Eq)]
struct AttachedTree {
    /// `None`: the connection control files.
    aname: Option<Box<[u8]>>,
    token: bool,
    writes: bool,
}

impl AttachedTrees {
    /// Records the tree of an admitted client.
    pub(super) fn keep(
        &mut self,
        gate: &Gate,
        aname: Option<Str<'_>>,
        admitted: &AdmittedClient,
    ) -> Result<()> {
        if !gate.policy.as_ref().is_some_and(|policy| policy.has_trees()) {
            return Ok(());
        }
        let writes = !admitted.who.read_only;
        let tree = AttachedTree { aname: aname.map(Into::into), token: admitted.token, writes };
        if self.kept.contains(&tree) {
            return Ok(());
        }
        if self.kept.len() == TREES {
            let text = format!("one connection attaches to at most {TREES} trees here; make another one");
            return Err(Error::new(Errno::EMFILE, text));
        }
        self.kept.push(tree);
        Ok(())
    }

    /// Checks that the client may still have all its trees, if the policy has changed since the last check.
    pub(super) fn judge_again(&mut self, gate: &Gate, core: &Core, transport: &dyn Transport) -> Result<()> {
        let Some(policy) = &gate.policy else { return Ok(()) };
        let now = core.judged();
        if std::mem::replace(&mut self.judged, now) == now {
            return Ok(());
        }
        policy.knows(&transport.certificates())?;
        let proof = &transport.peer().proof;
        for tree in &self.kept {
            let asks = Asks { proof, token: tree.token, aname: tree.aname.as_deref() };
            if policy.judge(&asks)? == Right::Read && tree.writes {
                return Err(Error::new(
                    Errno::EACCES,
                    format!("{asks} may only read now what it might change"),
                ));
            }
        }
        Ok(())
    }
}

/// Writes the audit event of an attach.
pub(super) fn tell(
    conn: u64,
    peer: &Peer,
    uname: Str<'_>,
    aname: Str<'_>,
    admitted: &Result<AdmittedClient>,
) {
    let token = split_token(aname).0.is_some();
    let (from, tree) = (show(peer.addr.as_bytes()), tree(aname).unwrap_or(split_token(aname).1));
    match admitted {
        Ok(AdmittedClient { who, token }) => {
            let asks = Asks { proof: &peer.proof, token: *token, aname: None };
            tracing::info!(
                target: audit::TARGET,
                event = "attach", allowed = true, conn, peer = %from, identity = %asks,
                user = %audit::line(who.name.as_bytes()), tree = %audit::line(tree), read_only = who.read_only,
                "attached"
            );
        }
        Err(error) => {
            let asks = Asks { proof: &peer.proof, token: false, aname: None };
            tracing::warn!(
                target: audit::TARGET,
                event = "attach", allowed = false, conn, peer = %from, identity = %asks, token,
                user = %audit::line(uname), tree = %audit::line(tree), why = %error,
                "attach as {} refused: {error}", audit::line(uname)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nine_net::Proof;

    use super::super::req::Who;
    use super::*;

    /// Allows everything to everybody. Its flag: whether it distinguishes trees.
    #[derive(Debug)]
    struct All(bool);

    impl super::super::Policy for All {
        fn judge(&self, _: &Asks<'_>) -> Result<Right> {
            Ok(Right::Write)
        }

        fn has_trees(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_client_has_so_many_trees_where_they_are_told_apart() {
        let admitted = AdmittedClient { who: Who::none(Proof::None), token: false };
        let first_refused = |told_apart| {
            let gate = Gate { policy: Some(Arc::new(All(told_apart))), ..Gate::default() };
            let mut trees = AttachedTrees::default();
            (0..2 * TREES).find(|n| trees.keep(&gate, Some(n.to_string().as_bytes()), &admitted).is_err())
        };
        assert_eq!((first_refused(true), first_refused(false)), (Some(TREES), None));
    }
}
