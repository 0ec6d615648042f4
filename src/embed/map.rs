//! A map of images: a dot for each, placed by the first two principal components of the embeddings and colored by class, as
//! SVG without a script. The image of the dot under the pointer is shown above the dots.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, is_separator};

use maud::{Markup, html};
use rayon::prelude::*;

use super::{Components, Embeddings};
use crate::page::{Thumbnail, facts_line, page, shortened};
use crate::text::printable;

/// The most images that are drawn: each adds about 3 kB to the page.
const MOST: usize = 2000;
/// The most pixels per side of an image.
const THUMBNAIL: u32 = 64;
/// Classes with a color and a shape of their own, the largest ones; the others are gray. The style has the colors.
const COLORS: usize = 8;
const SHAPED: usize = COLORS * SHAPES.len();
/// The shapes of dots, as SVG paths around the origin: a circle, a square, and a triangle.
const SHAPES: [&str; 3] = ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z", "M0-4.6L4.4 3.2h-8.8z"];
/// Width and height of the whole drawing.
const SIZE: (f64, f64) = (720.0, 640.0);
/// Left, right, top, and bottom edge of the area of the dots.
const PLOT: (f64, f64, f64, f64) = (36.0, 708.0, 116.0, 604.0);
/// The side of the image of a dot, above the dots.
const SHOWN: f64 = 96.0;
/// The most characters in a line of text next to the image.
const TEXT_WIDTH: usize = 40;

/// The classes of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageClasses {
    /// The names of the classes.
    pub names: Vec<String>,
    /// The index of the class of each image.
    pub of_images: Vec<usize>,
}

impl ImageClasses {
    /// The names of the folders that images lie in; `None` if all lie in folders of the same name.
    pub fn by_folder<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let folder = |path: &'a str| Path::new(path).parent()?.file_name()?.to_str();
        let folders: Vec<&str> = paths.map(|path| folder(path).unwrap_or(".")).collect();
        let names: BTreeSet<&str> = folders.iter().copied().collect();
        if names.len() < 2 {
            return None;
        }
        let indices: BTreeMap<&str, usize> = names.iter().copied().zip(0..).collect();
        let of_images = folders.iter().map(|folder| indices[folder]).collect();
        Some(Self { names: names.into_iter().map(str::to_owned).collect(), of_images })
    }
}

/// A map of images.
#[derive(Clone, Debug)]
pub struct Map {
    dots: Vec<Dot>,
    /// The classes in the order of their colors, with the number of images of each in the whole data.
    classes: Vec<(String, usize)>,
    /// The share of the variance of each axis.
    shares: [f64; 2],
    /// Number of images, drawn or not.
    images: usize,
}

/// A drawn image.
#[derive(Clone, Debug)]
struct Dot {
    name: String,
    /// The place in the drawing.
    place: [f64; 2],
    /// Its place among the classes of the map.
    class: Option<usize>,
    /// The address of its image, if that can be read.
    image: Option<String>,
}

impl Map {
    /// The map of embeddings. If there are more than 2,000, it shows that many, evenly chosen, in the places that they have
    /// among all. `image` gives the image of a row, to scale down, or `None` if it cannot be read.
    ///
    /// # Panics
    /// If `classes` do not have as many images.
    pub fn new(
        embeddings: &Embeddings,
        classes: Option<&ImageClasses>,
        image: impl Fn(usize) -> Option<vitrine_datasets::Image> + Sync,
    ) -> Self {
        let Components { places, shares } = embeddings.components();
        let images = embeddings.len();
        assert!(classes.is_none_or(|classes| classes.of_images.len() == images), "a class for each image");
        let (ranks, sizes) = classes.map(ranked).unzip();
        let drawn = images.min(MOST);
        let rows: Vec<usize> = (0..drawn).map(|place| place * images / drawn).collect();
        let scaled = scaled(&rows.iter().map(|&row| places[row]).collect::<Vec<_>>());
        let dot = |(place, row): ([f64; 2], usize)| Dot {
            name: embeddings.paths[row].clone(),
            place,
            class: ranks.as_ref().map(|ranks: &Vec<usize>| ranks[row]),
            image: image(row).map(|image| address(&image)),
        };
        let dots = scaled.into_par_iter().zip(rows).map(dot).collect();
        Self { dots, classes: sizes.unwrap_or_default(), shares, images }
    }

    /// The map as a page. `facts` describe the embeddings, as name and value.
    pub fn page(&self, facts: &[(&str, String)]) -> String {
        const TITLE: &str = "Map of images";
        let sections = html! {
            header {
                h1 { (TITLE) }
                p class="muted" { (facts_line(facts)) }
            }
            section { (self.render()) }
        };
        page(TITLE, &format!("{}{}", include_str!("style.css"), self.style()), sections)
    }

