//! Access control: decides from the transport's proof which clients may attach, and as which user.
//!
//! Closed by default: a client without proof (a unix socket's peer credentials, a certificate, the token) may not
//! attach. A gate may let all such clients read, or only those loopback clients that the kernel reports as root or the
//! server's own user. [`Anonymous::Trusted`] lets them do everything.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use nine_net::Proof;
use nine_proto::{Errno, Error, Make, NOUID, Names, Op, Qid, Result, Str, mode, show};

use super::desk;
use super::req::{Node, Reply, Request, Who};
use crate::payload::Payload;

/// The rights of a client without proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// It may not attach.
    Refused,
    /// It may read files and directories that their modes let all others read ([`Who::as_other`]).
    AsOther,
    /// It may read everything.
    ReadOnly,
    /// It may do everything, under any name that it gives (`-insecure`).
    Trusted,
}

/// The access rules of a listener.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The rights of clients without proof.
    pub anonymous: Anonymous,
    /// The server's own user and root may read everything over the loopback, even if others may not.
    pub owner_reads: bool,
    /// A client that claims to be root without proof becomes [`NOBODY`] (root squash).
    pub squash_root: bool,
    /// A client without proof may create no device, and no program that runs with its owner's rights. So it may set
    /// neither set-user-id bits nor capabilities, nor set-group-id bits on files.
    pub plain_files: bool,
    /// A client that shows it, in an afid or as `token:HEX` in front of the aname, is trusted like the server's own
    /// user.
    pub token: Option<Arc<str>>,
    /// No client may change anything.
    pub read_only: bool,
    /// Restricts clients further, each by its identity and tree; `None`: no further restriction.
    pub policy: Option<Arc<dyn Policy>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            anonymous: Anonymous::Refused,
            owner_reads: false,
            squash_root: false,
            plain_files: false,
            token: None,
            read_only: false,
            policy: None,
        }
    }
}

/// Decides which trees a client may attach to, among the clients that a [`Gate`] admits. If its rules change while
/// clients are connected, call [`Core::judge_again`](super::Core::judge_again) to apply them.
///
/// Concurrency: called from every core, where requests are served; it must not block.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Returns the client's right in a tree, or an error with the reason why it may not attach.
    fn judge(&self, asks: &Asks<'_>) -> Result<Right>;

    /// Whether the decision depends on the tree. If not, a client's trees are not recorded.
    fn has_trees(&self) -> bool {
        true
    }

    /// Checks that a client's certificates, in DER, are still valid.
    fn knows(&self, certificates: &[&[u8]]) -> Result<()> {
        let _ = certificates;
        Ok(())
    }
}

/// A request for access to a tree.
#[derive(Clone, Copy, Debug)]
pub struct Asks<'a> {
    /// The transport's proof.
    pub proof: &'a Proof,
    /// The client has shown the token.
    pub token: bool,
    /// The tree, without the token. `None`: the connection control files, open to every client that may attach to
    /// anything.
    pub aname: Option<&'a [u8]>,
}

impl fmt::Display for Asks<'_> {
    /// Writes the identity: `token`, `cert:NAME`, `unix:NUMBER`, `loopback:NUMBER`, `anyone`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.proof {
            _ if self.token => f.write_str("token"),
            Proof::Certificate { name, .. } => write!(f, "cert:{}", show(name.as_bytes())),
            Proof::Unix { uid, .. } => write!(f, "unix:{uid}"),
            Proof::Loopback { uid } => write!(f, "loopback:{uid}"),
            Proof::None => f.write_str("anyone"),
        }
    }
}

/// A client's right in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// It may change nothing.
    Read,
    /// It may do all that the file server allows.
    Write,
}

/// An admitted client, and whether it has shown the token.
#[derive(Debug)]
pub(super) struct AdmittedClient {
    pub(super) who: Who,
    pub(super) token: bool,
}

/// The user id of a client without valid claims.
pub const NOBODY: u32 = 65534;

/// The attribute that gives a program some of root's rights.
const CAPABILITY: &[u8] = b"security.capability";

/// Maximum number of bytes stored of a client's writes to an afid; a longer token is wrong anyway.
const TOKEN_MAX: usize = 128;

/// Longest aname that a policy judges, in bytes: the limit of a path in Linux.
const ANAME_MAX: usize = 4096;

/// The node of an afid: collects the token.
struct AfidNode(Mutex<Vec<u8>>);

