//! The images of the synthetic data set `shapes`: small drawings whose class is recognizable only by the outline of a
//! shape.
//!
//! Every image is drawn on demand from its class and a seed. Position, size, rotation, colors, background texture,
//! noise, and an occluding box are random and independent of the class. The drawing uses only arithmetic that IEEE 754
//! rounds exactly, so that a seed gives the same bytes on every machine.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::images::pixels::Image;

/// Class names; a label is an index into them.
pub const CLASSES: [&str; 10] =
    ["circle", "ring", "square", "triangle", "hourglass", "star", "cross", "crescent", "heart", "arrow"];

/// Settings that make the task easier or harder. Lengths are in pixels, brightness and color from 0 to 1.
mod difficulty {
    /// Smallest and largest distance from a shape's center to its furthest corner.
    pub(super) const RADIUS: [f32; 2] = [9.5, 12.5];
    /// Largest shift of the center along each axis; less if the shape would leave the image.
    pub(super) const SHIFT: f32 = 6.0;
    /// Largest distance by which a shape may extend beyond the edge of the image.
    pub(super) const OVERHANG: f32 = 1.0;
    /// Tangent of half the largest rotation in either direction: 0.27 is 30 degrees, 1.0 is 90.
    pub(super) const ROTATION: f32 = 0.27;
    /// Brightness of the darker of shape and background.
    pub(super) const DARK: [f32; 2] = [0.08, 0.32];
    /// Brightness of the lighter one.
    pub(super) const LIGHT: [f32; 2] = [0.70, 0.94];
    /// Probability that the shape is the darker one. Any value between 0 and 1 makes the task much harder.
    pub(super) const DARK_SHAPE: f64 = 0.0;
    /// Saturation of colors: 0 is gray, 1 is the most that the brightness allows.
    pub(super) const CHROMA: [f32; 2] = [0.25, 0.85];
    /// Standard deviation of the noise on each channel of each pixel.
    pub(super) const NOISE: f32 = 0.02;
    /// Probability of an occluding box.
    pub(super) const OCCLUSION: f64 = 0.3;
    /// Largest share of the shape that the box may hide.
    pub(super) const HIDDEN: f32 = 0.12;
}

/// Width and height of an image, in pixels.
const SIDE: usize = 32;

/// Draws an image of 32 by 32 pixels in color, which depends only on the class and the seed. The class is taken modulo
/// the number of classes.
pub fn draw(class: usize, seed: u64) -> Image {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let scene = Scene::new(&mut rng);
    let shape = coverage(|point| scene.pose.distance(class % CLASSES.len(), point));
    let occluder = scene.occluder.map(|occluder| occluder.coverage(&shape));
    let mut pixels = Vec::with_capacity(SIDE * SIDE * 3);
    for index in 0..SIDE * SIDE {
        let point = pixel_center(index);
        let mut color = mix(scene.background[0], scene.background[1], scene.texture.at(point));
        color = mix(color, scene.foreground, shape[index]);
        if let Some(occluder) = &occluder {
            color = mix(color, scene.occluder_color, occluder[index]);
        }
        pixels.extend(color.map(|value| quantize(value + noise(&mut rng))));
    }
    Image { width: SIDE as u32, height: SIDE as u32, channels: 3, pixels }
}

/// Where the shape of [`draw`]'s image is visible: a gray image of the same size, from 0 outside it to 255 inside it.
pub fn visible_shape(class: usize, seed: u64) -> Image {
    let scene = Scene::new(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut shape = coverage(|point| scene.pose.distance(class % CLASSES.len(), point));
    if let Some(occluder) = scene.occluder {
        let hidden = occluder.coverage(&shape);
        shape.iter_mut().zip(hidden).for_each(|(shape, hidden)| *shape *= 1.0 - hidden);
    }
    Image { width: SIDE as u32, height: SIDE as u32, channels: 1, pixels: shape.map(quantize).to_vec() }
}

/// A point or a direction; x to the right, y down.
type Point = [f32; 2];

/// Red, green, and blue from 0 to 1.
type Color = [f32; 3];

/// The share of each pixel that a figure covers, from 0 to 1.
type Coverage = [f32; SIDE * SIDE];

/// Everything in an image that is independent of its class.
struct Scene {
    pose: Pose,
    foreground: Color,
    background: [Color; 2],
    texture: Texture,
    occluder: Option<Occluder>,
    occluder_color: Color,
}

impl Scene {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        let (front, back) = if rng.random_bool(difficulty::DARK_SHAPE) {
            (difficulty::DARK, difficulty::LIGHT)
        } else {
            (difficulty::LIGHT, difficulty::DARK)
        };
        let pose = Pose::new(rng);
        Self {
            foreground: color(rng, front),
            background: [color(rng, back), color(rng, back)],
            texture: Texture::new(rng),
            occluder: rng.random_bool(difficulty::OCCLUSION).then(|| Occluder::new(rng, &pose)),
            occluder_color: color(rng, back),
            pose,
        }
    }
}

