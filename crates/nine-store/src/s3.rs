//! A store that speaks S3 over HTTP, by the crate `object_store`. Only this module of the crate uses tokio.
//!
//! In: requests. Out: their answers, and faults with text for people. One thread of the store runs the requests, so
//! callers need no runtime and do not block.
//!
//! Always holds: each request is made once here. Nothing is sent over a network without TLS, unless that was allowed.

use std::env;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload, RetryConfig,
    StaticCredentialProvider, UpdateVersion,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use crate::again::Patience;
use crate::objects::{Answer, Condition, Etag, Fault, Got, Listed, Objects, Rest};
use crate::place::Place;

/// Names of one listing: the maximum that stores return.
const PAGE: usize = 1000;
/// Timeout of a silent connection.
const SILENCE: Duration = Duration::from_secs(30);
/// Timeout of connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// A store, below a prefix.
pub struct S3 {
    store: Arc<AmazonS3>,
    prefix: Arc<str>,
    /// Taken by `drop`.
    runtime: Option<Runtime>,
    handle: Handle,
    begun: Instant,
    silence: Duration,
    pace: Arc<UploadRate>,
}

/// The assumed upload rate in bytes a second, from which the timeout of a put follows. The progress of an upload cannot
/// be observed. A put that exceeds its timeout counts as silent and doubles the time of later ones, so that a slow
/// network can put large objects at last.
struct UploadRate(AtomicU64);

