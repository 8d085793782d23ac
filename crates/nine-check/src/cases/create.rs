//! Tcreate, Tlcreate and Tmkdir: new files.

use nine_proto::msg::{OnlyUStr, Tmsg};
use nine_proto::{OpenFlags, Qid, mode, show};

use crate::case::{CaseResult, cases, hold};
use crate::scene::{A, B, CaseContext, DIR};

cases! { "create":
    the_fid_becomes_the_open_file, Any, Dir,
        "open(5): after create the fid represents the newly created file, which is open";
    a_new_file_is_empty_and_is_listed, Any, Dir,
        "open(5): create makes a new file of the name in the directory";
    the_qid_is_that_of_the_file, Any, Dir,
        "open(5): qid is the server's idea of the file just created";
    an_existing_name_is_refused, Any, Dir,
        "open(5): an attempt to create a file that exists is an error; 9P2000.L: with O_EXCL";
    a_refused_create_leaves_the_fid, Any, Dir,
        "open(5): the fid is moved by a successful create only";
    dot_names_are_refused, Any, Dir,
        "open(5): the names . and .. are special; it is illegal to create files with these names";
    a_slash_in_the_name_is_refused, Any, Dir,
        "intro(5): names do not contain slashes";
    an_empty_name_is_refused, Any, Dir,
        "intro(5): a file has a name";
    in_a_file_is_refused, Any, Dir,
        "open(5): the fid must be a directory";
    by_an_open_fid_is_refused, Stat, Dir,
        "open(5): create requires a fid that is not open";
    a_directory, Any, Dir,
        "open(5): directories are created by setting DMDIR in perm; 9P2000.L: Tmkdir";
    a_directory_is_open_for_reading, Stat, Dir,
        "open(5): create opens the new file, of a directory for reading";
    for_reading_only, Any, Dir,
        "open(5): create opens according to mode, whatever perm says";
    a_mode_that_perm_forbids, Stat, Dir,
        "open(5): the mode of a create is not checked against perm";
    a_file_gets_what_the_directory_permits, P2000, Dir,
        "open(5): the permissions of a file are perm & (~0666 | (dir.perm & 0666))";
    a_directory_gets_what_the_directory_permits, P2000, Dir,
        "open(5): the permissions of a directory are perm & (~0777 | (dir.perm & 0777))";
    the_permissions_are_as_asked, L, Dir,
        "9P2000.L Tlcreate, Tmkdir: mode contains Linux creat(2) mode bits; the client applies the umask";
    without_excl_it_opens_what_is_there, L, Dir,
        "9P2000.L Tlcreate: flags are those of open(2); only O_EXCL refuses an existing file";
    an_existing_directory_is_refused, Any, Dir,
        "open(5): an attempt to create a file that exists is an error; mkdir(2): EEXIST";
    names_keep_their_bytes, Any, Dir,
        "intro(5): names are UTF-8 text of any characters but slash";
    a_name_of_255_bytes_is_whole_or_refused, Any, Dir,
        "intro(5): the server names the file as the client said, or refuses";
}

async fn the_fid_becomes_the_open_file(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let qid = c.make(DIR, A, b"f", b"new").await?;
    hold(!qid.is_dir() && c.attr(A).await?.qid.path == qid.path, || "the fid is not the new file".into())?;
    hold(c.content(A).await? == b"new", || "what was written is not read".into())
}

async fn a_new_file_is_empty_and_is_listed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let qid = c.put(DIR, b"f", b"").await?;
    hold(c.content_of(DIR, b"f").await?.is_empty(), || "the new file is not empty".into())?;
    let entries = c.list(DIR).await?;
    hold(entries.len() == 1 && entries[0].0 == b"f" && entries[0].1.path == qid.path, || {
        format!("a directory with one file, of qid {qid}, lists {}", printed(&entries))
    })
}

async fn the_qid_is_that_of_the_file(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let made = c.put(DIR, b"f", b"x").await?;
    let walked = c.walk_whole(DIR, A, &[b"f"]).await?;
    hold(made.path == walked.path, || format!("the create says {made}, the walk {walked}"))
}

