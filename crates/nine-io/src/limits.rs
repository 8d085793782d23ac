//! Bounded resources that clients share, so that none of them starves the others.
//!
//! In: a principal and a number of units. Out: a [`FairShare`], which returns its units when dropped, or a refusal.
//! There is no clock here, and no call waits for units.
//!
//! Always holds:
//! - All shares together never exceed the capacity, except by shares of [`FairLimit::charge`].
//! - Clients without proof never hold more than three quarters of the capacity together. They and proven clients
//!   together never hold more than seven eighths. So the owner always finds units.
//! - A principal other than the owner takes at most half of the units that the others leave of that.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use nine_net::{Proof, own_ids};

use crate::server::Who;
use crate::sync::{AtomicUsize, Mutex, lock};

/// The party that a resource is charged to. All connections of one principal are charged together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientPrincipal {
    /// The user that runs the server, or root, under any attach name; or a client that has shown the token.
    Owner,
    /// The holder of a certificate, by the name in it.
    Certificate(Arc<str>),
    /// Another user of this machine, as the kernel reports.
    User(u32),
    /// Clients without proof, by the user of this machine that owns them.
    Loopback(u32),
    /// Other clients without proof, by the prefix of their address ([`address_prefix`]).
    Address(Arc<str>),
}

/// How a principal is proven, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrincipalClass {
    /// Nothing is proven.
    Unproven,
    /// A certificate or the kernel proves it.
    Proven,
    /// It is the owner.
    Owner,
}

impl ClientPrincipal {
    /// The principal that the requests of an attached client are charged to.
    pub fn of(who: &Who) -> Self {
        if who.owner { Self::Owner } else { Self::of_peer(&who.proof, &who.prefix) }
    }

    /// The principal that a connection is charged to before it attaches.
    pub fn of_peer(proof: &Proof, prefix: &Arc<str>) -> Self {
        match proof {
            Proof::Certificate { name, .. } => Self::Certificate(name.as_str().into()),
            Proof::Unix { uid, .. } if *uid == 0 || *uid == own_ids().0 => Self::Owner,
            Proof::Unix { uid, .. } => Self::User(*uid),
            Proof::Loopback { uid } => Self::Loopback(*uid),
            Proof::None => Self::Address(prefix.clone()),
        }
    }

    /// Returns how it is proven.
    pub fn class(&self) -> PrincipalClass {
        match self {
            Self::Owner => PrincipalClass::Owner,
            Self::Certificate(_) | Self::User(_) => PrincipalClass::Proven,
            Self::Loopback(_) | Self::Address(_) => PrincipalClass::Unproven,
        }
    }
}

/// Returns the part of a dial string that clients of one site share: an IPv4 address, the first 64 bits of an IPv6
/// address, or, for other networks, everything before the port.
pub fn address_prefix(addr: &str) -> Arc<str> {
    let place = addr.rsplit_once('!').map_or(addr, |(place, _)| place);
    let host = place.split_once('!').map_or(place, |(_, host)| host);
    match host.parse() {
        Ok(IpAddr::V4(ip)) => ip.to_string().into(),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => ip.to_string().into(),
            None => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)).into(),
        },
        Err(_) => place.into(),
    }
}

/// Units that are held, by class and by the principal in question.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitsHeld {
    /// By [`PrincipalClass`].
    pub by_class: [usize; 3],
    /// Of these, the units of the principal itself.
    pub by_principal: usize,
}

/// Units that principals of this class can hold together with those of the classes below it.
pub const fn class_ceiling(capacity: usize, class: PrincipalClass) -> usize {
    match class {
        PrincipalClass::Unproven => capacity - reserve(capacity, 4),
        PrincipalClass::Proven => capacity - reserve(capacity, 8),
        PrincipalClass::Owner => capacity,
    }
}

/// Units that are reserved: this part of all, and at least one if there are several.
const fn reserve(capacity: usize, part: usize) -> usize {
    match capacity / part {
        0 if capacity > 1 => 1,
        units => units,
    }
}

/// Units that one principal of this class can hold while nobody else holds any.
pub const fn principal_ceiling(capacity: usize, class: PrincipalClass) -> usize {
    match class {
        PrincipalClass::Owner => capacity,
        _ => class_ceiling(capacity, class) / 2,
    }
}

