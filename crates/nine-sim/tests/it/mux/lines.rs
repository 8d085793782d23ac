//! The lines of `/mux/mounts` recreate the same name space, after any sequence of operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nine_io::client::{File, Options};
use nine_io::server::{Core, Gate, Service};
use nine_mux::script::{self, Alone};
use nine_mux::{As, Kinds, Live, Local, MAIN, Owner, Server};
use nine_proto::{Dialect, OpenFlags};
use nine_servers::Ram;
use nine_sim::{Links, Rng, Shape, World, seeds};

use crate::mux::world::{Far, Muxed, fill, owner};

const WORDS: [&str; 3] = ["one", "two", "three"];
/// Mount points of the root.
const POINTS: [&str; 4] = ["/m", "/n", "/o", "/q"];
const STEPS: usize = 14;
/// Depth to which trees are compared. Binds may create loops.
const DEPTH: usize = 4;

#[test]
fn the_lines_of_mounts_make_the_same_name_space_again() {
    let (mut lines, mut comments) = (0, 0);
    for seed in seeds(40) {
        let world = World::new(seed);
        let rng = world.rng();
        let (first, second) = (Muxed::new(&world), Muxed::new(&world));
        let (made, said) = world.run(again(seed, first, second, rng));
        (lines, comments) = (lines + made, comments + said);
    }
    // Comments stand for calls that no line can express. They are rare.
    assert!(lines > 40 && comments * 10 < lines, "{lines} lines, {comments} comments");
}

struct Words {
    links: Arc<Links>,
    far: Vec<Service>,
    rams: AtomicUsize,
}

impl Kinds for Words {
    fn server(&self, word: &str) -> Result<(Server, String), String> {
        match WORDS.iter().position(|known| *known == word) {
            Some(n) => {
                let (service, links) = (self.far[n].clone(), self.links.clone());
                let dial = Arc::new(Far { service, links, shape: Shape::default() });
                let options = Options { msize: 64 * 1024, ..Options::default() };
                Ok((Server { options, ..Server::new(word, dial) }, word.into()))
            }
            None => Ok((self.backbone(word), word.into())),
        }
    }

    fn user(&self) -> As {
        owner()
    }

    fn backbone(&self, _: &str) -> Server {
        let n = self.rams.fetch_add(1, Ordering::Relaxed);
        Local::server(&format!("ram:{n}"), Arc::new(Ram::new(16 << 20)), Core::default())
    }
}

async fn live(m: &Muxed, far: &[Service]) -> (Live, File) {
    let words = Words { links: m.links.clone(), far: far.to_vec(), rams: AtomicUsize::new(0) };
    let live = Live::new(m.mux.clone(), Owner::default(), words, Core::default());
    let (_, root) = m.client(Dialect::L).await;
    for point in ["m", "n", "o", "q"] {
        root.mkdir(point, 0o755, nine_proto::NOGID).await.unwrap();
    }
    root.create("file", OpenFlags::READ, 0o644, nine_proto::NOGID).await.unwrap();
    (live, root)
}

async fn again(seed: u64, first: Muxed, second: Muxed, mut rng: Rng) -> (usize, usize) {
    let mut far = Vec::new();
    for word in WORDS {
        let service = Service::new(Arc::new(Ram::new(16 << 20)), Gate::default(), Core::default());
        let text = |name: &str| format!("{word} {name}");
        let files =
            [("a/b/f", text("a/b/f")), ("a/f", text("a/f")), ("c/a/f", text("c/a/f")), ("d/", text(""))];
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, &**text)).collect();
        fill(&service.server, &files).await;
        far.push(service);
    }
    let (made, root) = live(&first, &far).await;
    let mut done = Vec::new();
    for step in 0..STEPS {
        if rng.one_in(5) {
            rename(&root, &mut rng, step).await;
            continue;
        }
        let line = line(&root, &mut rng, &done).await;
        let script = script::parse("line", &line, &mut Alone);
        assert!(script.wrong.is_empty(), "{line}: {:?}", script.wrong);
        if made.apply(MAIN, &script.lines[0].statement).await.is_ok() {
            done.push(line);
        }
    }
    let text = made.mounts(None);
    let (remade, _) = live(&second, &far).await;
    let script = script::parse("mounts", &text, &mut Alone);
    for line in &script.lines {
        let applied = remade.apply(MAIN, &line.statement).await;
        assert!(applied.is_ok(), "NINE_SEED={seed}: {}: {applied:?}\nafter {done:#?}\nof\n{text}", line.text);
    }
    let comments = text.lines().filter(|line| line.starts_with('#')).count();
    if comments == 0 {
        let (_, root) = first.client(Dialect::L).await;
        let (mut was, mut is) = (Vec::new(), Vec::new());
        tree(&root, "", DEPTH, &mut was).await;
        let (_, root) = second.client(Dialect::L).await;
        tree(&root, "", DEPTH, &mut is).await;
        assert!(was == is, "NINE_SEED={seed}: after {done:#?}\nmounts has\n{text}\nwas {was:#?}\nis {is:#?}");
    }
    first.clear().await;
    second.clear().await;
    (script.lines.len(), comments)
}

