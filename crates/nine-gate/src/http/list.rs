//! Directory listings, for people and for programs.
//!
//! In: names and attributes. Out: an HTML page that works without scripts, or JSON. Pure.
//!
//! Always holds: a name is shown as text, never as markup.

use std::fmt::Write;

use super::calendar::Dump;
use super::civil::CivilTime;
use super::past::{FileVersion, FileVersions, VersionState};
use super::path::encode;

/// Maximum number of entries of an HTML page.
pub const PAGE_ENTRIES: usize = 2000;
/// Maximum number of entries of a JSON answer.
pub const JSON_ENTRIES: usize = 10_000;

/// A directory, or a page of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirListing {
    /// Directories first, then by name.
    pub items: Vec<Item>,
    /// Entries of the whole directory.
    pub total: u64,
    /// Entries on earlier pages.
    pub before: u64,
    /// The URL of the next page. `None`: this is the last.
    pub next: Option<String>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The name, as the server reports it.
    pub name: Box<[u8]>,
    /// It is a directory.
    pub is_dir: bool,
    /// Size, in bytes.
    pub size: u64,
    /// Last change, in seconds since 1970. `None`: unknown.
    pub changed: Option<i64>,
    /// The entry's server is away.
    pub is_away: bool,
}

/// Writes `{"path": "/a/", "complete": true, "total": 1, "next": null, "entries": [{"name", "href", "type", "size",
/// "modified"}]}`. `name` has U+FFFD for bytes that are not UTF-8; `href` has the bytes, escaped.
pub fn json(path: &[u8], listing: &DirListing) -> Vec<u8> {
    let DirListing { items, total, next, .. } = listing;
    let entries: Vec<_> = items
        .iter()
        .map(|item| {
            let mut entry = serde_json::json!({
                "name": String::from_utf8_lossy(&item.name),
                "href": href(item),
                "type": if item.is_dir { "directory" } else { "file" },
                "size": item.size,
                "modified": item.changed,
            });
            if item.is_away {
                entry["away"] = true.into();
            }
            entry
        })
        .collect();
    let complete = next.is_none();
    let all = serde_json::json!({
        "path": shown(path), "complete": complete, "total": total, "next": next, "entries": entries,
    });
    let mut text = all.to_string().into_bytes();
    text.push(b'\n');
    text
}

/// Further parts of a directory page.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// Links to older versions of the directory and its entries.
    pub versions: bool,
    /// A calendar, as HTML.
    pub calendar: String,
}

/// Writes a page for people. Only scripts and styles with this nonce may run, which are our own (`page/live.js`).
pub fn html(path: &[u8], listing: &DirListing, beside: &Beside, nonce: &str) -> Vec<u8> {
    let DirListing { items, total, before, next } = listing;
    let mut page = begin(&shown(path), nonce, 250 * items.len());
    crumbs(&mut page, path, true);
    page.push_str("</h1></nav>");
    if beside.versions {
        page.push_str("<p><a href=\"./?versions\">Versions of this directory</a></p>");
    }
    let _ = write!(page, "</header>\n<main>{}<table id=\"files\"><caption>", beside.calendar);
    let is_whole = *before == 0 && next.is_none();
    let _ = match (items.len() as u64, is_whole) {
        (0, true) => write!(page, "This directory is empty."),
        (n, true) => write!(page, "{n} {}", if n == 1 { "entry" } else { "entries" }),
        (0, false) => write!(page, "No more entries of {total}"),
        (n, false) => write!(page, "Entries {} to {} of {total}", before + 1, before + n),
    };
    page.push_str(
        "</caption><thead><tr><th scope=\"col\">Name</th><th scope=\"col\" class=\"n\">Size</th>\
         <th scope=\"col\">Changed</th>",
    );
    page.push_str(if beside.versions { "<th scope=\"col\">Before</th>" } else { "" });
    page.push_str("</tr></thead>\n<tbody>");
    if !path.is_empty() {
        page.push_str(
            "<tr><th scope=\"row\"><a href=\"../\" aria-label=\"the directory above\">..</a></th>\
             <td></td><td></td>",
        );
        page.push_str(if beside.versions { "<td></td></tr>" } else { "</tr>" });
    }
    page.push_str("</tbody><tbody>\n");
    for item in items {
        entry(&mut page, item, beside.versions);
    }
    page.push_str("</tbody></table>");
    if !is_whole {
        page.push_str("<nav aria-label=\"Pages\"><a rel=\"first\" href=\"./\">First page</a>");
        if let Some(next) = next {
            let _ = write!(page, " <a rel=\"next\" href=\"{}\">Next page</a>", escape(next));
        }
        page.push_str("</nav>");
    }
    let _ = write!(page, "</main>\n{LIVE}<script nonce=\"{nonce}\">{SCRIPT}</script></body></html>\n");
    page.into_bytes()
}

