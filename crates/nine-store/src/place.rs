//! The location of a store: its name in an expression (docs/store.md, "Words of a name").
//!
//! In: `bucket/prefix?word=value&word`. Out: a [`Place`], or an error message. Parsing makes no requests.

use std::str::FromStr;
use std::time::Duration;

use nine_block::SECTOR;

/// The location of a store, and how to access it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The name of the bucket.
    pub bucket: String,
    /// The prefix of all object names; may be empty.
    pub prefix: String,
    /// The URL of a store other than Amazon's.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The profile in the files of AWS.
    pub profile: Option<String>,
    /// The sectors of a new store, or of one that is to grow.
    pub sectors: Option<u64>,
    /// The timeout of a request, including retries.
    pub patience: Option<Duration>,
    /// The bucket is part of the host name.
    pub in_host: bool,
    /// Allow HTTP without TLS over networks.
    pub insecure: bool,
    /// Send requests without a signature, for public stores.
    pub unsigned: bool,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (path, words) = name.split_once('?').unwrap_or((name, ""));
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(is_plain) {
            return Err(format!("`{bucket}` is no name of a bucket; bucket/prefix is expected"));
        }
        let is_name = |part: &str| !["", ".", ".."].contains(&part) && part.chars().all(is_plain);
        if !prefix.is_empty() && !prefix.split('/').all(is_name) {
            return Err(format!("`{prefix}`: a prefix has letters, digits and `- _ . /`"));
        }
        let mut place = Self { bucket: bucket.into(), prefix: prefix.into(), ..Self::default() };
        for word in words.split('&').filter(|word| !word.is_empty()) {
            place.set(word)?;
        }
        Ok(place)
    }
}

impl Place {
    fn set(&mut self, word: &str) -> Result<(), String> {
        let known = "endpoint=URL, region=NAME, profile=NAME, size=64T, patience=SECONDS, style=host, insecure, \
                     unsigned";
        match word.split_once('=') {
            Some((_, "")) => return Err(format!("`{word}` without a value")),
            Some(("endpoint", url)) => {
                if !url.starts_with("http://") && !url.starts_with("https://") {
                    return Err(format!("`{word}`: http://HOST:PORT or https://HOST is expected"));
                }
                self.endpoint = Some(url.into());
            }
            Some(("region", name)) => self.region = Some(name.into()),
            Some(("profile", name)) => self.profile = Some(name.into()),
            Some(("size", size)) => {
                let bytes = nine_text::parse_size(size).ok().filter(|bytes| *bytes >= 1 << 20);
                let sectors = bytes.map(|bytes| bytes / SECTOR);
                let sectors = sectors.filter(|sectors| *sectors <= crate::store::SECTORS_MAX);
                self.sectors = Some(sectors.ok_or_else(|| format!("`{word}`: 1M to 131072T are expected"))?);
            }
            Some(("patience", seconds)) => {
                let seconds = seconds.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
                let seconds = seconds.ok_or_else(|| format!("`{word}`: 1 to 3600 seconds"))?;
                self.patience = Some(Duration::from_secs(seconds));
            }
            Some(("style", "host")) => self.in_host = true,
            Some(("style", "path")) => self.in_host = false,
            None if word == "insecure" => self.insecure = true,
            None if word == "unsigned" => self.unsigned = true,
            _ => return Err(format!("`{word}` is not known behind a bucket; these are: {known}")),
        }
        Ok(())
    }

    /// Returns whether requests may go to this URL: it has TLS, the host is this machine, or `insecure` was set.
    pub fn may_be_open(&self, url: &str) -> bool {
        let url = url.to_ascii_lowercase();
        if url.starts_with("https://") {
            return true;
        }
        let rest = url.strip_prefix("http://").unwrap_or_default();
        let host = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
        // User information may precede an @.
        let host = host.rsplit('@').next().unwrap_or_default();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.split(']').next())
            .unwrap_or_else(|| host.rsplit_once(':').map_or(host, |(host, _)| host));
        let is_loopback = host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        self.insecure || is_loopback || host == "localhost"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_bucket_a_prefix_and_words() {
        let place: Place =
            "attic/a/b/?endpoint=http://[::1]:9000&region=eu-1&size=2T&patience=5&insecure".parse().unwrap();
        assert_eq!((&*place.bucket, &*place.prefix, place.sectors), ("attic", "a/b", Some(1 << 32)));
        assert_eq!(
            (place.patience, place.insecure, place.in_host),
            (Some(Duration::from_secs(5)), true, false)
        );
        assert_eq!("attic".parse(), Ok(Place { bucket: "attic".into(), ..Place::default() }));
        for (name, said) in [
            ("", "no name of a bucket"),
            ("a b/c", "no name of a bucket"),
            ("a//b", "a prefix has"),
            ("a/../b", "a prefix has"),
            ("a?size=7", "1M to"),
            ("a?size=4P5", "1M to"),
            ("a?size=999999999T", "1M to"),
            ("a?endpoint=host:9000", "http://HOST"),
            ("a?patience=0", "1 to 3600"),
            ("a?region=", "without a value"),
            ("a?key=x", "these are: endpoint=URL"),
        ] {
            let error = name.parse::<Place>().unwrap_err();
            assert!(error.contains(said), "{name}: {error}");
        }
    }

    #[test]
    fn only_this_machine_needs_no_tls() {
        let mut place = Place::default();
        for url in [
            "http://127.0.0.1:9",
            "HTTP://LocalHost/x",
            "http://[::1]:9000/",
            "http://a:b@127.0.0.1:9/",
            "https://far.example",
            "HTTPS://far.example",
        ] {
            assert!(place.may_be_open(url), "{url}");
        }
        for url in [
            "http://far.example",
            "http://127.0.0.1.example:80",
            "http://10.0.0.1:9000",
            "http://[::2]",
            "HTTP://far.example",
            " http://far.example",
            "http://127.0.0.1:80@far.example",
            "http://localhost:80@far.example/",
            "http://far.example\\@localhost",
            "",
        ] {
            assert!(!place.may_be_open(url), "{url}");
        }
        place.insecure = true;
        assert!(place.may_be_open("http://far.example"));
    }
}
