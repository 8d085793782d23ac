//! libFuzzer drives `nine_fuzz::changes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::changes(data));
