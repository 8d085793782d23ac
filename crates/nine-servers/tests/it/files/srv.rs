//! Posts, as clients see them.

use std::sync::Arc;

use nine_io::client::File;
use nine_io::server::FileServer;
use nine_net::rt::Real;
use nine_net::{Clock, Env};
use nine_proto::{Dialect, Errno, GetMask, NOGID, OpenFlags, SetAttr, mode};
use nine_servers::srv::{POSTS_MAX, Posts, TEXT_MAX};

use crate::files::cons::refused;
use crate::files::world::{ALL, connect, content, errno, list};

const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;

/// Posts with an owner that attaches as `owner`. A text that starts with `tcp!` is an address; the part before an `@`
/// is secret.
struct SrvFixture {
    env: Real,
    posts: Arc<Posts>,
}

fn world(main: impl AsyncFn(&SrvFixture, Dialect)) {
    for dialect in ALL {
        nine_net::rt::block_on(async |env| {
            let clock: Arc<dyn Clock> = env.clock();
            let judge = |text: &str| match text.strip_prefix("tcp!") {
                Some(rest) => Ok(format!("tcp!{}", rest.rsplit('@').next().unwrap_or(rest))),
                None => Err(format!("`{text}` is no address")),
            };
            let posts = Posts::new(clock, |_, aname| aname == b"owner", judge);
            main(&SrvFixture { env, posts: Arc::new(posts) }, dialect).await;
        })
        .expect("a runtime");
    }
}

impl SrvFixture {
    async fn root(&self, dialect: Dialect, aname: &str) -> File {
        let server: Arc<dyn FileServer> = self.posts.clone();
        connect(&self.env, server, dialect).await.attach("", 7, aname).await.expect("attached")
    }
}

async fn made(root: &File, name: &str) -> File {
    root.create(name, OpenFlags::RDWR | OpenFlags::EXCL, 0o644, NOGID).await.unwrap()
}

async fn post(root: &File, name: &str, text: &[u8]) {
    let file = made(root, name).await;
    file.write(0, text).await.unwrap();
    file.close().await.unwrap();
}

async fn get(root: &File, name: &str) -> Vec<u8> {
    content(&root.open(name, READ).await.unwrap()).await
}

#[test]
fn an_address_is_posted_read_and_withdrawn() {
    world(async |world, dialect| {
        let root = world.root(dialect, "owner").await;
        post(&root, "lab", b"tcp!secret@fs.lab!564\n").await;
        post(&root, "it's odd", b"tcp!x").await;
        assert_eq!(list(&root).await, ["it's odd", "lab"]);
        assert_eq!(get(&root, "lab").await, b"tcp!fs.lab!564\n");
        let attr = root.walk("lab").await.unwrap().getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.size, attr.mode), (15, mode::S_IFREG | 0o644));
        assert_eq!(world.posts.get("lab").unwrap(), "tcp!secret@fs.lab!564");
        assert_eq!(
            (world.posts.get("none"), world.posts.posted()),
            (None, vec!["lab".into(), "it's odd".into()])
        );
        // An open fid does not refer to the next post of this name.
        let old = root.open("lab", READ).await.unwrap();
        root.unlink("lab", false).await.unwrap();
        assert_eq!(errno(root.walk("lab").await), Errno::ENOENT);
        post(&root, "lab", b"tcp!other").await;
        assert_eq!(errno(old.read(0, 100).await), Errno::ENOENT);
        assert_eq!(get(&root, "lab").await, b"tcp!other\n");
        root.walk("lab").await.unwrap().remove().await.unwrap();
        assert_eq!(world.posts.posted(), ["it's odd"]);
    });
}

#[test]
fn a_post_is_written_once() {
    world(async |world, dialect| {
        let root = world.root(dialect, "owner").await;
        let file = made(&root, "lab").await;
        // After an invalid address, a valid one may be written.
        refused(dialect, file.write(0, b"nonsense").await, Errno::EINVAL, "`nonsense` is no address");
        refused(dialect, file.write(0, b"\xff\xff").await, Errno::EINVAL, "no text");
        refused(dialect, file.write(0, &[b'x'; TEXT_MAX + 1]).await, Errno::EINVAL, "at most 4096 bytes");
        assert_eq!((world.posts.get("lab"), world.posts.posted().len()), (None, 0));
        refused(dialect, root.open("lab", WRITE).await, Errno::EPERM, "written once");
        assert_eq!(file.write(0, b"tcp!a").await.unwrap(), 5);
        refused(dialect, file.write(5, b"tcp!b").await, Errno::EPERM, "written once");
        file.close().await.unwrap();
        for flags in [WRITE, OpenFlags::RDWR, WRITE | OpenFlags::TRUNC] {
            refused(dialect, root.open("lab", flags).await, Errno::EPERM, "written once");
        }
        let again = root.create("lab", OpenFlags::RDWR | OpenFlags::EXCL, 0o644, NOGID).await;
        assert_eq!(errno(again), Errno::EEXIST);
        let lab = root.walk("lab").await.unwrap();
        assert!(lab.setattr(&SetAttr { size: Some(0), ..SetAttr::default() }).await.is_err());
        assert!(lab.setattr(&SetAttr { name: Some(b"other"), ..SetAttr::default() }).await.is_err());
        refused(dialect, root.mkdir("dir", 0o755, NOGID).await, Errno::EPERM, "only files");
        assert_eq!(get(&root, "lab").await, b"tcp!a\n");
    });
}

