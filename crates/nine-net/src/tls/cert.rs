//! The three things we want to know of a certificate: whose it is, until when it is good, and its
//! fingerprint.
//!
//! In: the DER of an X.509 certificate. Out: a name, seconds since 1970, a SHA-256.
//!
//! A certificate of a peer comes here only after rustls has verified it, so this reader need not judge; on
//! anything it does not understand it answers `None` and nothing worse. That is why sixty lines do, instead
//! of a parser crate and its fifteen dependencies.

use std::time::Duration;

/// The holder's name: the first DNS or e-mail subject alternative name, else the common name. Names with
/// control characters are passed over.
pub(crate) fn name(der: &[u8]) -> Option<String> {
    let parts = Parts::of(der)?;
    parts.alternative_name().or_else(|| parts.common_name())
}

/// The last moment it is good, since 1970 (a moment before that reads as 1970).
pub(crate) fn not_after(der: &[u8]) -> Option<Duration> {
    let mut validity = Der(Parts::of(der)?.validity);
    validity.next()?;
    let (tag, text) = validity.next()?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let field = |n: usize| rest.get(2 * n..2 * n + 2)?.parse::<i64>().ok();
    let seconds = (days(year, field(0)?, field(1)?) * 24 + field(2)?) * 3600 + field(3)? * 60 + field(4)?;
    Some(Duration::from_secs(seconds.max(0) as u64))
}

/// SHA-256 of the whole certificate.
pub(crate) fn fingerprint(der: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, der);
    // A SHA-256 has 32 bytes.
    digest.as_ref().try_into().expect("32 bytes")
}

/// The parts of a certificate that carry what we want.
struct Parts<'a> {
    validity: &'a [u8],
    subject: &'a [u8],
    extensions: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(der: &'a [u8]) -> Option<Parts<'a>> {
        let mut tbs = Der(Der(Der(der).want(SEQUENCE)?).want(SEQUENCE)?);
        // [0] version, serial number, signature algorithm, issuer; a certificate of version 1 has no [0].
        if tbs.next()?.0 == EXPLICIT {
            tbs.next()?;
        }
        tbs.want(SEQUENCE)?;
        tbs.want(SEQUENCE)?;
        let (validity, subject) = (tbs.want(SEQUENCE)?, tbs.want(SEQUENCE)?);
        let extensions = std::iter::from_fn(|| tbs.next()).find(|(tag, _)| *tag == EXPLICIT + 3);
        let extensions = extensions.and_then(|(_, e)| Der(e).want(SEQUENCE)).unwrap_or_default();
        Some(Parts { validity, subject, extensions })
    }

    fn alternative_name(&self) -> Option<String> {
        let mut extensions = Der(self.extensions);
        while let Some(extension) = extensions.want(SEQUENCE) {
            let mut extension = Der(extension);
            if extension.want(OBJECT_ID)? != SUBJECT_ALT_NAME {
                continue;
            }
            let (_, names) = std::iter::from_fn(|| extension.next()).find(|(tag, _)| *tag == OCTET_STRING)?;
            let mut names = Der(Der(names).want(SEQUENCE)?);
            return std::iter::from_fn(|| names.next())
                .filter(|(tag, _)| [EMAIL, DNS].contains(tag))
                .find_map(|(_, name)| printable(name));
        }
        None
    }

    fn common_name(&self) -> Option<String> {
        let mut sets = Der(self.subject);
        while let Some(set) = sets.want(SET) {
            let mut attribute = Der(Der(set).want(SEQUENCE)?);
            if attribute.want(OBJECT_ID)? == COMMON_NAME {
                return printable(attribute.next()?.1);
            }
        }
        None
    }
}

/// A run of DER values, read from the front.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (len, rest) = match first {
            0..=0x7f => (first.into(), rest),
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked((first & 0x7f).into())?;
                (bytes.iter().fold(0, |len, &b| len << 8 | usize::from(b)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, value))
    }

    fn want(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(is, _)| *is == tag).map(|(_, value)| value)
    }
}

fn printable(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains(char::is_control)).then(|| name.into())
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468
}

const OBJECT_ID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const EXPLICIT: u8 = 0xa0;
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "Lab");
        params.distinguished_name.push(DnType::CommonName, "glenda");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    fn named(names: &[SanType]) -> Option<String> {
        name(&made(|p| p.subject_alt_names = names.to_vec()))
    }

    #[test]
    fn the_first_usable_alternative_name_goes_before_the_common_name() {
        let dns = |s: &str| SanType::DnsName(s.try_into().expect("ascii"));
        let mail = SanType::Rfc822Name("glenda@lab".try_into().expect("ascii"));
        let ip = SanType::IpAddress([127, 0, 0, 1].into());
        assert_eq!(named(&[]).as_deref(), Some("glenda"));
        assert_eq!(named(std::slice::from_ref(&ip)).as_deref(), Some("glenda"));
        assert_eq!(named(&[ip, mail, dns("fs.lab")]).as_deref(), Some("glenda@lab"));
        assert_eq!(named(&[dns("a\nroot"), dns("fs.lab")]).as_deref(), Some("fs.lab"));
    }

    #[test]
    fn dates_count_from_1970_in_both_notations() {
        for (date, seconds) in [
            (date_time_ymd(2000, 2, 29), 951_782_400),
            (date_time_ymd(2024, 12, 31), 1_735_603_200),
            (date_time_ymd(2100, 3, 1), 4_107_542_400),
            (date_time_ymd(1960, 1, 1), 0),
        ] {
            assert_eq!(not_after(&made(|p| p.not_after = date)), Some(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn a_broken_certificate_has_no_name_and_no_panic() {
        let whole = made(|p| p.subject_alt_names = vec![SanType::DnsName("h".try_into().expect("ascii"))]);
        for end in 0..whole.len() {
            assert_eq!((name(&whole[..end]), not_after(&whole[..end])), (None, None));
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0xff;
            let _ = (name(&bad), not_after(&bad));
        }
    }
}
