//! Service for browsers: HTTP listeners over the mux.
//!
//! In: `http!HOST!PORT`, and the mux whose main name space is shown. Out: a web server with a name space of its own,
//! which contains a network. The server is one client of both name spaces.
//!
//! Always holds: browsers can only read. The network belongs to the web server alone; its policy only allows to
//! announce the configured addresses.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nine_gate::http::{Figures, LocalUsers, Log, Options, Pair, Pairs, Schedule, Server, Trees};
use nine_io::client::{self, Client, File};
use nine_io::server::{self, Anonymous, Core, FileServer, Gate, Service};
use nine_mux::{As, Flags, Live, Local, MAIN, Mux, Owner};
use nine_net::{Env, Peer, Proof, Pushed, rt};
use nine_proto::{Dialect, NOUID};
use nine_servers::Ram;
use nine_servers::net::{Limits, Network, Policy, Tcp};
use serde::{Deserialize, Serialize};

use super::exports::Exports;
use super::local;
use super::token;
use crate::archive::places::{self, Places};
use crate::config::{Serving, by_string};
use crate::fail;

/// Name of the web server's own name space, and of its user.
const OWN: &str = "#http";
/// Limit of requests that wait for calls and for data from browsers.
const WAITING: usize = 64 << 10;
/// Limit of memory for these requests, bytes.
const BUDGET: usize = 1 << 30;
/// Limit of TLS conversations: each may hold half a megabyte.
const TLS: usize = 4000;
/// Size of a stream's queues in bytes; data in transit is in the kernel.
const QUEUE: usize = 32 << 10;
/// Default port on loopback.
const PORT: u16 = 8080;
/// Default age at which a waiting request gets priority.
const AGE: Duration = Duration::from_secs(5);

/// An HTTP address as the user writes it: `http!HOST!PORT`, then `-insecure`, `-srpt [SECONDS]`, `-host NAME`.
/// `https!...` is the same over TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Web {
    host: String,
    port: u16,
    tls: bool,
    /// Shortest remaining response first, with this age limit.
    shortest: Option<Duration>,
    /// Host names that are accepted in requests.
    names: Vec<String>,
    /// Every client that reaches the address may read.
    pub insecure: bool,
}

impl Default for Web {
    /// Returns the default address.
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: PORT,
            tls: false,
            shortest: None,
            names: Vec::new(),
            insecure: false,
        }
    }
}

impl Web {
    /// Returns host and port.
    pub fn place(&self) -> (String, u16) {
        (self.host.clone(), self.port)
    }

    fn is_local(&self) -> bool {
        let ip = self.host.parse::<IpAddr>().map(|ip| ip.to_canonical());
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// Returns whether clients need a proof; `insecure` is the server's general option.
    fn is_closed(&self, insecure: bool) -> bool {
        !self.is_local() && !self.insecure && !insecure
    }

    /// Returns the URL of this listener at a port, like `http://localhost:8080/`.
    fn url(&self, port: &str) -> String {
        let host = match &*self.host {
            "*" => "HOST".into(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.into(),
        };
        format!("{}://{host}:{port}/", if self.tls { "https" } else { "http" })
    }
}

impl FromStr for Web {
    type Err = String;

    fn from_str(text: &str) -> Result<Web, String> {
        const FORM: &str =
            "write http!HOST!PORT, and perhaps -insecure, -srpt SECONDS or -host NAME after it";
        let mut words = text.split_whitespace().peekable();
        let addr = words.next().ok_or(FORM)?;
        let tls = addr.starts_with("https");
        let rest = addr.strip_prefix(if tls { "https" } else { "http" }).ok_or(FORM)?;
        let (host, port) = match rest.strip_prefix("://") {
            Some(rest) => {
                let rest = rest.trim_end_matches('/');
                let (host, port) = rest.rsplit_once(':').ok_or(FORM)?;
                (host.trim_start_matches('[').trim_end_matches(']'), port)
            }
            None => rest.strip_prefix('!').ok_or(FORM)?.rsplit_once('!').ok_or(FORM)?,
        };
        let port = port.parse().map_err(|_| format!("{addr}: `{port}` is not a port"))?;
        if host.is_empty() {
            return Err(FORM.into());
        }
        let mut web =
            Web { host: host.into(), port, tls, shortest: None, names: Vec::new(), insecure: false };
        while let Some(word) = words.next() {
            match word {
                "-srpt" => {
                    let age = words.next_if(|word| !word.starts_with('-')).map(|word| {
                        let seconds = word.parse().ok().filter(|seconds| (0.001..1e6).contains(seconds));
                        seconds.ok_or_else(|| format!("-srpt {word}: not a number of seconds"))
                    });
                    web.shortest = Some(age.transpose()?.map_or(AGE, Duration::from_secs_f64));
                }
                "-insecure" => web.insecure = true,
                "-host" => web.names.push(words.next().ok_or(FORM)?.into()),
                _ => return Err(FORM.into()),
            }
        }
        Ok(web)
    }
}

impl fmt::Display for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}!{}!{}", if self.tls { "https" } else { "http" }, self.host, self.port)?;
        match self.shortest {
            Some(AGE) => f.write_str(" -srpt")?,
            Some(age) => write!(f, " -srpt {}", age.as_secs_f64())?,
            None => {}
        }
        if self.insecure {
            f.write_str(" -insecure")?;
        }
        self.names.iter().try_for_each(|name| write!(f, " -host {name}"))
    }
}

