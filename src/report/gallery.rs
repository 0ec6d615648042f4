//! The wrong predictions with the highest confidence, as images.

use std::path::is_separator;

use maud::{Markup, html};

use super::html::{section as html_section, shortened};
use super::thumbnail::Thumbnail;
use crate::evaluate::percent;

/// Names that have more characters than this are shortened.
const NAME_WIDTH: usize = 24;

/// A sample that was classified wrongly.
#[derive(Clone, Debug, PartialEq)]
pub struct Mistake {
    /// The sample's name, such as its file.
    pub name: String,
    /// Name of the true class, or the names of several, separated by ` | `.
    pub truth: String,
    /// Name of the class that the model chose, or `not` and the class that it missed.
    pub predicted: String,
    /// Probability of the chosen class, or 1 less that of the missed one.
    pub confidence: f64,
    /// The image, scaled down for the page.
    pub image: Thumbnail,
}

/// The gallery; nothing if there are no mistakes.
pub(super) fn section(mistakes: &[Mistake]) -> Markup {
    if mistakes.is_empty() {
        return Markup::default();
    }
    let body = html! {
        p class="note" {
            "The wrong predictions with the highest confidence. Mislabeled images often show up here first."
        }
        div class="gallery" {
            @for mistake in mistakes { (figure(mistake)) }
        }
    };
    html_section("Worst mistakes", body)
}

/// One image with its predicted and its true class.
fn figure(mistake: &Mistake) -> Markup {
    let Mistake { name, confidence, image, .. } = mistake;
    let file = name.rsplit(is_separator).next().unwrap_or(name);
    let (truth, predicted) =
        (shortened(&mistake.truth, NAME_WIDTH), shortened(&mistake.predicted, NAME_WIDTH));
    html! {
        figure title=(name) {
            div class="image" { (image.element(&format!("{truth}, mistaken for {predicted}"))) }
            figcaption {
                span class="predicted" {
                    span { (predicted) }
                    span class="confidence" { (percent(*confidence)) }
                }
                span class="truth" { "is " (truth) }
                span class="file" { (shortened(file, NAME_WIDTH)) }
            }
        }
    }
}