    /// The explanation, the legend, and the drawing, in the style of [`Self::style`].
    pub(crate) fn render(&self) -> Markup {
        let [first, second] = self.shares.map(percent);
        html! {
            p class="note" {
                "Each dot is an image, placed by the first two principal components of its embedding, which have " (first)
                " and " (second) " of the variance. Images far apart here differ; neighbors may still differ in what the \
                 other components hold."
                @if self.dots.len() < self.images {
                    " " (self.dots.len()) " of " (self.images) " images are drawn, evenly chosen; the components are those of all."
                }
            }
            div class="map" {
                @if !self.classes.is_empty() { (self.legend()) }
                (self.drawing())
            }
        }
    }

    /// The classes with their dots. Choosing one fades the others, without a script.
    fn legend(&self) -> Markup {
        let others = self.classes.get(SHAPED..).unwrap_or_default();
        let item = |style: usize, name: &str, images: usize| {
            html! {
                label {
                    input type="radio" name="map-class" class=(format!("k{style}"));
                    svg viewBox="-6 -6 12 12" aria-hidden="true" { (mark(style)) }
                    span { (shortened(&printable(name), 32)) " " span class="muted" { (images) } }
                }
            }
        };
        html! {
            fieldset {
                legend { "Show" }
                label {
                    input type="radio" name="map-class" checked;
                    span { "all " span class="muted" { (self.images) } }
                }
                @for (style, (name, images)) in self.classes.iter().take(SHAPED).enumerate() {
                    (item(style, name, *images))
                }
                @if !others.is_empty() {
                    (item(SHAPED, &format!("{} other classes", others.len()), others.iter().map(|other| other.1).sum()))
                }
            }
        }
    }

    /// The style of the map, for a page that sets `--panel`, the color of its ground: the same for all, and the rules that
    /// fade the dots of other classes than the chosen one.
    pub(crate) fn style(&self) -> String {
        let styles = 0..self.classes.len().min(SHAPED + 1);
        let rule = |style| {
            format!(
                ".map:has(.k{style}:checked) .point:not(.c{style}) {{ opacity: 0.12; pointer-events: none; }}\n"
            )
        };
        include_str!("map.css").to_owned() + &styles.map(rule).collect::<String>()
    }

    fn drawing(&self) -> Markup {
        let (width, height) = SIZE;
        let (left, right, top, bottom) = PLOT;
        let (x, y) = ((left + right) / 2.0, (top + bottom) / 2.0);
        let [first, second] = self.shares.map(percent);
        let of_classes = if self.classes.is_empty() {
            String::new()
        } else {
            format!(" of {} classes", self.classes.len())
        };
        let label = format!(
            "{} images{of_classes} as dots, by the first two principal components of their embeddings",
            self.dots.len()
        );
        html! {
            svg class="scatter" viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) {
                text class="hint" x=(left) y=(SHOWN / 2.0 + 10.0) { "Point at a dot to see its image." }
                rect class="frame" x=(left) y=(top) width=(right - left) height=(bottom - top) {}
                text class="axis" x=(x) y=(bottom + 24.0) text-anchor="middle" { "component 1 (" (first) ")" }
                text class="axis" transform=(format!("translate({} {y}) rotate(-90)", left - 12.0)) text-anchor="middle" {
                    "component 2 (" (second) ")"
                }
                @for dot in &self.dots { (self.dot(dot)) }
            }
        }
    }

    /// A dot, and what is shown while the pointer is on it.
    fn dot(&self, dot: &Dot) -> Markup {
        let style = dot.class.unwrap_or(0).min(SHAPED);
        let [x, y] = dot.place;
        let name = printable(&dot.name);
        let (folder, file) =
            name.rfind(is_separator).map_or(("", &*name), |end| (&name[..end], &name[end + 1..]));
        let class = dot.class.map(|class| printable(&self.classes[class].0).into_owned());
        let text_x = PLOT.0 + SHOWN + 14.0;
        html! {
            g class=(format!("point c{style}")) {
                title { (name) }
                g transform=(format!("translate({x:.1} {y:.1})")) { (mark(style)) }
                g class="shown" {
                    rect class="cover" x="0" y="0" width=(SIZE.0) height=(PLOT.2 - 4.0) {}
                    @if let Some(image) = &dot.image {
                        image x=(PLOT.0) y="8" width=(SHOWN) height=(SHOWN) href=(image) {}
                    }
                    text x=(text_x) y="38" { (shortened(file, TEXT_WIDTH)) }
                    text class="axis" x=(text_x) y="68" { (shortened(folder, TEXT_WIDTH)) }
                    @if let Some(class) = class {
                        text class="axis" x=(text_x) y="98" { (shortened(&class, TEXT_WIDTH)) }
                    }
                }
            }
        }
    }
}

/// The shape of a class, around the origin.
fn mark(style: usize) -> Markup {
    let shape = SHAPES[if style < SHAPED { style / COLORS } else { 0 }];
    let color = if style < SHAPED { format!("mark f{}", style % COLORS) } else { "mark".to_owned() };
    html! { path class=(color) d=(shape) {} }
}

