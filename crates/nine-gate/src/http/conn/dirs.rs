//! Answers for directories: listings in pages, and the versions of a path in an archive.
//!
//! In: a request and a directory. Out: one page, as HTML or JSON.
//!
//! Always holds: an answer takes memory for one page, however large the directory is. Directories are read in slices of
//! [`LISTING_SLICE`], [`super::super::LISTING`] at once, client by client, so neither a large directory nor many of
//! them hold up the core. Other threads write the pages.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use nine_io::client::{Error, File};
use nine_proto::{Attr, Errno, GetMask, OpenFlags};

use super::{GATHER, HTML, HttpConnection, HttpEnd, LateUpstream, SAFE, asked, late};
use crate::http::SiteState;
use crate::http::calendar::{self, Dump, year_of};
use crate::http::files::{FileLookup, OpenFiles};
use crate::http::head::Head;
use crate::http::list::{self, Beside, DirListing, Item, JSON_ENTRIES, PAGE_ENTRIES};
use crate::http::order::OrderCard;
use crate::http::past::{self, ArchivePath, DumpDirectory};
use crate::http::path;
use crate::http::pick::{EntryKey, EntryPicker, PickedPage};
use crate::http::status::Status;
use crate::http::turns::{ClientName, TurnPermit};

/// How long a listing runs, or waits for another server, before another client gets its permit.
const LISTING_SLICE: Duration = Duration::from_millis(50);
/// How often all other work of this core runs after a step.
const YIELDS: usize = 4;
/// Bytes of one directory read.
const LISTING_READ_LEN: u32 = 32 << 10;
/// Names whose attributes are requested in one step. Few if the answers cost this core time, so that other input is
/// read in between. Many if they come from far away.
const STATS: std::ops::RangeInclusive<usize> = 16..=256;
/// Maximum number of dumps of a year that its calendar shows.
const DUMPS: usize = 100_000;

/// The error if too many pages are generated at once.
fn no_room() -> Error {
    Error::Remote(Errno::EAGAIN.into())
}

/// A permit to go on with a listing, which is returned when its time is over.
struct TimeSlice<'s> {
    site: &'s SiteState,
    card: &'s OrderCard,
    client: ClientName,
    turn: Option<TurnPermit>,
    until: Duration,
    number: usize,
}

impl<'s> TimeSlice<'s> {
    fn new(site: &'s SiteState, card: &'s OrderCard, number: usize, client: ClientName) -> Self {
        Self { site, card, client, turn: None, until: Duration::ZERO, number }
    }

    /// Runs a step when the client has a permit. The step may take as long as an upstream may. The wait for the permit
    /// has no limit.
    async fn step<F: Future>(&mut self, step: F) -> F::Output {
        if self.turn.is_none() {
            self.card.due(Duration::MAX);
            self.turn = Some(self.site.listing.turn(&self.client).await);
            self.until = self.site.clock.now() + LISTING_SLICE;
        }
        self.card.due(self.site.now() + self.site.options.stall);
        let mut step = pin!(step);
        let mut over = self.site.clock.sleep_until(self.until);
        let done = poll_fn(|cx| {
            if let Poll::Ready(done) = step.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if self.turn.is_some() && over.as_mut().poll(cx).is_ready() {
                // It waits for another server, or a disk.
                self.turn = None;
            }
            Poll::Pending
        })
        .await;
        if self.site.clock.now() >= self.until {
            self.turn = None;
        }
        for _ in 0..YIELDS {
            self.site.threads.yield_core(self.number).await;
        }
        done
    }
}

/// The requested part of a directory.
struct ListingRequest<'q> {
    after: Option<EntryKey>,
    most: usize,
    /// Only the dumps of this day.
    day: Option<&'q [u8]>,
    /// The kind of dumps in the directory.
    days: Option<DumpDirectory>,
}

/// The result of scanning a directory.
struct ListingScan {
    page: PickedPage<Option<ItemAttr>>,
    /// The entries of the page.
    items: Vec<Item>,
    /// In a year's directory: all its dumps.
    dumps: Vec<Dump>,
    /// In the directory of years: the last year.
    newest: Option<u16>,
}