/// Returns a random statement.
async fn line(root: &File, rng: &mut Rng, done: &[String]) -> String {
    let order = ["", "-a ", "-b ", "-bc ", "-ac "][rng.below(5)];
    let old = match rng.below(3) {
        0 => path(root, rng, true).await,
        _ => POINTS[rng.below(4)].into(),
    };
    match rng.below(8) {
        0..=2 => format!("mount {order}{} {old}", WORDS[rng.below(3)]),
        3 | 4 => format!("bind {order}{} {old}", path(root, rng, true).await),
        5 => format!(
            "bind {} {}",
            path(root, rng, false).await,
            if rng.one_in(2) { "/file".into() } else { path(root, rng, false).await }
        ),
        // Undo an earlier line by its own arguments, or unmount everything from a path.
        6 if !done.is_empty() => {
            let words: Vec<&str> = done[rng.below(done.len())].split(' ').collect();
            format!("unmount {} {}", words[words.len() - 2], words[words.len() - 1])
        }
        _ => format!("unmount {old}"),
    }
}

/// Returns a path that exists in most cases.
async fn path(root: &File, rng: &mut Rng, dir: bool) -> String {
    let mut path = String::new();
    for _ in 0..4 {
        let names = names(root, &path).await;
        let fits: Vec<_> = names.iter().filter(|(_, is_dir)| dir || !is_dir || rng.one_in(2)).collect();
        let fits: Vec<_> = fits.into_iter().filter(|(_, is_dir)| *is_dir || !dir).collect();
        if fits.is_empty() {
            break;
        }
        let (name, is_dir) = fits[rng.below(fits.len())];
        path = format!("{path}/{name}");
        if !is_dir || dir && rng.one_in(3) {
            break;
        }
    }
    if path.is_empty() { "/m".into() } else { path }
}

async fn rename(root: &File, rng: &mut Rng, step: usize) {
    let from = path(root, rng, !step.is_multiple_of(3)).await;
    let Some((dir, name)) = from.rsplit_once('/') else { return };
    if let Ok(dir) = root.walk(dir).await {
        // The root's own files are mount points that the test created, not files of a mounted server.
        let keeps = ["m", "n", "o", "q", "file"].contains(&name);
        if !keeps {
            let _ = dir.rename(name, &dir, format!("r{step}")).await;
        }
    }
}

async fn names(root: &File, path: &str) -> Vec<(String, bool)> {
    let mut names = Vec::new();
    let Ok(dir) = root.walk(path).await else { return names };
    let Ok(mut entries) = dir.read_dir().await else { return names };
    while let Some(Ok(entry)) = entries.next().await {
        names.push((String::from_utf8_lossy(&entry.name).into(), entry.is_dir()));
    }
    names.sort();
    names
}

/// Returns every path down to a depth, with the content of files.
async fn tree(root: &File, path: &str, depth: usize, all: &mut Vec<(String, String)>) {
    for (name, is_dir) in names(root, path).await {
        let path = format!("{path}/{name}");
        if is_dir {
            all.push((path.clone(), "/".into()));
            if depth > 0 && all.len() < 3_000 {
                Box::pin(tree(root, &path, depth - 1, all)).await;
            }
        } else {
            let text = async { root.open(&path, OpenFlags::READ).await?.read(0, 100).await };
            let text = text
                .await
                .map_or_else(|error| error.to_string(), |text| String::from_utf8_lossy(&text).into());
            all.push((path, text));
        }
    }
}
