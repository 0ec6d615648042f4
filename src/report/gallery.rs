//! The worst mistakes as images.

use super::html::{escape, escape_short, section as html_section};
use super::thumbnail::Thumbnail;
use crate::evaluate::percent;

/// Longer names are cut.
const NAME_WIDTH: usize = 24;

/// A sample that was classified wrongly.
#[derive(Clone, Debug, PartialEq)]
pub struct Mistake {
    /// The sample's name, such as its file.
    pub name: String,
    /// Name of the true class.
    pub truth: String,
    /// Name of the class that the model chose.
    pub predicted: String,
    /// Softmax probability of the chosen class.
    pub confidence: f64,
    /// What the model saw.
    pub image: Thumbnail,
}

/// The gallery; nothing if there are no mistakes.
pub(super) fn section(mistakes: &[Mistake]) -> String {
    if mistakes.is_empty() {
        return String::new();
    }
    let figures: String = mistakes.iter().map(figure).collect();
    let body = format!(
        r#"<p class="note">The wrong predictions with the highest confidence.
Mislabeled images often show up here first.</p>
<div class="gallery">
{figures}</div>
"#
    );
    html_section("Worst mistakes", &body)
}

/// One image with the two answers.
fn figure(mistake: &Mistake) -> String {
    let Mistake { name, truth, predicted, confidence, image } = mistake;
    let file = escape_short(name.rsplit(std::path::is_separator).next().unwrap_or(name), NAME_WIDTH);
    let (name, truth, predicted) =
        (escape(name), escape_short(truth, NAME_WIDTH), escape_short(predicted, NAME_WIDTH));
    let source = image.element(&format!("{truth}, mistaken for {predicted}"));
    let confidence = percent(*confidence);
    format!(
        r#"<figure title="{name}">
<div class="image">{source}</div>
<figcaption>
<span class="predicted"><span>{predicted}</span>
<span class="confidence">{confidence}</span></span>
<span class="truth">is {truth}</span>
<span class="file">{file}</span>
</figcaption>
</figure>
"#
    )
}
