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
pub fn from_sources(sources: &Sources, name: &str) -> Vec<String> {
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
        for used in here.uses.iter().filter(|import| import.is_public) {
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
                    ident(item).is_some_and(|ident| ident == name)
                        && visibility(item).is_some_and(is_public)
                });
                of_name.flat_map(|item| self.item(item, module, name, shown)).collect()
            }
        }
    }

    fn item(&self, item: &Item, module: &[String], name: &str, shown: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let head = |kind: &str, generics: &syn::Generics, attributes: &[Attribute]| {
            let open =
                attributes.iter().any(|attribute| attribute.path().is_ident("non_exhaustive"));
            let open = if open { " (non-exhaustive)" } else { "" };
            let (generics, wheres) =
                (text::from_tokens(generics), text::from_tokens(&generics.where_clause));
            format!("pub {kind} {shown}{generics} {wheres}").trim_end().to_owned() + open
        };
        match item {
            Item::Fn(definition) => lines.push(function(&definition.sig, shown)),
            Item::Const(definition) => {
                lines.push(format!("pub const {shown}: {}", text::from_tokens(&definition.ty)));
            }
            Item::Static(definition) => {
                lines.push(format!("pub static {shown}: {}", text::from_tokens(&definition.ty)));
            }
            Item::Type(definition) => {
                lines.push(format!(
                    "pub type {shown}{} = {}",
                    text::from_tokens(&definition.generics),
                    text::from_tokens(&definition.ty)
                ));
            }
            Item::Trait(definition) => {
                let above = text::from_tokens(&definition.supertraits);
                let above = if above.is_empty() { above } else { format!(": {above}") };
                lines.push(head("trait", &definition.generics, &definition.attrs) + &above);
                lines.extend(definition.items.iter().filter_map(|member| of_trait(member, shown)));
            }
            Item::Struct(definition) => {
                let bits =
                    definition.attrs.iter().find(|attribute| attribute.path().is_ident("bits"));
                let bits = bits.and_then(|attribute| attribute.meta.require_list().ok());
                let bits = bits.map(|list| format!(" (bits: {})", text::from_tokens(&list.tokens)));
                lines.push(
                    head("struct", &definition.generics, &definition.attrs)
                        + &bits.unwrap_or_default(),
                );
                lines.extend(self.of_type(&definition.attrs, module, name, shown));
                lines.extend(fields(&definition.fields, shown));
            }
            Item::Enum(definition) => {
                lines.push(head("enum", &definition.generics, &definition.attrs));
                lines.extend(self.of_type(&definition.attrs, module, name, shown));
                lines.extend(definition.variants.iter().map(|variant| {
                    let fields = variant_fields(&variant.fields);
                    format!("pub variant {shown}::{}{fields}", variant.ident)
                }));
            }
            other => panic!("{shown}: an item that is not listed: {}", text::from_tokens(other)),
        }
        if matches!(item, Item::Struct(_) | Item::Enum(_)) {
            let is_function = |member: &ImplItem| matches!(member, ImplItem::Fn(_));
            lines.extend(self.inherent(module, name, shown, is_function));
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
            derived(attributes).iter().map(|derive| format!("impl {derive} for {shown}")).collect();
        for block in self.impls_of(module, name) {
            let Some((_, path, _)) = &block.trait_ else { continue };
            let types = block.items.iter().filter_map(|member| match member {
                ImplItem::Type(alias) => {
                    Some(format!(", {} = {}", alias.ident, text::from_tokens(&alias.ty)))
                }
                _ => None,
            });
            let generics = text::from_tokens(&block.generics);
            let safety = if block.unsafety.is_some() { "unsafe " } else { "" };
            let arguments = arguments_of(&block.self_ty);
            lines.push(format!(
                "{safety}impl{generics} {} for {shown}{arguments}{}",
                text::from_tokens(path),
                types.collect::<String>()
            ));
        }
        lines.sort();
        let is_constant = |member: &ImplItem| matches!(member, ImplItem::Const(_));
        lines.extend(self.inherent(module, name, shown, is_constant));
        lines
    }

    fn inherent(
        &self,
        module: &[String],
        name: &str,
        shown: &str,
        wanted: impl Fn(&ImplItem) -> bool,
    ) -> Vec<String> {
        let impls = self.impls_of(module, name).filter(|block| block.trait_.is_none());
        let items = impls.flat_map(|block| &block.items).filter(|member| wanted(member));
        let mut lines: Vec<_> = items
            .filter_map(|member| match member {
                ImplItem::Fn(method) if is_public(&method.vis) => {
                    Some(function(&method.sig, &format!("{shown}::{}", method.sig.ident)))
                }
                ImplItem::Const(constant) if is_public(&constant.vis) => Some(format!(
                    "pub const {shown}::{}: {}",
                    constant.ident,
                    text::from_tokens(&constant.ty)
                )),
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
                let Item::Impl(block) = item else { continue };
                let Some(definition) = self.definition(path, &block.self_ty) else { continue };
                let is_shown = block.trait_.as_ref().is_none_or(|(_, name, _)| {
                    let segments: Vec<_> =
                        name.segments.iter().map(|segment| segment.ident.to_string()).collect();
                    match self.sources.resolve(path, &segments) {
                        Some(Target::Items(module, name)) => self.public.contains(&(module, name)),
                        _ => true,
                    }
                });
                if is_shown {
                    self.impls.entry(definition).or_default().push(block);
                }
            }
        }
    }

    /// Finds the one of our types that an implementation is for.
    fn definition(&self, module: &[String], of: &Type) -> Option<Definition> {
        let Type::Path(type_path) = of else { return None };
        let segments = type_path.path.segments.iter();
        let segments: Vec<_> = segments.map(|segment| segment.ident.to_string()).collect();
        match self.sources.resolve(module, &segments)? {
            Target::Items(module, name) => Some((module, name)),
            _ => None,
        }
    }
}

fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(definition) => Some(&definition.vis),
        Item::Enum(definition) => Some(&definition.vis),
        Item::Fn(definition) => Some(&definition.vis),
        Item::Static(definition) => Some(&definition.vis),
        Item::Struct(definition) => Some(&definition.vis),
        Item::Trait(definition) => Some(&definition.vis),
        Item::Type(definition) => Some(&definition.vis),
        Item::Union(definition) => Some(&definition.vis),
        _ => None,
    }
}

/// A function's signature, with its full path.
fn function(signature: &Signature, shown: &str) -> String {
    let text = text::from_tokens(signature);
    let name = format!("fn {}", signature.ident);
    format!("pub {}", text.replacen(&name, &format!("fn {shown}"), 1))
}

fn of_trait(item: &TraitItem, shown: &str) -> Option<String> {
    match item {
        TraitItem::Fn(definition) => {
            Some(function(&definition.sig, &format!("{shown}::{}", definition.sig.ident)))
        }
        TraitItem::Const(definition) => Some(format!(
            "pub const {shown}::{}: {}",
            definition.ident,
            text::from_tokens(&definition.ty)
        )),
        TraitItem::Type(definition) => Some(format!("pub type {shown}::{}", definition.ident)),
        _ => None,
    }
}

fn fields(fields: &Fields, shown: &str) -> Vec<String> {
    let public = fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis));
    public
        .map(|(i, field)| {
            let name = field.ident.as_ref().map_or_else(|| i.to_string(), ToString::to_string);
            format!("pub field {shown}::{name}: {}", text::from_tokens(&field.ty))
        })
        .collect()
}

fn variant_fields(fields: &Fields) -> String {
    let mut fields = fields.clone();
    // Their documentation is not part of the API.
    fields.iter_mut().for_each(|field| field.attrs.clear());
    match &fields {
        Fields::Named(_) => format!(" {}", text::from_tokens(&fields)),
        _ => text::from_tokens(&fields),
    }
}

fn derived(attributes: &[Attribute]) -> Vec<String> {
    let mut traits = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let Meta::List(_) = &attribute.meta else { continue };
        attribute
            .parse_nested_meta(|meta| {
                traits.push(text::from_tokens(meta.path.to_token_stream()));
                Ok(())
            })
            .expect("a list of traits");
    }
    traits
}

/// `<T>` of `Type<T>`.
fn arguments_of(of: &Type) -> String {
    let Type::Path(type_path) = of else { return String::new() };
    let last = type_path.path.segments.last();
    last.map_or_else(String::new, |segment| text::from_tokens(&segment.arguments))
}