impl Gate {
    /// The identity of a client that the service has fixed: read-only if this gate is.
    pub(super) fn known(&self, who: &Who) -> Who {
        Who { read_only: who.read_only || self.read_only, ..who.clone() }
    }

    /// Returns the identity of a client that attaches with these parameters, or the reason for a refusal.
    pub(super) fn admit(
        &self,
        proof: &Proof,
        uname: Str<'_>,
        uid: u32,
        aname: Str<'_>,
        afid: Option<&Node>,
        names: &dyn Names,
    ) -> Result<AdmittedClient> {
        let token = self.shows_token(aname, afid)?;
        let who = self.name(proof, uname, uid, token, names)?;
        let Some(policy) = &self.policy else { return Ok(AdmittedClient { who, token }) };
        let aname = tree(aname);
        if aname.is_some_and(|aname| aname.len() > ANAME_MAX) {
            let text = format!("an aname has at most {ANAME_MAX} bytes here");
            return Err(Error::new(Errno::ENAMETOOLONG, text));
        }
        let right = policy.judge(&Asks { proof, token, aname })?;
        let read_only = who.read_only || right == Right::Read;
        Ok(AdmittedClient { who: Who { read_only, ..who }, token })
    }

    /// Determines the identity from the proof and the claims, whatever the tree.
    fn name(&self, proof: &Proof, uname: Str<'_>, uid: u32, token: bool, names: &dyn Names) -> Result<Who> {
        let claimed_uid = if uid == NOUID { names.uid(uname) } else { Some(uid) };
        let claimed_name: Box<str> = match (uname, claimed_uid) {
            (b"", Some(uid)) => names.user(uid).into(),
            (b"", None) => "none".into(),
            (name, _) => String::from_utf8_lossy(name).into(),
        };
        let who = |name: Box<str>, uid, read_only| Who {
            name,
            uid,
            read_only: read_only || self.read_only,
            ..Who::none(proof.clone())
        };
        if token {
            return Ok(Who { owner: true, ..who(claimed_name, claimed_uid, false) });
        }
        match proof {
            Proof::Unix { uid, .. } => {
                // Root and the server's own user may attach as anybody: the files are theirs anyway.
                let own = rustix::process::geteuid().as_raw();
                let free = is_ours(*uid);
                match claimed_uid {
                    Some(claimed) if claimed != *uid && !free => Err(not_you(&names.user(*uid))),
                    Some(claimed) => {
                        // Attached as another user, they have only that user's rights.
                        let owner = free && (claimed == *uid || claimed == own);
                        Ok(Who { owner, ..who(claimed_name, Some(claimed), false) })
                    }
                    // If the client may choose its name, an unknown name is not its own.
                    None if free && !uname.is_empty() => Ok(who(claimed_name, None, false)),
                    None => Ok(Who { owner: free, ..who(names.user(*uid).into(), Some(*uid), false) }),
                }
            }
            Proof::Certificate { name, .. } => {
                let proven = names.uid(name.as_bytes());
                let same = uname.is_empty() || uname == name.as_bytes();
                if !same || (uid != NOUID && proven != Some(uid)) {
                    return Err(not_you(name));
                }
                Ok(who(name.as_str().into(), proven, false))
            }
            Proof::Loopback { .. } | Proof::None => match self.anonymous {
                Anonymous::Trusted if self.squash_root && claimed_uid == Some(0) => {
                    Ok(who("nobody".into(), Some(NOBODY), false))
                }
                Anonymous::Trusted => Ok(who(claimed_name, claimed_uid, false)),
                Anonymous::ReadOnly => Ok(who("none".into(), None, true)),
                _ if self.owner_reads && matches!(proof, Proof::Loopback { uid } if is_ours(*uid)) => {
                    Ok(who("none".into(), None, true))
                }
                Anonymous::AsOther => Ok(Who { as_other: true, ..who("none".into(), None, true) }),
                Anonymous::Refused => {
                    Err(Error::new(Errno::EACCES, "no proof of who you are: show the token"))
                }
            },
        }
    }