async fn an_existing_name_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"old").await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR, 0o644);
    c.refused(asked, "the name exists").await?;
    hold(c.content_of(DIR, b"f").await? == b"old", || "the refused create has changed the file".into())
}

async fn a_refused_create_leaves_the_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let dir = c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    c.put(A, b"f", b"old").await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR, 0o644);
    c.refused(asked, "the name exists").await?;
    hold(c.attr(A).await?.qid.path == dir.path, || "the refused create has moved the fid".into())?;
    c.walk_whole(A, B, &[b"f"]).await.map(drop)
}

async fn dot_names_are_refused(s: &CaseContext) -> CaseResult {
    names_refused(s, &[b".", b".."], "it is a special name").await
}

async fn a_slash_in_the_name_is_refused(s: &CaseContext) -> CaseResult {
    names_refused(s, &[b"a/b", b"/a", b"../a", b"/"], "a name has no slash").await
}

async fn an_empty_name_is_refused(s: &CaseContext) -> CaseResult {
    names_refused(s, &[b""], "a file has a name").await
}

async fn names_refused(s: &CaseContext, names: &[&[u8]], why: &str) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"a").await?;
    for name in names {
        c.walk(DIR, A, &[]).await?;
        let asked = c.tcreate(A, name, OpenFlags::RDWR, 0o644);
        c.refused(asked, why).await?;
        let asked = if c.dialect.is_l() {
            Tmsg::Mkdir { dfid: A, name, mode: 0o755, gid: c.gid }
        } else {
            Tmsg::Create { fid: A, name, perm: mode::DMDIR | 0o755, mode: 0, extension: OnlyUStr(b"") }
        };
        c.refused(asked, why).await?;
        c.clunk(A).await?;
    }
    Ok(())
}

async fn in_a_file_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    let asked = c.tcreate(A, b"g", OpenFlags::RDWR, 0o644);
    c.refused(asked, "its fid is a plain file").await.map(drop)
}

async fn by_an_open_fid_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    c.open(A, OpenFlags::READ).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR, 0o644);
    c.refused(asked, "its fid is open").await?;
    hold(!c.exists(DIR, b"f").await?, || "the refused create has made the file".into())
}

async fn a_directory(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let qid = c.mkdir(DIR, b"d").await?;
    hold(qid.is_dir(), || format!("the qid of the new directory is {qid}"))?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    let st_mode = c.attr(A).await?.mode;
    hold(st_mode & mode::S_IFMT == mode::S_IFDIR, || format!("its mode is {st_mode:o}"))?;
    hold(c.list(A).await?.is_empty(), || "the new directory is not empty".into())
}

async fn a_directory_is_open_for_reading(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let perm = mode::DMDIR | 0o755;
    c.ok(Tmsg::Create { fid: A, name: b"d", perm, mode: 0, extension: OnlyUStr(b"") }).await?;
    let data = c.read(A, 0, 4096).await?;
    hold(data.is_empty(), || format!("a new directory reads as {} bytes", data.len()))
}

async fn for_reading_only(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::READ, 0o644);
    c.ok(asked).await?;
    let data = nine_proto::msg::Data::Bytes(b"no");
    c.refused(Tmsg::Write { fid: A, offset: 0, data }, "the file was created for reading").await?;
    c.read(A, 0, 100).await.map(drop)
}

async fn a_mode_that_perm_forbids(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR, 0o444);
    c.ok(asked).await?;
    c.write_all(A, 0, b"text").await?;
    hold(c.content(A).await? == b"text", || "what was written is not read".into())
}

async fn a_file_gets_what_the_directory_permits(s: &CaseContext) -> CaseResult {
    permissions(s, false, 0o666, 0o640).await
}

async fn a_directory_gets_what_the_directory_permits(s: &CaseContext) -> CaseResult {
    permissions(s, true, 0o777, 0o750).await
}