/// Position, size, and rotation of a shape.
struct Pose {
    center: Point,
    radius: f32,
    /// The direction of the shape's own x axis.
    right: Point,
}

impl Pose {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        let radius = between(rng, difficulty::RADIUS);
        let room = SIDE as f32 / 2.0 + difficulty::OVERHANG - radius;
        let shift = room.clamp(0.0, difficulty::SHIFT);
        let mut coordinate = || SIDE as f32 / 2.0 + between(rng, [-shift, shift]);
        let center = [coordinate(), coordinate()];
        Self { center, radius, right: direction(between(rng, [-difficulty::ROTATION, difficulty::ROTATION])) }
    }

    /// Signed distance in pixels from the outline of a class's shape, negative inside it.
    fn distance(&self, class: usize, point: Point) -> f32 {
        let offset = [point[0] - self.center[0], point[1] - self.center[1]];
        if dot(offset, offset) > (self.radius + 1.0) * (self.radius + 1.0) {
            return f32::INFINITY;
        }
        let [cos, sin] = self.right;
        let x = (cos * offset[0] + sin * offset[1]) / self.radius;
        let y = (cos * offset[1] - sin * offset[0]) / self.radius;
        unit_distance(class, [x.abs(), y]) * self.radius
    }
}

/// Signed distance from the outline of a class's shape of radius 1. All shapes are symmetric, so that `x` need not be
/// negative.
fn unit_distance(class: usize, point: Point) -> f32 {
    match CLASSES[class] {
        "circle" => circle(point, 0.0, 0.92),
        "ring" => circle(point, 0.0, 0.94).max(-circle(point, 0.0, 0.50)),
        "square" => polygon(point, &SQUARE),
        "triangle" => polygon(point, &TRIANGLE),
        "hourglass" => polygon(point, &HOURGLASS),
        "star" => polygon(point, &STAR),
        "cross" => polygon(point, &CROSS),
        "crescent" => circle(point, 0.0, 0.96).max(-circle(point, -0.50, 0.74)),
        "heart" => heart(point),
        _ => polygon(point, &ARROW),
    }
}

// The right halves of outlines, from the top of the axis of symmetry to its bottom, within radius 1.
const SQUARE: [Point; 4] = [[0.0, -0.707], [0.707, -0.707], [0.707, 0.707], [0.0, 0.707]];
const TRIANGLE: [Point; 3] = [[0.0, -1.0], [0.87, 0.55], [0.0, 0.55]];
const HOURGLASS: [Point; 5] = [[0.0, -0.77], [0.64, -0.77], [0.12, 0.0], [0.64, 0.77], [0.0, 0.77]];
const STAR: [Point; 6] =
    [[0.0, -1.0], [0.235, -0.324], [0.951, -0.309], [0.380, 0.124], [0.588, 0.809], [0.0, 0.40]];
const CROSS: [Point; 8] = [
    [0.0, -0.95],
    [0.28, -0.95],
    [0.28, -0.28],
    [0.95, -0.28],
    [0.95, 0.28],
    [0.28, 0.28],
    [0.28, 0.95],
    [0.0, 0.95],
];
const ARROW: [Point; 5] = [[0.0, -1.0], [0.80, -0.10], [0.27, -0.10], [0.27, 0.95], [0.0, 0.95]];

/// Signed distance from a circle around `(0, y)`.
fn circle(point: Point, y: f32, radius: f32) -> f32 {
    length([point[0], point[1] - y]) - radius
}