/// Units that a principal of this class may take now.
pub fn allowance(capacity: usize, class: PrincipalClass, held: UnitsHeld) -> usize {
    let left = class_allowance(capacity, class, held.by_class);
    match class {
        PrincipalClass::Owner => left,
        _ => left.midpoint(held.by_principal).saturating_sub(held.by_principal),
    }
}

/// Units that all principals of this class may take together now.
fn class_allowance(capacity: usize, class: PrincipalClass, held: [usize; 3]) -> usize {
    let (mut below, mut left) = (0, usize::MAX);
    for of in [PrincipalClass::Unproven, PrincipalClass::Proven, PrincipalClass::Owner] {
        below += held[of as usize];
        if of >= class {
            left = left.min(class_ceiling(capacity, of).saturating_sub(below));
        }
    }
    left
}

/// A resource with a fixed number of units. See the module.
///
/// Concurrency: callers that take units wait for each other. [`FairShare::charge_another`] and [`FairShare::shrink_to`]
/// take no lock.
pub struct FairLimit {
    capacity: usize,
    /// Units held, by [`PrincipalClass`].
    by_class: [AtomicUsize; 3],
    /// The accounts of principals that hold units. Every taker of units holds this lock.
    accounts: Mutex<HashMap<ClientPrincipal, Weak<PrincipalAccount>>>,
}

/// The units of one principal.
struct PrincipalAccount {
    limit: Arc<FairLimit>,
    principal: ClientPrincipal,
    class: PrincipalClass,
    units: AtomicUsize,
}

impl PrincipalAccount {
    fn add(&self, units: usize) {
        self.limit.by_class[self.class as usize].fetch_add(units, Relaxed);
        self.units.fetch_add(units, Relaxed);
    }

    fn remove(&self, units: usize) {
        self.units.fetch_sub(units, Relaxed);
        self.limit.by_class[self.class as usize].fetch_sub(units, Relaxed);
    }

    fn allowance(&self) -> usize {
        let held = UnitsHeld { by_class: self.limit.units(), by_principal: self.units.load(Relaxed) };
        allowance(self.limit.capacity, self.class, held)
    }

    /// Units that all principals of this class may still take together.
    fn class_allowance(&self) -> usize {
        class_allowance(self.limit.capacity, self.class, self.limit.units())
    }
}

impl Drop for PrincipalAccount {
    fn drop(&mut self) {
        let mut accounts = lock(&self.limit.accounts);
        // Another thread may have opened a new account meanwhile.
        if accounts.get(&self.principal).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.principal);
        }
    }
}

impl FairLimit {
    /// A limit of `capacity` units, all of them free.
    pub fn new(capacity: usize) -> Arc<Self> {
        let by_class = std::array::from_fn(|_| AtomicUsize::new(0));
        Arc::new(Self { capacity, by_class, accounts: Mutex::default() })
    }

    /// The number of units, free or held.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of units held.
    pub fn held(&self) -> usize {
        self.units().iter().sum()
    }

    fn units(&self) -> [usize; 3] {
        self.by_class.each_ref().map(|units| units.load(Relaxed))
    }

    /// Takes `units` units, or returns `None`.
    pub fn take(self: &Arc<Self>, principal: &ClientPrincipal, units: usize) -> Option<FairShare> {
        let mut share = self.charge(principal, 0);
        share.grow(units).then_some(share)
    }

    /// Takes one unit, or returns `None`. No principal is refused while half of the units are free. A principal without
    /// any gets one as long as its class may have it.
    pub fn take_one(self: &Arc<Self>, principal: &ClientPrincipal) -> Option<FairShare> {
        let mut share = self.charge(principal, 0);
        let takers = lock(&self.accounts);
        let account = &share.account;
        let has_some = account.units.load(Relaxed) > 0;
        let is_beyond = 2 * self.held() > self.capacity && has_some && account.allowance() == 0;
        if is_beyond || account.class_allowance() == 0 {
            drop(takers);
            return None;
        }
        account.add(1);
        share.units = 1;
        drop(takers);
        Some(share)
    }

    /// Charges units for a resource that exists already, whether they are free or not.
    pub fn charge(self: &Arc<Self>, principal: &ClientPrincipal, units: usize) -> FairShare {
        let account = self.account(principal);
        account.add(units);
        FairShare { account, units }
    }