impl HttpConnection {
    pub(super) async fn directory(
        &mut self,
        head: &Head,
        input: &[u8],
        names: &[u8],
        dir: File,
    ) -> Result<(), HttpEnd> {
        let site = self.site.clone();
        for index in &site.options.index {
            let path = path::below(names, index.as_bytes());
            if let Ok(FileLookup::File(entry)) = self.find(head, &path).await? {
                return self.file(head, input, entry).await;
            }
        }
        if !self.site.options.listing {
            return self.fails(head, &Error::Remote(Errno::EACCES.into()));
        }
        let query = &input[head.query.clone()];
        let after = match asked(query, "after").map(EntryKey::parse).transpose() {
            Ok(after) => after,
            Err(_) => {
                self.say(head, Status::BAD_REQUEST, "after: not the name of an entry", &[]);
                return Ok(());
            }
        };
        let (most, pairs) = (if head.json { JSON_ENTRIES } else { PAGE_ENTRIES }, site.archives());
        let days = past::days(&pairs, names);
        let day = asked(query, "day").filter(|_| matches!(days, Some(DumpDirectory::Year(_))));
        let Some(_page) = self.page_turn().await? else { return self.fails(head, &no_room()) };
        let client = self.client().await?;
        let card = self.card.clone();
        let slice = TimeSlice::new(&site, &card, self.number, client.clone());
        let wanted = ListingRequest { after, most, day, days };
        let scanned = self.wait_in_turn(Box::pin(scan(slice, names, &dir, &wanted))).await?;
        let scanned = match scanned {
            Ok(Ok(scanned)) => scanned,
            Ok(Err(error)) => return self.fails(head, &error),
            Err(LateUpstream) => return self.fails(head, &late()),
        };
        let page = scanned.page;
        let next = page.last.as_ref().map(|last| {
            let names: Vec<String> = names.split(|byte| *byte == b'/').map(path::encode).collect();
            let slash = if names.concat().is_empty() { "" } else { "/" };
            // `day` was compared with names of dumps, so it has only digits if there is an entry at all.
            let day = day.map_or(String::new(), |day| format!("day={}&", String::from_utf8_lossy(day)));
            format!("/{}{slash}?{day}after={}", names.join("/"), last.text())
        });
        let (total, before) = (page.total, page.before);
        let listing = DirListing { items: scanned.items, total, before, next };
        let next = listing.next.clone();
        let path = names.to_vec();
        if head.json {
            let page = self.work(move || list::json(&path, &listing)).await?;
            return self.listed(head, page, None, next).await;
        }
        let calendar = match days {
            Some(days) => {
                let Some(files) = self.files.clone() else { return self.fails(head, &late()) };
                let slice = TimeSlice::new(&site, &card, self.number, client);
                let calendar = calendar_of(slice, &files, days, names, scanned.dumps, scanned.newest);
                match self.wait_in_turn(Box::pin(calendar)).await? {
                    Ok(Ok(calendar)) => calendar,
                    Ok(Err(error)) => return self.fails(head, &error),
                    Err(LateUpstream) => return self.fails(head, &late()),
                }
            }
            None => String::new(),
        };
        let versions = past::of(&pairs, names).is_some();
        let nonce = site.word();
        let (beside, of_page) = (Beside { versions, calendar }, nonce.clone());
        let page = self.work(move || list::html(&path, &listing, &beside, &of_page)).await?;
        self.listed(head, page, Some(&nonce), next).await
    }

    /// Waits for a permit to generate and send a page. `None`: there was none in time.
    async fn page_turn(&mut self) -> Result<Option<TurnPermit>, HttpEnd> {
        let (site, client) = (self.site.clone(), self.client().await?);
        Ok(self.wait(pin!(site.pages.turn(&client))).await?.ok())
    }

