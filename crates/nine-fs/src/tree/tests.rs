//! The tree against a map: with nodes evicted from memory, with dumps, with the smallest and the largest nodes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::node::{self, KEY_MAX, NodeMut, NodeRef};
use super::*;

/// Small nodes make a high tree; the longest key still fits into a branch.
const TINY: usize = 16 + 4 * (4 + KEY_MAX + node::POINTER);
const SMALL: usize = 8192 - 64;
const LARGE: usize = 65536 - 64;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[test]
fn what_is_put_is_found_and_nothing_else() {
    for seed in 1..=4 {
        World::new(SMALL, seed).live(5000, 600);
        World::new(LARGE, seed).live(3000, 2000);
        let mut world = World::new(TINY, seed);
        world.live(20_000, 2000);
        assert!(world.whole().levels > 3);
    }
}

#[test]
fn a_dump_reads_as_it_was_for_ever() {
    for (seed, content) in [(11, SMALL), (12, TINY), (13, LARGE), (14, TINY)] {
        let mut world = World::new(content, seed);
        for _ in 0..6 {
            world.live(500, 300);
            world.dump();
        }
        world.live(500, 300);
        for (root, model) in &world.dumps {
            assert_eq!(&world.all(*root), model);
        }
        world.whole();
    }
}

#[test]
fn a_miss_changes_nothing() {
    for (seed, content) in [(21, SMALL), (22, TINY), (23, TINY), (24, LARGE)] {
        let mut world = World::new(content, seed);
        world.away_of_100 = 40;
        for _ in 0..3 {
            world.live(1000, 800);
            world.dump();
        }
        assert!(world.misses > 500, "{} misses", world.misses);
    }
}

#[test]
fn keys_that_rise_fill_leaves() {
    for content in [SMALL, LARGE] {
        let mut world = World::new(content, 31);
        (0..20_000u64).for_each(|i| world.put(&i.to_be_bytes(), &[7; 40]));
        let stats = world.whole();
        assert!(stats.used * 100 > stats.room * 90, "{stats:?}");
    }
}

#[test]
fn keys_that_rise_among_others_fill_leaves() {
    let mut world = World::new(SMALL, 32);
    let key = |inode: u64, i: u64| [&inode.to_be_bytes()[..], &[4], &i.to_be_bytes()].concat();
    (1..=40).for_each(|inode| world.put(&key(inode, 0), &[1; 100]));
    (1..3000).for_each(|i| [5, 17, 18].into_iter().for_each(|inode| world.put(&key(inode, i), &[2; 60])));
    let stats = world.whole();
    assert!(stats.used * 100 > stats.room * 85, "{stats:?}");
}

#[test]
fn when_all_is_deleted_one_empty_leaf_is_left() {
    for (seed, content) in [(41, SMALL), (42, SMALL), (43, LARGE), (44, TINY), (45, TINY)] {
        let mut world = World::new(content, seed);
        world.live(1500, 5000);
        let mut keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
        match seed {
            41 => {}
            42 => keys.reverse(),
            _ => keys.sort_by_cached_key(|_| world.random.next()),
        }
        keys.iter().for_each(|key| world.delete(key));
        let one = TreeStats { leaves: 1, levels: 1, room: (content - 16) as u64, ..TreeStats::default() };
        assert_eq!(world.whole(), one);
        assert_eq!(world.nodes.nodes.len(), 1);
    }
}

#[test]
fn what_is_deleted_gives_its_nodes_back() {
    let mut world = World::new(SMALL, 51);
    (0..5000u64).for_each(|i| world.put(&i.to_be_bytes(), &[7; 100]));
    let before = world.whole();
    (0..5000u64).filter(|i| i % 8 != 0).for_each(|i| world.delete(&i.to_be_bytes()));
    let after = world.whole();
    assert!(after.leaves * 3 < before.leaves, "{before:?} {after:?}");
    assert!(after.used * 4 > after.room, "{after:?}");
    (8..5000u64).filter(|i| i % 8 == 0).for_each(|i| world.delete(&i.to_be_bytes()));
    assert_eq!(world.whole().levels, 1);
}

#[test]
fn a_node_is_joined_with_a_neighbour_on_either_side() {
    for (first, then) in [(11..15, 0..8), (0..6, 11..17)] {
        let mut world = World::new(SMALL, 52);
        (0..20u64).for_each(|i| world.put(&i.to_be_bytes(), &[7; 700]));
        assert_eq!(world.whole().leaves, 2);
        first.chain(then).for_each(|i: u64| world.delete(&i.to_be_bytes()));
        assert_eq!(world.whole().leaves, 1);
    }
}