/// Signed distance from a polygon whose right half is the open chain `half` and whose left half is the mirror image of
/// that.
fn polygon(point: Point, half: &[Point]) -> f32 {
    let mut nearest = f32::INFINITY;
    let mut inside = false;
    for pair in half.windows(2) {
        let (start, end) = (pair[0], pair[1]);
        let along = [end[0] - start[0], end[1] - start[1]];
        let to = [point[0] - start[0], point[1] - start[1]];
        let share = (dot(to, along) / dot(along, along)).clamp(0.0, 1.0);
        let gap = [to[0] - share * along[0], to[1] - share * along[1]];
        nearest = nearest.min(dot(gap, gap));
        // Whether the edge crosses the ray from the point to the right.
        if (start[1] > point[1]) != (end[1] > point[1]) && point[0] < start[0] + to[1] * along[0] / along[1] {
            inside = !inside;
        }
    }
    if inside { -nearest.sqrt() } else { nearest.sqrt() }
}

/// Signed distance from a heart: two round lobes above a right angle.
fn heart([x, y]: Point) -> f32 {
    const SCALE: f32 = 1.55;
    // In these coordinates, the tip is at the origin, the notch at (0, 1), and y points up.
    let (x, y) = (x / SCALE, (0.86 - y) / SCALE);
    let distance = if x + y > 1.0 {
        length([x - 0.25, y - 0.75]) - 0.125_f32.sqrt()
    } else {
        let diagonal = 0.5 * (x + y).max(0.0);
        let gap = length([x, y - 1.0]).min(length([x - diagonal, y - diagonal]));
        if x < y { -gap } else { gap }
    };
    distance * SCALE
}

/// The share of each pixel inside an outline, given the signed distance of a point from the outline.
fn coverage(distance: impl Fn(Point) -> f32) -> Coverage {
    std::array::from_fn(|index| (0.5 - distance(pixel_center(index))).clamp(0.0, 1.0))
}

/// The background of an image: a pattern that blends two colors.
enum Texture {
    Gradient { along: Point },
    Stripes { along: Point, phase: f32 },
    Checks { along: Point, phase: f32 },
    Blobs { heights: [[f32; 6]; 6] },
}

impl Texture {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        let orientation = direction(between(rng, [-1.0, 1.0]));
        let scaled = |scale: f32| [orientation[0] * scale, orientation[1] * scale];
        let phase = between(rng, [0.0, 1.0]);
        match rng.random_range(0..4) {
            0 => Self::Gradient { along: scaled(1.0 / SIDE as f32) },
            1 => Self::Stripes { along: scaled(1.0 / between(rng, [5.0, 11.0])), phase },
            2 => Self::Checks { along: scaled(1.0 / between(rng, [8.0, 14.0])), phase },
            _ => Self::Blobs { heights: std::array::from_fn(|_| std::array::from_fn(|_| rng.random())) },
        }
    }

    /// The share of the second color at a point, from 0 to 1.
    fn at(&self, point: Point) -> f32 {
        match self {
            Self::Gradient { along } => {
                let half = SIDE as f32 / 2.0;
                (0.5 + dot([point[0] - half, point[1] - half], *along)).clamp(0.0, 1.0)
            }
            Self::Stripes { along, phase } => sharpen(wave(dot(point, *along) + phase), 3.0),
            Self::Checks { along, phase } => {
                let across = [-along[1], along[0]];
                let (a, b) = (wave(dot(point, *along) + phase), wave(dot(point, across) + phase));
                sharpen(0.5 + 2.0 * (a - 0.5) * (b - 0.5), 6.0)
            }
            Self::Blobs { heights } => sharpen(bilinear(heights, point), 2.0),
        }
    }
}

/// A triangle wave of period 1 between 0 and 1.
fn wave(position: f32) -> f32 {
    (2.0 * (position - position.floor()) - 1.0).abs()
}

/// Increases the distance of a value from one half by a factor, within 0 to 1.
fn sharpen(value: f32, factor: f32) -> f32 {
    (0.5 + factor * (value - 0.5)).clamp(0.0, 1.0)
}

/// The height at a point of a smooth surface over the image, interpolated from a coarse grid of heights.
fn bilinear(heights: &[[f32; 6]; 6], point: Point) -> f32 {
    let [(column, right), (row, down)] = point.map(|coordinate| {
        let cell = coordinate * 5.0 / SIDE as f32;
        let whole = (cell as usize).min(4);
        let part = cell - whole as f32;
        (whole, part * part * (3.0 - 2.0 * part))
    });
    let along = |heights: &[f32; 6]| heights[column] + right * (heights[column + 1] - heights[column]);
    along(&heights[row]) + down * (along(&heights[row + 1]) - along(&heights[row]))
}