    /// Answers with the versions of a file, existing or removed.
    pub(super) async fn versions(
        &mut self,
        head: &Head,
        input: &[u8],
        names: &[u8],
        mut past: ArchivePath,
    ) -> Result<(), HttpEnd> {
        let site = self.site.clone();
        past.now.take_if(|now| site.is_hidden(now));
        let Some(files) = self.files.clone() else {
            return self.fails(head, &Error::Remote(Errno::EACCES.into()));
        };
        let Some(_page) = self.page_turn().await? else { return self.fails(head, &no_room()) };
        let before = asked(&input[head.query.clone()], "before").map(|text| {
            let text = String::from_utf8_lossy(text).replace("%2F", "/").replace("%2f", "/");
            Dump::named(&text)
        });
        if before == Some(None) {
            self.say(head, Status::BAD_REQUEST, "before: not the name of a dump, like 2026/1121", &[]);
            return Ok(());
        }
        let client = self.client().await?;
        let card = self.card.clone();
        let mut slice = TimeSlice::new(&site, &card, self.number, client);
        let found =
            self.wait_in_turn(Box::pin(slice.step(past.versions(files.root(), before.flatten())))).await?;
        drop(slice);
        let found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return self.fails(head, &error),
            Err(LateUpstream) => return self.fails(head, &late()),
        };
        let is_any = found.all.iter().any(|version| version.is.is_some());
        if !is_any && before.is_none() && found.before.is_none() {
            return self.fails(head, &Error::Remote(Errno::ENOENT.into()));
        }
        let (path, nonce) = (names.to_vec(), site.word());
        let of_page = (!head.json).then(|| nonce.clone());
        let made = self.work(move || {
            let place = |dump: Option<&Dump>| match dump {
                Some(dump) => Some(past.in_dump(dump)),
                None => past.now.clone(),
            };
            match of_page {
                None => list::versions_json(&path, &found, place),
                Some(nonce) => list::versions(&path, &found, place, &nonce),
            }
        });
        let page = made.await?;
        self.listed(head, page, (!head.json).then_some(&*nonce), None).await
    }

    /// Sends a page: HTML whose policy allows only scripts and styles with the nonce, or JSON without one. A `Link`
    /// leads to the next page.
    async fn listed(
        &mut self,
        head: &Head,
        page: Vec<u8>,
        nonce: Option<&str>,
        next: Option<String>,
    ) -> Result<(), HttpEnd> {
        let next = next.map(|next| format!("<{next}>; rel=\"next\""));
        let link = next.iter().map(|next| ("Link", next.as_bytes()));
        let lines = [("Vary", &b"Accept"[..])].into_iter().chain(link);
        match nonce {
            None => {
                let lines: Vec<_> = lines.collect();
                self.page(head.is_whole(), Status::OK, "application/json", page, &lines);
            }
            Some(nonce) => {
                let safe = format!(
                    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; \
                     base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
                );
                let lines: Vec<_> = lines.chain([(SAFE.0, safe.as_bytes())]).collect();
                self.page(head.is_whole(), Status::OK, HTML, page, &lines);
            }
        }
        // A large page is sent while its permit is held, which bounds the memory of all pages.
        if self.waits() > GATHER { self.flush().await } else { Ok(()) }
    }
}