/// Starts a page, up to its breadcrumbs.
fn begin(title: &str, nonce: &str, more: usize) -> String {
    let mut page = String::with_capacity(12_000 + more);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{}</title>\
         <style nonce=\"{nonce}\">{STYLE}</style></head>\n<body><header><nav aria-label=\"Path\"><h1>",
        escape(title)
    );
    page
}

/// Writes the page of a path's versions. `place` returns its path in a dump, or the present path.
pub(super) fn versions(
    path: &[u8],
    found: &FileVersions,
    place: impl Fn(Option<&Dump>) -> Option<Vec<u8>>,
    nonce: &str,
) -> Vec<u8> {
    let FileVersions { all, before } = found;
    let title = format!("Versions of /{}", String::from_utf8_lossy(path));
    let mut page = begin(&title, nonce, 300 * all.len());
    crumbs(&mut page, path, false);
    let n = all.iter().filter(|version| version.is.is_some()).count();
    let _ = write!(
        page,
        "</h1></nav></header>\n<main><table id=\"versions\"><caption>{n} {}, newest first</caption><thead><tr>\
         <th scope=\"col\">In dumps</th><th scope=\"col\" class=\"n\">Size</th><th scope=\"col\">Changed</th>\
         <th scope=\"col\">Get</th></tr></thead>\n<tbody>\n",
        if n == 1 { "version" } else { "versions" }
    );
    for version in all {
        version_row(&mut page, version, &place);
    }
    page.push_str("</tbody></table>\n");
    if let Some(before) = before {
        let _ = writeln!(
            page,
            "<p><a href=\"?versions&amp;before={before}\">Older ones, before {before}</a></p>"
        );
    }
    page.push_str("</main></body></html>\n");
    page.into_bytes()
}

fn version_row(page: &mut String, version: &FileVersion, place: &impl Fn(Option<&Dump>) -> Option<Vec<u8>>) {
    let FileVersion { first, last, is } = version;
    let name = |dump: &Option<Dump>| dump.map_or("now".into(), |dump| dump.to_string());
    let _ = write!(page, "<tr><th scope=\"row\">{}", name(first));
    if first != last {
        let _ = write!(page, " to {}", name(last));
    }
    let Some(seen) = is else {
        page.push_str("</th><td class=\"n\"></td><td>removed</td><td></td></tr>\n");
        return;
    };
    let size = match seen.is_dir() {
        true => "<td class=\"n\">".into(),
        false => format!("<td class=\"n\" title=\"{} bytes\">{}", seen.size, size(seen.size)),
    };
    let _ = write!(page, "</th>{size}</td><td>{}</td><td>", day(Some(seen.changed.sec)));
    if let (Some(href), Some(word)) = (version_href(version, place), word(seen)) {
        let _ = write!(page, "<a href=\"{href}\">{word}</a>");
    }
    page.push_str("</td></tr>\n");
}

/// The link's text. A symbolic link leads out of its dump, and a device has no content.
fn word(seen: &VersionState) -> Option<&'static str> {
    match (seen.is_dir(), seen.is_file()) {
        (true, _) => Some("open"),
        (_, true) => Some("download"),
        _ => None,
    }
}

fn version_href(version: &FileVersion, place: &impl Fn(Option<&Dump>) -> Option<Vec<u8>>) -> Option<String> {
    let path = place(version.first.as_ref())?;
    let names: Vec<String> = path.split(|byte| *byte == b'/').map(encode).collect();
    let slash = if version.is.is_some_and(|seen| seen.is_dir()) && !path.is_empty() { "/" } else { "" };
    Some(format!("/{}{slash}", names.join("/")))
}