impl S3 {
    /// Creates a client without making a request.
    ///
    /// # Errors
    /// The location or the environment is invalid.
    pub fn new(place: &Place) -> Result<Self, String> {
        // reqwest needs a process-wide provider of cryptography; another caller may have installed the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let said = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(set);
        let endpoint = place.endpoint.clone().or(said);
        if let Some(url) = endpoint.as_deref().filter(|url| !place.may_be_open(url)) {
            return Err(format!(
                "{url}: without TLS all that is stored could be read and changed on the way; https, or the word \
                 `insecure`"
            ));
        }
        let whole = place.patience.unwrap_or(Patience::default().0);
        let client = ClientOptions::new()
            .with_allow_http(true)
            .with_connect_timeout(CONNECT.min(whole))
            // That timeout would cover the whole request: see `within`.
            .with_timeout_disabled();
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&place.bucket)
            .with_client_options(client)
            .with_retry(once)
            .with_skip_signature(place.unsigned)
            .with_virtual_hosted_style_request(place.in_host);
        builder = match endpoint {
            // The S3-specific variable takes precedence over the general one.
            Some(url) => builder.with_config(AmazonS3ConfigKey::S3Endpoint, url),
            None => builder,
        };
        let profile =
            place.profile.clone().or_else(|| set("AWS_PROFILE")).unwrap_or_else(|| "default".into());
        if place.profile.is_some() || set("AWS_ACCESS_KEY_ID").is_none() {
            let of = |name| ini("AWS_SHARED_CREDENTIALS_FILE", "credentials", &profile, name);
            if let (Some(key_id), Some(secret_key)) = (of("aws_access_key_id"), of("aws_secret_access_key")) {
                // Use all three values from the file: a session token in the environment belongs to another key.
                let key = AwsCredential { key_id, secret_key, token: of("aws_session_token") };
                builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(key)));
            } else if let Some(profile) = &place.profile {
                return Err(format!("there is no profile `{profile}` with a key in ~/.aws/credentials"));
            }
        }
        let has_region = builder.get_config_value(&AmazonS3ConfigKey::Region).is_some();
        let section = if profile == "default" { profile } else { format!("profile {profile}") };
        let said = || ini("AWS_CONFIG_FILE", "config", &section, "region");
        let region = place.region.clone().or_else(|| if has_region { None } else { said() });
        builder = match region {
            Some(region) => builder.with_region(region),
            None => builder,
        };
        let store = builder.build().map_err(|error| error.to_string())?;
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(1).thread_name("store").enable_io().enable_time();
        let runtime = threads.build().map_err(|error| format!("a thread for a store: {error}"))?;
        let handle = runtime.handle().clone();
        let prefix = if place.prefix.is_empty() { String::new() } else { format!("{}/", place.prefix) };
        Ok(Self {
            store: Arc::new(store),
            prefix: prefix.into(),
            runtime: Some(runtime),
            handle,
            begun: Instant::now(),
            silence: SILENCE.min(whole),
            pace: Arc::new(UploadRate(AtomicU64::new(QUICK))),
        })
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.prefix))
    }

    /// Runs a request on the thread of the store.
    fn there<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Answer<T> {
        let task = self.handle.spawn(request);
        Box::pin(async move {
            match task.await {
                Ok(result) => result.map_err(fault),
                Err(_) => Err(Fault::Never("the thread of the store has ended".into())),
            }
        })
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It may be dropped on its own thread, which must not block.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Objects for S3 {
    fn put(&self, name: &str, parts: Vec<Bytes>, condition: Condition) -> Answer<Option<Etag>> {
        let (store, path) = (self.store.clone(), self.path(name));
        let mode = match condition {
            Condition::New => PutMode::Create,
            Condition::Is(Etag(etag)) => {
                PutMode::Update(UpdateVersion { e_tag: Some(etag.to_string()), version: None })
            }
        };
        let (silence, pace) = (self.silence, self.pace.clone());
        self.there(async move {
            let payload: PutPayload = parts.into_iter().collect();
            let (bytes, now) = (payload.content_length() as u64, pace.0.load(Relaxed));
            let put = store.put_opts(&path, payload, PutOptions::from(mode));
            let begun = Instant::now();
            let Ok(put) = timeout(silence + time(bytes, now), put).await else {
                pace.is_slower_than(now);
                return Err(silent());
            };
            let put = put?;
            pace.has_left(bytes, begun.elapsed());
            Ok(put.e_tag.map(|etag| Etag(etag.into())))
        })
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Answer<Got> {
        let (store, path) = (self.store.clone(), self.path(name));
        let silence = self.silence;
        let most =
            silence + time(range.as_ref().map_or(READ_LEN_LIMIT, |range| range.end - range.start), SLOW);
        let got = async move {
            let range = range.map(GetRange::Bounded);
            let got = store.get_opts(&path, GetOptions { range, ..GetOptions::default() });
            let got = within(silence, got).await??;
            let (size, wanted) = (got.meta.size, got.range.end - got.range.start);
            let etag = got.meta.e_tag.clone().map(|etag| Etag(etag.into()));
            let mut stream = got.into_stream();
            if wanted > READ_LEN_LIMIT {
                return Ok((Got { bytes: Bytes::new(), size, etag }, wanted));
            }
            let mut bytes = BytesMut::with_capacity(wanted as usize);
            while let Some(part) = within(silence, stream.next()).await? {
                bytes.extend_from_slice(&part?);
                if bytes.len() as u64 > wanted {
                    break;
                }
            }
            Ok((Got { bytes: bytes.freeze(), size, etag }, wanted))
        };
        // The total time is limited too, because a store that sends a byte now and then is as bad as a silent one.
        let got = self.there(async move { within(most, got).await? });
        Box::pin(async move {
            let (got, wanted) = got.await?;
            whole(got, wanted)
        })
    }

    fn list(&self, under: &str, after: &str) -> Answer<Vec<Listed>> {
        let (store, prefix) = (self.store.clone(), self.prefix.clone());
        let (names_under, silence) = (under.to_string(), self.silence);
        let (under, after) = (self.path(under), self.path(after));
        self.there(async move {
            let mut names = store.list_with_offset(Some(&under), &after).take(PAGE);
            let mut page = Vec::new();
            while let Some(meta) = within(silence, names.next()).await? {
                let meta = meta?;
                let name = below(meta.location.as_ref(), &prefix, &names_under);
                page.extend(name.map(|name| Listed { name: name.into(), size: meta.size }));
            }
            Ok(page)
        })
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn rest(&self, time: Duration) -> Rest {
        let task = self.handle.spawn(async move { tokio::time::sleep(time).await });
        // This fails only if the thread has ended, and then the next request fails.
        Box::pin(async move { drop(task.await) })
    }

    fn random(&self) -> u128 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
        u128::from_le_bytes(bytes)
    }
}

impl UploadRate {
    /// Lowers the rate after a put at `pace` has timed out. Of several such puts only the first counts.
    fn is_slower_than(&self, pace: u64) {
        self.0.fetch_min((pace / 2).max(SLOW), Relaxed);
    }

    /// Raises the rate after a put: half of its rate leaves time enough for the next.
    fn has_left(&self, bytes: u64, took: Duration) {
        let pace = bytes as f64 / took.as_secs_f64() / 2.0;
        self.0.fetch_max((pace as u64).min(QUICK), Relaxed);
    }
}

/// Returns the time that `bytes` take at a rate.
fn time(bytes: u64, pace: u64) -> Duration {
    Duration::from_secs(bytes / pace)
}

/// Returns the bytes that were read, if they are complete.
fn whole(got: Got, wanted: u64) -> Result<Got, Fault> {
    match got.bytes.len() as u64 {
        len if len == wanted => Ok(got),
        _ if wanted > READ_LEN_LIMIT => {
            Err(Fault::Never(format!("an object of {wanted} bytes is none of ours")))
        }
        len => Err(Fault::Later(format!("{len} bytes came of {wanted}"))),
    }
}

/// Returns the name of an object below `under`. Tools with folders create objects with names that end in `/`, which the
/// crate removes.
fn below<'a>(location: &'a str, prefix: &str, under: &str) -> Option<&'a str> {
    location.strip_prefix(prefix).filter(|name| name.starts_with(under))
}

