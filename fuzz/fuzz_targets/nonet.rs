//! libFuzzer drives `nine_fuzz::nonet`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::nonet(data));
