"""Draws simple shapes, or places cut-out pictures, with the imperfections of photographs: backgrounds, clutter, shadows,
uneven light, blur, noise, and JPEG artifacts.

A shape takes four to seven tenths of the image's width, at a random place, rotated by up to 30 degrees, in a color that
differs from the background's. Small fragments lie around and over it. A cut-out picture takes as much of the shorter side of
an image of random proportions. The seed determines everything.
"""
import io
import math
import random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

SCALE = 2  # drawn at twice the size, for smooth edges


def arc(start, end, radius, center=(0, 0), points=40):
    """Points of an arc, angles in turns."""
    angles = [2 * math.pi * (start + (end - start) * i / points) for i in range(points + 1)]
    return [(center[0] + radius * math.cos(a), center[1] + radius * math.sin(a)) for a in angles]


def star(rays=5, inner=0.45):
    return [(r * math.cos(math.pi * i / rays), r * math.sin(math.pi * i / rays))
            for i in range(2 * rays) for r in [inner if i % 2 else 1]]


def heart():
    turns = [2 * math.pi * i / 60 for i in range(60)]
    return [(math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16)
            for t in turns]


CROSS = [(-.3, -1), (.3, -1), (.3, -.3), (1, -.3), (1, .3), (.3, .3), (.3, 1), (-.3, 1), (-.3, .3), (-1, .3), (-1, -.3),
         (-.3, -.3)]
# Outlines within about the unit circle. The second outline of the ring and the crescent is cut out of the first.
SHAPES = {
    "circle": [arc(0, 1, 0.9)],
    "crescent": [arc(0, 1, 1), arc(0, 1, 0.85, (0.5, 0))],
    "cross": [CROSS],
    "heart": [heart()],
    "ring": [arc(0, 1, 0.95), arc(0, 1, 0.55)],
    "square": [[(-.8, -.8), (.8, -.8), (.8, .8), (-.8, .8)]],
    "star": [star()],
    "triangle": [arc(0, 1, 1, points=3)],
}


def color(rng):
    return tuple(rng.randrange(256) for _ in range(3))


def far_from(rng, background, distance):
    """A color that differs from another by at least a distance (of 442 at most)."""
    while True:
        candidate = color(rng)
        if math.dist(candidate, background) > distance:
            return candidate


def smooth_noise(noise, cells, size):
    """Smooth noise of three channels: random values on a coarse grid, enlarged to a width and height."""
    grid = noise.integers(0, 256, (cells, cells, 3), np.uint8)
    return np.asarray(Image.fromarray(grid).resize(size, Image.Resampling.BICUBIC), np.float32)


def background(rng, noise, size):
    """A background of one or two colors with noise, stripes, a gradient, or tiles; and its mean color."""
    base = color(rng)
    other = [min(255, max(0, value + rng.randint(-90, 90))) for value in base]
    y, x = np.mgrid[: size[1], : size[0]] / min(size)
    angle, waves = rng.uniform(0, math.pi), rng.uniform(2, 12)
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    kind = rng.choice(["clouds", "stripes", "gradient", "tiles"])
    mix = {
        "clouds": lambda: smooth_noise(noise, rng.randint(3, 24), size) / 255,
        "stripes": lambda: (0.5 + 0.5 * np.sin(2 * math.pi * waves * along))[..., None],
        "gradient": lambda: np.clip(along, 0, 1)[..., None],
        "tiles": lambda: ((np.floor(waves * along) + np.floor(waves * across)) % 2)[..., None],
    }[kind]()
    pixels = np.array(base) * (1 - mix) + np.array(other) * mix
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), base


def mask(label, rng, side):
    """A random affine map of the shape: rotation, stretch, shear, and translation."""
    radius = side * rng.uniform(0.2, 0.35)
    center = [rng.uniform(1.05 * radius, side - 1.05 * radius) for _ in range(2)]
    angle, stretch, shear = rng.uniform(-math.pi / 6, math.pi / 6), rng.uniform(0.8, 1), rng.uniform(-0.2, 0.2)

    def place(point):
        x, y = point[0] + shear * point[1], stretch * point[1]
        return (center[0] + radius * (x * math.cos(angle) - y * math.sin(angle)),
                center[1] + radius * (x * math.sin(angle) + y * math.cos(angle)))

    image = Image.new("L", (side, side))
    for outline, fill in zip(SHAPES[label], (255, 0)):
        ImageDraw.Draw(image).polygon([place(point) for point in outline], fill=fill)
    return image