#[test]
fn what_was_never_written_is_no_post() {
    world(async |world, dialect| {
        let root = world.root(dialect, "owner").await;
        let file = made(&root, "empty").await;
        assert_eq!((&*file.read(0, 100).await.unwrap(), list(&root).await), (&b""[..], vec!["empty".into()]));
        file.close().await.unwrap();
        assert!(list(&root).await.is_empty());
        // A file created to be removed on close is posted while its creator has it open; .L has no such flag.
        if !dialect.is_l() {
            let flags = OpenFlags::RDWR | OpenFlags::EXCL | OpenFlags::RCLOSE;
            let file = root.create("here", flags, 0o644, NOGID).await.unwrap();
            file.write(0, b"tcp!a").await.unwrap();
            assert_eq!(get(&root, "here").await, b"tcp!a\n");
            file.close().await.unwrap();
            assert!(list(&root).await.is_empty());
        }
        // No post is left after its creator's connection is lost, nor after its name was given to another.
        let gone = world.root(dialect, "owner").await;
        let file = made(&gone, "lost").await;
        drop((file, gone));
        while !list(&root).await.is_empty() {}
        let file = made(&root, "again").await;
        root.unlink("again", false).await.unwrap();
        post(&root, "again", b"tcp!a").await;
        assert_eq!(errno(file.write(0, b"tcp!b").await), Errno::ENOENT);
        file.close().await.unwrap();
        assert_eq!(get(&root, "again").await, b"tcp!a\n");
    });
}

#[test]
fn only_the_owner_posts_and_withdraws() {
    world(async |world, dialect| {
        let (owner, other) = (world.root(dialect, "owner").await, world.root(dialect, "").await);
        post(&owner, "lab", b"tcp!a").await;
        let file = owner.create("mine", OpenFlags::RDWR | OpenFlags::EXCL, 0o600, NOGID).await.unwrap();
        file.write(0, b"tcp!b").await.unwrap();
        let made = other.create("x", OpenFlags::RDWR | OpenFlags::EXCL, 0o644, NOGID).await;
        refused(dialect, made, Errno::EACCES, "only the owner posts");
        refused(dialect, other.unlink("lab", false).await, Errno::EACCES, "only the owner");
        refused(dialect, other.walk("lab").await.unwrap().remove().await, Errno::EACCES, "only the owner");
        let open = SetAttr { mode: Some(0o666), ..SetAttr::default() };
        let set = other.walk("mine").await.unwrap();
        refused(dialect, set.setattr(&open).await, Errno::EACCES, "only the owner");
        assert_eq!(errno(other.open("lab", WRITE).await), Errno::EACCES);
        assert_eq!(get(&other, "lab").await, b"tcp!a\n");
        assert_eq!(errno(other.open("mine", READ).await), Errno::EACCES);
        owner.walk("mine").await.unwrap().setattr(&open).await.unwrap();
        assert_eq!(get(&other, "mine").await, b"tcp!b\n");
        assert_eq!(world.posts.posted(), ["lab", "mine"]);
    });
}

#[test]
fn there_are_as_many_posts_as_may_be() {
    world(async |world, dialect| {
        let root = world.root(dialect, "owner").await;
        for n in 0..POSTS_MAX {
            post(&root, &n.to_string(), b"tcp!a").await;
        }
        let more = root.create("more", OpenFlags::RDWR | OpenFlags::EXCL, 0o644, NOGID).await;
        refused(dialect, more, Errno::ENFILE, "there are 1000 posts");
        assert_eq!(list(&root).await.len(), POSTS_MAX);
        root.unlink("500", false).await.unwrap();
        post(&root, "more", b"tcp!a").await;
        assert_eq!(world.posts.posted().len(), POSTS_MAX);
    });
}
