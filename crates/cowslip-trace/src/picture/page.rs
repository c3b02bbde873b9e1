//! The page of a picture, assembled from its parts.

use std::io;

use minijinja::value::Value;
use minijinja::{Environment, context};

use super::facts::{self, Fact, Sentence};
use super::pack;
use super::scene::Scene;
use super::{FLAME_SCRIPT, FLAME_STYLE};
use crate::format;

/// One script per concept, in the order in which they are needed.
const SCRIPTS: [&str; 16] = [
    include_str!("../../assets/picture/unpack.js"),
    include_str!("../../assets/picture/format.js"),
    include_str!("../../assets/picture/axis.js"),
    include_str!("../../assets/picture/palette.js"),
    include_str!("../../assets/picture/view.js"),
    include_str!("../../assets/picture/select.js"),
    include_str!("../../assets/picture/density.js"),
    include_str!("../../assets/picture/bars.js"),
    include_str!("../../assets/picture/map.js"),
    include_str!("../../assets/picture/rate.js"),
    include_str!("../../assets/picture/hover.js"),
    include_str!("../../assets/picture/tables.js"),
    FLAME_SCRIPT,
    include_str!("../../assets/picture/stacks.js"),
    include_str!("../../assets/picture/controls.js"),
    include_str!("../../assets/picture/main.js"),
];

pub(super) fn render(scene: &Scene) -> io::Result<String> {
    let safe = |text: String| Value::from_safe_string(text);
    let sentence = |Sentence { text, is_bad }| context! { text, is_bad };
    let fact = |Fact { name, text }| context! { name, text };
    let mut environment = Environment::new();
    let page = include_str!("../../assets/picture/page.html");
    environment.add_template("page.html", page).map_err(io::Error::other)?;
    let context = context! {
        title => facts::title(scene),
        statement => facts::statement(scene).into_iter().map(sentence).collect::<Vec<_>>(),
        unseen => &scene.analysis.header.unseen,
        facts => facts::facts(scene).into_iter().map(fact).collect::<Vec<_>>(),
        faults => format::count(scene.dots.count),
        packed => safe(pack::pack(scene)?),
        style => safe([include_str!("../../assets/picture/page.css"), FLAME_STYLE].concat()),
        script => safe(SCRIPTS.join("\n")),
        uplot_style => safe(include_str!("../../assets/vendor/uplot/uPlot.min.css").to_owned()),
        uplot_script => safe(include_str!("../../assets/vendor/uplot/uPlot.iife.min.js").to_owned()),
    };
    let page = environment.get_template("page.html").map_err(io::Error::other)?;
    page.render(context).map_err(io::Error::other)
}
