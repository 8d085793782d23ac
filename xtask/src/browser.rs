//! The web server's pages in a real browser: Debian's headless chromium, controlled by its DevTools protocol over a
//! pipe. It reaches only the loopback.
//!
//! Each requirement of a page is a JavaScript expression that must be true when it is evaluated in the page.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::child::last_lines;
use crate::guest::scratch;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    steps.call("browser", "cargo xtask browser", || match all(program) {
        Ok(()) => true,
        Err(why) => {
            eprintln!("{why}");
            false
        }
    })
}

fn all(program: &Program) -> Result<(), String> {
    let place = scratch("browser")?;
    let (near, far) = (place.0.join("near"), place.0.join("far"));
    let put = |dir: &Path, name: &str, size: usize| {
        let path = dir.join(name);
        let made = fs::create_dir_all(path.parent().unwrap_or(dir));
        made.and_then(|()| fs::write(&path, vec![b'x'; size])).map_err(|e| format!("{}: {e}", path.display()))
    };
    for (name, size) in FILES {
        put(&near, name, *size)?;
    }
    put(&far, "music/01 Aria.flac", 100)?;
    let upstream = Served::start(program, &format!("disk:{}", far.display()), &[])?;
    let far = format!("tcp!127.0.0.1!{}", upstream.port);
    let script = place.0.join("ns");
    let text = format!("mount disk:{} /\nmount -c ram: /scratch\nmount -r {far} /far\n", near.display());
    fs::write(&script, text).map_err(|e| e.to_string())?;
    let mut served = Served::start(program, &script.display().to_string(), &["--http=http!127.0.0.1!0"])?;
    let url = served.url().ok_or("no address for browsers")?;
    let mut archive = archive(program, &place.0)?;
    let past = archive.url().ok_or("no address for browsers")?;
    let mut browser = Browser::start(&place.0)?;
    let worked = work(&mut browser, &url, &far).and_then(|()| history(&mut browser, &past));
    worked.map_err(|why| format!("{why}\n{}{}{}", served.log(), archive.log(), browser.log(&place.0)))
}

/// Starts an archive with a file that was changed between two dumps and then removed.
fn archive(program: &Program, place: &Path) -> Result<Served, String> {
    let (disk, socket) = (place.join("disk").display().to_string(), place.join("s").display().to_string());
    let ninefold = |words: &[&str], input: &str| -> Result<(), String> {
        let text = place.join("input");
        let fed = fs::write(&text, input).and_then(|()| File::open(&text)).map_err(|e| e.to_string())?;
        let mut command = Command::new(&program.0);
        command.args(words).args(["--config", "/dev/null"]).stdin(fed).stdout(Stdio::null());
        command.env("NINEFOLD_SERVER", format!("unix!{socket}"));
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("ninefold {words:?}: {other:?}")),
        }
    };
    ninefold(&["fs", "ream", &disk, "--size", "100M"], "")?;
    let (listen, what) = (format!("unix!{socket}"), format!("fs:{disk},schedule=off"));
    let options = ["--http=http!127.0.0.1!0", "--listen", "tcp!127.0.0.1!0 -insecure", "--listen", &listen];
    let served = Served::start(program, &what, &options)?;
    for (text, name) in [("one\n", "letter"), ("another\n", "letter"), ("", "<b>bad")] {
        ninefold(&["write", "--create", &format!("/archive/{name}")], text)?;
        ninefold(&["fs", "dump"], "")?;
    }
    ninefold(&["rm", "/archive/letter"], "")?;
    Ok(served)
}

/// Visits the pages of past versions, as a person would.
fn history(browser: &mut Browser, url: &str) -> Result<(), String> {
    for is_dark in [false, true] {
        browser.call("Emulation.setScriptExecutionDisabled", &format!("\"value\":{is_dark}"))?;
        browser.screen(if is_dark { 390 } else { 1100 }, 844, if is_dark { "dark" } else { "light" })?;
        for (path, claims) in PAST {
            browser.open(&format!("{url}{path}"))?;
            for claim in *claims {
                browser.holds(claim)?;
            }
            browser.holds("document.documentElement.scrollWidth <= innerWidth")?;
            if let Some(error) = browser.events.iter().find(|event| is_error(event)) {
                return Err(format!("the browser complains: {error}"));
            }
            let name = format!("past-{}{is_dark}.png", path.replace(['/', '?'], "-"));
            let file = crate::target().join("browser").join(name);
            fs::write(&file, browser.picture()?).map_err(|e| format!("{}: {e}", file.display()))?;
            println!("a screenshot: {}", file.display());
        }
    }
    Ok(())
}