/// Waits for a future, but at most for `silence`.
async fn within<T>(silence: Duration, it: impl Future<Output = T>) -> object_store::Result<T> {
    timeout(silence, it).await.map_err(|_| silent())
}

fn silent() -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: "the store does not answer".into() }
}

/// Converts an error of the crate into a fault with text for people.
fn fault(error: object_store::Error) -> Fault {
    use object_store::Error as E;
    let text = error.to_string();
    let said = said(&text);
    let no_bucket = || Fault::Never("there is no such bucket; it is made with the tools of the store".into());
    match error {
        E::NotFound { .. } if text.contains("NoSuchBucket") => no_bucket(),
        E::NotFound { .. } => Fault::Missing,
        E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => Fault::Refused,
        E::PermissionDenied { .. } if text.contains("RequestTimeTooSkewed") => {
            Fault::Denied(format!("{said}: the clock of this machine is wrong"))
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Fault::Denied(format!(
            "{said}: look at the key (AWS_ACCESS_KEY_ID, or ~/.aws/credentials), the region, and whether it may do \
             s3:GetObject, s3:PutObject and s3:ListBucket here"
        )),
        _ if text.contains("169.254.169.254") => Fault::Denied(
            "there is no key: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials; and this machine has \
             no role"
                .into(),
        ),
        _ if text.contains("<Code>ExpiredToken<") || text.contains("<Code>InvalidToken<") => {
            Fault::Denied(format!("{said}: AWS_SESSION_TOKEN, or the one of ~/.aws/credentials, is to be renewed"))
        }
        E::InvalidPath { .. } | E::NotSupported { .. } | E::NotImplemented { .. } => Fault::Never(said),
        _ => match status(&text) {
            Some(408 | 409 | 429) | None => Fault::Later(said),
            Some(400) if text.contains("RequestTimeout") || text.contains("SlowDown") => Fault::Later(said),
            Some(416) => Fault::Never(format!("{said}: an object is shorter than its name says")),
            Some(300..500) => Fault::Never(format!("{said}: are endpoint and region right?")),
            Some(_) => Fault::Later(said),
        },
    }
}

/// Returns the HTTP status from the text of an error, because the crate does not expose it otherwise.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Returns the store's own error message, without the layers around it.
fn said(text: &str) -> String {
    let of = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        rest.split_once('<').map(|(said, _)| said)
    };
    let said = match (of("Code"), of("Message"), status(text)) {
        (Some(code), Some(message), _) => format!("{code}: {message}"),
        (Some(code), None, _) => code.to_string(),
        (_, _, Some(status)) => format!("the store answers {status}"),
        _ => text.trim_start_matches("Generic S3 error: ").to_string(),
    };
    let plain: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SAID).collect();
    plain.trim_end_matches([' ', '.']).to_string()
}