/// Creates a file in a directory with mode 0750.
async fn permissions(s: &CaseContext, dir: bool, asked: u32, expected: u32) -> CaseResult {
    let mut c = s.here().await?;
    c.chmod(DIR, 0o750).await?;
    c.walk(DIR, A, &[]).await?;
    let perm = asked | if dir { mode::DMDIR } else { 0 };
    c.ok(Tmsg::Create { fid: A, name: b"f", perm, mode: 0, extension: OnlyUStr(b"") }).await?;
    let bits = c.attr(A).await?.mode & 0o777;
    hold(bits == expected, || format!("{asked:o} in a directory of 750 is {expected:o}, not {bits:o}"))
}

async fn the_permissions_are_as_asked(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    for (n, bits) in [0o600, 0o644, 0o666, 0o755].into_iter().enumerate() {
        let name = format!("f{n}").into_bytes();
        c.walk(DIR, A, &[]).await?;
        let asked = c.tcreate(A, &name, OpenFlags::RDWR, bits);
        c.ok(asked).await?;
        let got = c.attr(A).await?.mode & 0o777;
        hold(got == bits, || format!("{bits:o} was asked for, {got:o} came"))?;
        c.clunk(A).await?;
    }
    c.mkdir_with(DIR, b"d", 0o731).await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    let got = c.attr(A).await?.mode & 0o777;
    hold(got == 0o731, || format!("731 was asked for, {got:o} came"))
}

async fn without_excl_it_opens_what_is_there(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let old = c.put(DIR, b"f", b"old").await?;
    c.walk(DIR, A, &[]).await?;
    let flags = (OpenFlags::RDWR | OpenFlags::CREAT).to_wire();
    let got = c.ok(Tmsg::Lcreate { fid: A, name: b"f", flags, mode: 0o644, gid: c.gid }).await?;
    let qid = crate::talk::opened(&got)?;
    hold(qid.path == old.path && c.content(A).await? == b"old", || "it is another file".into())
}

async fn an_existing_directory_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.put(DIR, b"f", b"").await?;
    for name in [b"d", b"f"] {
        c.walk(DIR, A, &[]).await?;
        let asked = if c.dialect.is_l() {
            Tmsg::Mkdir { dfid: A, name, mode: 0o755, gid: c.gid }
        } else {
            Tmsg::Create { fid: A, name, perm: mode::DMDIR | 0o755, mode: 0, extension: OnlyUStr(b"") }
        };
        c.refused(asked, "the name exists").await?;
        c.clunk(A).await?;
    }
    Ok(())
}

async fn names_keep_their_bytes(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let names = [
        "with space",
        "\u{00fc}ml\u{00e4}ut",
        "\u{65e5}\u{672c}",
        "-dash",
        ".hidden",
        "a:b*c?",
        "...",
        "\u{1f4be}",
    ];
    for name in names {
        c.put(DIR, name.as_bytes(), name.as_bytes()).await?;
    }
    let mut listed: Vec<Vec<u8>> = c.list(DIR).await?.into_iter().map(|(name, _)| name).collect();
    let mut made: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    listed.sort();
    made.sort();
    hold(listed == made, || "the listed names are not those that were made".into())?;
    for name in names {
        let content = c.content_of(DIR, name.as_bytes()).await?;
        hold(content == name.as_bytes(), || format!("'{name}' is another file"))?;
    }
    Ok(())
}

async fn a_name_of_255_bytes_is_whole_or_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let name = [b'n'; 255];
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, &name, OpenFlags::RDWR, 0o644);
    let refused = c.call(asked).await?.is_error();
    let entries = c.list(DIR).await?;
    let whole = entries.len() == 1 && entries[0].0 == name;
    hold(if refused { entries.is_empty() } else { whole }, || {
        format!("the directory lists {}", printed(&entries))
    })
}

fn printed(entries: &[(Vec<u8>, Qid)]) -> String {
    let all: Vec<String> = entries.iter().map(|(name, qid)| format!("{} {qid}", show(name))).collect();
    format!("[{}]", all.join(", "))
}