#[test]
fn a_root_whose_only_child_goes_is_a_leaf() {
    let mut world = World::new(SMALL, 53);
    world.put(b"key", b"value");
    let (root, content) = world.nodes.new_node(1, 0);
    NodeMut::empty(content, 1).insert(0, &[], &node::pointer(world.root));
    world.root = root;
    assert_eq!(world.whole().levels, 2);
    world.delete(b"key");
    assert_eq!(world.whole().levels, 1);
}

#[test]
fn a_leaf_is_changed_without_those_above_it() {
    let mut world = World::new(SMALL, 61);
    (0..5000u64).for_each(|i| world.put(&i.to_be_bytes(), &[7; 100]));
    let key = 77u64.to_be_bytes();
    world.nodes.changed.set(0);
    put(&mut world.nodes, &mut world.root, &key, &[8; 100]).unwrap();
    assert_eq!(world.nodes.changed.get(), 1);
    world.model.insert(key.to_vec(), vec![8; 100]);
    world.dump();
    let (root, nodes) = (world.root, world.nodes.nodes.len());
    put(&mut world.nodes, &mut world.root, &key, &[9; 100]).unwrap();
    assert_ne!(root, world.root);
    assert_eq!(world.nodes.nodes.len(), nodes + 2);
}

#[test]
fn where_it_is_cut_keys_are_short_but_name_the_inode() {
    let mut world = World::new(SMALL, 71);
    let key = |i: u64| [&(i / 10).to_be_bytes()[..], &[3], &[b'n'; 200], &i.to_be_bytes()].concat();
    (0..2000).rev().for_each(|i| world.put(&key(i), &[]));
    let block = world.nodes.node(world.root).unwrap();
    assert!(node::children(&block).skip(1).all(|(key, _)| key.len() >= 8));
    assert!(node::children(&block).any(|(key, _)| key.len() < 20));
    let owners = world.nodes.owners.values();
    assert!(owners.copied().collect::<HashSet<_>>().len() > 20);
}

#[test]
#[should_panic(expected = "a key of 301 bytes")]
fn a_key_that_is_too_long_is_our_mistake() {
    World::new(SMALL, 1).put(&[1; KEY_MAX + 1], &[]);
}

#[test]
fn the_check_of_a_tree_finds_what_is_wrong() {
    let wrong = |spoil: fn(&mut Store, BlockPtr, BlockPtr)| {
        let mut world = World::new(SMALL, 91);
        (0..300u64).for_each(|i| world.put(&i.to_be_bytes(), &[7; 100]));
        let child = NodeRef(&world.nodes.nodes[&world.root]).child(1);
        spoil(&mut world.nodes, world.root, child);
        match check(&world.nodes, world.root) {
            Err(TreeFault::Wrong(_, what)) => what,
            other => panic!("{other:?}"),
        }
    };
    let twice = wrong(|nodes, root, child| node::NodeMut(nodes.node_mut(root).unwrap().1).set_ptr(2, child));
    assert_eq!(twice, "a node that is there twice");
    let beyond = wrong(|nodes, _, child| NodeMut(nodes.node_mut(child).unwrap().1).insert(0, &[0; 8], &[]));
    assert_eq!(beyond, "keys beyond the bounds that its parent gives");
    let empty = wrong(|nodes, _, child| NodeMut(nodes.node_mut(child).unwrap().1).truncate(0));
    assert_eq!(empty, "a leaf without cells");
    let level = wrong(|nodes, _, child| nodes.node_mut(child).unwrap().1[6] = 1);
    assert_eq!(level, "a leaf for a branch, or a branch for a leaf");
    let later = wrong(|nodes, root, child| {
        nodes.generation += 1;
        let (child, _) = nodes.node_mut(child).unwrap();
        nodes.generation -= 1;
        node::NodeMut(nodes.node_mut(root).unwrap().1).set_ptr(1, child);
    });
    assert_eq!(later, "a child of a later generation");
}

