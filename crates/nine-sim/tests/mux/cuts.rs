//! Links that are cut at some byte: who uses that server gets an error that says so, or none; nobody else notices.

use std::time::Duration;

use nine_io::server::{Core, Gate, Service};
use nine_mux::Flags;
use nine_net::Env;
use nine_proto::{Dialect, OpenFlags};
use nine_sim::{Shape, World, seeds};

use crate::world::{Muxed, cat, owner, ram, within};

#[test]
fn a_cut_link_hurts_its_own_server_only_and_is_dialled_anew() {
    let mut cut = 0;
    for seed in seeds(40) {
        let world = World::new(seed);
        let mut rng = world.rng();
        let m = Muxed::new(&world);
        let service = Service::new(
            world.run(async { ram(&[("f", "text"), ("d/g", "deep")]).await }),
            Gate::default(),
            Core::default(),
        );
        let far = service.clone();
        cut += world.run(async move {
            let good = m.far("good", ram(&[("f", "good")]).await, Shape::default());
            m.space.mount(good, "", &owner(), "/good", Flags::REPLACE).await.unwrap();
            let shape = Shape {
                breaks_after: Some(2000 + rng.below(4000) as u64),
                piece: 1 + rng.below(500),
                delay: Duration::from_micros(rng.below(3000) as u64),
                ..Shape::default()
            };
            let server = m.far_service("cut", far, shape);
            m.space.mount(server, "", &owner(), "/cut", Flags::REPLACE).await.unwrap();
            let dialect = [Dialect::L, Dialect::U, Dialect::P2000][rng.below(3)];
            let (client, root) = m.client(dialect).await;
            let (mut cut, mut reached) = (0, 0);
            for n in 0..60u64 {
                let name = format!("cut/f{n}");
                let work = async {
                    let dir = root.walk("cut").await?;
                    let file = dir.open_or_create(format!("f{n}"), OpenFlags::RDWR, 0o644).await?;
                    file.write_all_at(0, name.as_bytes()).await?;
                    file.close().await?;
                    let file = root.open(&name, OpenFlags::READ).await?;
                    file.read(0, 100).await
                };
                match within(&m.env, Duration::from_secs(60), work).await {
                    Ok(text) => {
                        assert_eq!(text, name.as_bytes());
                        reached += 1;
                    }
                    Err(error) => {
                        // No lie: not "there is no such file", but what has happened.
                        let what = error.to_string();
                        assert!(
                            what.contains("reset") || what.contains("closed") || what.contains("pipe"),
                            "{what}"
                        );
                        cut += 1;
                        m.env.sleep_until(m.env.now() + nine_mux::RETRY).await;
                    }
                }
                let good = within(&m.env, Duration::from_millis(20), cat(&root, "good/f")).await;
                assert_eq!(good, Ok("good".into()));
            }
            assert!(cut == 0 || reached > 0, "it was never reached again");
            drop(root);
            m.quiet(&client).await;
            m.all_settled().await;
            m.clear().await;
            cut
        });
        world.settle();
        assert_eq!((service.core.connected(), service.core.borrowed()), (0, 0), "NINE_SEED={seed}");
    }
    assert!(cut > 40, "only {cut} cuts");
}
