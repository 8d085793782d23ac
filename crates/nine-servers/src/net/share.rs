//! Shares of a common resource. One user may have at most half, so that no user can exhaust it.
//!
//! In: users, and the amounts they take. Out: shares, which return their amount when dropped.

use std::collections::HashMap;
use std::sync::Arc;

use nine_io::server::Who;
use nine_net::lock::{Mutex, lock};

/// The user of a share: the authenticated uid, or the name if there is none; and whether the user is authenticated.
/// The connection, core or listener does not matter, nor a name given in addition to a uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShareUser {
    id: Result<u32, Box<str>>,
    proven: bool,
}

impl ShareUser {
    pub(super) fn of(who: &Who) -> Self {
        // A client that has shown the token counts as the user that runs the server, on any front end.
        Self { id: who.uid.ok_or_else(|| who.name.clone()), proven: who.is_proven() }
    }
}

/// The amount of a resource.
pub(super) struct FairShares {
    most: usize,
    /// The maximum for one user.
    each: usize,
    had: Mutex<ShareUsage>,
}

#[derive(Default)]
struct ShareUsage {
    all: usize,
    each: HashMap<ShareUser, usize>,
}

/// The reason why a share is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShareRefusal {
    /// This user has this amount, and would exceed the maximum for one user.
    Mine(usize),
    /// All users together would exceed the total.
    All,
}

/// A user's share.
pub(super) struct UserShare {
    of: Arc<FairShares>,
    user: ShareUser,
    n: usize,
}

impl FairShares {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Self::of(most, most.div_ceil(2))
    }

    /// Creates a resource with a given maximum for one user.
    pub(super) fn of(most: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { most, each, had: Mutex::default() })
    }

    pub(super) fn take(self: &Arc<Self>, user: &ShareUser, n: usize) -> Result<UserShare, ShareRefusal> {
        let mut had = lock(&self.had);
        let mine = had.each.get(user).copied().unwrap_or_default();
        if mine + n > self.each {
            return Err(ShareRefusal::Mine(mine));
        }
        if had.all + n > self.most {
            return Err(ShareRefusal::All);
        }
        had.all += n;
        had.each.insert(user.clone(), mine + n);
        Ok(UserShare { of: self.clone(), user: user.clone(), n })
    }
}

impl Drop for UserShare {
    fn drop(&mut self) {
        let mut had = lock(&self.of.had);
        had.all -= self.n;
        if let Some(mine) = had.each.get_mut(&self.user) {
            *mine -= self.n;
            if *mine == 0 {
                had.each.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nine_net::Proof;

    use super::*;

    fn who(name: &str, uid: Option<u32>) -> Who {
        Who { name: name.into(), uid, ..Who::none(Proof::None) }
    }

    #[test]
    fn a_user_is_the_same_by_every_connection_and_another_by_every_number() {
        let unix = |uid| Proof::Unix { uid, gid: 7 };
        let one = who("glenda", Some(1000));
        for (other, same) in [
            (Who { seat: 3, ..one.clone() }, true),
            (Who { read_only: true, ..one.clone() }, true),
            (Who { name: "nobody".into(), ..one.clone() }, true),
            (Who { uid: Some(1001), ..one.clone() }, false),
            (Who { uid: None, ..one.clone() }, false),
            (Who { proof: unix(1000), ..one.clone() }, false),
        ] {
            assert_eq!(ShareUser::of(&one) == ShareUser::of(&other), same, "{other:?}");
        }
        let proven = Who { proof: unix(1000), ..one.clone() };
        // Authenticated by the kernel as root or as this user with any group, or by a certificate.
        let certificate = Proof::Certificate { name: "glenda".into(), fingerprint: [0; 32] };
        for proof in [unix(0), Proof::Unix { uid: 1000, gid: 8 }, certificate] {
            assert_eq!(ShareUser::of(&proven), ShareUser::of(&Who { proof, ..one.clone() }));
        }
        assert_ne!(ShareUser::of(&who("a", None)), ShareUser::of(&who("b", None)));
    }

    #[test]
    fn one_user_has_half_at_most_and_all_have_all() {
        let shares = FairShares::new(10);
        let proven = |uid| Who { proof: Proof::Unix { uid, gid: 7 }, ..who("", Some(uid)) };
        let users = [1, 2, 3].map(|uid| ShareUser::of(&proven(uid)));
        let five = shares.take(&users[0], 5).ok().unwrap();
        assert_eq!(shares.take(&users[0], 1).err(), Some(ShareRefusal::Mine(5)));
        let _four = shares.take(&users[1], 4).ok().unwrap();
        assert_eq!(shares.take(&users[2], 2).err(), Some(ShareRefusal::All));
        drop(five);
        assert!(shares.take(&users[2], 2).is_ok());
        // Users without shares leave no entry.
        assert_eq!(lock(&shares.had).each.len(), 1);
    }
}
