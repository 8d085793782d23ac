//! Servers that hang, lie, flood, or do not speak 9P: the suite ends soon and with a reason. Time is simulated, and
//! an endless wait stops the simulation.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use nine_check::Options;
use nine_net::{Env, Transport};
use nine_proto::frame::{self, Split};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, Qid, Tag};
use nine_sim::{End, World};

use crate::common::{By, Run, in_world, options, run};

/// Runs the suite over a server that answers each message with the result of `answer`; `None` hangs up.
fn answering(answer: impl Fn(usize, &[u8]) -> Option<Vec<u8>> + Clone + 'static) -> (Run, Duration) {
    serving(move |mut end| {
        let answer = answer.clone();
        async move {
            let (mut come, mut n) = (Vec::new(), 0);
            while let Some(frame) = next(&mut end, &mut come).await {
                let Some(bytes) = answer(n, &frame) else { return };
                n += 1;
                if send(&mut end, &bytes).await.is_err() {
                    return;
                }
            }
        }
    })
}

/// Runs the suite over a server. Returns also the simulated time.
fn serving<F: Future<Output = ()> + 'static>(serve: impl Fn(End) -> F + 'static) -> (Run, Duration) {
    let env = Rc::new(RefCell::new(None));
    let kept = env.clone();
    let run = in_world(3, Options { limit: LIMIT, ..options() }, move |world: &World, end| {
        world.env().spawn(Box::pin(serve(end)));
        *kept.borrow_mut() = Some(world.env());
    });
    let now = env.borrow().as_ref().map_or(Duration::ZERO, |env| env.now());
    (run, now)
}

/// Checks that the server is unusable for this reason, and that the run took no longer than a few cases.
#[track_caller]
fn unusable((run, took): (Run, Duration), reason: &str) {
    let said = run.summary.expect_err("nothing can be checked there").to_string();
    assert!(said.contains(reason), "{said}");
    assert!(run.reports.is_empty() && took <= 4 * LIMIT, "{took:?}");
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    unusable(
        serving(|end| async move { drop((end, std::future::pending::<()>().await)) }),
        "no answer to Tversion",
    );
}

#[test]
fn a_server_that_says_nothing_after_the_version_is_given_up() {
    let hang = |n, frame: &[u8]| Some(if n == 0 { agreed(frame) } else { Vec::new() });
    unusable(answering(hang), "no answer to Tattach");
}

#[test]
fn a_server_that_refuses_everybody_is_named() {
    let refuse = |_, frame: &[u8]| match frame::type_of(frame) {
        100 => Some(agreed(frame)),
        _ => Some(encoded(
            frame::tag_of(frame),
            &Rmsg::Error { ename: b"go away", errno: nine_proto::msg::OnlyU(0) },
        )),
    };
    let (run, took) = answering(refuse);
    let said = run.summary.expect_err("nobody is let in").to_string();
    assert!(said.contains("does not let us in") && said.contains("go away"), "{said}");
    assert!(took <= 4 * LIMIT);
}

#[test]
fn a_server_that_hangs_up_at_once_or_in_a_message_is_named() {
    unusable(serving(|end| async move { drop(end) }), "offers no dialect");
    let half = |_, frame: &[u8]| Some(agreed(frame)[..9].to_vec());
    let ends = serving(move |mut end| async move {
        let mut come = Vec::new();
        if let Some(frame) = next(&mut end, &mut come).await {
            // The link may be closed.
            let _ = send(&mut end, &half(0, &frame).expect("some bytes")).await;
        }
    });
    unusable(ends, "ended after 9 bytes of a message");
}

#[test]
fn a_flood_is_not_drunk() {
    let zeros = serving(|mut end| async move { while send(&mut end, &[0; 4096]).await.is_ok() {} });
    unusable(zeros, "says that it is 0 bytes long");
    let large = serving(|mut end| async move { while send(&mut end, &[0xff; 4096]).await.is_ok() {} });
    unusable(large, "says that it is 4294967295 bytes long");
    let rflush = encoded(Tag(9), &Rmsg::Flush {});
    let replies = serving(move |mut end| {
        let rflush = rflush.clone();
        async move { while send(&mut end, &rflush).await.is_ok() {} }
    });
    unusable(replies, "answered by a message of type 109");
}

