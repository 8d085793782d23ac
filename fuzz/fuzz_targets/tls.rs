//! libFuzzer drives `nine_fuzz::tls`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::tls(data));
