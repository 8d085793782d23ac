//! Every expression obeys the rules of a device: those of `nine_block::conform`, and those of proofs with several
//! copies.

use nine_block::{Kind, Proof, conform};

use crate::common::*;
use crate::expr::{build, disks, how};

/// Returns an expression of at most this depth over the disks of the world; each disk is used once.
fn expression(rng: &mut Rng, depth: u64, next: &mut u64) -> String {
    if depth == 0 {
        *next += 1;
        return if *next > DISKS { "ram400".into() } else { format!("w{}", *next - 1) };
    }
    let mut inner = |rng: &mut Rng| expression(rng, depth - 1, next);
    match rng.below(7) {
        0 => format!("({}{})", inner(rng), inner(rng)),
        1 => format!("[{}{}]", inner(rng), inner(rng)),
        2 => format!("{{{}{}}}", inner(rng), inner(rng)),
        3 => format!("bare{{{}{}}}", inner(rng), inner(rng)),
        4 => format!("p({})10.50", inner(rng)),
        5 => format!("(buffer 64K {})", inner(rng)),
        _ => format!("f{}", inner(rng)),
    }
}

#[test]
fn every_expression_keeps_the_rules_of_a_device() {
    let mut built_of = 0;
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let text = expression(&mut rng, 3, &mut 0);
        let mut world = disks();
        // Some are invalid: a fake worm too small for its map, a disk used twice.
        let Ok(built) = build(&mut world, &text, &how(true)) else { continue };
        built_of += 1;
        world.beside.extend(built.drivers);
        let judged = world.run(conform::check(&*built.device, 0)).expect("nobody cuts the power");
        assert_eq!(judged, Ok(()), "seed {seed}: {text}");
    }
    assert!(built_of > 200, "only {built_of} of 400 expressions could be built");
}

/// If one of two copies is rotten, the other is returned. If both are, the data is returned without an error. Of a
/// rotten and an unreadable copy the rotten one is returned.
#[test]
fn a_proof_chooses_between_copies_and_never_makes_a_read_fail() {
    for (text, head) in [("{w0w1}", 128), ("bare{w0w1}", 0), ("({w0w1}w2)", 128), ("{(w0w2)(w1w3)}", 128)] {
        let mut world = disks();
        let built = build(&mut world, text, &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
        let device = built.device;
        world.beside.extend(built.drivers);
        let wanted = tagged(1, 0, 4);
        world.run(device.write(0, wanted.clone())).unwrap().unwrap();
        world.run(device.flush()).unwrap().unwrap();
        // A new mirror first makes its members equal.
        assert!((0..10_000).all(|_| world.turn()));
        let proof = || {
            let wanted = wanted.clone();
            Some(Proof::new(4, move |_, block| *block == wanted))
        };
        let read = |world: &mut World, proof| world.run(device.read_proven(0, 4, proof)).unwrap();

        world.disks[0].lie(head, 9);
        assert!(read(&mut world, proof()) == Ok(wanted.clone()), "{text}: one copy is right");
        for disk in [0, 1] {
            world.disks[disk].lie(head, 9);
        }
        let rotten = read(&mut world, proof()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(rotten[0] == 9 && rotten[512..] == wanted[512..], "{text}: as a single disk has it");
        let everywhere = read(&mut world, proof().map(Proof::everywhere));
        assert!(everywhere == Ok(rotten.clone()), "{text}");
        world.disks[0].always(Some(Kind::Failed));
        assert!(read(&mut world, proof()) == Ok(rotten), "{text}: the other could be read");
        world.disks[1].always(Some(Kind::Failed));
        assert!(read(&mut world, proof()).is_err(), "{text}: no copy could be read");
    }
}

/// The number of disks of the world that `expr::disks` creates.
const DISKS: u64 = 4;
