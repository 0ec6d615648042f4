//! The wrong predictions with the highest confidence, as images and maps of what counted for them.

use std::path::is_separator;

use maud::{Markup, html};

use super::html::section as html_section;
use crate::evaluate::percent;
use crate::explain::color_scale;
use crate::page::{Thumbnail, shortened};

/// Names that have more characters than this are shortened.
const NAME_WIDTH: usize = 24;

/// What is said of a map without values.
const NOTHING_COUNTS: &str = "nothing counts: all values are 0";

/// A sample that was classified wrongly.
#[derive(Clone, Debug, PartialEq)]
pub struct Mistake {
    /// The sample's name, such as its file.
    pub name: String,
    /// Name of the true class, or the names of several, separated by ` | `; empty if the sample has no label.
    pub truth: String,
    /// Name of the class that the model chose, or that it missed.
    pub class: String,
    /// Whether the model missed the class, which the sample has beside others.
    pub is_missed: bool,
    /// Probability of the chosen class, or 1 less that of the missed one.
    pub confidence: f64,
    /// The image, scaled down for the page.
    pub image: Thumbnail,
    /// What counted for the class, if that is known.
    pub overlay: Option<Overlay>,
}

/// A map of Grad-CAM for a class, over the image as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The map over the image in gray.
    pub image: Thumbnail,
    /// Whether no patch counts: all values are 0.
    pub is_empty: bool,
}

/// The gallery; nothing if there are no mistakes.
pub(super) fn section(mistakes: &[Mistake]) -> Markup {
    if mistakes.is_empty() {
        return Markup::default();
    }
    let has_maps = mistakes.iter().any(|mistake| mistake.overlay.is_some());
    let body = html! {
        p class="note" {
            "The wrong predictions with the highest confidence. Mislabeled images often show up here first."
        }
        @if has_maps { (legend()) }
        div class=(if has_maps { "gallery maps" } else { "gallery" }) {
            @for mistake in mistakes { (figure(mistake)) }
        }
    };
    html_section("Worst mistakes", body)
}

/// What the maps mean, and their colors.
fn legend() -> Markup {
    html! {
        div class="map-key" {
            p class="note" {
                "To the right of an image is what the model looked at, over the image as the model sees it, resized or \
                 cropped. Bright places have, at the input of the last block, the features that raise the logit of the \
                 predicted class (Grad-CAM). Each map has its own scale. " code { "vitrine explain" } " makes larger ones, \
                 by other methods, too."
            }
            (color_scale())
        }
    }
}

/// One image with its predicted and its true class.
fn figure(mistake: &Mistake) -> Markup {
    let Mistake { name, confidence, image, overlay, .. } = mistake;
    let file = name.rsplit(is_separator).next().unwrap_or(name);
    let (truth, class) = (shortened(&mistake.truth, NAME_WIDTH), shortened(&mistake.class, NAME_WIDTH));
    // Of images with several labels each, one may have none.
    let has_label = !mistake.truth.is_empty();
    let (predicted, description) = if mistake.is_missed {
        (format!("not {class}"), format!("{truth}, where {class} was missed"))
    } else {
        let of = if has_label { &*truth } else { "an image without a label" };
        (class.clone().into_owned(), format!("{of}, mistaken for {class}"))
    };
    html! {
        figure title=(name) {
            div class="images" {
                div class="image" { (image.element(&description)) }
                @if let Some(overlay) = overlay {
                    div class="image" { (overlay.image.element(&alternative(overlay, &class))) }
                }
            }
            figcaption {
                span class="predicted" {
                    span { (predicted) }
                    span class="confidence" { (percent(*confidence)) }
                }
                span class="truth" { @if has_label { "is " (truth) } @else { "has no label" } }
                span class="file" { (shortened(file, NAME_WIDTH)) }
                @if overlay.as_ref().is_some_and(|overlay| overlay.is_empty) {
                    span class="file" { (NOTHING_COUNTS) }
                }
            }
        }
    }
}

/// The text in place of an overlay.
fn alternative(overlay: &Overlay, class: &str) -> String {
    if overlay.is_empty {
        format!("map for {class}: {NOTHING_COUNTS}")
    } else {
        format!("map of the places that counted for {class}")
    }
}