by_string! {
    Web, String, |web| web.to_string();
}

/// A listener with its address announced.
pub struct Open {
    pub server: Server,
    web: Web,
    /// Description of the clients that may connect.
    pub who: String,
}

impl Open {
    /// Returns whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        self.web.is_local()
    }

    /// Returns the URL for a browser.
    pub fn url(&self) -> String {
        let port = self.server.local().rsplit_once('!').map_or("", |(_, port)| port);
        self.web.url(port)
    }
}

/// Creates a mux with nothing but this server, for `serve` of a single server.
pub async fn mux(env: rt::Real, server: Arc<dyn FileServer>, core: &Core) -> Result<Mux> {
    let mux = Mux::new(root(core), nine_servers::disk::names());
    env.spawn(Box::pin(mux.run(env, &[])));
    let server = Local::server("served", server, core.clone());
    let space = mux.space(MAIN, Owner::default());
    space.mount(server, "", &As::Client, "/", Flags::REPLACE).await?;
    Ok(mux)
}

fn root(core: &Core) -> nine_mux::Server {
    Local::scratch("the root", Arc::new(Ram::new(1 << 20)), core.clone())
}

/// The content for browsers, and how it is shown.
pub struct Shown<'s> {
    pub mux: &'s Mux,
    /// Set for a name space, which has files that are not for browsers.
    pub live: Option<&'s Live>,
    pub serving: &'s Serving,
    pub pushed: &'s Pushed,
    pub log: Option<Log>,
    pub figures: Figures,
    /// Read rights, unless all clients may read everything.
    pub exports: Option<&'s Arc<Exports>>,
}

/// Announces all configured addresses, or none. If none is configured, tries the default address.
pub async fn open(env: rt::Real, shown: &Shown<'_>) -> Result<Vec<Open>> {
    if !shown.serving.http.is_empty() {
        return announce(env, shown, &shown.serving.http).await;
    }
    let web = Web::default();
    match announce(env, shown, std::slice::from_ref(&web)).await {
        Err(error) => {
            fail::note(format_args!("{web}: {error:#}; browsers are not served"));
            Ok(Vec::new())
        }
        opened => opened,
    }
}

