//! Passes authentication through: a client proves its identity to the server of the first tree in its name space.
//!
//! This applies only if that tree is attached as each client is (`As::Client`), and its server is not in this process.
//! A server that sees all clients as one user is authenticated by other means. The afid is the server's, and the mux
//! does not interpret its data. An attach with the afid gets its own roots: no other client benefits from the proof.

use std::sync::Arc;

use nine_io::client::{Answer, Error as Failed, File};
use nine_io::limits::ClientPrincipal;
use nine_io::server::{Later, Reply};
use nine_proto::msg::{OnlyIds, Tmsg};
use nine_proto::{Errno, Fid, Op, Qid, Str};

use crate::cfid::AttachContext;
use crate::core::{MuxCore, refused};
use crate::named::NamedSpace;
use crate::upstream::{UpstreamTree, UserIdentity, UserStanding};

/// The mux's state of a client's afid.
pub(crate) struct ClientAfid {
    pub(crate) file: File,
    tree: Arc<UpstreamTree>,
    /// The index of the tree's equal server.
    member: u16,
}

impl MuxCore {
    /// Starts the authentication of a user.
    pub(crate) async fn auth(&self, req: &Later) -> Result<Reply, Failed> {
        let Op::Auth { uname, aname, uid } = req.op() else { unreachable!("only Tauth comes here") };
        let user = match uname {
            b"" => self.names.user(uid),
            name => String::from_utf8_lossy(name).into_owned(),
        };
        let named = self.aname(aname, &user, false)?.0;
        let tree =
            self.proves(&named).ok_or_else(|| refused(Errno::ENOENT, "authentication not required"))?;
        let by = Arc::new(AttachContext {
            named,
            ident: self.ident("", None, UserStanding::Proven, false),
            hops: 0,
            client: self.outside.number(req.id().conn, req.who()),
            principal: ClientPrincipal::of(req.who()),
            base: b"/"[..].into(),
            unreached: None,
        });
        let (client, member) = self.connect(&by, &tree).await?;
        let afid = client.new_fid()?;
        let aname = tree.aname.as_bytes();
        let qid = match client.ask(Tmsg::Auth { afid, uname, aname, n_uname: OnlyIds(uid) }).await? {
            Answer::Qid(qid) => qid,
            _ => return Err(Failed::Remote(Errno::EPROTO.into())),
        };
        let file = client.adopt(afid, qid);
        let seen = Qid { ty: Qid::AUTH, vers: 0, path: 0 };
        Ok(Reply::Auth { qid: seen, node: Arc::new(ClientAfid { file, tree, member }) })
    }

    /// Passes a client's request on its afid to the server.
    pub(crate) async fn prove(&self, afid: &ClientAfid, req: &Later) -> Result<Reply, Failed> {
        match req.op() {
            Op::Read { offset, count } => {
                Ok(Reply::Read(nine_io::Payload::Bytes(afid.file.read(offset, count).await?)))
            }
            Op::Write { offset, data } => Ok(Reply::Wrote(afid.file.write(offset, data).await?)),
            Op::Clunk | Op::Remove => Ok(Reply::Done),
            _ => Err(Failed::Remote(Errno::EBADF.into())),
        }
    }

    /// Returns the user of an attach, with the root that its afid has opened.
    pub(crate) async fn proven(&self, req: &Later, afid: &ClientAfid) -> Result<Arc<UserIdentity>, Failed> {
        let Op::Attach { uname, uid, .. } = req.op() else { unreachable!("only Tattach comes here") };
        let client = afid.file.client();
        let fid = client.new_fid()?;
        let file = attach(&afid.file, fid, uname, afid.tree.aname.as_bytes(), uid).await?;
        let ident = UserIdentity::new(&req.who().name, req.who().uid);
        let lane = afid.tree.upstream.lane(0, req.id().conn);
        let live = lane.client().filter(|live| live.is_same(client));
        let live = live.ok_or_else(|| refused(Errno::ECONNRESET, "the server has gone since Tauth"))?;
        ident.admit(&afid.tree, &lane, (live, afid.member), file);
        Ok(Arc::new(ident))
    }

    /// Returns the tree of the server that authenticates the clients of a name space, if there is one.
    fn proves(&self, named: &NamedSpace) -> Option<Arc<UpstreamTree>> {
        let space = named.space();
        let first =
            space.head(space.root()).map_or_else(|| space.root().tree, |head| head.members[0].to.tree);
        self.tree_of(first).filter(|tree| tree.user.is_none() && !tree.upstream.server.local)
    }
}

async fn attach(afid: &File, fid: Fid, uname: Str<'_>, aname: &[u8], uid: u32) -> Result<File, Failed> {
    let message = Tmsg::Attach { fid, afid: afid.fid(), uname, aname, n_uname: OnlyIds(uid) };
    match afid.client().ask(message).await? {
        Answer::Qid(qid) => Ok(afid.client().adopt(fid, qid)),
        _ => Err(Failed::Remote(Errno::EPROTO.into())),
    }
}