    fn account(self: &Arc<Self>, principal: &ClientPrincipal) -> Arc<PrincipalAccount> {
        let mut accounts = lock(&self.accounts);
        if let Some(account) = accounts.get(principal).and_then(Weak::upgrade) {
            return account;
        }
        let (limit, principal, class) = (self.clone(), principal.clone(), principal.class());
        let account = Arc::new(PrincipalAccount { limit, principal, class, units: AtomicUsize::new(0) });
        accounts.insert(account.principal.clone(), Arc::downgrade(&account));
        account
    }
}

impl fmt::Debug for FairLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.held(), self.capacity)
    }
}

/// Units of a [`FairLimit`] that a principal holds. Dropping it gives them back.
pub struct FairShare {
    account: Arc<PrincipalAccount>,
    units: usize,
}

impl FairShare {
    /// The number of its units.
    pub fn units(&self) -> usize {
        self.units
    }

    /// The principal that is charged.
    pub fn principal(&self) -> &ClientPrincipal {
        &self.account.principal
    }

    /// Whether the principal may take another unit.
    pub fn has_room(&self) -> bool {
        self.account.allowance() > 0
    }

    /// Charges the same principal one more unit, free or not: as [`FairLimit::charge`], in fewer steps.
    #[must_use]
    pub fn charge_another(&self) -> Self {
        self.account.add(1);
        Self { account: self.account.clone(), units: 1 }
    }

    /// Takes all of these units, or none. Returns whether it took them.
    pub fn grow(&mut self, units: usize) -> bool {
        let _takers = lock(&self.account.limit.accounts);
        if units > 0 && self.account.allowance() < units {
            return false;
        }
        self.account.add(units);
        self.units += units;
        true
    }

    /// Takes these units, or as many of them as the principal may have.
    pub fn grow_up_to(&mut self, units: usize) {
        let _takers = lock(&self.account.limit.accounts);
        let units = units.min(self.account.allowance());
        self.account.add(units);
        self.units += units;
    }

    /// Returns the units above this number.
    pub fn shrink_to(&mut self, units: usize) {
        let back = self.units.saturating_sub(units);
        self.account.remove(back);
        self.units -= back;
    }

    /// Charges the same units to another principal.
    pub fn move_to(&mut self, principal: &ClientPrincipal) {
        let other = self.account.limit.account(principal);
        self.account.remove(self.units);
        other.add(self.units);
        self.account = other;
    }
}

