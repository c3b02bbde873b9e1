//! The colours of still pictures; those of the page are in its style sheet.

use crate::attribute::FaultKind;

/// The background of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Theme {
    /// Dark on light, as on paper.
    #[default]
    Light,
    /// Light on dark.
    Dark,
}

/// The page's own style sheet, with a theme.
pub(super) struct Palette {
    theme: Theme,
}

const STYLE: &str = include_str!("../../assets/picture/page.css");

impl Palette {
    pub(super) const fn new(theme: Theme) -> Self {
        Self { theme }
    }

    /// The colour named `--name` in the page's style sheet.
    pub(super) fn colour(&self, name: &str) -> &'static str {
        let (_, rest) = STYLE.split_once(&format!("--{name}: light-dark(")).expect("a colour");
        let (colours, _) = rest.split_once(')').expect("a colour");
        let (light, dark) = colours.split_once(", ").expect("two colours");
        if self.theme == Theme::Light { light } else { dark }
    }

    pub(super) fn kind(&self, kind: FaultKind) -> &'static str {
        self.colour(&format!("k{}", kind as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_is_there_in_both_themes() {
        for theme in [Theme::Light, Theme::Dark] {
            let palette = Palette::new(theme);
            let named = ["page", "ink", "quiet", "rule", "grid", "bad", "map-file", "map-special"];
            let kinds = FaultKind::ALL.map(|kind| palette.kind(kind));
            let mut all: Vec<_> = named.map(|name| palette.colour(name)).into();
            all.extend(kinds);
            assert!(all.iter().all(|it| it.len() == 7 && it.starts_with('#')), "{all:?}");
        }
        assert_eq!(Palette::new(Theme::Dark).colour("page"), "#14171c");
    }
}