fn work(browser: &mut Browser, url: &str, far: &str) -> Result<(), String> {
    browser.open(url)?;
    for claim in CLAIMS {
        browser.holds(&claim.replace("FAR", far))?;
    }
    if let Some(error) = browser.events.iter().find(|event| is_error(event)) {
        return Err(format!("the browser complains: {error}"));
    }
    browser.holds(INTRUDER)?;
    if !browser.events.iter().any(|event| is_error(event)) {
        return Err("the browser would not have complained".into());
    }
    let dir = crate::target().join("browser");
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for (name, width, height, colours) in SCREENS {
        browser.screen(*width, *height, colours)?;
        browser.open(url)?;
        // The page is not wider than the screen.
        browser.holds("await until(() => /[0-9]/.test(at('rate').textContent))")?;
        browser.holds("document.documentElement.scrollWidth <= innerWidth")?;
        let file = dir.join(format!("{name}.png"));
        fs::write(&file, browser.picture()?).map_err(|e| format!("{}: {e}", file.display()))?;
        println!("a screenshot: {}", file.display());
    }
    browser.call("Emulation.setScriptExecutionDisabled", "\"value\":true")?;
    browser.open(url)?;
    for claim in WITHOUT_SCRIPTS {
        browser.holds(claim)?;
    }
    Ok(())
}

/// Whether this event of the browser reports an error in a page.
fn is_error(event: &str) -> bool {
    event.contains("\"Runtime.exceptionThrown\"")
        || event.contains("\"Log.entryAdded\"") && event.contains("\"level\":\"error\"")
}

/// A browser with one page. Dropping it kills it.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<String>,
    session: String,
    calls: u32,
    /// Events that the browser has sent.
    events: Vec<String>,
}

