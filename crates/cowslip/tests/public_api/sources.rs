//! The modules of crates, read from their files, and the meaning of names in them.

use std::collections::BTreeMap;
use std::path::Path;

use syn::{Attribute, Ident, Item, UseTree, Visibility};

use super::expand;

/// A module's path: its crate's name first.
pub type ModulePath = Vec<String>;

#[derive(Default)]
pub struct Sources {
    pub modules: BTreeMap<ModulePath, Module>,
}

pub struct Module {
    pub is_public: bool,
    pub items: Vec<Item>,
    pub uses: Vec<Use>,
}

/// One name that a `use` brings in.
pub struct Use {
    pub is_public: bool,
    pub path: Vec<String>,
    pub name: String,
}

/// The meaning of a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    Module(ModulePath),
    /// The items of that name in a module: a type and a function may share one.
    Items(ModulePath, String),
    /// An item of another crate.
    Elsewhere(Vec<String>),
}

impl Sources {
    /// Reads a crate from its root file.
    pub fn add(&mut self, name: &str, root: &Path) {
        let directory = root.parent().expect("a file is in a directory");
        self.add_file(vec![name.to_owned()], true, root, directory);
    }

    fn add_file(&mut self, path: ModulePath, is_public: bool, file: &Path, children: &Path) {
        let text = std::fs::read_to_string(file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add_items(path, is_public, parsed.items, children);
    }

    fn add_items(&mut self, path: ModulePath, is_public: bool, items: Vec<Item>, children: &Path) {
        let mut module = Module { is_public, items: Vec::new(), uses: Vec::new() };
        for item in expand::macros(items) {
            match item {
                item if is_left_out(attributes(&item)) => drop(item),
                Item::Mod(submodule) => {
                    let name = submodule.ident.to_string();
                    let below = children.join(&name);
                    let mut child = path.clone();
                    child.push(name.clone());
                    let is_public = matches!(submodule.vis, Visibility::Public(_));
                    match submodule.content {
                        Some((_, items)) => self.add_items(child, is_public, items, &below),
                        None => {
                            let beside = children.join(format!("{name}.rs"));
                            let file = if beside.exists() { beside } else { below.join("mod.rs") };
                            self.add_file(child, is_public, &file, &below);
                        }
                    }
                }
                Item::Use(import) => {
                    let is_public = matches!(import.vis, Visibility::Public(_));
                    names(&import.tree, &mut Vec::new(), is_public, &mut module.uses);
                }
                item => module.items.push(item),
            }
        }
        self.modules.insert(path, module);
    }

    /// The meaning of a path in a module.
    pub fn resolve(&self, module: &[String], path: &[String]) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(module[..1].to_vec()),
            "self" => Target::Module(module.to_vec()),
            "super" => Target::Module(module[..module.len() - 1].to_vec()),
            name => self.name(module, name, rest.is_empty())?,
        };
        let mut at = start;
        for (i, name) in rest.iter().enumerate() {
            at = match at {
                Target::Module(at) if name == "super" => {
                    Target::Module(at[..at.len() - 1].to_vec())
                }
                Target::Module(at) => self.member(&at, name, i + 1 == rest.len())?,
                Target::Elsewhere(at) => Target::Elsewhere([at, vec![name.clone()]].concat()),
                // A variant, or an associated item.
                Target::Items(..) => return None,
            };
        }
        Some(at)
    }

    /// The meaning of the first name of a path that is used in a module.
    fn name(&self, module: &[String], name: &str, is_last: bool) -> Option<Target> {
        self.member(module, name, is_last).or_else(|| {
            let other_crate = vec![name.to_owned()];
            Some(match self.modules.contains_key(&other_crate) {
                true => Target::Module(other_crate),
                false => Target::Elsewhere(other_crate),
            })
        })
    }

    /// The item that a module has under this name. A path continues from a module, where there is one: after `mod
    /// fork;` the last name in `pub use fork::fork;` means the function.
    fn member(&self, module: &[String], name: &str, is_last: bool) -> Option<Target> {
        let child = [module, &[name.to_owned()]].concat();
        let is_module = self.modules.contains_key(&child);
        if is_module && !is_last {
            return Some(Target::Module(child));
        }
        if self.defines(module, name) {
            return Some(Target::Items(module.to_vec(), name.to_owned()));
        }
        let uses = &self.modules.get(module)?.uses;
        let used =
            uses.iter().find(|import| import.name == name).filter(|import| import.path != [name]);
        match used {
            Some(used) => self.resolve(module, &used.path),
            None => is_module.then_some(Target::Module(child)),
        }
    }

    fn defines(&self, module: &[String], name: &str) -> bool {
        let items = self.modules.get(module).map_or(&[][..], |here| &here.items);
        items.iter().any(|item| ident(item).is_some_and(|ident| ident == name))
    }
}

/// The name that an item defines.
pub fn ident(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(definition) => Some(&definition.ident),
        Item::Enum(definition) => Some(&definition.ident),
        Item::Fn(definition) => Some(&definition.sig.ident),
        Item::Static(definition) => Some(&definition.ident),
        Item::Struct(definition) => Some(&definition.ident),
        Item::Trait(definition) => Some(&definition.ident),
        Item::Type(definition) => Some(&definition.ident),
        Item::Union(definition) => Some(&definition.ident),
        _ => None,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(module) => &module.attrs,
        Item::Use(import) => &import.attrs,
        Item::Impl(implementation) => &implementation.attrs,
        _ => &[],
    }
}

/// Only tests have it, or only the crates of this workspace.
fn is_left_out(attributes: &[Attribute]) -> bool {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    let mut lists = cfgs.filter_map(|attribute| attribute.meta.require_list().ok());
    lists.any(|list| {
        let text = list.tokens.to_string();
        let is_test = text.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test");
        is_test || text == "feature = \"internal\""
    })
}

fn names(tree: &UseTree, path: &mut Vec<String>, is_public: bool, uses: &mut Vec<Use>) {
    let mut add = |path: Vec<String>, name: String| uses.push(Use { is_public, path, name });
    let with = |path: &[String], name: &Ident| [path, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(prefix) => {
            path.push(prefix.ident.to_string());
            names(&prefix.tree, path, is_public, uses);
            path.pop();
        }
        UseTree::Name(leaf) if leaf.ident == "self" => {
            let name = path.last().expect("a module").clone();
            add(path.clone(), name);
        }
        UseTree::Name(leaf) => add(with(path, &leaf.ident), leaf.ident.to_string()),
        UseTree::Rename(alias) if alias.rename == "_" => {}
        UseTree::Rename(alias) => add(with(path, &alias.ident), alias.rename.to_string()),
        UseTree::Group(group) => {
            group.items.iter().for_each(|branch| names(branch, path, is_public, uses));
        }
        // The names that it brings in are not known.
        UseTree::Glob(_) => add(path.clone(), "*".to_owned()),
    }
}