impl Drop for FairShare {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl fmt::Debug for FairShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}", self.units, self.account.principal)
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    fn address(n: usize) -> ClientPrincipal {
        ClientPrincipal::Address(format!("10.0.0.{n}").into())
    }

    fn all_of(limit: &Arc<FairLimit>, principal: &ClientPrincipal) -> FairShare {
        let mut share = limit.charge(principal, 0);
        while share.grow(1) {}
        share
    }

    #[test]
    fn unproven_principals_each_take_half_of_what_is_left_of_three_quarters() {
        let limit = FairLimit::new(256);
        let shares: Vec<_> = (0..10).map(|n| all_of(&limit, &address(n))).collect();
        let units: Vec<_> = shares.iter().map(FairShare::units).collect();
        assert_eq!(units, [96, 48, 24, 12, 6, 3, 1, 1, 0, 0]);
        assert_eq!(units[0], principal_ceiling(256, PrincipalClass::Unproven));
    }

    #[test]
    fn above_half_each_principal_keeps_its_share_and_has_at_least_one_unit() {
        let one_by_one = |limit: &Arc<FairLimit>, principal: &ClientPrincipal| {
            std::iter::from_fn(|| limit.take_one(principal)).collect::<Vec<_>>()
        };
        let limit = FairLimit::new(400);
        let greedy = one_by_one(&limit, &address(0));
        assert_eq!(greedy.len(), 201, "half of the units are for anybody");
        let others: Vec<_> = (1..200).flat_map(|n| one_by_one(&limit, &address(n))).collect();
        assert_eq!(greedy.len() + others.len(), 300, "clients without proof have three quarters");
        let user = one_by_one(&limit, &ClientPrincipal::User(7));
        let owner = one_by_one(&limit, &ClientPrincipal::Owner);
        assert!(user.len() >= 25 && user.len() + owner.len() == 100, "{} {}", user.len(), owner.len());
        // The smallest limits.
        for (capacity, strangers) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6)] {
            let limit = FairLimit::new(capacity);
            let all: Vec<_> = (0..capacity).map_while(|n| limit.take_one(&address(n))).collect();
            assert_eq!(all.len(), strangers);
            assert_eq!(limit.take_one(&ClientPrincipal::Owner).is_some(), capacity > 1);
        }
    }

    #[test]
    fn a_proven_user_and_the_owner_find_units_after_any_number_of_greedy_clients() {
        let limit = FairLimit::new(256);
        let _greedy: Vec<_> = (0..1000).map(|n| all_of(&limit, &address(n))).collect();
        let users: Vec<_> = (1..1000).map(|uid| all_of(&limit, &ClientPrincipal::User(uid))).collect();
        assert!(users[0].units() >= 16, "{}", users[0].units());
        assert!(limit.held() <= 224);
        let owner = all_of(&limit, &ClientPrincipal::Owner);
        assert!(owner.units() >= 32);
        assert_eq!(limit.held(), 256);
    }

    #[test]
    fn many_shares_of_one_principal_count_as_one() {
        let limit = FairLimit::new(256);
        let shares: Vec<_> = (0..500).filter_map(|_| limit.take(&address(1), 1)).collect();
        assert_eq!(shares.len(), 96);
    }

    #[test]
    fn a_dropped_share_gives_back_all_of_its_units() {
        let limit = FairLimit::new(100);
        let mut one = limit.take(&address(1), 30).expect("nobody has any");
        assert!(limit.take(&address(1), 8).is_none() && !one.grow(8) && one.grow(7));
        one.shrink_to(5);
        one.move_to(&ClientPrincipal::Owner);
        assert_eq!((one.units(), limit.held()), (5, 5));
        assert!(limit.take(&address(1), 37).is_some());
        one.grow_up_to(1000);
        assert_eq!(limit.held(), 100);
        drop(one);
        assert_eq!(limit.held(), 0);
        assert!(lock(&limit.accounts).is_empty());
    }

    #[test]
    fn a_resource_that_exists_is_charged_beyond_the_capacity() {
        let limit = FairLimit::new(8);
        let all = limit.charge(&address(1), 20);
        let more = all.charge_another();
        assert!(
            !limit.charge(&address(2), 0).has_room() && !limit.charge(&ClientPrincipal::Owner, 0).has_room()
        );
        drop(all);
        assert!(more.has_room() && limit.held() == 1);
    }

    #[test]
    fn root_and_the_servers_own_user_are_the_owner_whomever_they_attach_as() {
        let of = |uid| ClientPrincipal::of_peer(&Proof::Unix { uid, gid: 1 }, &Arc::default());
        let own = own_ids().0;
        assert_eq!((of(0), of(own)), (ClientPrincipal::Owner, ClientPrincipal::Owner));
        assert_eq!(of(own + 4711), ClientPrincipal::User(own + 4711));
        let name = "glenda".into();
        let certificate = Proof::Certificate { name, fingerprint: [0; 32] };
        let principal = ClientPrincipal::of_peer(&certificate, &Arc::default());
        assert_eq!(principal, ClientPrincipal::Certificate("glenda".into()));
    }

    #[test]
    fn addresses_of_one_site_have_one_prefix() {
        let prefix = |addr: &str| address_prefix(addr).to_string();
        assert_eq!(prefix("tcp!192.0.2.7!40112"), prefix("tls!192.0.2.7!9"));
        assert_eq!(prefix("tcp!::ffff:192.0.2.7!1"), "192.0.2.7");
        assert_eq!(prefix("tcp!2001:db8:1:2::7!1"), "2001:db8:1:2::/64");
        assert_eq!(prefix("tcp!2001:db8:1:2:ffff::8!1"), prefix("il!2001:db8:1:2::7!2"));
        assert_ne!(prefix("tcp!2001:db8:1:3::7!1"), prefix("tcp!2001:db8:1:2::7!1"));
        assert_eq!(prefix("vsock!3!1023"), "vsock!3");
        assert_eq!(prefix("client in this process"), "client in this process");
    }
}