impl Browser {
    fn start(place: &Path) -> Result<Self, String> {
        // Its protocol is on descriptors 3 and 4. The browser exits when its pipe is closed.
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "chromium"]);
        command.args(FLAGS).arg(format!("--user-data-dir={}", place.join("profile").display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(place.join("browser.log")).map_err(|e| e.to_string())?);
        let mut child = command.spawn().map_err(|e| format!("sh: {e}"))?;
        let (Some(to), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes")
        };
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&message).into_owned()).is_err() {
                    return;
                }
            }
        });
        let (session, events) = (String::new(), Vec::new());
        let mut browser = Self { child, to, from, session, calls: 0, events };
        let made = browser.call("Target.createTarget", "\"url\":\"about:blank\"")?;
        let target = text_of(&made, "targetId")?;
        let attach = format!("\"targetId\":\"{target}\",\"flatten\":true");
        let attached = browser.call("Target.attachToTarget", &attach)?;
        browser.session = format!("\"sessionId\":\"{}\",", text_of(&attached, "sessionId")?);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), "")?;
        }
        Ok(browser)
    }

    /// Calls a method. `params` is JSON without the outer braces. Returns the answer.
    fn call(&mut self, method: &str, params: &str) -> Result<String, String> {
        self.calls += 1;
        let (id, session) = (self.calls, &self.session);
        let message = format!("{{\"id\":{id},{session}\"method\":\"{method}\",\"params\":{{{params}}}}}\0");
        self.to.write_all(message.as_bytes()).map_err(|e| format!("chromium: {method}: {e}"))?;
        let answer = format!("{{\"id\":{id},");
        loop {
            let message = self.from.recv_timeout(LIMIT).map_err(|e| format!("chromium: {method}: {e}"))?;
            match message.starts_with(&answer) {
                true if message.starts_with(&format!("{answer}\"error\"")) => {
                    return Err(format!("{method}: {message}"));
                }
                true => return Ok(message),
                false => self.events.push(message),
            }
        }
    }

    /// Opens a page, and waits until it is loaded.
    fn open(&mut self, url: &str) -> Result<(), String> {
        self.events.clear();
        self.call("Page.navigate", &format!("\"url\":\"{url}\""))?;
        while !self.events.iter().any(|event| event.contains("\"Page.loadEventFired\"")) {
            let event = self.from.recv_timeout(LIMIT).map_err(|e| format!("chromium: {url}: {e}"))?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Fails unless the expression is true in the page.
    fn holds(&mut self, claim: &str) -> Result<(), String> {
        let text = format!("{HELP}(async () => {{ return {claim} }})()");
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let params = format!("\"expression\":\"{text}\",\"awaitPromise\":true");
        let answer = self.call("Runtime.evaluate", &params).map_err(|why| format!("{why}: {claim}"))?;
        match answer.contains("\"type\":\"boolean\",\"value\":true") {
            true => Ok(()),
            false => Err(format!("not so in the page: {claim}\n{answer}")),
        }
    }

    fn screen(&mut self, width: u32, height: u32, colours: &str) -> Result<(), String> {
        let metrics =
            format!("\"width\":{width},\"height\":{height},\"deviceScaleFactor\":1,\"mobile\":false");
        self.call("Emulation.setDeviceMetricsOverride", &metrics)?;
        let feature = format!("{{\"name\":\"prefers-color-scheme\",\"value\":\"{colours}\"}}");
        self.call("Emulation.setEmulatedMedia", &format!("\"features\":[{feature}]")).map(drop)
    }

    /// Returns a screenshot of the whole page, as PNG.
    fn picture(&mut self) -> Result<Vec<u8>, String> {
        let answer = self.call("Page.captureScreenshot", "\"captureBeyondViewport\":true")?;
        base64(&text_of(&answer, "data")?)
    }

    /// Returns the end of the browser's log, for a report.
    fn log(&self, place: &Path) -> String {
        let said = fs::read_to_string(place.join("browser.log")).unwrap_or_default();
        // It complains about the missing desktop.
        let said: String = said.split_inclusive('\n').filter(|line| !line.contains("dbus")).collect();
        format!("chromium, the last of its log:\n{}", last_lines(&said, 20))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // This fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a string without escapes from an answer.
fn text_of(answer: &str, name: &str) -> Result<String, String> {
    let found = answer.split_once(&format!("\"{name}\":\"")).and_then(|(_, rest)| rest.split('"').next());
    found.map(String::from).ok_or_else(|| format!("no {name} in {answer}"))
}

fn base64(text: &str) -> Result<Vec<u8>, String> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().filter(|byte| *byte != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit).ok_or("no base64")?;
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Ok(bytes)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Timeout of one answer.
const LIMIT: Duration = Duration::from_secs(60);

const FLAGS: &[&str] = &[
    "--headless",
    "--remote-debugging-pipe",
    // The sandbox does not work as root, and the browser sees only our pages.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

/// Files with their sizes. The names contain HTML that must not be executed.
const FILES: &[(&str, usize)] = &[
    ("<script>bad=1<", 0),
    ("<img src=x onerror=bad=1>", 1),
    ("\" onmouseover=\"bad=1", 2),
    ("javascript:bad=1", 3),
    ("README", 200),
    ("file-2", 30_000),
    ("file-10", 4_000),
    ("large.bin", 20_000_000),
    ("letters/2026/november", 10),
    ("scratch/.keep", 0),
    ("far/.keep", 0),
    ("mux/.keep", 0),
];

const SCREENS: &[(&str, u32, u32, &str)] =
    &[("light", 1100, 900, "light"), ("dark", 1100, 900, "dark"), ("phone", 390, 844, "light")];

/// Helper functions for the expressions.
const HELP: &str = "
var names = () => [...document.querySelectorAll('#files tbody tr:not([hidden]) a')].map(a => a.textContent)
var until = f => new Promise(done => {
  const look = () => f() ? done(true) : requestAnimationFrame(look)
  look()
})
var click = column => (document.querySelectorAll('th button')[column].click(), true);
";

/// Requirements of a name space's page, in this order.
const CLAIMS: &[&str] = &[
    // The page lists the files, and no code in a name was executed.
    "['far/', 'letters/', 'scratch/', 'README', '<script>bad=1<', 'file-10', 'file-2'].every(n => names().includes(n))",
    "document.title === '/' && typeof bad === 'undefined' && document.images.length === 0",
    "[...document.links].every(link => link.origin === location.origin)",
    // The state of the servers is shown and updated at once.
    "await until(() => !at('live').hidden && !at('servers').hidden && /[0-9]/.test(at('rate').textContent))",
    "[...at('servers').rows].some(row => /^FAR [0-9.]+ (µs|ms|s) [0-9]+$/.test(
       [...row.cells].map(cell => cell.textContent).join(' ')))",
    "(await (await fetch('/large.bin')).arrayBuffer()).byteLength === 20e6
       && await until(() => /MiB/.test(at('rate').textContent)) && at('said').textContent === ''",
    // Columns can be sorted, directories stay first, and digits compare as numbers.
    "click(1) && names()[4] === '<script>bad=1<' && names().at(-1) === 'large.bin'",
    "click(1) && names().slice(0, 4).includes('far/') && names()[4] === 'large.bin'",
    "document.querySelectorAll('th[aria-sort]').length === 1",
    "click(0) && names().indexOf('file-2') < names().indexOf('file-10')",
    "(() => {
       const input = document.querySelector('input')
       input.value = 'FILE-'
       input.dispatchEvent(new Event('input'))
       const said = document.querySelector('main [role=status]').textContent
       return names().join() === 'file-2,file-10' && said.includes('2 of ')
     })()",
    // A hidden page sends no requests.
    "(await (async () => {
       Object.defineProperty(document, 'visibilityState', { value: 'hidden' })
       document.onvisibilitychange()
       const later = setTimeout
       let again = 0
       setTimeout = () => again++
       await look()
       setTimeout = later
       return again === 0
     })())",
];