    /// Returns the error if the gate forbids a change, whatever the file server allows.
    pub(super) fn forbids(&self, request: &Request) -> Option<Error> {
        if !self.plain_files || request.who().is_proven() {
            return None;
        }
        let sets_id = |bits: u32, is_dir: bool| {
            // On a directory, the set-group-id bit only selects the group of new files.
            let ids = if is_dir { mode::S_ISUID } else { mode::S_ISUID | mode::S_ISGID };
            bits & ids != 0
        };
        let what = match request.op() {
            Op::Create { make: Make::Node { ty, .. }, .. } | Op::Make { make: Make::Node { ty, .. }, .. }
                if matches!(ty, mode::S_IFCHR | mode::S_IFBLK) =>
            {
                "devices are"
            }
            Op::Create { make, perm, .. } | Op::Make { make, perm, .. }
                if sets_id(perm.bits, make == Make::Dir) =>
            {
                "set-id bits are"
            }
            Op::Setattr { set } if set.mode.is_some_and(|bits| sets_id(bits, request.is_dir())) => {
                "set-id bits are"
            }
            Op::XattrCreate { name: CAPABILITY, .. } => "capabilities are",
            _ => return None,
        };
        let text =
            format!("{what} for clients that have proven who they are (`--squash no` allows them to all)");
        Some(Error::new(Errno::EPERM, text))
    }

    /// Answers authentication requests. `None`: the request is for the file server.
    pub(super) fn serve(&self, request: &Request) -> Option<Result<Reply>> {
        if let Op::Auth { .. } = request.op() {
            self.token.as_ref()?;
            let qid = Qid { ty: Qid::AUTH, vers: 0, path: 0 };
            return Some(Ok(Reply::Auth { qid, node: Arc::new(AfidNode(Mutex::default())) }));
        }
        let afid = request.node::<AfidNode>().ok()?;
        let mut shown = afid.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match request.op() {
            Op::Write { data, .. } if shown.len() + data.len() <= TOKEN_MAX => {
                shown.extend_from_slice(data);
                Ok(Reply::Wrote(data.len() as u32))
            }
            Op::Write { .. } => Err(Error::new(Errno::EACCES, "that is no token")),
            Op::Read { .. } => Ok(Reply::Read(Payload::EMPTY)),
            Op::Clunk | Op::Remove => Ok(Reply::Done),
            _ => Err(Errno::EBADF.into()),
        })
    }

    fn shows_token(&self, aname: Str<'_>, afid: Option<&Node>) -> Result<bool> {
        let afid = afid.and_then(|node| node.downcast_ref::<AfidNode>());
        let written = afid.map(|afid| afid.0.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let shown = match (&written, split_token(aname).0) {
            (Some(written), _) => written.trim_ascii(),
            (None, Some(token)) => token,
            (None, None) => return Ok(false),
        };
        match &self.token {
            Some(token) if same(token.as_bytes(), shown) => Ok(true),
            _ => Err(Error::new(Errno::EACCES, "wrong token")),
        }
    }
}

/// Splits `token:HEX[/path]` into the token and the actual aname.
pub(super) fn split_token(aname: Str<'_>) -> (Option<Str<'_>>, Str<'_>) {
    match aname.strip_prefix(b"token:") {
        Some(rest) => {
            let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, aname),
    }
}

