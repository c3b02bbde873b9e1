//! One line for each item that can be named from outside a crate.

use std::collections::{BTreeMap, BTreeSet};

use quote::ToTokens;
use syn::{
    Attribute, Fields, ImplItem, Item, ItemImpl, Meta, Signature, TraitItem, Type, Visibility,
};

use super::sources::{ModulePath, Sources, Target, ident};
use super::text;

/// The place of an item's definition.
type Definition = (ModulePath, String);

/// The public API of a crate.
pub fn of(sources: &Sources, name: &str) -> Vec<String> {
    let mut lister = Lister { sources, impls: BTreeMap::new(), public: BTreeSet::new() };
    let root = vec![name.to_owned()];
    // The first pass finds the public traits; private ones are not listed.
    lister.module(&root, name);
    lister.find_impls();
    lister.module(&root, name)
}

struct Lister<'a> {
    sources: &'a Sources,
    impls: BTreeMap<Definition, Vec<&'a ItemImpl>>,
    public: BTreeSet<Definition>,
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

impl<'a> Lister<'a> {
    fn module(&mut self, module: &[String], shown: &str) -> Vec<String> {
        let mut lines = vec![format!("pub mod {shown}")];
        let mut named = BTreeMap::new();
        let here = &self.sources.modules[module];
        let items = here.items.iter().filter(|item| visibility(item).is_some_and(is_public));
        for name in items.filter_map(ident) {
            named.insert(name.to_string(), Target::Items(module.to_vec(), name.to_string()));
        }
        for used in here.uses.iter().filter(|it| it.is_public) {
            assert!(
                used.name != "*",
                "what `pub use {}::*` brings in is not listed",
                used.path.join("::")
            );
            let target = self.sources.resolve(module, &used.path);
            let target = target.unwrap_or_else(|| panic!("pub use {}", used.path.join("::")));
            named.insert(used.name.clone(), target);
        }
        for (path, child) in &self.sources.modules {
            if child.is_public && path.len() == module.len() + 1 && path.starts_with(module) {
                let name = path[module.len()].clone();
                // A function and a module may share a name.
                let beside = named.insert(name.clone(), Target::Module(path.clone()));
                if let Some(beside) = beside {
                    lines.extend(self.target(&beside, &format!("{shown}::{name}")));
                }
            }
        }
        for (name, target) in named {
            lines.extend(self.target(&target, &format!("{shown}::{name}")));
        }
        lines
    }

    fn target(&mut self, target: &Target, shown: &str) -> Vec<String> {
        match target {
            Target::Module(path) => self.module(path, shown),
            Target::Elsewhere(path) => vec![format!("pub use {} as {shown}", path.join("::"))],
            Target::Items(module, name) => {
                self.public.insert((module.clone(), name.clone()));
                let items = self.sources.modules[module].items.iter();
                let of_name = items.filter(|item| {
                    ident(item).is_some_and(|it| it == name)
                        && visibility(item).is_some_and(is_public)
                });
                of_name.flat_map(|item| self.item(item, module, name, shown)).collect()
            }
        }
    }

    fn item(&self, item: &Item, module: &[String], name: &str, shown: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let head = |kind: &str, generics: &syn::Generics, attributes: &[Attribute]| {
            let open = attributes.iter().any(|it| it.path().is_ident("non_exhaustive"));
            let open = if open { " (non-exhaustive)" } else { "" };
            let (generics, wheres) = (text::of(generics), text::of(&generics.where_clause));
            format!("pub {kind} {shown}{generics} {wheres}").trim_end().to_owned() + open
        };
        match item {
            Item::Fn(it) => lines.push(function(&it.sig, shown)),
            Item::Const(it) => lines.push(format!("pub const {shown}: {}", text::of(&it.ty))),
            Item::Static(it) => lines.push(format!("pub static {shown}: {}", text::of(&it.ty))),
            Item::Type(it) => {
                lines.push(format!(
                    "pub type {shown}{} = {}",
                    text::of(&it.generics),
                    text::of(&it.ty)
                ));
            }
            Item::Trait(it) => {
                let above = text::of(&it.supertraits);
                let above = if above.is_empty() { above } else { format!(": {above}") };
                lines.push(head("trait", &it.generics, &it.attrs) + &above);
                lines.extend(it.items.iter().filter_map(|it| of_trait(it, shown)));
            }
            Item::Struct(it) => {
                let bits = it.attrs.iter().find(|it| it.path().is_ident("bits"));
                let bits = bits.and_then(|it| it.meta.require_list().ok());
                let bits = bits.map(|it| format!(" (bits: {})", text::of(&it.tokens)));
                lines.push(head("struct", &it.generics, &it.attrs) + &bits.unwrap_or_default());
                lines.extend(self.of_type(&it.attrs, module, name, shown));
                lines.extend(fields(&it.fields, shown));
            }
            Item::Enum(it) => {
                lines.push(head("enum", &it.generics, &it.attrs));
                lines.extend(self.of_type(&it.attrs, module, name, shown));
                lines.extend(it.variants.iter().map(|it| {
                    format!("pub variant {shown}::{}{}", it.ident, variant_fields(&it.fields))
                }));
            }
            other => panic!("{shown}: an item that is not listed: {}", text::of(other)),
        }
        if matches!(item, Item::Struct(_) | Item::Enum(_)) {
            lines.extend(self.inherent(module, name, shown, |it| matches!(it, ImplItem::Fn(_))));
        }
        lines
    }

