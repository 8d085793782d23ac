//! Reads the fields of certificates and of revocation lists: names, purposes, validity, and fingerprints.
//!
//! In: the DER of an X.509 certificate or CRL. Out: names, seconds since 1970, a serial number, a SHA-256.
//!
//! A peer's certificate arrives here only after rustls has verified it, so this parser need not verify. For input that
//! it does not understand it returns `None`. That is why two hundred lines suffice, instead of a parser crate and its
//! fifteen dependencies.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::files;

/// The fields of a certificate. They are not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The subject's name, as in [`Proof::Certificate`](crate::Proof). Without one, the fingerprint in hex.
    pub name: String,
    /// The DNS names, addresses and e-mail addresses for which it is valid.
    pub names: Vec<String>,
    /// The issuer's common name.
    pub issuer: String,
    /// The serial number, in hex; unique for its issuer.
    pub serial: String,
    /// Start of validity, since 1970.
    pub from: Duration,
    /// End of validity, since 1970.
    pub until: Duration,
    /// SHA-256 of the whole certificate.
    pub fingerprint: [u8; 32],
    /// It is an authority, which may sign others.
    pub authority: bool,
    /// It is no authority. It is valid for servers, or restricts no purpose.
    pub server: bool,
    /// It is no authority. It is valid for clients, or restricts no purpose.
    pub client: bool,
}

/// The fields of a revocation list (CRL). They are not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocations {
    /// The common name of the authority that issued the list.
    pub issuer: String,
    /// When it was issued, since 1970.
    pub made: Duration,
    /// The revoked serial numbers in hex, with their times of revocation since 1970.
    pub revoked: Vec<(String, Duration)>,
}

impl Certificate {
    /// Parses the DER of a certificate.
    pub fn of(der: &[u8]) -> Option<Self> {
        let parts = CertificateParts::of(der)?;
        let fingerprint = fingerprint(der);
        let usage = parts.extension(EXTENDED_KEY_USAGE).and_then(|usage| DerReader(usage).want(SEQUENCE));
        let may = |purpose: &[u8]| {
            usage.is_none_or(|usage| {
                let mut usage = DerReader(usage);
                std::iter::from_fn(|| usage.next()).any(|(_, id)| id == purpose)
            })
        };
        let basic = parts.extension(BASIC_CONSTRAINTS).and_then(|basic| DerReader(basic).want(SEQUENCE));
        let authority = basic.and_then(|basic| DerReader(basic).want(BOOLEAN)).is_some_and(|is| is != [0]);
        let (from, until) = parts.times()?;
        Some(Self {
            name: name(der).unwrap_or_else(|| super::hex(&fingerprint)),
            names: parts.alternative_names(),
            issuer: common_name(parts.issuer).unwrap_or_default(),
            serial: serial(parts.serial),
            from,
            until,
            fingerprint,
            authority,
            server: !authority && may(SERVER_AUTH),
            client: !authority && may(CLIENT_AUTH),
        })
    }

    /// Reads the certificates of a PEM file, at least one.
    ///
    /// # Errors
    /// The file cannot be read, has no certificate, or has an invalid one.
    pub fn read(path: &Path) -> std::io::Result<Vec<Self>> {
        let all = files::certificates(path)?;
        let read = |der: &rustls::pki_types::CertificateDer<'_>| {
            Self::of(der).ok_or_else(|| files::invalid(path, "this certificate cannot be read"))
        };
        all.iter().map(read).collect()
    }
}

impl Revocations {
    /// Parses the DER of a list.
    pub fn of(der: &[u8]) -> Option<Self> {
        let (issuer, mut rest) = revocations(der)?;
        let (tag, text) = rest.next()?;
        let made = moment(tag, text)?;
        let mut revoked = Vec::new();
        // The time of the next list is optional, and so are the revoked certificates.
        let all = std::iter::from_fn(|| rest.next()).find(|(tag, _)| *tag == SEQUENCE);
        let mut all = DerReader(all.map_or(&[], |(_, all)| all));
        while let Some(one) = all.want(SEQUENCE) {
            let mut one = DerReader(one);
            let number = serial(one.want(INTEGER)?);
            let (tag, text) = one.next()?;
            revoked.push((number, moment(tag, text)?));
        }
        Some(Self { issuer: common_name(issuer).unwrap_or_default(), made, revoked })
    }

    /// Reads the lists of a PEM file, at least one.
    ///
    /// # Errors
    /// The file cannot be read, has no list, or has an invalid one.
    pub fn read(path: &Path) -> std::io::Result<Vec<Self>> {
        let all = files::revocations(path)?;
        let read = |der: &rustls::pki_types::CertificateRevocationListDer<'_>| {
            Self::of(der).ok_or_else(|| files::invalid(path, "this list cannot be read"))
        };
        all.iter().map(read).collect()
    }
}