#[test]
fn a_size_that_lies_is_waited_for_only_so_long() {
    let lie = |_, frame: &[u8]| {
        let mut bytes = agreed(frame);
        bytes[..4].copy_from_slice(&4000u32.to_le_bytes());
        Some(bytes)
    };
    unusable(answering(lie), "no answer to Tversion");
}

#[test]
fn other_protocols_are_told_by_what_they_say() {
    for (text, seen) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], "HTTP/1.1 400"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "SSH-2.0-OpenSSH"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x15", "15"),
    ] {
        unusable(answering(move |_, _| Some(text.to_vec())), seen);
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let world = Rc::new(World::new(5));
    let env = Rc::new(world.env());
    let dial = By(|| Err(io::Error::from(io::ErrorKind::ConnectionRefused)));
    let run = world.run(async move { run(env, Rc::new(dial), options()).await });
    let said = run.summary.expect_err("nobody is there").to_string();
    assert!(said.contains("no connection") && said.contains("refused"), "{said}");
}

#[test]
fn wrong_tags_and_wrong_answers_are_failures_and_no_end_of_the_suite() {
    // It accepts every attach, and then answers with a tag of no request.
    let (run, _) = answering(|_, frame| {
        Some(match frame::type_of(frame) {
            100 => agreed(frame),
            104 => encoded(frame::tag_of(frame), &Rmsg::Attach { qid: ROOT }),
            _ => encoded(Tag(frame::tag_of(frame).0 ^ 0x4000), &Rmsg::Clunk {}),
        })
    });
    let summary = run.summary.as_ref().expect("it speaks");
    assert!(summary.stopped.is_none() && !summary.is_good(), "{summary:?}");
    assert!(
        run.failed().iter().any(|name| name.ends_with("walk/no_names_clone_the_fid")),
        "{:?}",
        run.failed()
    );
    assert!(run.told().contains("outstanding"), "{}", run.told());
}

#[test]
fn a_server_that_dies_on_the_way_ends_the_suite_and_what_was_not_run_is_counted() {
    for hangs in [false, true] {
        let left = Rc::new(RefCell::new(60));
        let (run, took) = answering(move |_, frame| {
            let mut left = left.borrow_mut();
            if *left == 0 {
                return hangs.then(Vec::new);
            }
            *left -= 1;
            Some(match frame::type_of(frame) {
                100 => agreed(frame),
                104 => encoded(frame::tag_of(frame), &Rmsg::Attach { qid: ROOT }),
                _ => encoded(frame::tag_of(frame), &Rmsg::Clunk {}),
            })
        });
        let (reason, not_run) = run.summary.as_ref().expect("it spoke").stopped.clone().expect("it died");
        assert!(reason.contains("ended the connection") || reason.contains("no answer"), "{reason}");
        assert!(not_run > 100, "{not_run}");
        let ran = run.reports.len();
        assert!(ran < 40 && took < 20 * LIMIT, "{ran} cases in {took:?}");
    }
}

/// Returns the next complete message.
async fn next(end: &mut End, come: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Split::Whole(n) = frame::split(come, frame::MSIZE_MAX).ok()? {
            let rest = come.split_off(n);
            return Some(std::mem::replace(come, rest));
        }
        let mut buf = [0; 4096];
        match poll_fn(|cx| end.poll_read(cx, &mut buf)).await {
            Ok(n) if n > 0 => come.extend_from_slice(&buf[..n]),
            _ => return None,
        }
    }
}

async fn send(end: &mut End, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| end.poll_write(cx, &[IoSlice::new(bytes)])).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Returns an Rversion that agrees to 9P2000, and to no other version.
fn agreed(frame: &[u8]) -> Vec<u8> {
    match Tmsg::decode(frame, Dialect::P2000) {
        Ok((tag, Tmsg::Version { msize, .. })) => encoded(tag, &Rmsg::Version { msize, version: b"9P2000" }),
        _ => Vec::new(),
    }
}

fn encoded(tag: Tag, message: &Rmsg<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(tag, Dialect::P2000, &mut bytes);
    bytes
}

const LIMIT: Duration = Duration::from_secs(5);
const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
