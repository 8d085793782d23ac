//! Tables by numbers that are our own, as addresses and inodes are: quick, and in the same order in every run, so that
//! a seed replays a world. What a client chooses, as names are, could be chosen so that such a table is slow: not here.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;
pub(crate) type Set<K> = HashSet<K, FixedState>;
