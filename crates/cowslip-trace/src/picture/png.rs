//! The still picture as PNG, drawn from its SVG.

use std::io;
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

const SCALE: f32 = 2.0;

/// Draws it at twice the width and height. The font is built in, because a server may have none.
pub(super) fn render(svg: &str) -> io::Result<Vec<u8>> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(epaint_default_fonts::HACK_REGULAR.to_vec());
    fonts.set_monospace_family("Hack");
    let options =
        Options { fontdb: Arc::new(fonts), font_family: "Hack".to_owned(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(io::Error::other)?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let size = size.ok_or_else(|| io::Error::other("the picture has no size"))?;
    let pixmap = Pixmap::new(size.width(), size.height());
    let mut pixmap = pixmap.ok_or_else(|| io::Error::other("the picture is too large"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(io::Error::other)
}
