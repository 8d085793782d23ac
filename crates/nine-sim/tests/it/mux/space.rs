//! The name space: visible files by path, in every dialect.

use std::sync::Arc;

use nine_mux::Flags;
use nine_proto::{Dialect, Errno, GetMask, NOGID, OpenFlags};
use nine_sim::{Shape, World};

use crate::mux::world::{Muxed, cat, ls, owner, put, ram};

const DIALECTS: [Dialect; 3] = [Dialect::L, Dialect::U, Dialect::P2000];

/// Runs a test in a separate world for each dialect.
fn each(test: impl AsyncFn(Muxed, Dialect) + Copy + 'static) {
    for (seed, dialect) in DIALECTS.into_iter().enumerate() {
        let world = World::new(seed as u64);
        let muxed = Muxed::new(&world);
        world.run(async move { test(muxed, dialect).await });
    }
}

#[test]
fn servers_are_seen_where_they_are_mounted() {
    each(async |m, dialect| {
        let a = ram(&[("one", "a"), ("dir/two", "aa")]).await;
        let b = ram(&[("one", "b")]).await;
        m.space.mount(m.far("a", a, Shape::default()), "", &owner(), "/n/a", Flags::REPLACE).await.unwrap();
        m.space.mount(m.far("b", b, Shape::default()), "", &owner(), "/n/b", Flags::REPLACE).await.unwrap();
        let (_client, root) = m.client(dialect).await;
        assert_eq!(cat(&root, "n/a/one").await.unwrap(), "a");
        assert_eq!(cat(&root, "n/a/dir/two").await.unwrap(), "aa");
        assert_eq!(cat(&root, "n/b/one").await.unwrap(), "b");
        assert_eq!(cat(&root, "n/a/dir/../../b/one").await.unwrap(), "b");
        let deep = root.walk("n/a/dir").await.unwrap();
        assert_eq!(cat(&deep, "../../b/one").await.unwrap(), "b");
        assert_eq!(ls(&root, "n").await.unwrap(), ["a", "b"]);
        assert_eq!(ls(&root, "").await.unwrap(), ["n"]);
        assert_eq!(root.walk("n/a/none").await.unwrap_err().errno(), Errno::ENOENT);
        let (one, other) = (root.walk("n/a/one").await.unwrap(), root.walk("n/b/one").await.unwrap());
        assert_ne!(one.qid().path, other.qid().path);
        let attr = one.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!(attr.qid.path, one.qid().path);
    });
}

#[test]
fn a_union_is_searched_in_order_and_made_in_where_it_may() {
    each(async |m, dialect| {
        let a = ram(&[("both", "a"), ("only-a", "a")]).await;
        let b = ram(&[("both", "b"), ("only-b", "b")]).await;
        let (a, b) = (m.far("a", a, Shape::default()), m.far("b", b, Shape::default()));
        m.space.mount(a, "", &owner(), "/u", Flags::REPLACE).await.unwrap();
        m.space.mount(b, "", &owner(), "/u", Flags::AFTER.with_create()).await.unwrap();
        let (_client, root) = m.client(dialect).await;
        assert_eq!(cat(&root, "u/both").await.unwrap(), "a");
        assert_eq!(cat(&root, "u/only-b").await.unwrap(), "b");
        let mut names = ls(&root, "u").await.unwrap();
        names.sort();
        assert_eq!(names, ["both", "only-a", "only-b"]);
        put(&root, "u/new", "where?").await;
        assert_eq!(cat(&root, "u/new").await.unwrap(), "where?");
        m.space.unmount(Some("a"), "/u").await.unwrap();
        assert_eq!(cat(&root, "u/new").await.unwrap(), "where?");
        assert_eq!(cat(&root, "u/both").await.unwrap(), "b");
        let u = root.walk("u").await.unwrap();
        u.unlink("new", false).await.unwrap();
        assert!(root.walk("u/new").await.is_err());
    });
}

#[test]
fn binds_are_early_and_see_through_mounts() {
    each(async |m, dialect| {
        let a = ram(&[("bin/x", "ax"), ("file", "f")]).await;
        let b = ram(&[("y", "by")]).await;
        m.space.mount(m.far("a", a, Shape::default()), "", &owner(), "/a", Flags::REPLACE).await.unwrap();
        m.space.mount(m.far("b", b, Shape::default()), "", &owner(), "/a/bin", Flags::AFTER).await.unwrap();
        m.space.bind("/a", "/same", Flags::REPLACE).await.unwrap();
        m.space.bind("/a/bin", "/bin", Flags::REPLACE).await.unwrap();
        let (_client, root) = m.client(dialect).await;
        assert_eq!(cat(&root, "same/bin/y").await.unwrap(), "by", "a mount point is a place, not a name");
        assert_eq!(cat(&root, "bin/x").await.unwrap(), "ax");
        assert_eq!(cat(&root, "bin/y").await.unwrap(), "by");
        assert_eq!(ls(&root, "bin/..").await.unwrap(), ["a", "same", "bin"], "lexically");
        m.space.unmount(None, "/a").await.unwrap();
        assert_eq!(cat(&root, "bin/y").await.unwrap(), "by");
        assert!(cat(&root, "a/file").await.is_err());
        assert_eq!(cat(&root, "same/file").await.unwrap(), "f");
        put(&root, "plain", "covered").await;
        m.space.bind("/same/file", "/plain", Flags::REPLACE).await.unwrap();
        assert_eq!(cat(&root, "plain").await.unwrap(), "f");
        assert!(m.space.bind("/same", "/plain", Flags::REPLACE).await.is_err());
        let error = root.walk("plain").await.unwrap().remove().await.unwrap_err();
        assert_eq!(error.errno(), Errno::EBUSY);
        assert_eq!(cat(&root, "plain").await.unwrap(), "f");
    });
}

#[test]
fn a_name_whose_bound_file_is_gone_is_no_missing_mount_point() {
    each(async |m, dialect| {
        let server = ram(&[("f", "f"), ("h", "h")]).await;
        m.space.mount(m.far("a", server, Shape::default()), "", &owner(), "/u", Flags::AFTER).await.unwrap();
        m.space.bind("/u/f", "/u/h", Flags::REPLACE).await.unwrap();
        let (_client, root) = m.client(dialect).await;
        root.walk("u").await.unwrap().unlink("f", false).await.unwrap();
        assert!(m.space.bind("/u", "/u/h/below", Flags::REPLACE).await.is_err());
        m.space.unmount(None, "/u/h").await.unwrap();
        // A directory `h` in the first member would hide the file.
        assert_eq!(cat(&root, "u/h").await.unwrap(), "h");
    });
}

#[test]
fn a_loop_of_mounts_ends_with_an_error() {
    each(async |m, dialect| {
        m.space.mount(m.as_server("self"), "", &owner(), "/self", Flags::REPLACE).await.unwrap();
        let (client, root) = m.client(dialect).await;
        put(&root, "here", "h").await;
        assert_eq!(cat(&root, "self/here").await.unwrap(), "h");
        assert_eq!(cat(&root, "self/self/here").await.unwrap(), "h");
        let error = root.walk("self/".repeat(12)).await.unwrap_err();
        assert!(error.to_string().contains("loop") || error.errno() == Errno::ELOOP, "{error}");
        m.space.mount(m.as_server("self"), "", &owner(), "/", Flags::AFTER).await.unwrap();
        assert!(root.walk("nowhere").await.is_err());
        m.quiet(&client).await;
        let _ = (Arc::new(()), NOGID, OpenFlags::READ);
    });
}