#[test]
fn the_check_of_a_node_finds_what_is_wrong() {
    let wrong = |level: u8, spoil: fn(&mut NodeMut<'_>)| {
        let mut bytes = [0; SMALL];
        spoil(&mut NodeMut::empty(&mut bytes, level));
        node::check(&bytes, level == 0).unwrap_err()
    };
    let places = wrong(0, |node| {
        node.insert(0, b"a", &[]);
        node.0[2..6].copy_from_slice(&[17, 0, 0, 0]);
    });
    assert_eq!(places, "cells that begin before their places end");
    let large = wrong(0, |node| node.insert(0, b"a", &[0; SMALL / 4]));
    assert_eq!(large, "a cell that is too large");
    let long = wrong(0, |node| node.insert(0, &[1; KEY_MAX + 1], &[]));
    assert_eq!(long, "a cell that is too large");
    let overlap = wrong(0, |node| {
        node.insert(0, b"a", &[0, 0, 0, 1, 0, 0, 0, b'b']);
        node.insert(1, b"b", &[]);
        node.0[18..20].copy_from_slice(&(SMALL as u16 - 5).to_le_bytes());
    });
    assert_eq!(overlap, "cells that overlap");
    assert_eq!(wrong(1, |_| ()), "a branch without children");
    let first = wrong(1, |node| node.insert(0, b"a", &[0; node::POINTER]));
    assert_eq!(first, "a branch's first key that is not empty");
    let last = wrong(0, |node| node.0[15] = 1);
    assert_eq!(last, "bytes of the head that are not 0");
    let level = wrong(node::LEVELS as u8, |node| node.insert(0, &[], &[0; node::POINTER]));
    assert_eq!(level, "too high a level");
}

#[test]
fn the_check_of_a_node_takes_any_bytes() {
    let mut taken = 0;
    for (content, turns) in [(SMALL, 100_000), (LARGE, 3_000)] {
        let mut random = Random(81);
        let good: Vec<Vec<u8>> = (0..8).map(|i| some_node(content, i % 2, &mut random)).collect();
        let mut bytes = good[0].clone();
        for turn in 0..turns {
            if turn % 4 == 0 {
                bytes.copy_from_slice(&good[random.below(good.len())]);
            }
            let head = 16 + 2 * NodeRef(&bytes).len();
            let at = match random.below(4) {
                0 => random.below(content),
                1 => random.below(16),
                // The sizes of a cell, as far as the node remains valid.
                2 => (bytes[16] as usize + 256 * bytes[17] as usize + random.below(4)).min(content - 1),
                _ => random.below(head.min(content)),
            };
            bytes[at] ^= 1 << random.below(8);
            let is_leaf = bytes[6] == 0;
            if node::check(&bytes, is_leaf).is_ok() {
                taken += 1;
                use_it(&mut bytes, &mut random);
            }
        }
    }
    assert!(taken > 1000, "{taken}");
    assert!([0, 1, 15, 16, 1 << 16].iter().all(|len| node::check(&vec![0; *len], true).is_err()));
}

/// Creates a node with random cells.
fn some_node(content: usize, level: u8, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; content];
    let mut node = NodeMut::empty(&mut bytes, level);
    let cells: Model = (0..20).map(|_| (random.key(50), vec![3; random.below(200)])).collect();
    for (i, (key, value)) in cells.iter().enumerate() {
        match level {
            0 => node.insert(i, key, value),
            _ => node.insert(i, if i == 0 { &[] } else { key }, &[3; node::POINTER]),
        }
    }
    node.remove(5);
    assert_eq!(node::check(&bytes, level == 0), Ok(()));
    bytes
}

/// Performs all operations on a node, and checks that it remains valid.
fn use_it(bytes: &mut [u8], random: &mut Random) {
    let is_leaf = bytes[6] == 0;
    let node = NodeRef(bytes);
    assert!(node.used() + node.free() == node.room());
    for (i, (key, _)) in node::cells(bytes).enumerate() {
        assert_eq!(node.search(key), Ok(i));
    }
    let key = random.key(3);
    if !is_leaf {
        assert_eq!(node::children(bytes).count(), node.len());
        node::NodeMut(bytes).set_ptr(0, BlockPtr::default());
        return NodeMut(bytes).remove_child(0);
    }
    let value = vec![4; random.below(node.cell_most() - node::size(&key, &[]))];
    let place = node.search(&key);
    let mut node = NodeMut(bytes);
    match place {
        Ok(i) if value.len() <= node.node().value(i).len() => node.overwrite(i, &value),
        Ok(i) => node.remove(i),
        Err(i) if node.node().fits(node::size(&key, &value)) => node.insert(i, &key, &value),
        Err(i) => {
            let cut = node.node().cut(i, &key, node::size(&key, &value));
            assert!((1..=node.node().len()).contains(&cut));
            node.truncate(cut - 1);
        }
    }
    assert_eq!(node::check(bytes, true), Ok(()));
}

