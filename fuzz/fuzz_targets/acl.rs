//! libFuzzer drives `nine_fuzz::acl`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::acl(data));
