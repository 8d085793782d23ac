//! Inputs that once caused a panic.

use super::{formats, image};

/// The fault, and the bytes that have shown it.
const IMAGES: &[(&str, &str)] = &[
    (
        "a pointer to a node leads to a block of a file, which the check reads as a node",
        "ef00000091ef4a752d0ab86ffdba95086864acc381c3ef6ee7d446bf736b4a12f203ff8b9539735b3e486602cb2fd01d22ae\
         813aa0f4fe571e1f9ac996",
    ),
    (
        "the generation of a block is another than its row says, and it is changed",
        "75020000f0484ef39cd5ca9888fbc76934009666580c4e226747240091c52bb53beaf7bc7b6aa1ee02c52b062239833b79c6\
         dfd14b4a152ab398986056",
    ),
    ("the same, at another place", "0000007001000700000011"),
    (
        "more blocks of a file than there are bytes",
        "130100008ab585a4542ca50cd99304319ede218bdc78192895fdd835da3d487d9a76746755188c69c9eb812871e9b53ab445\
         589120a1a794440e34f152",
    ),
    (
        "a segment that begins behind what is written",
        "35010000eb2712deb26b37231aa95147a54c602cf95369becb815d38718b24fbca7f5d9f004d30d0b11100000000000000eb\
         63820b9d80171803a9f149",
    ),
    (
        "a pointer to the last address of all",
        "32b08ef3034de6ccca3a427656a685ee42932615ad2e6bda8374d0d61bb067171aec8b8f71564043eb77841e0592906db350\
         1b39adaaec6d8f791799d7",
    ),
    (
        "a file with a name, and no links",
        "863ad7389a7bbf146783f13c2bd82059963b82fa51d266b87db2c2e7cacb6fd662546e833e18ffcc0b904686185d2ad1dec0\
         2ad6f77de30025917a68d8",
    ),
    (
        "the last incarnation",
        "4e02000096010518ca7adb300c4d83edeb6f08bd47b73527e18ee8b2872b9892b7dd04267630b9ba1586c44e2d5003029ff9\
         4b63042873dcb02ad06968",
    ),
    (
        "the last number of a header",
        "f2a4e27fc8dbeb675223feaf9ec64fed07bcc2b5eb2b740063bb1a75a024c904919292abe7452d98a7dd5ce7459bfb87deee\
         a295c038cb5144f6fe216a",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn disks_that_say_what_cannot_be_are_refused_and_end_nothing() {
    for (what, hex) in IMAGES {
        println!("{what}");
        image(&bytes(hex));
    }
}

#[test]
fn a_node_whose_cells_begin_behind_its_end_is_none() {
    formats(&bytes("1400cb00020100000000000000000000"));
}
