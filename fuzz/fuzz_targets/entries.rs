//! libFuzzer drives `nine_fuzz::entries`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::entries(data));