def scraps(image, rng, count, largest):
    """Draws clutter: lines, blots, and splinters, each smaller than a shape."""
    draw, (width, height) = ImageDraw.Draw(image), image.size
    for _ in range(count):
        x, y, size = rng.uniform(0, width), rng.uniform(0, height), min(width, height) * rng.uniform(0.02, largest)
        count = rng.choice([2, 2, 3, 5])
        corners = [(x + rng.uniform(-size, size), y + rng.uniform(-size, size)) for _ in range(count)]
        if len(corners) == 2:
            draw.line(corners, fill=color(rng), width=rng.randint(1, 5))
        else:
            draw.polygon(corners, fill=color(rng))


def shaded(image, rng, noise):
    """Applies uneven light."""
    light = 1 + rng.uniform(0, 0.45) * (smooth_noise(noise, rng.randint(2, 4), image.size)[..., :1] / 127.5 - 1)
    pixels = np.asarray(image, np.float32) * light
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def with_shadow(image, shape, rng):
    """Darkens half of the images beside a mask."""
    if rng.random() < 0.5:
        shadow = ImageChops.offset(shape, rng.randint(-12, 12), rng.randint(-12, 12))
        image.paste((0, 0, 0), mask=shadow.filter(ImageFilter.GaussianBlur(5)).point(lambda value: value // 3))


def taken(image, rng, noise):
    """The bytes of a JPEG file of a scene: uneven light, blur, noise, and a random quality."""
    size = (image.width // SCALE, image.height // SCALE)
    image = shaded(image, rng, noise).resize(size, Image.Resampling.BOX)
    image = image.filter(ImageFilter.GaussianBlur(rng.choice([0, 0.5, 1, 2])))
    grain = noise.normal(0, rng.uniform(0, 14), (*size[::-1], 3))
    image = Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))
    file = io.BytesIO()
    image.save(file, "jpeg", quality=rng.randint(15, 85))
    return file.getvalue()


def generators(seed):
    rng = random.Random(seed)
    return rng, np.random.default_rng(rng.getrandbits(64))


def photograph(label, seed, side=128):
    """The bytes of a JPEG file with a shape."""
    rng, noise = generators(seed)
    side *= SCALE
    image, base = background(rng, noise, (side, side))
    scraps(image, rng, rng.randint(0, 8), 0.1)
    shape = mask(label, rng, side)
    with_shadow(image, shape, rng)
    fill = Image.new("RGB", image.size, far_from(rng, base, 110))
    scraps(fill, rng, rng.randint(0, 3), 0.08)
    image.paste(fill, mask=shape)
    scraps(image, rng, rng.randint(0, 3), 0.06)
    return taken(image, rng, noise)


def scene(picture, seed, side=300):
    """The bytes of a JPEG file with a picture that has a transparent background: the file of the picture, and the longer side."""
    rng, noise = generators(seed)
    size = [side * SCALE, round(side * SCALE * rng.uniform(0.65, 1))]
    rng.shuffle(size)
    image, _ = background(rng, noise, size)
    scraps(image, rng, rng.randint(0, 8), 0.1)
    extent = round(min(size) * rng.uniform(0.4, 0.7))
    cut = Image.open(io.BytesIO(picture)).convert("RGBA").resize((extent, extent), Image.Resampling.BICUBIC)
    cut = cut.rotate(rng.uniform(-20, 20), Image.Resampling.BICUBIC, expand=True)
    corner = tuple(rng.randint(0, max(0, whole - part)) for whole, part in zip(size, cut.size))
    layer = Image.new("RGBA", size)
    layer.paste(cut, corner)
    shape = layer.getchannel("A")
    with_shadow(image, shape, rng)
    image.paste(layer.convert("RGB"), mask=shape)
    scraps(image, rng, rng.randint(0, 3), 0.06)
    return taken(image, rng, noise)
