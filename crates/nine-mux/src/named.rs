//! A named name space: its users, and its value, which is replaced as a whole.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;

use crate::herald::ChangePublishers;
use crate::space::NamespaceSnapshot;
use nine_net::lock::{Mutex, lock};

/// A named name space. Readers load the value without a lock. Changes are serialized.
pub(crate) struct NamedSpace {
    pub(crate) name: Box<str>,
    value: ArcSwap<NamespaceSnapshot>,
    changes: Mutex<()>,
    /// The users that get it by default. If empty, every user may attach to it.
    pub(crate) users: Mutex<Vec<Box<str>>>,
    /// Whether only the owner may attach to it, whatever user name a client claims.
    pub(crate) for_owner: AtomicBool,
    /// The publishers of its changes.
    pub(crate) heralds: ChangePublishers,
}

impl NamedSpace {
    pub(crate) fn new(name: &str, space: NamespaceSnapshot) -> Self {
        Self {
            name: name.into(),
            value: ArcSwap::from_pointee(space),
            changes: Mutex::default(),
            users: Mutex::default(),
            for_owner: AtomicBool::new(false),
            heralds: ChangePublishers::default(),
        }
    }

    pub(crate) fn space(&self) -> Arc<NamespaceSnapshot> {
        self.value.load_full()
    }

    /// Changes the value, or leaves it as it is if `f` fails.
    pub(crate) fn change<T, E>(
        &self,
        f: impl FnOnce(&mut NamespaceSnapshot) -> Result<T, E>,
    ) -> Result<T, E> {
        let _one_at_a_time = lock(&self.changes);
        let mut space = NamespaceSnapshot::clone(&self.value.load());
        let result = f(&mut space)?;
        space.let_go();
        self.value.store(Arc::new(space));
        Ok(result)
    }
}