/// The subject's name: the first DNS or e-mail subject alternative name, else the common name. Names with control
/// characters are skipped.
pub(crate) fn name(der: &[u8]) -> Option<String> {
    let parts = CertificateParts::of(der)?;
    parts.alternative_name().or_else(|| common_name(parts.subject))
}

/// Start and end of validity, since 1970 (an earlier time reads as 1970).
pub(crate) fn times(der: &[u8]) -> Option<(Duration, Duration)> {
    CertificateParts::of(der)?.times()
}

/// The subject's whole name, in DER.
pub(crate) fn subject(der: &[u8]) -> Option<&[u8]> {
    Some(CertificateParts::of(der)?.subject)
}

/// The whole name of the authority that issued a revocation list, in DER.
pub(crate) fn list_issuer(der: &[u8]) -> Option<&[u8]> {
    Some(revocations(der)?.0)
}

/// The subject's public key: its type, as an algorithm identifier without its tag, and the key.
pub(crate) fn public_key(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut key = DerReader(CertificateParts::of(der)?.public_key);
    Some((key.want(SEQUENCE)?, key.bits()?))
}

/// A signed message.
pub(crate) struct SignedMessage<'a> {
    pub message: &'a [u8],
    /// The signature's algorithm: an identifier without its tag.
    pub algorithm: &'a [u8],
    pub signature: &'a [u8],
}

/// The signed parts of a revocation list.
pub(crate) fn signed(list: &[u8]) -> Option<SignedMessage<'_>> {
    let whole = DerReader(list).want(SEQUENCE)?;
    let mut rest = DerReader(whole);
    rest.want(SEQUENCE)?;
    let message = &whole[..whole.len() - rest.0.len()];
    Some(SignedMessage { message, algorithm: rest.want(SEQUENCE)?, signature: rest.bits()? })
}

/// The issuer of a list, and the fields after it.
fn revocations(der: &[u8]) -> Option<(&[u8], DerReader<'_>)> {
    let mut list = DerReader(DerReader(DerReader(der).want(SEQUENCE)?).want(SEQUENCE)?);
    // The version, which lists of version 1 lack, then the algorithm of the signature.
    if list.next()?.0 == INTEGER {
        list.want(SEQUENCE)?;
    }
    Some((list.want(SEQUENCE)?, list))
}

fn moment(tag: u8, text: &[u8]) -> Option<Duration> {
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

/// In hex, without the leading zero of a positive number.
fn serial(number: &[u8]) -> String {
    let number = number.strip_prefix(&[0]).filter(|rest| !rest.is_empty()).unwrap_or(number);
    number.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of the whole certificate.
pub(crate) fn fingerprint(der: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, der);
    // A SHA-256 has 32 bytes.
    digest.as_ref().try_into().expect("32 bytes")
}

/// The parts of a certificate that are used here.
struct CertificateParts<'a> {
    serial: &'a [u8],
    issuer: &'a [u8],
    validity: &'a [u8],
    subject: &'a [u8],
    public_key: &'a [u8],
    extensions: &'a [u8],
}

impl<'a> CertificateParts<'a> {
    fn of(der: &'a [u8]) -> Option<CertificateParts<'a>> {
        let mut tbs = DerReader(DerReader(DerReader(der).want(SEQUENCE)?).want(SEQUENCE)?);
        // [0] version, which a certificate of version 1 lacks; the algorithm follows the serial number.
        let (tag, first) = tbs.next()?;
        let serial = if tag == EXPLICIT { tbs.want(INTEGER)? } else { first };
        tbs.want(SEQUENCE)?;
        let issuer = tbs.want(SEQUENCE)?;
        let (validity, subject) = (tbs.want(SEQUENCE)?, tbs.want(SEQUENCE)?);
        let public_key = tbs.want(SEQUENCE)?;
        let extensions = std::iter::from_fn(|| tbs.next()).find(|(tag, _)| *tag == EXPLICIT + 3);
        let extensions = extensions.and_then(|(_, e)| DerReader(e).want(SEQUENCE)).unwrap_or_default();
        Some(CertificateParts { serial, issuer, validity, subject, public_key, extensions })
    }

    fn times(&self) -> Option<(Duration, Duration)> {
        let mut validity = DerReader(self.validity);
        let mut next = || validity.next().and_then(|(tag, text)| moment(tag, text));
        Some((next()?, next()?))
    }

    /// The value of an extension.
    fn extension(&self, id: &[u8]) -> Option<&'a [u8]> {
        let mut extensions = DerReader(self.extensions);
        while let Some(extension) = extensions.want(SEQUENCE) {
            let mut extension = DerReader(extension);
            if extension.want(OBJECT_ID)? == id {
                let value = std::iter::from_fn(|| extension.next()).find(|(tag, _)| *tag == OCTET_STRING)?;
                return Some(value.1);
            }
        }
        None
    }

    fn alternative_name(&self) -> Option<String> {
        let mut names = DerReader(DerReader(self.extension(SUBJECT_ALT_NAME)?).want(SEQUENCE)?);
        std::iter::from_fn(|| names.next())
            .filter(|(tag, _)| [EMAIL, DNS].contains(tag))
            .find_map(|(_, name)| printable(name))
    }