/// Returns a value from a file of AWS.
fn ini(var: &str, file: &str, section: &str, name: &str) -> Option<String> {
    let named = env::var_os(var).map(PathBuf::from);
    let path = named.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".aws").join(file)))?;
    value(&fs::read_to_string(path).ok()?, section, name)
}

fn value(text: &str, section: &str, name: &str) -> Option<String> {
    let mut is_here = false;
    for line in text.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix('[') {
            is_here = head.trim_end_matches(']').trim() == section;
        } else if let Some((key, value)) = line.split_once('=')
            && is_here
            && key.trim() == name
        {
            return Some(value.trim().into());
        }
    }
    None
}

/// The initial and the minimum upload rate, bytes a second.
const QUICK: u64 = 1 << 20;
const SLOW: u64 = 8 << 10;
/// Maximum bytes of one read: more than any object of ours has.
const READ_LEN_LIMIT: u64 = 64 << 20;
/// Maximum characters of a store's message.
const SAID: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_is_told_in_its_words() {
        let text = "Generic S3 error: Error performing PUT http://x/y in 2ms - Server returned non-2xx status code: \
                    503 Service Unavailable: <?xml?><Error><Code>SlowDown</Code>\
                    <Message>Reduce your rate.</Message></Error>";
        assert_eq!((status(text), said(text)), (Some(503), "SlowDown: Reduce your rate".to_string()));
        assert_eq!(said("x status code: 500 y"), "the store answers 500");
        let text =
            "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code><Message>It is.</Message></Error>";
        let expired = fault(object_store::Error::Generic { store: "S3", source: text.into() });
        assert!(matches!(&expired, Fault::Denied(text) if text.contains("is to be renewed")), "{expired:?}");
    }

    #[test]
    fn what_does_not_leave_in_its_time_has_more_the_next_time() {
        let pace = UploadRate(AtomicU64::new(QUICK));
        let cell = crate::gather::CELL * nine_block::SECTOR;
        let seconds = |pace: &UploadRate| time(cell, pace.0.load(Relaxed)).as_secs();
        assert_eq!(seconds(&pace), 8);
        // Eight puts that began with the same rate.
        (0..8).for_each(|_| pace.is_slower_than(QUICK));
        assert_eq!(seconds(&pace), 16);
        // A put that began long before changes nothing.
        pace.is_slower_than(QUICK);
        assert_eq!(seconds(&pace), 16);
        (0..20).for_each(|_| pace.is_slower_than(pace.0.load(Relaxed)));
        assert_eq!(seconds(&pace), 1024);
        // The network has become faster; a small put does not raise the rate.
        pace.has_left(cell, Duration::from_secs(32));
        assert_eq!(seconds(&pace), 64);
        pace.has_left(512, Duration::from_secs(1));
        assert_eq!(seconds(&pace), 64);
        pace.has_left(cell, Duration::ZERO);
        assert_eq!(seconds(&pace), 8);
    }

    #[test]
    fn what_came_in_part_is_asked_again_and_what_is_too_much_is_not() {
        let got = |len| Got { bytes: vec![0; len].into(), size: 0, etag: None };
        assert!(whole(got(7), 7).is_ok());
        assert!(matches!(whole(got(6), 7), Err(Fault::Later(_))));
        assert!(matches!(whole(got(0), READ_LEN_LIMIT + 1), Err(Fault::Never(_))));
    }

    #[test]
    fn a_folder_is_no_object() {
        let below = |location: &'static str| below(location, "a/", "data/");
        assert_eq!((below("a/data/x"), below("a/data"), below("b/data/x")), (Some("data/x"), None, None));
    }

    #[test]
    fn a_file_of_aws_has_sections() {
        let text = "[default]\naws_access_key_id = A\n# no\n[profile b]\nregion=eu-1\n";
        assert_eq!(value(text, "default", "aws_access_key_id").as_deref(), Some("A"));
        assert_eq!(value(text, "profile b", "region").as_deref(), Some("eu-1"));
        assert_eq!((value(text, "default", "region"), value(text, "c", "region")), (None, None));
    }
}
