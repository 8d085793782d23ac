//! libFuzzer drives `nine_fuzz::aoe_target`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::aoe_target(data));