/// A rotated box in front of a shape: either long and thin or short and broad.
struct Occluder {
    center: Point,
    right: Point,
    half_size: Point,
}

impl Occluder {
    fn new(rng: &mut ChaCha8Rng, pose: &Pose) -> Self {
        let reach = 0.6 * pose.radius;
        let mut near = |middle: f32| middle + between(rng, [-reach, reach]);
        let center = [near(pose.center[0]), near(pose.center[1])];
        let half_size = if rng.random_bool(0.5) {
            [2.0 * SIDE as f32, between(rng, [0.6, 1.1])]
        } else {
            [between(rng, [1.5, 3.0]), between(rng, [1.5, 3.0])]
        };
        Self { center, right: direction(between(rng, [-1.0, 1.0])), half_size }
    }

    /// The coverage of the box, which becomes thinner until it hides no more of the shape than allowed.
    fn coverage(&self, shape: &Coverage) -> Coverage {
        let visible: f32 = shape.iter().sum();
        let mut height = self.half_size[1];
        loop {
            let covered = coverage(|point| self.distance(height, point));
            let hidden: f32 = shape.iter().zip(&covered).map(|(shape, covered)| shape * covered).sum();
            if hidden <= difficulty::HIDDEN * visible {
                return covered;
            }
            height -= 0.2;
        }
    }

    /// Signed distance from a box of this width and of the height `2 * half_height`. A box with a half-height below
    /// -1/2 covers no pixel.
    fn distance(&self, half_height: f32, point: Point) -> f32 {
        let offset = [point[0] - self.center[0], point[1] - self.center[1]];
        let across = dot(offset, [-self.right[1], self.right[0]]).abs() - half_height;
        (dot(offset, self.right).abs() - self.half_size[0]).max(across)
    }
}

/// A random color whose brightness is within bounds.
fn color(rng: &mut ChaCha8Rng, brightness: [f32; 2]) -> Color {
    let brightness = between(rng, brightness);
    let hue: Color = std::array::from_fn(|_| between(rng, [-1.0, 1.0]));
    let middle = luma(hue);
    let tint = hue.map(|value| value - middle);
    // The largest factor for the tint that keeps every channel between 0 and 1, so that clamping does not change the
    // brightness.
    let most = tint.iter().fold(f32::INFINITY, |most: f32, value| {
        let room = if *value > 0.0 { 1.0 - brightness } else { brightness };
        most.min(room / value.abs().max(1e-3))
    });
    let strength = between(rng, difficulty::CHROMA) * most;
    tint.map(|value| brightness + strength * value)
}

/// Perceived brightness.
fn luma([red, green, blue]: Color) -> f32 {
    0.299 * red + 0.587 * green + 0.114 * blue
}

/// Noise with an approximately normal distribution: the sum of four uniform random bytes, scaled.
fn noise(rng: &mut ChaCha8Rng) -> f32 {
    // A uniform random byte has the variance 65535 / 12, the sum of four the standard deviation 147.8.
    let sum: f32 = rng.random::<u32>().to_le_bytes().iter().map(|byte| f32::from(*byte)).sum();
    (sum - 510.0) * (difficulty::NOISE / 147.8)
}

/// Rounds a value from 0 to 1 to a byte.
fn quantize(value: f32) -> u8 {
    (value.clamp(0.0, 1.0) * 255.0 + 0.5) as u8
}

fn pixel_center(index: usize) -> Point {
    [(index % SIDE) as f32 + 0.5, (index / SIDE) as f32 + 0.5]
}

/// A uniform draw between two bounds.
fn between(rng: &mut ChaCha8Rng, [low, high]: [f32; 2]) -> f32 {
    low + (high - low) * rng.random::<f32>()
}

/// The unit vector at an angle, given the tangent of half the angle. This rational formula needs no trigonometric
/// function, whose result would depend on the machine.
fn direction(half_tangent: f32) -> Point {
    let square = half_tangent * half_tangent;
    [(1.0 - square) / (1.0 + square), 2.0 * half_tangent / (1.0 + square)]
}

fn dot(a: Point, b: Point) -> f32 {
    a[0] * b[0] + a[1] * b[1]
}

fn length(point: Point) -> f32 {
    dot(point, point).sqrt()
}

fn mix(a: Color, b: Color, share: f32) -> Color {
    std::array::from_fn(|channel| a[channel] + share * (b[channel] - a[channel]))
}

#[cfg(test)]
mod tests;
