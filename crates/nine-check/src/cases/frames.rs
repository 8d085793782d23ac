//! Valid messages, split into other pieces.

use super::malformed::{TAG, encoded};
use crate::case::{CaseResult, cases, hold};
use crate::scene::{A, B, CaseContext, ROOT};
use crate::talk::walk;

cases! { "frames":
    byte_by_byte, Any, Nothing,
        "intro(5): the connection is a stream of bytes; size tells where a message ends";
    several_in_one_piece, Any, Nothing,
        "intro(5): the connection is a stream of bytes; size tells where a message ends";
    one_and_a_half, Any, Nothing,
        "intro(5): the connection is a stream of bytes; size tells where a message ends";
}

async fn byte_by_byte(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let bytes = encoded(&c, &walk(ROOT, A, &[]));
    for byte in &bytes {
        c.send_bytes(&[*byte]).await?;
    }
    let got = c.answer(TAG, &walk(ROOT, A, &[])).await?;
    hold(!got.is_error(), || format!("it was refused: {}", got.text()))
}

async fn several_in_one_piece(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    c.send_all(&[(1, walk(ROOT, A, &[])), (2, asked), (3, walk(ROOT, B, &[]))]).await?;
    for _ in 0..3 {
        let got = c.receive().await?;
        hold(!got.is_error() && (1..=3).contains(&got.tag().0), || format!("{} came", got.text()))?;
    }
    Ok(())
}

async fn one_and_a_half(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let (first, second) = (walk(ROOT, A, &[]), c.tattr(ROOT));
    let both = [encoded(&c, &first), encoded(&c, &second)].concat();
    let cut = both.len() - 5;
    c.send_bytes(&both[..cut]).await?;
    c.answer(TAG, &first).await?;
    c.send_bytes(&both[cut..]).await?;
    c.answer(TAG, &second).await.map(drop)
}