/// A tree and its expected content.
struct World {
    nodes: Store,
    root: BlockPtr,
    model: Model,
    random: Random,
    /// The percentage of nodes evicted before each operation.
    away_of_100: usize,
    misses: u32,
    dumps: Vec<(BlockPtr, Model)>,
}

impl World {
    fn new(content: usize, seed: u64) -> Self {
        let mut nodes = Store { content, ..Store::default() };
        let root = create(&mut nodes);
        let (model, random) = (Model::new(), Random(seed));
        Self { nodes, root, model, random, away_of_100: 0, misses: 0, dumps: Vec::new() }
    }

    /// Performs random operations, with this number of different keys.
    fn live(&mut self, turns: u32, keys: usize) {
        for turn in 0..turns {
            let key = self.random.key(keys);
            match self.random.below(10) {
                0..=4 => {
                    let most = NodeRef(&self.nodes.nodes[&self.root]).cell_most() - node::size(&key, &[]);
                    let len = match self.random.below(8) {
                        0 => most,
                        1 => 0,
                        2 => self.random.below(most),
                        _ => self.random.below(120).min(most),
                    };
                    let value = vec![self.random.next() as u8; len];
                    self.put(&key, &value);
                }
                5..=7 => self.delete(&key),
                _ => self.read(&key),
            }
            if turn % 500 == 0 {
                self.whole();
            }
        }
        self.whole();
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.ask(|nodes, root| put(nodes, root, key, value));
        self.model.insert(key.to_vec(), value.to_vec());
    }

    fn delete(&mut self, key: &[u8]) {
        let found = self.ask(|nodes, root| delete(nodes, root, key));
        assert_eq!(found, self.model.remove(key).is_some());
    }

    fn read(&mut self, key: &[u8]) {
        self.ask(|nodes, root| touch(nodes, *root, key));
        let got = self.ask(|nodes, root| get(nodes, *root, key, <[u8]>::to_vec));
        assert_eq!(got.as_ref(), self.model.get(key));
        let got = self.ask(|nodes, root| floor(nodes, *root, key, pair));
        assert_eq!(got, self.model.range(..=key.to_vec()).next_back().map(|(key, value)| pair(key, value)));
        let most = 1 + self.random.below(60);
        let got = self.ask(|nodes, root| {
            let mut list = Vec::new();
            range(nodes, *root, key, up_to(most, &mut list))?;
            Ok(list)
        });
        let cells = self.model.range(key.to_vec()..).take(most);
        assert!(cells.map(|(key, value)| pair(key, value)).eq(got));
        let got = self.ask(|nodes, root| {
            let mut list = Vec::new();
            back(nodes, *root, key, up_to(most, &mut list))?;
            Ok(list)
        });
        let cells = self.model.range(..=key.to_vec()).rev().take(most);
        assert!(cells.map(|(key, value)| pair(key, value)).eq(got));
    }

    /// Repeats an operation until no node is missing, and checks that a miss has changed nothing.
    fn ask<T>(&mut self, mut what: impl FnMut(&mut Store, &mut BlockPtr) -> Result<T, NodeMiss>) -> T {
        if self.away_of_100 > 0 {
            let nodes = self.nodes.nodes.keys();
            self.nodes.away = nodes.filter(|_| self.random.below(100) < self.away_of_100).copied().collect();
        }
        loop {
            let root = self.root;
            let before = if self.nodes.away.is_empty() { HashMap::new() } else { self.nodes.nodes.clone() };
            let NodeMiss(at, _) = match what(&mut self.nodes, &mut self.root) {
                Ok(result) => return result,
                Err(miss) => miss,
            };
            let nodes = &self.nodes.nodes;
            assert_eq!((root, before.len()), (self.root, nodes.len()));
            // The clone holds each node, so a changed one would be a copy.
            assert!(before.iter().all(|(at, block)| Rc::ptr_eq(block, &nodes[at])));
            assert!(self.nodes.away.remove(&at), "{at:?} is missed, and was there");
            self.misses += 1;
        }
    }

    fn dump(&mut self) {
        self.nodes.generation += 1;
        self.dumps.push((self.root, self.model.clone()));
    }

