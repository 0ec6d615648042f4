//! Support for tests: temporary folders with images, and a command that runs vitrine in them.

#![allow(dead_code)]

use std::path::PathBuf;

use assert_cmd::Command;
use image::{Rgb, RgbImage};
use predicates::str::contains;
use tempfile::TempDir;

/// A very small architecture that still learns to tell colors apart: 16 by 16 pixels, 4 patches.
pub const TINY: &str = "image_size = 16\npatch_size = 8\nembed_dim = 16\ndepth = 1\nnum_heads = 2\n\
    class_token = false\npool = \"mean\"\n";

/// A temporary folder, usually with images in it.
pub struct Images(TempDir);

impl Images {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// A data set `data` of two classes, and an architecture `tiny.toml` for it.
    pub fn prepared() -> Self {
        let images = Self::new();
        images.fill("data/red", [200, 30, 30], 12);
        images.fill("data/blue", [30, 30, 200], 12);
        images.write("tiny.toml", TINY);
        images
    }

    /// The folder of [`Self::prepared`] with a run folder `run`, whose model classifies all these images correctly.
    pub fn trained() -> Self {
        let images = Self::prepared();
        vitrine(&images)
            .args(["train", "data", "--model", "tiny.toml", "--epochs", "12", "--batch-size", "8"])
            .args(["--learning-rate", "0.01", "--threads", "1", "--output", "run"])
            .assert()
            .success()
            .stderr(contains("epoch 12/12"))
            .stdout(contains("report.html"));
        images
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self, name: &str) {
        std::fs::create_dir_all(self.path(name)).unwrap();
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes `count` different images of 16 by 16 pixels in shades of a color.
    pub fn fill(&self, folder: &str, [red, green, blue]: [u8; 3], count: u32) {
        self.folder(folder);
        for index in 0..count {
            let image = RgbImage::from_fn(16, 16, |x, y| {
                let shade = ((x * 7 + y * 13 + index * 29) % 40) as u8;
                Rgb([red + shade, green + shade, blue + shade])
            });
            image.save(self.path(&format!("{folder}/{index}.png"))).unwrap();
        }
    }
}

/// A command that runs vitrine in the folder of `images`.
pub fn vitrine(images: &Images) -> Command {
    let mut command = Command::cargo_bin("vitrine").unwrap();
    command.env("VITRINE_CACHE", images.path("cache"));
    command.current_dir(images.0.path()).env("NO_COLOR", "1").timeout(std::time::Duration::from_secs(300));
    command
}
