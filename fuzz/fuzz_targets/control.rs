//! libFuzzer drives `nine_fuzz::control`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::control(data));