async fn announce(env: rt::Real, shown: &Shown<'_>, webs: &[Web]) -> Result<Vec<Open>> {
    let Shown { mux, live, serving, pushed, log, figures, exports } = shown;
    if let Some(web) = webs.iter().find(|web| web.tls)
        && pushed.modules.open("tls").is_err()
    {
        bail!("{web}: an https! listener needs --cert and --key");
    }
    let insecure = serving.insecure.unwrap_or(false);
    for web in webs.iter().filter(|web| !web.is_local()) {
        match web.is_closed(insecure) {
            false => {
                tracing::warn!(addr = %web, "INSECURE: whoever reaches this address can read everything")
            }
            true if web.tls && serving.client_ca.is_some() => {}
            true => bail!(
                "{web}: whoever reaches this address could read everything. Listen on the loopback, ask for \
                 certificates (https! with --client-ca), or say that you mean it: '{web} -insecure'"
            ),
        }
    }
    let core = Core::default();
    let judge = exports.map(|exports| exports.clone() as Arc<dyn server::Policy>);
    exports.iter().for_each(|exports| exports.judges(core.clone()));
    let lines: Vec<String> = webs.iter().map(|web| format!("allow announce tcp!*!{}", web.port)).collect();
    let clients = serving.max_clients.unwrap_or(super::listen::CLIENTS) as usize;
    let is_tls = webs.iter().filter(|web| web.tls).count();
    let module = pushed.modules.cost("tls").unwrap_or(0) + 8 * QUEUE;
    // One user may have half of all conversations, and each listener is a conversation, too.
    let limits = Limits {
        conversations: 2 * webs.len() * (clients + 1),
        queue: QUEUE,
        modules: 2 * is_tls * clients.min(TLS) * module,
    };
    let policy: Policy = lines.join("\n").parse().map_err(anyhow::Error::msg)?;
    let networks: Vec<Arc<dyn Network>> = vec![Arc::new(Tcp)];
    let (net, driver) =
        nine_servers::Net::unaudited(networks, policy, pushed.modules.clone(), env.clock(), limits);
    env.spawn(Box::pin(driver));
    let mut net = Local::told("net", Arc::new(net.told_by(nine_mux::told)), core.clone());
    net.options.dialects = vec![Dialect::U];
    (net.options.calls, net.options.budget) = (WAITING, BUDGET);
    let token = token::fresh(&env);
    let own = mux.space(OWN, Owner::default());
    own.for_users(&[OWN]);
    own.for_owner();
    own.mount(net, "", &As::Client, "/net", Flags::REPLACE).await?;

    let gate = Gate { anonymous: Anonymous::ReadOnly, token: Some(token.clone()), ..Gate::default() };
    let service = Service { own: true, ..Service::new(Arc::new(Mux::clone(mux)), gate, core.clone()) };
    let peer = Peer { addr: "http".into(), proof: Proof::None };
    let options = client::Options { calls: WAITING, budget: BUDGET, ..client::Options::default() };
    let client = Client::within(&env, &service, peer, options).await?;
    // Clients without a proof have a connection of their own, which ends if they lose the right to read.
    let of = |anonymous| {
        let gate = Gate { anonymous, policy: judge.clone(), ..Gate::default() };
        Service { gate: Arc::new(gate), ..service.clone() }
    };
    let anyone = of(Anonymous::ReadOnly);
    // Other users of this machine also have a connection of their own.
    let others = match local::anonymous(serving) {
        Anonymous::AsOther => Some(of(Anonymous::AsOther)),
        _ => None,
    };
    let knows_users = local::anonymous(serving) != Anonymous::ReadOnly;
    let own = client.attach(OWN, NOUID, &format!("token:{token}")).await?;
    let net = client::Net::new(own.walk("net").await?);
    let files = match live {
        Some(live) => {
            live.mount_files(OWN, env.wall()).await?;
            Some(Arc::new(own.walk("mux").await?))
        }
        None => None,
    };
    let mut open = Vec::new();
    for web in webs {
        // A client without a certificate is anonymous.
        let proves = web.tls && serving.client_ca.is_some();
        let root = match proves && web.is_closed(insecure) {
            true => None,
            false => Some(anybody(&env, &anyone, serving).await?),
        };
        let (log, figures) = (log.clone(), Some(figures.clone()));
        let connections = if web.tls { clients.min(TLS) } else { clients };
        let mut options = Options { connections, log, figures, ..Options::default() };
        if let Some(age) = web.shortest {
            options.schedule = Schedule::Shortest { age };
        }
        options.archives = live.map(archives);
        match live {
            // The mux files show the upstreams' addresses, which are only for this machine.
            Some(_) if !web.is_local() => options.hidden.push("mux".into()),
            Some(_) => options.mux = files.clone(),
            // With a single server there are no special files to hide.
            None => options.hidden.clear(),
        }
        options.push = web.tls.then(|| "tls".into());
        if proves {
            let policy = judge.clone();
            let gate = Gate { read_only: true, policy, ..Gate::default() };
            let service =
                Service { own: true, ..Service::new(Arc::new(Mux::clone(mux)), gate, core.clone()) };
            options.trees = Some(Arc::new(Proven { env, service }));
        }
        if web.is_local() && knows_users && !web.insecure && !insecure {
            let others = match &others {
                Some(others) => Some(Arc::new(anybody(&env, others, serving).await?)),
                None => None,
            };
            options.local_users = Some(LocalUsers { is_owner: local::is_owner(), others });
        }
        let has_users = options.local_users.as_ref().map(|users| users.others.is_some());
        options.hosts = (web.is_local() || !web.names.is_empty()).then(|| web.names.clone());
        let at = format!("tcp!{}!{}", web.host, web.port);
        let server = Server::open(&net, &at, root, options, env.clock()).await;
        let server = server.with_context(|| web.to_string())?;
        let who = match (web.is_local(), web.is_closed(insecure), &has_users) {
            (true, _, None) => "browsers of this machine read",
            (true, _, Some(true)) => {
                "browsers of this user and root read everything, those of other users what file modes let others read"
            }
            (true, _, Some(false)) => "browsers of this user and root read, those of other users do not",
            (_, true, _) => "browsers with a client certificate read; nobody else does",
            (_, false, _) => "everyone who reaches this address reads",
        };
        let holder = if web.is_local() && proves {
            "; with a client certificate, what its holder may see"
        } else {
            ""
        };
        let who = format!("{who}{holder}");
        open.push(Open { server, web: web.clone(), who });
    }
    Ok(open)
}

