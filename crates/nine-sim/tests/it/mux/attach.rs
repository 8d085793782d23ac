//! Programs in the mux's own process (muxattach), and users who must authenticate to a server behind it.

use nine_io::client::{Client, Options};
use nine_io::server::{Anonymous, Core, Gate, Service};
use nine_mux::{As, Flags};
use nine_net::{Env, Proof};
use nine_proto::msg::{Data, Names, OnlyIds, Rmsg, Tmsg};
use nine_proto::{Fid, NOFID, NOTAG, NOUID, OpenFlags, Tag};
use nine_sim::{Shape, World};

use crate::mux::world::{Muxed, owner, ram};

#[test]
fn a_program_sends_and_receives_single_messages_and_is_never_blocked() {
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let a = ram(&[("file", "content")]).await;
        m.space.mount(m.far("a", a, Shape::default()), "", &owner(), "/a", Flags::REPLACE).await.unwrap();
        let mut con = m.mux.attach(&m.core);
        con.send(NOTAG, &Tmsg::Version { msize: 8192, version: b"9P2000.L" }).unwrap();
        assert!(con.try_receive().unwrap().is_none(), "nothing has run yet");
        let answer = con.receive().await.unwrap();
        assert!(matches!(answer.message().unwrap(), (NOTAG, Rmsg::Version { .. })));
        let attach =
            Tmsg::Attach { fid: Fid(0), afid: NOFID, uname: b"", aname: b"", n_uname: OnlyIds(NOUID) };
        con.send(Tag(1), &attach).unwrap();
        con.receive().await.unwrap();
        let names = Names::Slice(&[b"a", b"file"]);
        con.send(Tag(1), &Tmsg::Walk { fid: Fid(0), newfid: Fid(1), names }).unwrap();
        con.receive().await.unwrap();
        con.send(Tag(1), &Tmsg::Lopen { fid: Fid(1), flags: 0 }).unwrap();
        con.receive().await.unwrap();
        for tag in 2..10 {
            con.send(Tag(tag), &Tmsg::Read { fid: Fid(1), offset: u64::from(tag) - 2, count: 1 }).unwrap();
        }
        let mut text = [0; 7];
        for _ in 2..10 {
            let answer = con.receive().await.unwrap();
            let (Tag(tag), Rmsg::Read { data: Data::Bytes(data) }) = answer.message().unwrap() else {
                panic!("an Rread")
            };
            if let [byte] = data {
                text[usize::from(tag) - 2] = *byte;
            }
        }
        assert_eq!(&text, b"content");
    });
}

#[test]
fn an_afid_is_passed_through_and_opens_for_nobody_else() {
    let world = World::new(2);
    let m = Muxed::new(&world);
    world.run(async move {
        let gate = Gate { anonymous: Anonymous::ReadOnly, token: Some("00ff".into()), ..Gate::default() };
        let service = Service::new(ram(&[("file", "old")]).await, gate, Core::default());
        let server = m.far_service("guarded", service, Shape { proof: Proof::None, ..Shape::default() });
        m.space.mount(server, "", &As::Client, "/", Flags::REPLACE).await.unwrap();
        let client = async |token: Option<&str>| {
            let options = Options { token: token.map(Into::into), ..Options::default() };
            let (client, driver): (Client, _) = m.mux.client(&m.core, options).await.unwrap();
            m.env.spawn(Box::pin(async { drop(driver.await) }));
            let root = client.attach("u", NOUID, "").await;
            (client, root)
        };
        let (_plain, root) = client(None).await;
        assert!(root.unwrap().open("file", OpenFlags::WRITE).await.is_err(), "it may only read");
        let (_proven, root) = client(Some("00ff")).await;
        let file = root.unwrap().open("file", OpenFlags::WRITE).await.unwrap();
        file.write_all_at(0, b"new").await.unwrap();
        let (_liar, root) = client(Some("1234")).await;
        assert!(root.is_err());
        let (_plain, root) = client(None).await;
        assert!(root.unwrap().open("file", OpenFlags::WRITE).await.is_err(), "the proof was another's");
    });
}

#[test]
fn a_mount_of_three_connections_spreads_its_clients_over_them() {
    let world = World::new(3);
    let m = Muxed::new(&world);
    world.run(async move {
        let server = m.far("a", ram(&[("dir/file", "content")]).await, Shape::default());
        let server = nine_mux::Server { lanes: 3, ..server };
        m.space.mount(server, "", &owner(), "/a", Flags::REPLACE).await.unwrap();
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(m.client(nine_proto::Dialect::L).await);
        }
        for (_, root) in &clients {
            assert_eq!(crate::mux::world::cat(root, "a/dir/file").await.unwrap(), "content");
            // Both fids of a request are on the same connection.
            let dir = root.walk("a/dir").await.unwrap();
            let name = format!("{}", root.fid());
            dir.mkdir(&name, 0o755, nine_proto::NOGID).await.unwrap();
            dir.rename(&name, &root.walk("a").await.unwrap(), "moved").await.unwrap();
            root.walk("a").await.unwrap().unlink("moved", true).await.unwrap();
        }
        let status = m.mux.status();
        let of_a = status.upstreams.iter().find(|upstream| &*upstream.name == "a").unwrap();
        assert_eq!((of_a.connections.len(), of_a.dials), (3, 3), "{of_a:?}");
    });
}
