//! Who may attach, and as whom: decided from what the transport proves, before a file server is asked.
//!
//! Closed by default: without a proof (a unix socket's peer credentials, a certificate, the token) a client reads at
//! most, and on a listener that says so not even that. A client of the loopback reads as the user that the kernel
//! names.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use nine_net::Proof;
use nine_proto::{Errno, Error, Make, NOUID, Names, Op, Qid, Result, Str, mode, show};

use super::desk;
use super::req::{Node, Reply, Request, Who};
use crate::payload::Payload;

/// What a client may do that has proven nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Not attach.
    Refused,
    /// Read what the modes of files and directories let all others read ([`Who::as_other`]).
    AsOther,
    /// Read everything.
    ReadOnly,
    /// Everything, under whatever name it gives (`-insecure`).
    Trusted,
}

/// The door of a listener.
#[derive(Clone, Debug)]
pub struct Gate {
    /// For clients without a proof.
    pub anonymous: Anonymous,
    /// The user of this server, and root, read everything by a connection within this machine, even if others do not.
    pub owner_reads: bool,
    /// A client that claims to be root and has not proven it is [`NOBODY`] (root squash).
    pub squash_root: bool,
    /// A client that has not proven who it is creates no device, and no program that runs with the rights of its owner:
    /// neither set-user-id bits nor, on files, set-group-id bits, nor capabilities.
    pub plain_files: bool,
    /// Whoever shows it, in an afid or as `token:HEX` in front of the aname, is trusted as the server's own user.
    pub token: Option<Arc<str>>,
    /// Nobody changes anything here.
    pub read_only: bool,
    /// What of all this each client may have; `None`: all of it.
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

/// Who may attach to what, among those whom a [`Gate`] lets in. It may change while they are connected: then
/// [`Core::judge_again`](super::Core::judge_again) has everybody judged again.
///
/// Concurrency: asked from every core, where requests are served; it must not wait.
pub trait Policy: fmt::Debug + Send + Sync {
    /// What a client may do in a tree; an error says why he may not attach to it.
    fn judge(&self, asks: &Asks<'_>) -> Result<Right>;

    /// Whether one tree is judged otherwise than another; if not, a client's are not counted.
    fn has_trees(&self) -> bool {
        true
    }

    /// Whether the certificates that a client has shown, in DER, are good still.
    fn knows(&self, certificates: &[&[u8]]) -> Result<()> {
        let _ = certificates;
        Ok(())
    }
}

/// Who asks for a tree.
#[derive(Clone, Copy, Debug)]
pub struct Asks<'a> {
    /// What the transport proves.
    pub proof: &'a Proof,
    /// The token was shown.
    pub token: bool,
    /// Which tree, without the token. `None`: the conversation's own files, which whoever may attach to anything has.
    pub aname: Option<&'a [u8]>,
}

impl fmt::Display for Asks<'_> {
    /// By what he is known: `token`, `cert:NAME`, `unix:NUMBER`, `loopback:NUMBER`, `anyone`.
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

/// What a client may do in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Change nothing.
    Read,
    /// Whatever the file server lets him.
    Write,
}

/// A client that has been let in, and by what.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) who: Who,
    pub(super) token: bool,
}

/// The user of a client whose claims do not count.
pub const NOBODY: u32 = 65534;

/// The attribute by which a program has rights of root.
const CAPABILITY: &[u8] = b"security.capability";

/// The most bytes that are kept of what a client writes to an afid; a longer token is wrong anyway.
const TOKEN_MAX: usize = 128;

/// Bytes of an aname that a policy judges: as of a path in Linux.
const ANAME_MAX: usize = 4096;

/// Behind an afid: collects the token.
struct Afid(Mutex<Vec<u8>>);

impl Gate {
    /// Who it is that was known before he came.
    pub(super) fn known(&self, who: &Who) -> Who {
        Who { read_only: who.read_only || self.read_only, ..who.clone() }
    }

    /// Who a client is that attaches with these words, or why it may not.
    pub(super) fn admit(
        &self,
        proof: &Proof,
        uname: Str<'_>,
        uid: u32,
        aname: Str<'_>,
        afid: Option<&Node>,
        names: &dyn Names,
    ) -> Result<Admitted> {
        let token = self.shows_token(aname, afid)?;
        let who = self.name(proof, uname, uid, token, names)?;
        let Some(policy) = &self.policy else { return Ok(Admitted { who, token }) };
        let aname = tree(aname);
        if aname.is_some_and(|aname| aname.len() > ANAME_MAX) {
            let text = format!("an aname has at most {ANAME_MAX} bytes here");
            return Err(Error::new(Errno::ENAMETOOLONG, text));
        }
        let right = policy.judge(&Asks { proof, token, aname })?;
        let read_only = who.read_only || right == Right::Read;
        Ok(Admitted { who: Who { read_only, ..who }, token })
    }

    /// Who it is by what he proves and says, wherever he attaches.
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
                // Root may be anybody, and so may whoever runs this server: the files are his anyway.
                let own = rustix::process::geteuid().as_raw();
                let free = is_ours(*uid);
                match claimed_uid {
                    Some(claimed) if claimed != *uid && !free => Err(not_you(&names.user(*uid))),
                    Some(claimed) => {
                        // As somebody else he has that user's rights only.
                        let owner = free && (claimed == *uid || claimed == own);
                        Ok(Who { owner, ..who(claimed_name, Some(claimed), false) })
                    }
                    // A name nobody knows is not his own, if he may choose.
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

    /// Why a client may not change a file so, whatever the file server lets it; `None`: it may.
    pub(super) fn forbids(&self, request: &Request) -> Option<Error> {
        if !self.plain_files || request.who().is_proven() {
            return None;
        }
        let sets_id = |bits: u32, is_dir: bool| {
            // For a directory the group's bit says which group new files have.
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

    /// Answers what concerns authentication; `None`: the file server shall.
    pub(super) fn serve(&self, request: &Request) -> Option<Result<Reply>> {
        if let Op::Auth { .. } = request.op() {
            self.token.as_ref()?;
            let qid = Qid { ty: Qid::AUTH, vers: 0, path: 0 };
            return Some(Ok(Reply::Auth { qid, node: Arc::new(Afid(Mutex::default())) }));
        }
        let afid = request.node::<Afid>().ok()?;
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
        let afid = afid.and_then(|node| node.downcast_ref::<Afid>());
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

/// Splits `token:HEX[/path]` into the token and the aname that is meant.
pub(super) fn split_token(aname: Str<'_>) -> (Option<Str<'_>>, Str<'_>) {
    match aname.strip_prefix(b"token:") {
        Some(rest) => {
            let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, aname),
    }
}

/// The tree that an aname asks for; `None`: the conversation's own.
pub(super) fn tree(aname: Str<'_>) -> Option<Str<'_>> {
    Some(split_token(aname).1).filter(|&aname| aname != desk::ANAME)
}

/// Whether an afid of the gate's own is behind this node: its reads and writes never reach the file server.
pub(super) fn is_afid(node: &(dyn Any + Send + Sync)) -> bool {
    node.is::<Afid>()
}

/// Compares in a time that depends on the lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// Whether it is the user of this server, or root: the files are theirs anyway.
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
            // If the kernel does not know, it is somebody else.
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

    /// Whoever shows something may read `/pub`; the token opens everything.
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
