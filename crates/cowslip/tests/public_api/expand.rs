//! Expands macros that make items: `macro_rules!` with simple patterns, and `bitflags!`.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Attribute, Ident, Item, ItemMacro, Token, Type, Visibility};

/// `items`, with macros replaced by their expansions.
pub fn macros(items: Vec<Item>) -> Vec<Item> {
    let mut rules = BTreeMap::new();
    let mut expanded = Vec::new();
    for item in items {
        let Item::Macro(call) = item else {
            expanded.push(item);
            continue;
        };
        if let Some(name) = &call.ident {
            rules.insert(name.to_string(), call.mac.tokens);
            continue;
        }
        let name = call.mac.path.segments.last().expect("a name").ident.to_string();
        if ["thread_local", "compile_error"].contains(&name.as_str()) {
            // From the standard library; none here makes public items.
            continue;
        }
        let made = match (name.as_str(), rules.get(&name)) {
            ("bitflags", _) => bitflags(&call),
            (_, Some(rules)) => by_rules(rules.clone(), call.mac.tokens),
            // The expansion of another crate's macro is known only to that crate.
            _ => panic!("{name}!: a macro that makes items, and is not known here"),
        };
        let made: syn::File =
            syn::parse2(made.clone()).unwrap_or_else(|error| panic!("{name}!: {error} in {made}"));
        expanded.extend(macros(made.items));
    }
    expanded
}

/// `bitflags! { pub struct Flags: u32 { const A = 1; } }`
struct Flags {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    bits: Type,
    constants: Vec<Ident>,
}

impl Parse for Flags {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        input.parse::<Token![struct]>()?;
        let name = input.parse()?;
        input.parse::<Token![:]>()?;
        let bits = input.parse()?;
        let body;
        syn::braced!(body in input);
        let mut constants = Vec::new();
        while !body.is_empty() {
            body.call(Attribute::parse_outer)?;
            body.parse::<Token![const]>()?;
            constants.push(body.parse()?);
            body.parse::<Token![=]>()?;
            body.parse::<syn::Expr>()?;
            body.parse::<Token![;]>()?;
        }
        Ok(Self { attributes, visibility, name, bits, constants })
    }
}

fn all_flags(input: ParseStream<'_>) -> syn::Result<Vec<Flags>> {
    let mut all = Vec::new();
    while !input.is_empty() {
        all.push(input.parse()?);
    }
    Ok(all)
}

fn bitflags(of: &ItemMacro) -> TokenStream {
    let all = all_flags.parse2(of.mac.tokens.clone()).expect("what bitflags! takes");
    all.into_iter()
        .map(|Flags { attributes, visibility, name, bits, constants }| {
            quote! {
                #(#attributes)* #[bits(#bits)] #visibility struct #name { bits: #bits }
                impl #name { #(pub const #constants: Self = Self { bits: 0 };)* }
            }
        })
        .collect()
}

/// The binding of a pattern's variable: tokens, or the bindings of each round of its repetition.
#[derive(Clone, Debug)]
enum Bound {
    One(TokenStream),
    Many(Vec<Bindings>),
}

type Bindings = BTreeMap<String, Bound>;

type Tokens = std::iter::Peekable<std::vec::IntoIter<TokenTree>>;

fn by_rules(rules: TokenStream, given: TokenStream) -> TokenStream {
    let mut rules = tokens(rules);
    while let Some(TokenTree::Group(pattern)) = rules.next() {
        // `=>`
        rules.next();
        rules.next();
        let Some(TokenTree::Group(body)) = rules.next() else { panic!("a rule without a body") };
        let mut bindings = Bindings::new();
        let mut left = tokens(given.clone());
        if matches(pattern.stream(), &mut left, &mut bindings) && left.peek().is_none() {
            return transcribe(body.stream(), &bindings);
        }
        // `;`
        rules.next();
    }
    panic!("no rule for {given}")
}

fn tokens(stream: TokenStream) -> Tokens {
    stream.into_iter().collect::<Vec<_>>().into_iter().peekable()
}

