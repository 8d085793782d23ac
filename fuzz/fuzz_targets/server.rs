//! libFuzzer drives `nine_fuzz::server`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::server(data));