/// Attaches for clients without a proof and returns the root.
async fn anybody(env: &rt::Real, service: &Service, serving: &Serving) -> Result<File> {
    let peer = Peer { addr: "http".into(), proof: Proof::None };
    let client = Client::within(env, service, peer, client::Options::default()).await?;
    let root = client.attach("none", NOUID, "").await;
    root.map_err(|error| match &serving.exports {
        Some(file) => anyhow::Error::new(error).context(format!(
            "a browser proves nothing, and {} lets nobody read everything; for it to be so, write there: \
             allow anyone / ro",
            file.display()
        )),
        None => error.into(),
    })
}

/// Finds the archives and their dumps in the name space.
fn archives(live: &Live) -> Pairs {
    let live = live.clone();
    Arc::new(move || {
        let places = Places::all(&live.mounts(Some(MAIN)));
        let pairs = places.iter().flat_map(Places::pairs);
        let path = |names: Vec<Vec<u8>>| names.join(&b'/');
        pairs
            .map(|places::Pair { archive, below, dumps }| Pair {
                archive: path(archive),
                below: path(below),
                dumps: path(dumps),
            })
            .collect()
    })
}

/// Roots for clients with a certificate: the same trees as over 9P. Each has a connection of its own.
struct Proven {
    env: rt::Real,
    service: Service,
}

impl Trees for Proven {
    fn root(&self, proof: Proof) -> Pin<Box<dyn Future<Output = client::Result<File>>>> {
        let (env, service) = (self.env, self.service.clone());
        Box::pin(async move {
            let peer = Peer { addr: "http".into(), proof };
            let client = Client::within(&env, &service, peer, client::Options::default()).await?;
            client.attach("", NOUID, "").await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_people_write_it() {
        let parse = |text: &str| text.parse::<Web>().map(|web| web.to_string());
        for (text, shown) in [
            ("http!*!8080", "http!*!8080"),
            ("https://[::1]:8443/", "https!::1!8443"),
            ("http://127.0.0.1:80", "http!127.0.0.1!80"),
            ("http!h!1 -srpt", "http!h!1 -srpt"),
            ("http!h!1 -srpt 0.5 -host a.b", "http!h!1 -srpt 0.5 -host a.b"),
            ("http!*!1 -host a -insecure", "http!*!1 -insecure -host a"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(shown));
            assert_eq!(parse(shown).as_deref(), Ok(shown));
        }
        for wrong in ["http!", "http!!80", "http!h", "http!h!x", "http!h!1 -srpt -1", "http!h!1 -secure", "x"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