/// Reads a directory: all its names, and the attributes of the requested ones.
async fn scan(
    mut slice: TimeSlice<'_>,
    names: &[u8],
    dir: &File,
    wanted: &ListingRequest<'_>,
) -> Result<ListingScan, Error> {
    let site = slice.site;
    let open = slice.step(dir.open("", OpenFlags::READ)).await?;
    let mut picker = EntryPicker::new(wanted.after.clone(), wanted.most);
    let (mut cookie, mut dumps, mut newest) = (0, Vec::new(), None);
    while let Some((entries, next)) = slice.step(open.read_dir_block(cookie, LISTING_READ_LEN)).await? {
        cookie = next;
        for entry in entries {
            let is_hidden = site.is_hidden(&path::below(names, &entry.name));
            if matches!(&*entry.name, b"." | b"..") || is_hidden || entry.qid.is_event() {
                continue;
            }
            if wanted.day.is_some_and(|day| day.len() != 4 || !entry.name.starts_with(day)) {
                continue;
            }
            match wanted.days {
                Some(DumpDirectory::Year(year)) if dumps.len() < DUMPS => {
                    dumps.extend(Dump::parse(format!("{year:04}").as_bytes(), &entry.name));
                }
                Some(DumpDirectory::All) => newest = newest.max(year_of(&entry.name)),
                _ => {}
            }
            let is_dir = entry.is_dir();
            let known = entry.attr.as_ref().map(ItemAttr::of);
            picker.put(EntryKey::new(entry.name, is_dir), known);
        }
    }
    let page = picker.end();
    let mut items = Vec::with_capacity(page.entries.len());
    let (mut rest, mut most) = (&page.entries[..], *STATS.start());
    while !rest.is_empty() {
        let (entries, behind) = rest.split_at(most.min(rest.len()));
        rest = behind;
        let begun = site.clock.now();
        slice.step(items_of(dir, entries, &mut items)).await?;
        let is_far = site.clock.now() - begun > LISTING_SLICE;
        most = if is_far { (most * 4).min(*STATS.end()) } else { *STATS.start() };
    }
    Ok(ListingScan { page, items, dumps, newest })
}

/// The attributes of an entry that a listing shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ItemAttr {
    size: u64,
    /// Seconds since 1970.
    changed: i64,
    /// No links: a mount point whose server is away (docs/namespace.md).
    is_away: bool,
}

impl ItemAttr {
    fn of(attr: &Attr) -> Self {
        let is_away = attr.valid.has(GetMask::NLINK) && attr.nlink == 0;
        Self { size: attr.size, changed: attr.mtime.sec, is_away }
    }
}

/// Adds the entries to `items`. Requests the attributes that the directory did not report; skips removed entries.
async fn items_of(
    dir: &File,
    entries: &[(EntryKey, Option<ItemAttr>)],
    items: &mut Vec<Item>,
) -> Result<(), Error> {
    let unknown = entries.iter().filter(|(_, known)| known.is_none()).map(|(key, _)| key.name.clone());
    let mut stats = dir.stat_all(unknown.collect::<Vec<_>>(), GetMask::BASIC);
    for (key, known) in entries {
        let mut known = *known;
        if known.is_none() {
            known = match stats.next().await {
                Some(Ok(attr)) => Some(ItemAttr::of(&attr)),
                Some(Err(error)) if error.errno() == Errno::ENOENT => continue,
                Some(Err(error)) if error.is_disconnect() => return Err(error),
                _ => None,
            };
        }
        items.push(Item {
            name: key.name.clone(),
            is_dir: key.is_dir(),
            size: known.map_or(0, |attr| attr.size),
            changed: known.map(|attr| attr.changed),
            is_away: key.is_dir() && known.is_some_and(|attr| attr.is_away),
        });
    }
    Ok(())
}

/// The calendar of a directory of dumps: of its year, or of the newest year in it.
async fn calendar_of(
    mut slice: TimeSlice<'_>,
    files: &OpenFiles,
    days: DumpDirectory,
    names: &[u8],
    dumps: Vec<Dump>,
    newest: Option<u16>,
) -> Result<String, Error> {
    let year = match (days, newest) {
        (DumpDirectory::Year(year), _) => return Ok(calendar::html(year, &dumps, "./")),
        (DumpDirectory::All, Some(year)) => year,
        (DumpDirectory::All, None) => return Ok(String::new()),
    };
    let name = format!("{year:04}");
    let path = path::below(names, name.as_bytes());
    let dir = slice.step(files.root().walk(&path)).await?;
    // Only names are needed.
    let wanted = ListingRequest { after: None, most: 1, day: None, days: Some(DumpDirectory::Year(year)) };
    let scanned = scan(slice, &path, &dir, &wanted).await?;
    Ok(calendar::html(year, &scanned.dumps, &format!("./{name}/")))
}
