//! Hash tables keyed by numbers that this program assigns, such as addresses and inodes. They are fast, and iterate in
//! the same order in every run, so that a seed replays a simulated world. Do not use them for keys that a client
//! chooses, such as names: a client could choose keys that collide.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

pub(crate) type FixedMap<K, V> = HashMap<K, V, FixedState>;
pub(crate) type FixedSet<K> = HashSet<K, FixedState>;
