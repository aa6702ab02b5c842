//! The page itself: three files in the binary, compressed when it was built.
//!
//! The script and the style sheet are generated from `dashboard/src` and committed, because whoever
//! builds Tollway has Rust and nothing else; a test builds them again and compares.

use crate::http::{Call, Trouble};

struct Asset {
    path: &'static str,
    content_type: &'static str,
    plain: &'static [u8],
    gzipped: &'static [u8],
    etag: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Nothing from elsewhere, nothing inline, no frame around it: a key that looks like markup stays
/// text even if the page had a mistake.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Replies with the file at the path.
pub(crate) fn answer(call: Call<'_>) -> Result<(), Trouble> {
    let asset = ASSETS.iter().find(|asset| asset.path == call.request.path);
    let asset = asset.ok_or(Trouble::NotFound)?;
    let mut field = |name, value: &str| call.reply.fields.push((name, value.to_owned()));
    field("ETag", asset.etag);
    // Asked again each time, answered in one line: a new version is seen at once.
    field("Cache-Control", "no-cache");
    field("Vary", "Accept-Encoding");
    field("Content-Security-Policy", POLICY);
    field("X-Content-Type-Options", "nosniff");
    field("Referrer-Policy", "no-referrer");
    field("Cross-Origin-Opener-Policy", "same-origin");
    field("Cross-Origin-Resource-Policy", "same-origin");
    call.reply.content_type = asset.content_type;
    if is_among(call.request.fields.field("if-none-match"), asset.etag) {
        call.reply.status = 304;
    } else if is_among(call.request.fields.field("accept-encoding"), "gzip") {
        call.reply.fields.push(("Content-Encoding", "gzip".to_owned()));
        call.reply.set_constant(asset.gzipped);
    } else {
        call.reply.set_constant(asset.plain);
    }
    Ok(())
}

fn is_among(field: Option<&[u8]>, wanted: &str) -> bool {
    let text = field.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    let names = text.split(',').map(|item| item.split(';').next().unwrap_or_default().trim());
    names.map(|name| name.trim_start_matches("W/")).any(|name| name == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_with_all_it_needs_is_small() {
        let compressed: usize = ASSETS.iter().map(|asset| asset.gzipped.len()).sum();
        assert!(compressed < 150_000, "{compressed} bytes");
        assert!(
            ["/", "/dashboard/app.js", "/dashboard/app.css"]
                .into_iter()
                .all(|path| ASSETS.iter().any(|asset| asset.path == path))
        );
    }

    #[test]
    fn the_page_names_nothing_outside_itself() {
        let page = ASSETS.iter().find(|asset| asset.path == "/").unwrap();
        let page = std::str::from_utf8(page.plain).unwrap();
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script>"));
    }

    #[test]
    fn a_field_lists_names_with_and_without_parameters() {
        assert!(is_among(Some(b"br, gzip;q=0.8"), "gzip"));
        assert!(is_among(Some(b"W/\"a\", \"b\""), "\"a\""));
        assert!(!is_among(Some(b"gzipped"), "gzip") && !is_among(None, "gzip"));
    }
}
