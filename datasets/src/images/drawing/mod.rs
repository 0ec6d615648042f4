//! The `shapes` data set: small drawings that only their outline tells apart.
//!
//! Every image is drawn on demand from its class and a seed. Position, size, turn, colors, the texture
//! behind the shape, noise and what lies across the shape are all chance and independent of the class. The
//! drawing uses nothing but exactly rounded arithmetic, so one seed gives the same bytes on every machine.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::images::pixels::Image;

/// Class names; a label is an index into them.
pub const CLASSES: [&str; 10] =
    ["circle", "ring", "square", "triangle", "hourglass", "star", "cross", "crescent", "heart", "arrow"];

/// What makes the task easy or hard. Lengths are in pixels, brightness and color from 0 to 1.
mod difficulty {
    /// Distance from a shape's center to its furthest corner.
    pub(super) const RADIUS: [f32; 2] = [9.5, 12.5];
    /// Furthest move of the center along each axis; less where the shape would leave the image.
    pub(super) const SHIFT: f32 = 6.0;
    /// How far a shape may reach past the edge of the image.
    pub(super) const OVERHANG: f32 = 1.0;
    /// Tangent of half the largest turn to either side: 0.27 is 30 degrees, 1.0 is 90.
    pub(super) const TURN: f32 = 0.27;
    /// Brightness of the dark side, shape or background.
    pub(super) const DARK: [f32; 2] = [0.08, 0.32];
    /// Brightness of the light side.
    pub(super) const LIGHT: [f32; 2] = [0.70, 0.94];
    /// How often the shape is the dark side. Mixing both makes the task very much harder.
    pub(super) const DARK_SHAPE: f64 = 0.0;
    /// Strength of colors: 0 is gray, 1 as far as the brightness allows.
    pub(super) const CHROMA: [f32; 2] = [0.25, 0.85];
    /// Standard deviation of the noise on each channel of each pixel.
    pub(super) const NOISE: f32 = 0.02;
    /// How often something lies across the shape.
    pub(super) const OCCLUSION: f64 = 0.3;
    /// The largest part of the shape that may be hidden.
    pub(super) const HIDDEN: f32 = 0.12;
}

/// Pixels on a side.
const SIDE: usize = 32;

/// Draws one image: 32 by 32 pixels in color, a function of the class and the seed alone. A class past the
/// last one counts on from the first.
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

/// A point or a direction; x to the right, y down.
type Point = [f32; 2];

/// Red, green and blue from 0 to 1.
type Color = [f32; 3];

/// How much of each pixel something covers, from 0 to 1.
type Coverage = [f32; SIDE * SIDE];

/// Everything in an image that is not its class.
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

/// Where a shape is, how large and how turned.
struct Pose {
    center: Point,
    radius: f32,
    right: Point,
}

impl Pose {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        let radius = between(rng, difficulty::RADIUS);
        let room = SIDE as f32 / 2.0 + difficulty::OVERHANG - radius;
        let shift = room.clamp(0.0, difficulty::SHIFT);
        let mut coordinate = || SIDE as f32 / 2.0 + between(rng, [-shift, shift]);
        let center = [coordinate(), coordinate()];
        Self { center, radius, right: direction(between(rng, [-difficulty::TURN, difficulty::TURN])) }
    }

    /// Signed distance in pixels from the outline of a shape, negative inside.
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

/// Signed distance from the outline of a shape of radius 1. All shapes are symmetric: `x` is not negative.
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

// Right halves of outlines, from the axis at the top to the axis at the bottom, within radius 1.
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

/// Distance from a circle around `(0, y)`.
fn circle(point: Point, y: f32, radius: f32) -> f32 {
    length([point[0], point[1] - y]) - radius
}

/// Distance from a polygon that mirrors the open chain `half` in the vertical axis.
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

/// Distance from a heart: two round lobes above a right angle.
fn heart([x, y]: Point) -> f32 {
    const SCALE: f32 = 1.55;
    // Now the tip is at the origin, the notch at (0, 1), and y points up.
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

/// How much of each pixel lies inside an outline, given the signed distance from it.
fn coverage(distance: impl Fn(Point) -> f32) -> Coverage {
    std::array::from_fn(|index| (0.5 - distance(pixel_center(index))).clamp(0.0, 1.0))
}

/// What lies behind a shape: a pattern that runs between two colors.
enum Texture {
    Gradient { along: Point },
    Stripes { along: Point, phase: f32 },
    Checks { along: Point, phase: f32 },
    Blobs { heights: [[f32; 6]; 6] },
}

impl Texture {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        let turn = direction(between(rng, [-1.0, 1.0]));
        let scaled = |scale: f32| [turn[0] * scale, turn[1] * scale];
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

/// Pulls values away from one half.
fn sharpen(value: f32, factor: f32) -> f32 {
    (0.5 + factor * (value - 0.5)).clamp(0.0, 1.0)
}

/// Height of a smooth surface through a coarse grid laid over the image.
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

/// Something that lies across a shape: a turned box, long and thin or short and broad.
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

    /// What it covers, made thinner until it hides little enough of the shape.
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

    /// Signed distance from a box of this width and another height; everything is outside below minus one half.
    fn distance(&self, half_height: f32, point: Point) -> f32 {
        let offset = [point[0] - self.center[0], point[1] - self.center[1]];
        let across = dot(offset, [-self.right[1], self.right[0]]).abs() - half_height;
        (dot(offset, self.right).abs() - self.half_size[0]).max(across)
    }
}

/// A random color of a brightness within bounds.
fn color(rng: &mut ChaCha8Rng, brightness: [f32; 2]) -> Color {
    let brightness = between(rng, brightness);
    let hue: Color = std::array::from_fn(|_| between(rng, [-1.0, 1.0]));
    let middle = luma(hue);
    let tint = hue.map(|value| value - middle);
    // The most tint that keeps every channel between 0 and 1, and so the brightness as it is.
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

/// Noise with a bell-shaped distribution.
fn noise(rng: &mut ChaCha8Rng) -> f32 {
    // Four bytes, each of variance 65535 / 12.
    let sum: f32 = rng.random::<u32>().to_le_bytes().iter().map(|byte| f32::from(*byte)).sum();
    (sum - 510.0) * (difficulty::NOISE / 147.8)
}

/// From 0..1 to a byte.
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

/// The direction at an angle, given by the tangent of its half: rational, so the same on every machine.
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
