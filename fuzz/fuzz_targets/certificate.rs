//! libFuzzer drives `nine_fuzz::certificate`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::certificate(data));
