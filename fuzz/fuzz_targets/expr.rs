//! libFuzzer drives `nine_fuzz::expr`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::expr(data));
