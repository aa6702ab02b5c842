//! Compresses the dashboard's files once, when the service is built.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;

const ASSETS: [(&str, &str, &str); 4] = [
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/dashboard/app.js", "dist/app.js", "text/javascript; charset=utf-8"),
    ("/dashboard/app.css", "dist/app.css", "text/css; charset=utf-8"),
    ("/dashboard/icon.svg", "icon.svg", "image/svg+xml"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR")?;
    let folder = std::env::var("CARGO_MANIFEST_DIR")?;
    let mut code = String::from("const ASSETS: &[Asset] = &[\n");
    for (index, (path, file, content_type)) in ASSETS.into_iter().enumerate() {
        let source = Path::new(&folder).join("dashboard").join(file);
        println!("cargo::rerun-if-changed={}", source.display());
        let plain = fs::read(&source)?;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&plain)?;
        let gzipped = Path::new(&out).join(format!("{index}.gz"));
        fs::write(&gzipped, encoder.finish()?)?;
        let mut hasher = DefaultHasher::new();
        plain.hash(&mut hasher);
        let etag = format!("\"{:016x}\"", hasher.finish());
        code.push_str(&format!(
            "    Asset {{ path: {path:?}, content_type: {content_type:?}, etag: {etag:?}, \
             plain: include_bytes!({:?}), gzipped: include_bytes!({:?}) }},\n",
            source.display().to_string(),
            gzipped.display().to_string(),
        ));
    }
    code.push_str("];\n");
    fs::write(Path::new(&out).join("assets.rs"), code)?;
    Ok(())
}