fn is(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn matches(pattern: TokenStream, given: &mut Tokens, bindings: &mut Bindings) -> bool {
    let mut pattern = tokens(pattern);
    while let Some(expected) = pattern.next() {
        match expected {
            TokenTree::Punct(ref punct) if punct.as_char() == '$' => match pattern.next() {
                Some(TokenTree::Group(repeated)) => {
                    let separator = separator(&mut pattern);
                    bind_all(repeated.stream(), separator, given, bindings);
                }
                Some(TokenTree::Ident(name)) => {
                    pattern.next();
                    let kind = pattern.next().expect("a kind of fragment").to_string();
                    let Some(found) = fragment(&kind, given) else { return false };
                    bindings.insert(name.to_string(), Bound::One(found));
                }
                _ => panic!("what follows $ is not known here"),
            },
            TokenTree::Group(expected) => {
                let Some(TokenTree::Group(found)) = given.peek() else { return false };
                let mut inside = tokens(found.stream());
                let is_same = found.delimiter() == expected.delimiter();
                if !is_same
                    || !matches(expected.stream(), &mut inside, bindings)
                    || inside.peek().is_some()
                {
                    return false;
                }
                given.next();
            }
            expected => match given.peek() {
                Some(found) if found.to_string() == expected.to_string() => _ = given.next(),
                _ => return false,
            },
        }
    }
    true
}

/// The separator between the rounds, after `$( … )`.
fn separator(pattern: &mut Tokens) -> Option<char> {
    let Some(TokenTree::Punct(first)) = pattern.next() else {
        panic!("a repetition without an end")
    };
    if matches!(first.as_char(), '*' | '+' | '?') {
        return None;
    }
    pattern.next();
    Some(first.as_char())
}

fn bind_all(
    repeated: TokenStream,
    separator: Option<char>,
    given: &mut Tokens,
    bindings: &mut Bindings,
) {
    let mut rounds = Vec::new();
    loop {
        let (mut ahead, mut round) = (given.clone(), Bindings::new());
        if ahead.peek().is_none() || !matches(repeated.clone(), &mut ahead, &mut round) {
            break;
        }
        *given = ahead;
        rounds.push(round);
        match separator {
            Some(sign) if is(given.peek(), sign) => _ = given.next(),
            Some(_) => break,
            None => {}
        }
    }
    for name in variables(repeated) {
        bindings.insert(name, Bound::Many(rounds.clone()));
    }
}

/// The variables of a pattern, or of a body.
fn variables(of: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    let mut of = tokens(of);
    while let Some(token) = of.next() {
        match token {
            TokenTree::Group(group) => found.extend(variables(group.stream())),
            token if is(Some(&token), '$') => {
                if let Some(TokenTree::Ident(name)) = of.peek() {
                    found.push(name.to_string());
                }
            }
            _ => {}
        }
    }
    found
}

fn fragment(kind: &str, given: &mut Tokens) -> Option<TokenStream> {
    let rest: TokenStream = given.clone().collect();
    fn parsed<T: Parse + ToTokens>(
        input: ParseStream<'_>,
    ) -> syn::Result<(TokenStream, TokenStream)> {
        let found = input.parse::<T>()?.into_token_stream();
        Ok((found, input.parse()?))
    }
    let (found, rest) = match kind {
        "ident" => parsed::<Ident>.parse2(rest),
        "ty" => parsed::<Type>.parse2(rest),
        "expr" => parsed::<syn::Expr>.parse2(rest),
        "literal" => parsed::<syn::Lit>.parse2(rest),
        "meta" => parsed::<syn::Meta>.parse2(rest),
        "path" => parsed::<syn::Path>.parse2(rest),
        "tt" => parsed::<TokenTree>.parse2(rest),
        other => panic!("${other}: a kind of fragment that is not known here"),
    }
    .ok()?;
    *given = tokens(rest);
    Some(found)
}

fn transcribe(body: TokenStream, bindings: &Bindings) -> TokenStream {
    let mut body = tokens(body);
    let mut made = TokenStream::new();
    while let Some(token) = body.next() {
        match token {
            token if is(Some(&token), '$') => match body.next() {
                Some(TokenTree::Group(repeated)) => {
                    let separator = separator(&mut body);
                    let rounds = variables(repeated.stream()).into_iter().find_map(|name| {
                        match bindings.get(&name) {
                            Some(Bound::Many(rounds)) => Some(rounds.clone()),
                            _ => None,
                        }
                    });
                    for (i, round) in rounds.unwrap_or_default().iter().enumerate() {
                        let separator = separator.filter(|_| i > 0);
                        made.extend(separator.map(|sign| {
                            TokenTree::from(proc_macro2::Punct::new(
                                sign,
                                proc_macro2::Spacing::Alone,
                            ))
                        }));
                        let mut inside = bindings.clone();
                        inside.extend(round.clone());
                        made.extend(transcribe(repeated.stream(), &inside));
                    }
                }
                Some(TokenTree::Ident(name)) => match bindings.get(&name.to_string()) {
                    Some(Bound::One(found)) => made.extend(found.clone()),
                    // `$crate`
                    _ => made.extend(quote!(#name)),
                },
                _ => panic!("what follows $ is not known here"),
            },
            TokenTree::Group(group) => {
                let inside = transcribe(group.stream(), bindings);
                let delimiter: Delimiter = group.delimiter();
                made.extend([TokenTree::from(Group::new(delimiter, inside))]);
            }
            token => made.extend([token]),
        }
    }
    made
}