/// The tree that an aname selects; `None`: the connection control files.
pub(super) fn tree(aname: Str<'_>) -> Option<Str<'_>> {
    Some(split_token(aname).1).filter(|&aname| aname != desk::ANAME)
}

/// Whether the node is an afid of the gate. Its reads and writes never reach the file server.
pub(super) fn is_afid(node: &(dyn Any + Send + Sync)) -> bool {
    node.is::<AfidNode>()
}

/// Compares in a time that depends on the lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// Whether it is the server's own user or root: the files are theirs anyway.
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn not_you(name: &str) -> Error {
    Error::new(Errno::EPERM, format!("you are {name}: attach as nobody else"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nine_proto::Numeric;

    const UNPROVEN: Proof = Proof::None;

    fn admit(gate: &Gate, proof: &Proof, uname: &str, uid: u32, aname: &str) -> Result<Who> {
        gate.admit(proof, uname.as_bytes(), uid, aname.as_bytes(), None, &Numeric)
            .map(|admitted| admitted.who)
    }

    #[test]
    fn a_user_of_a_unix_socket_is_who_the_kernel_says() {
        let gate = Gate::default();
        let proof = Proof::Unix { uid: 4711, gid: 1 };
        assert_eq!(admit(&gate, &proof, "", NOUID, "").unwrap().uid, Some(4711));
        assert_eq!(admit(&gate, &proof, "4711", NOUID, "").unwrap().uid, Some(4711));
        assert_eq!(admit(&gate, &proof, "", 0, "").unwrap_err().errno, Errno::EPERM);
        assert_eq!(admit(&gate, &proof, "0", NOUID, "").unwrap_err().errno, Errno::EPERM);
        assert_eq!(admit(&gate, &proof, "nosuchuser", NOUID, "").unwrap().uid, Some(4711));
        let root = Proof::Unix { uid: 0, gid: 0 };
        assert_eq!(admit(&gate, &root, "", 4711, "").unwrap().uid, Some(4711));
        assert_eq!(admit(&gate, &root, "nosuchuser", NOUID, "").unwrap().uid, None);
    }

    #[test]
    fn the_owner_is_whom_the_kernel_or_the_token_says_and_never_a_claim() {
        let own = rustix::process::geteuid().as_raw();
        let gate = Gate { token: Some("00ff".into()), anonymous: Anonymous::Trusted, ..Gate::default() };
        let owner = |proof: &Proof, uid, aname| admit(&gate, proof, "", uid, aname).unwrap().owner;
        let unix = |uid| Proof::Unix { uid, gid: 0 };
        assert!(owner(&unix(own), NOUID, "") && owner(&unix(own), own, "") && owner(&unix(0), own, ""));
        assert!(owner(&unix(0), 0, "") && owner(&UNPROVEN, 4711, "token:00ff"));
        assert!(!owner(&unix(own), 4711, "") && !owner(&unix(0), 4711, ""));
        assert!(!owner(&unix(4711), NOUID, "") && !owner(&UNPROVEN, own, ""));
        let certificate = Proof::Certificate { name: own.to_string(), fingerprint: [0; 32] };
        assert!(!owner(&certificate, own, ""));
    }

    #[test]
    fn a_certificate_gives_its_own_name_only() {
        let proof = Proof::Certificate { name: "glenda".into(), fingerprint: [0; 32] };
        let gate = Gate::default();
        assert_eq!(&*admit(&gate, &proof, "", NOUID, "").unwrap().name, "glenda");
        assert_eq!(&*admit(&gate, &proof, "glenda", NOUID, "").unwrap().name, "glenda");
        assert!(admit(&gate, &proof, "root", NOUID, "").is_err());
        assert!(admit(&gate, &proof, "glenda", 0, "").is_err());
    }

    #[test]
    fn without_a_proof_the_listener_decides_and_a_claim_gives_nothing() {
        let gate = |anonymous| Gate { anonymous, ..Gate::default() };
        assert!(admit(&gate(Anonymous::Refused), &UNPROVEN, "root", 0, "").is_err());
        let who = admit(&gate(Anonymous::ReadOnly), &UNPROVEN, "root", 0, "").unwrap();
        assert_eq!((who.uid, who.read_only), (None, true));
        let who = admit(&gate(Anonymous::Trusted), &UNPROVEN, "root", 0, "").unwrap();
        assert_eq!((who.uid, who.read_only), (Some(0), false));
    }

    #[test]
    fn by_the_loopback_the_owner_and_root_read_everything_and_others_as_others() {
        let own = rustix::process::geteuid().as_raw();
        let gate = |anonymous| Gate { anonymous, owner_reads: true, ..Gate::default() };
        let loopback = |uid| Proof::Loopback { uid };
        for (anonymous, other) in
            [(Anonymous::Refused, None), (Anonymous::AsOther, Some(true)), (Anonymous::ReadOnly, Some(false))]
        {
            let gate = gate(anonymous);
            let as_other = |proof: &Proof| {
                let who = admit(&gate, proof, "root", 0, "").ok()?;
                assert_eq!((who.uid, who.read_only, who.owner), (None, true, false), "{proof:?}");
                Some(who.as_other)
            };
            assert_eq!((as_other(&loopback(own)), as_other(&loopback(0))), (Some(false), Some(false)));
            // A client of another or an unknown user has the rights of all others.
            assert_eq!((as_other(&loopback(own + 4711)), as_other(&UNPROVEN)), (other, other));
        }
        let elsewhere = Gate { anonymous: Anonymous::AsOther, ..Gate::default() };
        assert!(admit(&elsewhere, &loopback(own), "", NOUID, "").unwrap().as_other);
        let gate = Gate { token: Some("00ff".into()), ..gate(Anonymous::AsOther) };
        let who = admit(&gate, &loopback(own + 4711), "", NOUID, "token:00ff").unwrap();
        assert_eq!((who.owner, who.as_other, who.read_only), (true, false, false));
    }

    #[test]
    fn a_claim_to_be_root_is_squashed_and_a_proof_is_not() {
        let gate = Gate {
            token: Some("00ff".into()),
            anonymous: Anonymous::Trusted,
            squash_root: true,
            ..Gate::default()
        };
        for (uname, uid) in [("root", 0), ("0", NOUID), ("", 0), ("glenda", 0)] {
            let who = admit(&gate, &UNPROVEN, uname, uid, "").unwrap();
            assert_eq!((&*who.name, who.uid), ("nobody", Some(NOBODY)), "{uname} {uid}");
        }
        assert_eq!(admit(&gate, &UNPROVEN, "glenda", 1000, "").unwrap().uid, Some(1000));
        assert_eq!(admit(&gate, &UNPROVEN, "root", 0, "token:00ff").unwrap().uid, Some(0));
        assert_eq!(admit(&gate, &Proof::Unix { uid: 0, gid: 0 }, "", 0, "").unwrap().uid, Some(0));
        let gate = Gate { squash_root: false, ..gate };
        assert_eq!(admit(&gate, &UNPROVEN, "root", 0, "").unwrap().uid, Some(0));
    }

    #[test]
    fn the_token_opens_and_a_wrong_one_closes() {
        let gate = Gate { token: Some("00ff".into()), anonymous: Anonymous::ReadOnly, ..Gate::default() };
        assert!(!admit(&gate, &UNPROVEN, "u", 7, "token:00ff/x").unwrap().read_only);
        assert!(!admit(&gate, &UNPROVEN, "u", 7, "token:00ff").unwrap().read_only);
        assert!(admit(&gate, &UNPROVEN, "u", 7, "token:00fe").is_err());
        assert!(admit(&gate, &UNPROVEN, "u", 7, "token:").is_err());
        assert_eq!(split_token(b"token:00ff/x/y"), (Some(&b"00ff"[..]), &b"/x/y"[..]));
        let tokenless = Gate::default();
        assert!(admit(&tokenless, &UNPROVEN, "u", 7, "token:").is_err());
    }

    #[test]
    fn a_read_only_gate_is_read_only_for_all() {
        let gate = Gate { read_only: true, ..Gate::default() };
        assert!(admit(&gate, &Proof::Unix { uid: 0, gid: 0 }, "", NOUID, "").unwrap().read_only);
    }

    /// A client with a certificate may read `/pub`; the token opens everything.
    #[derive(Debug)]
    struct Pub;

    impl Policy for Pub {
        fn judge(&self, asks: &Asks<'_>) -> Result<Right> {
            match (asks.token, asks.proof, asks.aname) {
                (true, ..) => Ok(Right::Write),
                (_, Proof::Certificate { .. }, Some(b"/pub") | None) => Ok(Right::Read),
                _ => Err(Error::new(Errno::EACCES, format!("{asks} may not"))),
            }
        }
    }

    #[test]
    fn a_policy_takes_away_and_never_gives() {
        let policy: Option<Arc<dyn Policy>> = Some(Arc::new(Pub));
        let gate = Gate { token: Some("00ff".into()), policy, ..Gate::default() };
        let glenda = Proof::Certificate { name: "glen\nda".into(), fingerprint: [0; 32] };
        assert!(admit(&gate, &glenda, "", NOUID, "/pub").unwrap().read_only);
        assert!(admit(&gate, &glenda, "", NOUID, "#conversation").unwrap().read_only);
        let error = admit(&gate, &glenda, "", NOUID, "/").unwrap_err();
        assert_eq!(
            (error.errno, error.to_string().contains("cert:glen\\nda may not")),
            (Errno::EACCES, true)
        );
        assert!(!admit(&gate, &glenda, "", NOUID, "token:00ff/").unwrap().read_only);
        let long = format!("token:00ff/{}", "n".repeat(ANAME_MAX));
        assert!(admit(&gate, &glenda, "", NOUID, &long[..long.len() - 1]).is_ok());
        assert_eq!(admit(&gate, &glenda, "", NOUID, &long).unwrap_err().errno, Errno::ENAMETOOLONG);
        assert!(!admit(&gate, &UNPROVEN, "", NOUID, "token:00ff/pub").unwrap().read_only);
        let gate = Gate { read_only: true, ..gate };
        assert!(admit(&gate, &UNPROVEN, "", NOUID, "token:00ff").unwrap().read_only);
        assert!(admit(&gate, &UNPROVEN, "", NOUID, "/pub").is_err(), "the door refuses before it");
    }
}
