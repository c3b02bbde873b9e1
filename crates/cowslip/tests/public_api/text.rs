//! Prints tokens in the usual style, on one line.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;

/// The kind of the last token written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Nothing, or a token without a space after it: an opening bracket, `&`, `::`, a space.
    Open,
    Word,
    /// `>`, or a closing bracket.
    Closed,
    Lifetime,
}

pub fn from_tokens(tokens: impl ToTokens) -> String {
    let mut text = String::new();
    write(tokens.into_token_stream(), &mut text);
    text.trim_end().to_owned()
}

fn write(tokens: TokenStream, text: &mut String) {
    let mut last = Last::Open;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(ident) => last = word(&ident.to_string(), last, text),
            TokenTree::Literal(literal) => last = word(&literal.to_string(), last, text),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{ ", " }"),
                    Delimiter::None => ("", ""),
                };
                let is_apart = match group.delimiter() {
                    Delimiter::Parenthesis => last == Last::Lifetime,
                    _ => last != Last::Open,
                };
                if is_apart {
                    text.push(' ');
                }
                text.push_str(open);
                let mut inside = String::new();
                write(group.stream(), &mut inside);
                text.push_str(inside.trim_end().trim_end_matches(','));
                text.push_str(close);
                last = Last::Closed;
            }
            TokenTree::Punct(punct) if punct.as_char() == '\'' => {
                if last != Last::Open {
                    text.push(' ');
                }
                let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
                text.push('\'');
                text.push_str(&name);
                last = Last::Lifetime;
            }
            TokenTree::Punct(punct) => {
                let mut sign = punct.as_char().to_string();
                let mut spacing = punct.spacing();
                while spacing == Spacing::Joint
                    && let Some(TokenTree::Punct(next)) = tokens.peek()
                    && is_one_sign(&sign, next.as_char())
                {
                    sign.push(next.as_char());
                    spacing = next.spacing();
                    tokens.next();
                }
                last = punctuation(&sign, last, text);
            }
        }
    }
}

fn is_one_sign(begun: &str, next: char) -> bool {
    matches!((begun, next), (":", ':') | ("-" | "=", '>') | (".", '.') | ("..", '.' | '='))
}

fn word(text_of: &str, last: Last, text: &mut String) -> Last {
    if last != Last::Open {
        text.push(' ');
    }
    text.push_str(text_of);
    Last::Word
}

fn punctuation(sign: &str, last: Last, text: &mut String) -> Last {
    match sign {
        "," | ";" | ":" => {
            text.push_str(sign);
            text.push(' ');
            Last::Open
        }
        "->" | "=>" | "=" | "+" => {
            if !text.ends_with(' ') {
                text.push(' ');
            }
            text.push_str(sign);
            text.push(' ');
            Last::Open
        }
        ">" => {
            text.push('>');
            Last::Closed
        }
        "&" | "*" | "?" | "!" | "#" => {
            if last != Last::Open {
                text.push(' ');
            }
            text.push_str(sign);
            Last::Open
        }
        // `<`, `::`, `..`
        _ => {
            text.push_str(sign);
            Last::Open
        }
    }
}
