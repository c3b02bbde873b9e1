//! The call stacks of both sides as a differential flame graph of the page.

use cowslip_compare::profile::{CallTree, ProfileDifference};
use cowslip_report::text::printable;
use minijinja::context;
use minijinja::value::Value;
use serde_json::json;

use super::format;

/// The graph's data for the page's template.
pub(super) fn flame(found: &ProfileDifference) -> Value {
    let tree = &found.tree;
    let greatest = greatest(tree);
    let (good, bad) = tree.row.means;
    let is_bad_slower = bad >= good;
    let data = node(tree, is_bad_slower, greatest).to_string();
    context! {
        slower => if is_bad_slower { "bad" } else { "good" },
        title => title(tree),
        style => Value::from_safe_string(cowslip_trace::picture::FLAME_STYLE.to_owned()),
        script => Value::from_safe_string(cowslip_trace::picture::FLAME_SCRIPT.to_owned()),
        // A name must not end the script.
        data => Value::from_safe_string(data.replace('<', "\\u003c")),
    }
}

/// The greatest difference of all functions.
fn greatest(tree: &CallTree) -> f64 {
    tree.callees.iter().map(greatest).fold(tree.row.added.value.abs(), f64::max)
}

/// A function; its hue is from -1, more in good runs, to 1, more in bad ones.
fn node(tree: &CallTree, is_bad_slower: bool, greatest: f64) -> serde_json::Value {
    let (good, bad) = tree.row.means;
    let added = &tree.row.added;
    let hue = if added.is_certain() { added.value / greatest } else { 0.0 };
    let callees = tree.callees.iter().map(|callee| node(callee, is_bad_slower, greatest));
    json!({
        "name": printable(&tree.row.name),
        "title": title(tree),
        "weight": if is_bad_slower { bad } else { good },
        "hue": (hue * 1e3).round() / 1e3,
        "callees": callees.collect::<Vec<_>>(),
    })
}

fn title(tree: &CallTree) -> String {
    let (good, bad) = tree.row.means;
    let added = tree.row.added.value;
    let sign = if added < 0.0 { "-" } else { "+" };
    let doubt = if tree.row.added.is_certain() { "" } else { ", not shown to differ" };
    format!(
        "{}: {} a run in good runs, {} in bad ones ({sign}{}{doubt})",
        printable(&tree.row.name),
        format::seconds(good),
        format::seconds(bad),
        format::seconds(added.abs())
    )
}