/// The same as JSON: `{"path", "complete", "before", "versions": [{"first", "last", "type", "size", "modified",
/// "href"}]}`. A null dump is the present state.
pub(super) fn versions_json(
    path: &[u8],
    found: &FileVersions,
    place: impl Fn(Option<&Dump>) -> Option<Vec<u8>>,
) -> Vec<u8> {
    let name = |dump: &Option<Dump>| dump.map(|dump| dump.to_string());
    let versions = found.all.iter().map(|version| {
        let FileVersion { first, last, is } = version;
        let Some(seen) = is else {
            return serde_json::json!({ "first": name(first), "last": name(last), "type": "removed" });
        };
        let kind = match (seen.is_dir(), seen.is_file()) {
            (true, _) => "directory",
            (_, true) => "file",
            _ => "other",
        };
        serde_json::json!({
            "first": name(first),
            "last": name(last),
            "type": kind,
            "size": seen.size,
            "modified": seen.changed.sec,
            "href": version_href(version, &place),
        })
    });
    let versions: Vec<_> = versions.collect();
    let path = format!("/{}", String::from_utf8_lossy(path));
    let (complete, before) = (found.before.is_none(), name(&found.before));
    let all =
        serde_json::json!({ "path": path, "complete": complete, "before": before, "versions": versions });
    let mut text = all.to_string().into_bytes();
    text.push(b'\n');
    text
}

fn entry(page: &mut String, item: &Item, versions: bool) {
    let (slash, bytes) = match item.is_dir {
        true => ("/", "<td class=\"n\">".into()),
        false => ("", format!("<td class=\"n\" title=\"{} bytes\">{}", item.size, size(item.size))),
    };
    let _ = writeln!(
        page,
        "<tr><th scope=\"row\"><a href=\"{0}\">{1}{slash}</a>{4}</th>{bytes}</td><td>{2}</td>{3}</tr>",
        href(item),
        escape(&String::from_utf8_lossy(&item.name)),
        day(item.changed),
        match versions {
            true => format!("<td><a href=\"{}?versions\">versions</a></td>", href(item)),
            false => String::new(),
        },
        if item.is_away { " (its server is away)" } else { "" },
    );
}

/// Writes a page with one message.
pub fn note(number: u16, title: &str, text: &str) -> Vec<u8> {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{number} {0}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>{NOTE}</style></head>\n\
         <body><main><h1>{number} {0}</h1><p>{1}</p></main></body></html>\n",
        escape(title),
        escape(text)
    )
    .into_bytes()
}

/// The URL of an entry, relative to its directory.
fn href(item: &Item) -> String {
    // Without "./" a name with ':' would start with a scheme.
    format!("./{}{}", encode(&item.name), if item.is_dir { "/" } else { "" })
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".into() } else { format!("/{}/", String::from_utf8_lossy(path)) }
}

/// Writes the path to a file, each part a link. `is_dir`: the last part is a directory.
fn crumbs(page: &mut String, path: &[u8], is_dir: bool) {
    page.push_str("<a href=\"/\">/</a>");
    let mut href = String::from("/");
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let slash = if is_dir || names.peek().is_some() { "/" } else { "" };
        href.push_str(&encode(name));
        href.push_str(slash);
        let _ = write!(page, "<a href=\"{href}\">{}{slash}</a>", escape(&String::from_utf8_lossy(name)));
    }
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters could change the layout, so they are replaced.
            c if c.is_control() => safe.push('\u{FFFD}'),
            c => safe.push(c),
        }
    }
    safe
}

fn size(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 || unit == "TiB" {
            return if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    unreachable!("the last unit takes all")
}

/// `2026-11-22 10:05`, UTC; empty if the year does not have four digits.
fn day(seconds: Option<i64>) -> String {
    let Some(time) = seconds.and_then(CivilTime::of) else { return String::new() };
    let CivilTime { year, month, day, hour, minute, second, .. } = time;
    let date = format!("{year:04}-{month:02}-{day:02}");
    format!(
        "<time datetime=\"{date}T{hour:02}:{minute:02}:{second:02}Z\">{date} \
         <span>{hour:02}:{minute:02}</span></time>"
    )
}

const STYLE: &str = include_str!("page/style.css");
/// The style of message pages, which are sent often and so are small.
const NOTE: &str = ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;margin:2rem auto;\
    max-width:40rem;padding:0 1rem}h1{font-size:1.25rem}";
