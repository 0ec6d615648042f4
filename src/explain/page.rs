//! The page of explanations: every image next to its overlays. It needs neither a network nor a script, only the images in
//! its folder.

use std::ops::Range;

use maud::{Markup, html};

use super::Method;
use super::colormap::color_scale;
use crate::page::{facts_line, page};
use crate::predict::Prediction;
use crate::text::printable;

/// One image with its overlays.
pub(super) struct Card {
    pub(super) input: String,
    /// The file of the image as the model sees it.
    pub(super) image: String,
    pub(super) predicted: Prediction,
    pub(super) class: Prediction,
    pub(super) panels: Vec<Panel>,
    /// For patch logits: how many patches have their largest logit for a class.
    pub(super) counts: Vec<(usize, usize)>,
}

/// One overlay.
pub(super) struct Panel {
    pub(super) file: String,
    pub(super) method: Method,
    pub(super) is_about_class: bool,
    pub(super) head: Option<usize>,
    pub(super) scale: Range<f32>,
}

/// Classes named under patch logits; the others are counted together.
const COUNTED: usize = 3;

/// The page.
pub(super) fn render(cards: &[Card], facts: &[(&str, String)], classes: &[String]) -> String {
    let methods: Vec<Method> =
        Method::ALL.into_iter().filter(|method| cards.iter().any(|card| card.uses(*method))).collect();
    const TITLE: &str = "What the model looked at";
    let sections = html! {
        header {
            h1 { (TITLE) }
            p class="muted" { (facts_line(facts)) }
        }
        (legend(&methods))
        @for card in cards { (section(card, classes)) }
    };
    page(TITLE, include_str!("style.css"), sections)
}

/// The colors, and the meaning of each method.
fn legend(methods: &[Method]) -> Markup {
    html! {
        section class="legend" {
            (color_scale())
            p class="muted" {
                "Each map has its own scale, which is below it, so that colors compare places of one image and not images. \
                 Images are shown as the model sees them, resized or cropped, and gray below the map."
            }
            dl {
                @for method in methods {
                    dt { (method.name()) }
                    dd { "Bright: " (method.meaning()) }
                }
            }
        }
    }
}

/// One image.
fn section(card: &Card, classes: &[String]) -> Markup {
    let Card { input, predicted, class, panels, .. } = card;
    html! {
        section {
            h2 { (printable(input)) }
            p {
                "predicted " strong { (printable(&predicted.label)) } " with " (percent(predicted.probability))
                @if class.index != predicted.index {
                    ", maps for " strong { (printable(&class.label)) } " with " (percent(class.probability))
                }
            }
            div class="row" {
                figure {
                    img src=(card.image) alt=(format!("{}, as the model sees it", printable(input)));
                    figcaption { "the image" }
                }
                @for panel in panels { (figure(panel, class)) }
            }
            @if !card.counts.is_empty() {
                p class="muted" { "Patches by the class of their largest logit: " (most_frequent(card, classes)) }
            }
        }
    }
}

/// One overlay with its scale.
fn figure(panel: &Panel, class: &Prediction) -> Markup {
    let Panel { file, method, is_about_class, head, scale } = panel;
    let about = if *is_about_class { format!(" of {}", printable(&class.label)) } else { String::new() };
    let head = head.map_or_else(String::new, |head| format!(", head {head}"));
    html! {
        figure {
            img src=(file) alt=(format!("{}{about}{head}", method.name()));
            figcaption {
                (method.name()) (head)
                span class="muted" {
                    @if scale.is_empty() { "nothing counts: all values are 0" }
                    @else { (digits(scale.start)) " to " (digits(scale.end)) }
                }
            }
        }
    }
}

/// The classes that most patches have, with the number of patches.
fn most_frequent(card: &Card, classes: &[String]) -> String {
    let named = card.counts.iter().take(COUNTED);
    let mut parts: Vec<String> =
        named.map(|&(class, count)| format!("{} {count}", printable(&classes[class]))).collect();
    let others: usize = card.counts.iter().skip(COUNTED).map(|(_, count)| count).sum();
    if others > 0 {
        parts.push(format!("others {others}"));
    }
    parts.join(", ")
}

impl Card {
    fn uses(&self, method: Method) -> bool {
        self.panels.iter().any(|panel| panel.method == method)
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// A value in about three digits.
fn digits(value: f32) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if (1e-2..1e4).contains(&value.abs()) {
        format!("{value:.3}")
    } else {
        format!("{value:.1e}")
    }
}