    fn alternative_names(&self) -> Vec<String> {
        let names = self.extension(SUBJECT_ALT_NAME).and_then(|names| DerReader(names).want(SEQUENCE));
        let mut names = DerReader(names.unwrap_or_default());
        let shown = |(tag, name): (u8, &[u8])| match tag {
            EMAIL | DNS => printable(name),
            ADDRESS => {
                let v4 = <[u8; 4]>::try_from(name).map(IpAddr::from);
                Some(v4.or_else(|_| <[u8; 16]>::try_from(name).map(IpAddr::from)).ok()?.to_string())
            }
            _ => None,
        };
        std::iter::from_fn(|| names.next()).filter_map(shown).collect()
    }
}

/// The common name within a whole name.
fn common_name(of: &[u8]) -> Option<String> {
    let mut sets = DerReader(of);
    while let Some(set) = sets.want(SET) {
        let mut attribute = DerReader(DerReader(set).want(SEQUENCE)?);
        if attribute.want(OBJECT_ID)? == COMMON_NAME {
            return printable(attribute.next()?.1);
        }
    }
    None
}

/// A sequence of DER values, read from the front.
struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
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

    /// A bit string of whole bytes.
    fn bits(&mut self) -> Option<&'a [u8]> {
        self.want(BIT_STRING)?.strip_prefix(&[0])
    }
}

fn printable(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains(char::is_control)).then(|| name.into())
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that start in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const EXPLICIT: u8 = 0xa0;
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const ADDRESS: u8 = 0x87;
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
        ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SanType,
        date_time_ymd,
    };

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
            let made = made(|p| p.not_after = date);
            assert_eq!(times(&made).expect("times").1, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn a_certificate_says_whose_and_for_what_it_is() {
        let der = made(|p| {
            p.subject_alt_names = vec![
                SanType::DnsName("fs.lab".try_into().expect("ascii")),
                SanType::IpAddress([192, 0, 2, 1].into()),
                SanType::IpAddress(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)),
            ];
            p.serial_number = Some(vec![0x8f, 1].into());
            (p.not_before, p.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, 1));
            p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        });
        let says = Certificate::of(&der).expect("a certificate");
        assert_eq!(says.names, ["fs.lab", "192.0.2.1", "::1"]);
        assert_eq!((&*says.name, &*says.issuer, &*says.serial), ("fs.lab", "glenda", "8f01"));
        assert_eq!((says.authority, says.server, says.client), (false, true, false));
        assert_eq!((says.from.as_secs(), says.until.as_secs()), (1_577_836_800, 1_893_456_000));
        let der = made(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
        assert!(Certificate::of(&der).expect("a certificate").authority);
    }

    #[test]
    fn a_list_says_what_is_revoked_and_a_broken_one_nothing() {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "the lab");
        let issuer = Issuer::new(params, KeyPair::generate().expect("a key"));
        let revoked = |n: u8| RevokedCertParams {
            serial_number: vec![n, 2].into(),
            revocation_time: date_time_ymd(2000, 2, 29),
            reason_code: None,
            invalidity_date: None,
        };
        let list = |revoked_certs| {
            let params = CertificateRevocationListParams {
                this_update: date_time_ymd(2024, 12, 31),
                next_update: date_time_ymd(2099, 1, 1),
                crl_number: vec![1].into(),
                issuing_distribution_point: None,
                revoked_certs,
                key_identifier_method: KeyIdMethod::Sha256,
            };
            params.signed_by(&issuer).expect("signed").der().to_vec()
        };
        let empty = Revocations::of(&list(Vec::new())).expect("a list");
        assert_eq!((&*empty.issuer, empty.made.as_secs()), ("the lab", 1_735_603_200));
        assert_eq!(empty.revoked, []);
        let der = list(vec![revoked(1), revoked(0x91)]);
        let at = Duration::from_secs(951_782_400);
        let all = Revocations::of(&der).expect("a list").revoked;
        assert_eq!(all, [("0102".into(), at), ("9102".into(), at)]);
        for end in 0..der.len() {
            assert_eq!(Revocations::of(&der[..end]), None);
        }
        for at in 0..der.len() {
            let mut bad = der.clone();
            bad[at] ^= 0xff;
            let _ = (Revocations::of(&bad), list_issuer(&bad), signed(&bad).is_some());
        }
    }

    #[test]
    fn a_broken_certificate_has_no_name_and_no_panic() {
        let whole = made(|p| p.subject_alt_names = vec![SanType::DnsName("h".try_into().expect("ascii"))]);
        for end in 0..whole.len() {
            assert_eq!((name(&whole[..end]), Certificate::of(&whole[..end])), (None, None));
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0xff;
            let _ = (name(&bad), Certificate::of(&bad), public_key(&bad));
        }
    }
}