const SCRIPT: &str = include_str!("page/live.js");
/// The server's state, filled in by the script.
const LIVE: &str = "\
<footer id=\"live\" hidden><h2>This server</h2><p id=\"said\" role=\"status\"></p>
<dl><div><dt>Sends</dt><dd id=\"rate\">–</dd></div><div><dt>Answers</dt><dd id=\"answers\">–</dd></div>
<div><dt>Conversations</dt><dd id=\"open\">–</dd></div></dl>
<table id=\"servers\" hidden><caption>Servers behind it</caption><thead><tr><th scope=\"col\">Server</th>
<th scope=\"col\" class=\"n\">Round trip</th><th scope=\"col\" class=\"n\">In flight</th></tr></thead>
<tbody></tbody></table></footer>
";

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &[u8], is_dir: bool, size: u64) -> Item {
        Item { name: name.into(), is_dir, size, changed: Some(784_111_777), is_away: false }
    }

    fn whole(items: &[Item]) -> DirListing {
        DirListing { items: items.to_vec(), total: items.len() as u64, ..DirListing::default() }
    }

    #[test]
    fn names_are_text_and_never_markup() {
        let evil = b"<script>alert('x')</script>\"&\n%";
        let attribute = b"\" onmouseover=\"alert(1)";
        let items = [item(evil, false, 3), item(attribute, true, 0)];
        let page = String::from_utf8(html(evil, &whole(&items), &Beside::default(), "n0")).unwrap();
        assert!(
            !page.contains("<script>") && !page.contains("alert('x')") && !page.contains("\" onmouseover")
        );
        assert_eq!(page.matches("<script").count(), page.matches("<script nonce=\"n0\">").count());
        assert!(page.contains("./%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E%22%26%0A%25"));
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;\u{FFFD}%"));
    }

    #[test]
    fn an_entry_whose_server_is_away_is_marked() {
        let items = [Item { is_away: true, ..item(b"far", true, 0) }, item(b"near", true, 0)];
        let page = String::from_utf8(html(b"", &whole(&items), &Beside::default(), "n0")).unwrap();
        assert!(
            page.contains("far/</a> (its server is away)</th>") && page.contains("near/</a></th>"),
            "{page}"
        );
        let text: serde_json::Value = serde_json::from_slice(&json(b"", &whole(&items))).unwrap();
        assert_eq!((&text["entries"][0]["away"], &text["entries"][1]["away"]), (&true.into(), &().into()));
    }

    #[test]
    fn a_time_is_shown_as_it_is_or_not_at_all() {
        for (seconds, shown) in [
            (
                Some(-1),
                "<td><time datetime=\"1969-12-31T23:59:59Z\">1969-12-31 <span>23:59</span></time></td>",
            ),
            (
                Some(0),
                "<td><time datetime=\"1970-01-01T00:00:00Z\">1970-01-01 <span>00:00</span></time></td>",
            ),
            (Some(253_402_300_800), "<td></td></tr>"),
            (Some(i64::MIN), "<td></td></tr>"),
            (None, "<td></td></tr>"),
        ] {
            let items = [Item { changed: seconds, ..item(b"f", false, 1) }];
            let page = String::from_utf8(html(b"", &whole(&items), &Beside::default(), "")).unwrap();
            assert!(page.contains(shown), "{seconds:?}: {page}");
            let all: serde_json::Value = serde_json::from_slice(&json(b"", &whole(&items))).unwrap();
            assert_eq!(all["entries"][0]["modified"].as_i64(), seconds);
        }
    }

    #[test]
    fn a_page_says_which_part_it_is_and_where_the_next_is() {
        let items = vec![item(b"z", true, 0), item(b"a:b", false, 5), item(b"b", false, 1536)];
        let next = Some("/x/y%20z/?day=1121&after=b".into());
        let listing = DirListing { items, total: 12, before: 6, next };
        let page = String::from_utf8(html(b"x/y z", &listing, &Beside::default(), "n0")).unwrap();
        for part in [
            "href=\"./z/\">z/<",
            "href=\"./a%3Ab\">a:b<",
            "1.5 KiB",
            "1994-11-06 <span>08:49<",
            "href=\"../\"",
            "<a href=\"/x/y%20z/\">y z/</a>",
            "Entries 7 to 9 of 12",
            "<a rel=\"first\" href=\"./\">",
            "<a rel=\"next\" href=\"/x/y%20z/?day=1121&amp;after=b\">",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn programs_get_the_same_as_json() {
        let mut listing = whole(&[item(b"d", true, 0), item(b"\xff\"", false, 7)]);
        let text = json(b"a", &listing);
        let all: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&all["path"], &all["complete"]), (&"/a/".into(), &true.into()));
        assert_eq!((&all["total"], &all["next"]), (&2.into(), &serde_json::Value::Null));
        assert_eq!(all["entries"][0]["type"], "directory");
        assert_eq!(all["entries"][1]["href"], "./%FF%22");
        assert_eq!(
            (&all["entries"][1]["size"], &all["entries"][1]["modified"]),
            (&7.into(), &784_111_777.into())
        );
        (listing.total, listing.next) = (5, Some("/a/?after=d/".into()));
        let all: serde_json::Value = serde_json::from_slice(&json(b"a", &listing)).unwrap();
        assert_eq!((&all["complete"], &all["next"]), (&false.into(), &"/a/?after=d/".into()));
    }
}