    fn all(&self, root: BlockPtr) -> Model {
        let mut all = Model::new();
        range(&self.nodes, root, &[], |key, value| all.insert(key.to_vec(), value.to_vec()).is_none())
            .unwrap();
        all
    }

    /// Checks the tree and all dumps, and that there is no other node.
    fn whole(&mut self) -> TreeStats {
        self.nodes.away.clear();
        let mut kept = HashSet::new();
        for (root, _) in &self.dumps {
            check(&self.nodes, *root).unwrap();
            self.nodes.walk(*root, &mut kept);
        }
        self.nodes.walk(self.root, &mut kept);
        assert_eq!(kept, self.nodes.nodes.keys().copied().collect());
        assert_eq!(self.all(self.root), self.model);
        let stats = check(&self.nodes, self.root).unwrap();
        assert_eq!(stats.cells, self.model.len() as u64);
        stats
    }
}

fn pair(key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), value.to_vec())
}

/// Lists at most `most` cells, but at least one.
fn up_to(most: usize, list: &mut Vec<(Vec<u8>, Vec<u8>)>) -> impl FnMut(&[u8], &[u8]) -> bool {
    move |key, value| {
        list.push(pair(key, value));
        list.len() < most
    }
}

/// Nodes in memory, some of which are reported as missing.
#[derive(Default)]
struct Store {
    content: usize,
    generation: u32,
    next: u64,
    nodes: HashMap<BlockPtr, Rc<[u8]>>,
    away: HashSet<BlockPtr>,
    owners: HashMap<BlockPtr, u64>,
    changed: std::cell::Cell<u32>,
}

impl Store {
    fn add(&mut self, content: Vec<u8>) -> (BlockPtr, &mut [u8]) {
        self.next += 1;
        let at = BlockPtr { at: self.next, made: self.generation };
        self.nodes.insert(at, content.into());
        (at, Rc::make_mut(self.nodes.get_mut(&at).unwrap()))
    }

    fn walk(&self, at: BlockPtr, met: &mut HashSet<BlockPtr>) {
        met.insert(at);
        let block = &self.nodes[&at];
        if NodeRef(block).level() > 0 {
            node::children(block).for_each(|(_, child)| self.walk(child, met));
        }
    }
}

impl NodeStore for Store {
    type Block = Rc<[u8]>;

    fn node(&self, at: BlockPtr) -> Result<Rc<[u8]>, NodeMiss> {
        if self.away.contains(&at) { Err(NodeMiss(at, None)) } else { Ok(self.nodes[&at].clone()) }
    }

    fn node_mut(&mut self, at: BlockPtr) -> Result<(BlockPtr, &mut [u8]), NodeMiss> {
        if self.away.contains(&at) {
            return Err(NodeMiss(at, None));
        }
        self.changed.set(self.changed.get() + 1);
        if at.made < self.generation {
            let content = self.nodes[&at].to_vec();
            return Ok(self.add(content));
        }
        let block = self.nodes.get_mut(&at).unwrap();
        // With missing nodes a clone of all is held for comparison; otherwise a changed node must not be shared.
        assert!(!self.away.is_empty() || Rc::strong_count(block) == 1);
        Ok((at, Rc::make_mut(block)))
    }

    fn new_node(&mut self, _: u8, owner: u64) -> (BlockPtr, &mut [u8]) {
        let at = BlockPtr { at: self.next + 1, made: self.generation };
        self.owners.insert(at, owner);
        self.add(vec![0; self.content])
    }

    fn free_node(&mut self, at: BlockPtr) {
        if at.made == self.generation {
            let block = self.nodes.remove(&at).unwrap();
            assert!(!self.away.is_empty() || Rc::strong_count(&block) == 1);
        }
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns one of `of` keys, with lengths from 0 to the maximum, many with equal prefixes.
    fn key(&mut self, of: usize) -> Vec<u8> {
        let number = self.below(of);
        let mut random = Random((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let len = match random.below(20) {
            0 => KEY_MAX,
            1 => random.below(9),
            _ => 9 + random.below(40),
        };
        let mut key = vec![b'k'; len];
        key.iter_mut().take(8).for_each(|byte| *byte = 0);
        if len > 7 {
            key[7] = random.below(5) as u8;
        }
        let behind = len - len.min(8);
        key[len - behind.min(4)..].copy_from_slice(&(number as u32).to_be_bytes()[4 - behind.min(4)..]);
        key
    }
}