/// The place of each image's class by size, the largest class first, and the name and size of each class in this order.
fn ranked(classes: &ImageClasses) -> (Vec<usize>, Vec<(String, usize)>) {
    let mut sizes = vec![0; classes.names.len()];
    classes.of_images.iter().for_each(|&class| sizes[class] += 1);
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&class| sizes[class] > 0).collect();
    order.sort_by_key(|&class| (std::cmp::Reverse(sizes[class]), class));
    let mut ranks = vec![0; sizes.len()];
    order.iter().enumerate().for_each(|(rank, &class)| ranks[class] = rank);
    let named = order.iter().map(|&class| (classes.names[class].clone(), sizes[class])).collect();
    (classes.of_images.iter().map(|&class| ranks[class]).collect(), named)
}

/// Places in the drawing, with the same scale on both axes, so that distances can be compared.
fn scaled(places: &[[f64; 2]]) -> Vec<[f64; 2]> {
    const MARGIN: f64 = 12.0;
    let (left, right, top, bottom) = PLOT;
    let ranges: [(f64, f64); 2] = std::array::from_fn(|axis| {
        let values = places.iter().map(|place| place[axis]);
        values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    });
    let [across, down] = ranges.map(|(low, high)| (high - low).max(f64::MIN_POSITIVE));
    let scale = ((right - left - 2.0 * MARGIN) / across).min((bottom - top - 2.0 * MARGIN) / down);
    let middle = ranges.map(|(low, high)| (low + high) / 2.0);
    // Equal places have no range, and any scale would do.
    let scale = if scale.is_finite() { scale } else { 0.0 };
    let center = [(left + right) / 2.0, (top + bottom) / 2.0];
    let place =
        |&[x, y]: &[f64; 2]| [center[0] + scale * (x - middle[0]), center[1] - scale * (y - middle[1])];
    places.iter().map(place).collect()
}

/// The address of an image, scaled down.
fn address(image: &vitrine_datasets::Image) -> String {
    let image = image.fit(THUMBNAIL);
    Thumbnail::new(image.width, image.height, usize::from(image.channels), image.pixels).compact_address()
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn embeddings(images: usize, classes: usize) -> Embeddings {
        let mut embeddings = Embeddings::new(3);
        for image in 0..images {
            let class = image % classes;
            embeddings
                .push(format!("photos/class <{class}>/{image}.png"), &[class as f32, image as f32, 1.0]);
        }
        embeddings
    }

    fn map_of(embeddings: &Embeddings) -> Map {
        let classes = ImageClasses::by_folder(embeddings.paths.iter().map(String::as_str));
        let gray = vitrine_datasets::Image { width: 300, height: 2, channels: 1, pixels: vec![9; 600] };
        Map::new(embeddings, classes.as_ref(), |row| (row > 0).then(|| gray.clone()))
    }

    #[test]
    fn every_image_is_a_dot_in_the_color_of_its_class_and_the_page_needs_nothing_else() {
        let page = map_of(&embeddings(60, 30)).page(&[("model", "a<b".to_owned())]);
        assert_eq!(page.matches("class=\"point ").count(), 60);
        assert_eq!(page.matches("<image").count(), 59, "the first one cannot be read");
        // 24 classes have a shape and a color, and the others share one.
        assert_eq!(page.matches("type=\"radio\"").count(), 1 + 24 + 1);
        assert_eq!(page.matches("class=\"point c24\"").count(), 12);
        assert!(
            page.contains("6 other classes") && page.contains("class &lt;3&gt;") && page.contains("a&lt;b")
        );
        for outside in ["http:", "https:", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn places_lie_within_the_frame_at_one_scale() {
        let (left, right, top, bottom) = PLOT;
        let places = scaled(&[[0.0, 0.0], [4.0, 0.0], [0.0, 1.0], [1.0, 1.0]]);
        for [x, y] in &places {
            assert!((left..right).contains(x) && (top..bottom).contains(y), "{places:?}");
        }
        assert!(((places[1][0] - places[0][0]) - 4.0 * (places[0][1] - places[2][1])).abs() < 1e-9);
        assert_eq!(scaled(&[[5.0, 5.0]; 2]), [[(left + right) / 2.0, (top + bottom) / 2.0]; 2]);
        assert!(scaled(&[]).is_empty());
    }

    #[test]
    fn a_large_map_draws_a_part_and_says_so() {
        let page = map_of(&embeddings(MOST + 500, 2)).page(&[]);
        assert_eq!(page.matches("class=\"point ").count(), MOST);
        assert!(page.contains("2000 of 2500 images are drawn") && page.contains("class=\"muted\">1250<"));
    }

    #[test]
    fn folders_are_classes_unless_there_is_only_one() {
        let of = |paths: &[&str]| ImageClasses::by_folder(paths.iter().copied());
        let found = of(&["b/1.png", "a/x/2.png", "c/b/3.png", "4.png"]).unwrap();
        assert_eq!(
            (found.names, found.of_images),
            ([".", "b", "x"].map(str::to_owned).to_vec(), vec![1, 2, 1, 0])
        );
        assert_eq!(of(&["a/1.png", "b/a/2.png"]), None);
        assert_eq!(of(&[]), None);
        let alone = map_of(&embeddings(3, 1)).page(&[]);
        assert!(!alone.contains("<fieldset"));
    }
}
