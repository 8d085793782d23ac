//! Twalk: from a fid to a fid.

use nine_proto::{Fid, OpenFlags};

use crate::case::{CaseResult, cases, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, C, CaseContext, DIR, MSIZE, ROOT};
use crate::talk::walk;

cases! { "walk":
    no_names_clone_the_fid, Any, Nothing,
        "walk(5): nwname may be zero; newfid then represents the same file as fid";
    a_file_can_be_cloned, Any, Dir,
        "walk(5): fid must be a directory unless zero path name elements are specified";
    every_name_has_its_qid, Any, Dir,
        "walk(5): nwqid is equal to nwname, and the qids are those of the files on the way";
    the_fid_stays_where_it_was, Any, Dir,
        "walk(5): newfid represents the file that was reached; fid is not affected";
    onto_itself_it_moves, Any, Dir,
        "walk(5): it is legal for newfid to be equal to fid, which then represents the file that was reached";
    the_first_name_missing_is_an_error, Any, Nothing,
        "walk(5): if the first element cannot be walked for any reason, Rerror is returned";
    a_failure_makes_no_fid, Any, Nothing,
        "walk(5): newfid is not affected unless the whole walk succeeds";
    partial_says_how_far, Any, Dir,
        "walk(5): otherwise nwqid is the index of the first elementwise walk that failed";
    partial_makes_no_fid, Any, Dir,
        "walk(5): only if nwqid equals nwname will newfid be affected";
    partial_onto_itself_stays, Any, Dir,
        "walk(5): only if nwqid equals nwname will newfid be affected";
    a_newfid_in_use_is_refused, Any, Nothing,
        "walk(5): newfid must not be in use, unless it is the same as fid";
    a_refused_newfid_keeps_its_file, Any, Dir,
        "walk(5): only if the walk succeeds will newfid be affected";
    sixteen_names, Any, Dir,
        "walk(5): a maximum of sixteen elements may be in one message";
    dotdot_leads_up, Any, Dir,
        "walk(5): the name '..' represents the parent directory";
    dotdot_at_the_root_stays, Any, Nothing,
        "walk(5): a walk of '..' in the root directory of a server is equivalent to a walk with no names";
    from_a_file_is_refused, Any, Dir,
        "walk(5): the fid must represent a directory unless no names are given";
    through_a_file_ends_there, Any, Dir,
        "walk(5): the walk ends at the first element that cannot be walked";
    from_an_open_fid_is_refused, Stat, Dir,
        "walk(5): fid must be valid and must not have been opened for I/O";
    opens_nothing, Any, Dir,
        "read(5): the fid must have been opened for reading";
    a_slash_does_not_separate, Any, Dir,
        "intro(5): names do not contain slashes; each element is one name";
    the_same_file_has_the_same_qid, Any, Dir,
        "intro(5): two files are the same if and only if their qids are the same";
    a_long_name_is_not_found, Any, Nothing,
        "walk(5): an element that cannot be walked is an error";
}

async fn no_names_clone_the_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let qids = c.walk(ROOT, A, &[]).await?;
    hold(qids.is_empty(), || format!("no names were sent, {} qids came", qids.len()))?;
    let (root, clone) = (c.attr(ROOT).await?.qid, c.attr(A).await?.qid);
    hold(root.path == clone.path, || format!("{root} was cloned to {clone}"))?;
    c.clunk(A).await?;
    c.attr(ROOT).await.map(drop)
}

async fn a_file_can_be_cloned(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"text").await?;
    let qid = c.walk_whole(DIR, A, &[b"f"]).await?;
    c.walk(A, B, &[]).await?;
    hold(c.attr(B).await?.qid.path == qid.path, || "the clone is another file".into())?;
    c.open(B, OpenFlags::READ).await?;
    hold(c.content(B).await? == b"text", || "the clone has another content".into())
}

async fn every_name_has_its_qid(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let qids = c.walk(DIR, A, &[b"d", b"e", b"f"]).await?;
    hold(qids.len() == 3, || format!("3 names that exist, {} qids", qids.len()))?;
    let kinds: Vec<_> = qids.iter().map(|qid| qid.is_dir()).collect();
    hold(kinds == [true, true, false], || format!("d/e/f has the qids {qids:?}"))?;
    for (names, qid) in
        [(&[&b"d"[..]][..], qids[0]), (&[b"d", b"e"], qids[1]), (&[b"d", b"e", b"f"], qids[2])]
    {
        c.walk_whole(DIR, B, names).await?;
        let stat = c.attr(B).await?.qid;
        hold(stat.path == qid.path, || format!("the walk says {qid}, its attributes {stat}"))?;
        c.clunk(B).await?;
    }
    Ok(())
}

async fn the_fid_stays_where_it_was(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let before = c.attr(DIR).await?.qid.path;
    c.walk_whole(DIR, A, &[b"d", b"e"]).await?;
    hold(c.attr(DIR).await?.qid.path == before, || "the fid has moved, too".into())
}

async fn onto_itself_it_moves(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let file = c.walk_whole(DIR, A, &[b"d", b"e", b"f"]).await?;
    c.walk(DIR, B, &[]).await?;
    c.walk_whole(B, B, &[b"d", b"e", b"f"]).await?;
    hold(c.attr(B).await?.qid.path == file.path, || "the fid stands for another file".into())
}

async fn the_first_name_missing_is_an_error(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.refused(walk(ROOT, A, &[NOBODY]), "its first name does not exist").await?;
    c.refused(walk(ROOT, A, &[NOBODY, b"x"]), "its first name does not exist").await.map(drop)
}

