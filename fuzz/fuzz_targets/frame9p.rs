//! libFuzzer drives `nine_fuzz::frame9p`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::frame9p(data));
