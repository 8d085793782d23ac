//! Certificates and revocation lists.

use nine_net::{Certificate, Revocations};

/// Any bytes are a certificate, a list, or neither. The decoded data is not larger than the input allows.
pub fn certificate(data: &[u8]) {
    if let Some(read) = Certificate::of(data) {
        let names: usize = read.names.iter().map(String::len).sum();
        // An IPv4 address has four bytes there and up to 15 characters here; an IPv6 address 16 and up to 39.
        assert!(names <= 4 * data.len() && read.issuer.len() <= 2 * data.len(), "{read:?}");
        assert!(!read.name.is_empty() && read.serial.bytes().all(|c| c.is_ascii_hexdigit()), "{read:?}");
    }
    if let Some(read) = Revocations::of(data) {
        assert!(read.revoked.len() * 5 <= data.len(), "{read:?}");
        assert!(
            read.revoked.iter().all(|(serial, _)| serial.bytes().all(|c| c.is_ascii_hexdigit())),
            "{read:?}"
        );
    }
}