/// Injected scripts are not executed.
const INTRUDER: &str = "await new Promise(done => {
  document.addEventListener('securitypolicyviolation', () => done(typeof bad === 'undefined'))
  const script = document.createElement('script')
  script.textContent = 'bad = 1'
  document.body.append(script)
  if (typeof bad !== 'undefined') done(false)
})";

const WITHOUT_SCRIPTS: &[&str] = &[
    "['far/', 'README', 'large.bin'].every(n => names().includes(n)) && document.links.length > 10",
    "document.querySelectorAll('button, input').length === 0 && document.getElementById('live').hidden",
    "document.querySelector('caption').textContent.includes('entries')",
];

/// Pages of an archive with their requirements, checked with scripts and without.
const PAST: &[(&str, &[&str])] = &[
    (
        "archive/",
        &[
            "names().includes('<b>bad') && !names().includes('letter') && document.querySelectorAll('b').length === 0",
            "[...document.links].filter(a => a.search === '?versions').length === 3",
            "document.querySelectorAll('thead th button').length <= 3",
        ],
    ),
    (
        "archive/letter?versions",
        &[
            "[...document.querySelectorAll('#versions tbody tr')].length === 3",
            "document.getElementById('versions').rows[1].cells[2].textContent === 'removed'",
            "[...document.links].filter(a => a.textContent === 'download').length === 2",
            "(await (await fetch([...document.links].filter(a => a.textContent === 'download')[1].href)).text())
               === 'one\\n'",
        ],
    ),
    (
        "dump/",
        &[
            "document.querySelectorAll('.months td a').length === 3",
            "document.querySelector('.months td a').textContent > 0",
            "document.querySelector('.months td a').pathname.startsWith('/dump/2')",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_read_from_base64() {
        assert_eq!(base64("iVBORw0KGgo=").unwrap(), b"\x89PNG\r\n\x1a\n");
        assert!(base64("*").is_err());
    }
}
