//! libFuzzer drives `nine_fuzz::http`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::http(data));
