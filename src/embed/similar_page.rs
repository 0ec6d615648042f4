//! The page of similar images: each query next to the images that are most similar to it. It needs neither a network nor a
//! script.

use std::path::is_separator;

use maud::{Markup, html};
use vitrine_datasets::Image;

use crate::page::{Thumbnail, facts_line, page, shortened};
use crate::text::printable;

/// The most pixels per side of an image on the page.
pub const THUMBNAIL: u32 = 160;
/// File names that have more characters than this are shortened.
const NAME_WIDTH: usize = 28;

/// An image that was asked about, with the images that were found.
pub struct Query {
    /// Its name, usually its path.
    pub name: String,
    /// The image, of at most [`THUMBNAIL`] pixels a side; `None` if it cannot be read.
    pub image: Option<Image>,
    /// The images that were found, the most similar one first.
    pub found: Vec<Found>,
}

/// An image that was found.
pub struct Found {
    /// Its name, usually its path.
    pub name: String,
    /// The cosine similarity to the query, from -1 to 1.
    pub similarity: f32,
    /// The image; `None` if it cannot be read.
    pub image: Option<Image>,
}

/// The page. `facts` describe the search, as name and value.
pub fn similar_page(queries: &[Query], facts: &[(&str, String)]) -> String {
    const TITLE: &str = "Similar images";
    let sections = html! {
        header {
            h1 { (TITLE) }
            p class="muted" { (facts_line(facts)) }
            p class="note" {
                "The number below an image is its cosine similarity to the image on the left: 1 for the same direction of the \
                 embeddings, 0 for directions that have nothing in common. Whitened embeddings are compared without what most images \
                 have in common, so that their similarities are smaller."
            }
        }
        @for query in queries { (section(query)) }
    };
    page(TITLE, include_str!("style.css"), sections)
}

/// One query.
fn section(query: &Query) -> Markup {
    html! {
        section {
            h2 { (printable(&query.name)) }
            div class="similar" {
                figure class="query" {
                    (picture(query.image.as_ref(), "the image that was asked about"))
                }
                ol {
                    @for found in &query.found {
                        li {
                            figure title=(printable(&found.name)) {
                                (picture(found.image.as_ref(), file_name(&found.name)))
                                figcaption {
                                    span class="similarity" { (format!("{:.3}", found.similarity)) }
                                    span class="file" { (shortened(&printable(file_name(&found.name)), NAME_WIDTH)) }
                                    @if let Some(folder) = folder_name(&found.name) {
                                        span class="file" { "in " (shortened(&printable(folder), NAME_WIDTH)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// An image, or a note in its place.
fn picture(image: Option<&Image>, alternative: &str) -> Markup {
    html! {
        div class="image" {
            @match image {
                Some(image) => {
                    @let channels = usize::from(image.channels);
                    (Thumbnail::new(image.width, image.height, channels, image.pixels.clone()).compact_element(alternative))
                }
                None => { span class="muted" { "cannot be read" } }
            }
        }
    }
}

fn file_name(name: &str) -> &str {
    name.rsplit(is_separator).next().unwrap_or(name)
}

/// The name of the folder that a file lies in, which is often its class.
fn folder_name(name: &str) -> Option<&str> {
    name.rsplit(is_separator).nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_every_image_with_its_similarity_and_needs_nothing_else() {
        let image =
            || Some(Image { width: 2, height: 1, channels: 3, pixels: vec![0, 50, 100, 150, 200, 250] });
        let found = vec![
            Found { name: "photos/<b>.png".to_owned(), similarity: 0.98765, image: image() },
            Found { name: "photos/gone.png".to_owned(), similarity: -0.1, image: None },
        ];
        let queries = [Query { name: "a.png".to_owned(), image: image(), found }];
        let page = similar_page(&queries, &[("model", "m".to_owned())]);
        assert_eq!((page.matches("<img").count(), page.matches("<li>").count()), (2, 2));
        for part in
            ["0.988", "-0.100", "photos/&lt;b&gt;.png", "gone.png", "cannot be read", "model m", "in photos<"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("http") && !page.contains("<script"));
    }
}