async fn a_failure_makes_no_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.refused(walk(ROOT, A, &[NOBODY]), "its name does not exist").await?;
    let asked = c.tattr(A);
    c.refused(asked, "the walk to this fid has failed").await?;
    c.walk(ROOT, A, &[]).await.map(drop)
}

async fn partial_says_how_far(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let whole = c.walk(DIR, A, &[b"d", b"e"]).await?;
    let part = c.walk(DIR, B, &[b"d", b"e", NOBODY, b"x"]).await?;
    hold(part.len() == 2, || format!("two of four names exist, and {} qids came", part.len()))?;
    hold(part.iter().zip(&whole).all(|(a, b)| a.path == b.path), || {
        "the qids are not those of d and d/e".into()
    })
}

async fn partial_makes_no_fid(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    c.walk(DIR, A, &[b"d", NOBODY]).await?;
    let asked = c.tattr(A);
    c.refused(asked, "the walk to this fid went only half the way").await.map(drop)
}

async fn partial_onto_itself_stays(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    c.walk(DIR, A, &[]).await?;
    c.walk(A, A, &[b"d", NOBODY]).await?;
    let (stayed, dir) = (c.attr(A).await?.qid, c.attr(DIR).await?.qid);
    hold(stayed.path == dir.path, || format!("the fid has moved from {dir} to {stayed}"))
}

async fn a_newfid_in_use_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    c.refused(walk(ROOT, A, &[]), "its newfid is in use").await.map(drop)
}

async fn a_refused_newfid_keeps_its_file(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let there = c.walk_whole(DIR, A, &[b"d"]).await?;
    c.walk_whole(DIR, B, &[b"d", b"e"]).await?;
    // Another case tests that this is refused. Here it must fail because of the missing name, on every server.
    c.refused(walk(DIR, A, &[NOBODY]), "its newfid is in use and its name does not exist").await?;
    let qid = c.attr(A).await?.qid;
    hold(qid.path == there.path, || format!("the fid stood for {there}, now for {qid}"))
}

async fn sixteen_names(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let names: Vec<&[u8]> = [&b"d"[..], b".."].repeat(8);
    let qids = c.walk(DIR, A, &names).await?;
    hold(qids.len() == 16, || format!("16 names that exist, {} qids", qids.len()))?;
    let (there, dir) = (c.attr(A).await?.qid, c.attr(DIR).await?.qid);
    hold(there.path == dir.path, || format!("eight times d/.. led from {dir} to {there}"))
}

async fn dotdot_leads_up(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let dir = c.attr(DIR).await?.qid;
    c.walk_whole(DIR, A, &[b"d", b"e"]).await?;
    c.walk_whole(A, B, &[b"..", b".."]).await?;
    let up = c.attr(B).await?.qid;
    hold(up.path == dir.path, || format!("d/e/../.. is {up}, not {dir}"))
}

async fn dotdot_at_the_root_stays(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    let root = s.attach(&mut c, A).await?;
    c.walk_whole(A, B, &[b"..", b".."]).await?;
    let up = c.attr(B).await?.qid;
    hold(up.path == root.path, || format!("'..' led from the root {root} to {up}"))
}

async fn from_a_file_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    c.walk_whole(DIR, A, &[b"d", b"e", b"f"]).await?;
    c.refused(walk(A, B, &[b"x"]), "its fid is a plain file").await.map(drop)
}

async fn through_a_file_ends_there(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    let qids = c.walk(DIR, A, &[b"d", b"e", b"f", b"x"]).await?;
    hold(qids.len() == 3, || format!("three of four names exist, and {} qids came", qids.len()))
}

async fn from_an_open_fid_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    c.open(A, OpenFlags::READ).await?;
    c.refused(walk(A, B, &[b"e"]), "its fid is open").await.map(drop)
}

async fn opens_nothing(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    c.walk_whole(DIR, A, &[b"d", b"e", b"f"]).await?;
    let asked = nine_proto::msg::Tmsg::Read { fid: A, offset: 0, count: 64 };
    c.refused(asked, "the fid has not been opened").await.map(drop)
}

async fn a_slash_does_not_separate(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    for name in [&b"d/e"[..], b"d/", b"/d", b"d/.."] {
        c.refused(walk(DIR, C, &[name]), "a name has no slash").await?;
    }
    Ok(())
}

async fn the_same_file_has_the_same_qid(s: &CaseContext) -> CaseResult {
    let mut c = deep(s).await?;
    c.put(DIR, b"g", b"").await?;
    let f = c.walk_whole(DIR, A, &[b"d", b"e", b"f"]).await?;
    let again = c.walk_whole(DIR, B, &[b"d", b"..", b"d", b"e", b"f"]).await?;
    let g = c.walk_whole(DIR, C, &[b"g"]).await?;
    hold(f.path == again.path, || format!("one file, two qids: {f} and {again}"))?;
    hold(f.path != g.path, || format!("two files, one qid: {f}"))
}

async fn a_long_name_is_not_found(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for len in [255, 256, 5000] {
        c.refused(walk(ROOT, A, &[&vec![b'x'; len]]), "nothing has this name").await?;
    }
    c.attr(ROOT).await.map(drop)
}

/// `d/e/f` in the case's directory.
async fn deep(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    let (d, e) = (Fid(50), Fid(51));
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, d, &[b"d"]).await?;
    c.mkdir(d, b"e").await?;
    c.walk_whole(d, e, &[b"e"]).await?;
    c.put(e, b"f", b"text").await?;
    c.clunk(e).await?;
    c.clunk(d).await?;
    Ok(c)
}

/// A name that does not exist.
const NOBODY: &[u8] = b"no-such-file-4f1c";