    /// The traits of a type, and its constants.
    fn of_type(
        &self,
        attributes: &[Attribute],
        module: &[String],
        name: &str,
        shown: &str,
    ) -> Vec<String> {
        let mut lines: Vec<_> =
            derived(attributes).iter().map(|it| format!("impl {it} for {shown}")).collect();
        for it in self.impls_of(module, name) {
            let Some((_, path, _)) = &it.trait_ else { continue };
            let types = it.items.iter().filter_map(|it| match it {
                ImplItem::Type(it) => Some(format!(", {} = {}", it.ident, text::of(&it.ty))),
                _ => None,
            });
            let generics = text::of(&it.generics);
            let safety = if it.unsafety.is_some() { "unsafe " } else { "" };
            let arguments = arguments_of(&it.self_ty);
            lines.push(format!(
                "{safety}impl{generics} {} for {shown}{arguments}{}",
                text::of(path),
                types.collect::<String>()
            ));
        }
        lines.sort();
        lines.extend(self.inherent(module, name, shown, |it| matches!(it, ImplItem::Const(_))));
        lines
    }

    fn inherent(
        &self,
        module: &[String],
        name: &str,
        shown: &str,
        wanted: impl Fn(&ImplItem) -> bool,
    ) -> Vec<String> {
        let impls = self.impls_of(module, name).filter(|it| it.trait_.is_none());
        let items = impls.flat_map(|it| &it.items).filter(|it| wanted(it));
        let mut lines: Vec<_> = items
            .filter_map(|it| match it {
                ImplItem::Fn(it) if is_public(&it.vis) => {
                    Some(function(&it.sig, &format!("{shown}::{}", it.sig.ident)))
                }
                ImplItem::Const(it) if is_public(&it.vis) => {
                    Some(format!("pub const {shown}::{}: {}", it.ident, text::of(&it.ty)))
                }
                _ => None,
            })
            .collect();
        lines.sort();
        lines
    }

    fn impls_of(&self, module: &[String], name: &str) -> impl Iterator<Item = &'a ItemImpl> + '_ {
        let key = (module.to_vec(), name.to_owned());
        self.impls.get(&key).into_iter().flatten().copied()
    }

    fn find_impls(&mut self) {
        for (path, module) in &self.sources.modules {
            for item in &module.items {
                let Item::Impl(it) = item else { continue };
                let Some(definition) = self.definition(path, &it.self_ty) else { continue };
                let is_shown = it.trait_.as_ref().is_none_or(|(_, name, _)| {
                    let segments: Vec<_> =
                        name.segments.iter().map(|it| it.ident.to_string()).collect();
                    match self.sources.resolve(path, &segments) {
                        Some(Target::Items(module, name)) => self.public.contains(&(module, name)),
                        _ => true,
                    }
                });
                if is_shown {
                    self.impls.entry(definition).or_default().push(it);
                }
            }
        }
    }

    /// Finds the one of our types that an implementation is for.
    fn definition(&self, module: &[String], of: &Type) -> Option<Definition> {
        let Type::Path(it) = of else { return None };
        let segments: Vec<_> = it.path.segments.iter().map(|it| it.ident.to_string()).collect();
        match self.sources.resolve(module, &segments)? {
            Target::Items(module, name) => Some((module, name)),
            _ => None,
        }
    }
}

fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(it) => Some(&it.vis),
        Item::Enum(it) => Some(&it.vis),
        Item::Fn(it) => Some(&it.vis),
        Item::Static(it) => Some(&it.vis),
        Item::Struct(it) => Some(&it.vis),
        Item::Trait(it) => Some(&it.vis),
        Item::Type(it) => Some(&it.vis),
        Item::Union(it) => Some(&it.vis),
        _ => None,
    }
}

/// A function's signature, with its full path.
fn function(signature: &Signature, shown: &str) -> String {
    let text = text::of(signature);
    let name = format!("fn {}", signature.ident);
    format!("pub {}", text.replacen(&name, &format!("fn {shown}"), 1))
}

fn of_trait(item: &TraitItem, shown: &str) -> Option<String> {
    match item {
        TraitItem::Fn(it) => Some(function(&it.sig, &format!("{shown}::{}", it.sig.ident))),
        TraitItem::Const(it) => {
            Some(format!("pub const {shown}::{}: {}", it.ident, text::of(&it.ty)))
        }
        TraitItem::Type(it) => Some(format!("pub type {shown}::{}", it.ident)),
        _ => None,
    }
}

fn fields(fields: &Fields, shown: &str) -> Vec<String> {
    let public = fields.iter().enumerate().filter(|(_, it)| is_public(&it.vis));
    public
        .map(|(i, it)| {
            let name = it.ident.as_ref().map_or_else(|| i.to_string(), ToString::to_string);
            format!("pub field {shown}::{name}: {}", text::of(&it.ty))
        })
        .collect()
}

fn variant_fields(fields: &Fields) -> String {
    let mut fields = fields.clone();
    // Their documentation is not part of the API.
    fields.iter_mut().for_each(|it| it.attrs.clear());
    match &fields {
        Fields::Named(_) => format!(" {}", text::of(&fields)),
        _ => text::of(&fields),
    }
}

fn derived(attributes: &[Attribute]) -> Vec<String> {
    let mut traits = Vec::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("derive")) {
        let Meta::List(_) = &attribute.meta else { continue };
        attribute
            .parse_nested_meta(|it| {
                traits.push(text::of(it.path.to_token_stream()));
                Ok(())
            })
            .expect("a list of traits");
    }
    traits
}

/// `<T>` of `Type<T>`.
fn arguments_of(of: &Type) -> String {
    let Type::Path(it) = of else { return String::new() };
    it.path.segments.last().map_or_else(String::new, |it| text::of(&it.arguments))
}
