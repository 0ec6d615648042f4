//! Views: the versions of an image whose answers are averaged (test-time augmentation, Krizhevsky et al. 2012, section
//! 4.1).

use anyhow::Result;
use burn::tensor::{Int, Tensor};

use crate::model_file::ModelCard;
use crate::usage::usage;

/// The versions of an image that are passed to the model, and over which its answers are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Views {
    /// The image as it is.
    #[default]
    One,
    /// The image and its mirror image, at twice the cost.
    Mirrored,
    /// The image shifted to the upper left and to the lower right, at twice the cost (Jordan 2024, section 3.4, who adds the image as it is:
    /// hardly more is recognized with that).
    Shifted,
    /// [`Shifted`](Self::Shifted) of the image and of its mirror image, at four times the cost.
    ShiftedMirrored,
    /// Only the mirror image. Training uses it to find out whether the model recognizes mirror images as their class.
    MirrorImage,
}

/// One version of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Whether the image is mirrored.
    pub mirrored: bool,
    /// The shift to the upper left, in 32nds of the image's sides; below 0 to the lower right. Pixels that a shift uncovers are reflections
    /// of those at the edge.
    pub shift: isize,
}

impl View {
    /// The pixels of a column, of `side` pixels, that this version shows from top to bottom.
    pub fn rows(self, side: usize) -> Vec<usize> {
        let pixels = (side as f64 / 32.0).round().max(1.0) as isize;
        let last = side as isize - 1;
        let reflected = |place: isize| last - (last - place.abs()).abs();
        (0..=last).map(|place| reflected(place + self.shift * pixels).clamp(0, last) as usize).collect()
    }

    /// The pixels of a row, of `side` pixels, that this version shows from left to right.
    pub fn columns(self, side: usize) -> Vec<usize> {
        let columns = self.rows(side);
        if self.mirrored { columns.into_iter().map(|place| side - 1 - place).collect() } else { columns }
    }

    /// This version of images `[batch, channels, height, width]`.
    fn of(self, images: &Tensor<4>) -> Tensor<4> {
        let images = images.clone();
        if self.shift == 0 {
            return if self.mirrored { images.flip([3]) } else { images };
        }
        let [_, _, height, width] = images.dims();
        let places = |places: Vec<usize>| {
            let places: Vec<i32> = places.into_iter().map(|place| place as i32).collect();
            Tensor::<1, Int>::from_data(places.as_slice(), &images.device())
        };
        let (rows, columns) = (places(self.rows(height)), places(self.columns(width)));
        images.select(2, rows).select(3, columns)
    }
}

impl Views {
    /// The image as it is, with its mirror image if `mirrored` is set, and shifted too if `shifted` is.
    pub fn new(mirrored: bool, shifted: bool) -> Self {
        match (mirrored, shifted) {
            (false, false) => Self::One,
            (true, false) => Self::Mirrored,
            (false, true) => Self::Shifted,
            (true, true) => Self::ShiftedMirrored,
        }
    }

    /// The views that the model of `card` is asked about, unless the user wants others.
    pub fn of(card: &ModelCard) -> Self {
        Self::new(card.mirror_views, card.shifted_views)
    }

    /// Whether mirror images are among these views.
    pub fn has_mirror_image(self) -> bool {
        matches!(self, Self::Mirrored | Self::ShiftedMirrored | Self::MirrorImage)
    }

    /// Whether shifted images are among these views.
    pub fn has_shifts(self) -> bool {
        matches!(self, Self::Shifted | Self::ShiftedMirrored)
    }

    /// The versions.
    pub fn list(self) -> Vec<View> {
        let mirrored: &[bool] = match self {
            Self::One | Self::Shifted => &[false],
            Self::MirrorImage => &[true],
            Self::Mirrored | Self::ShiftedMirrored => &[false, true],
        };
        let shifts: &[isize] = if self.has_shifts() { &[1, -1] } else { &[0] };
        let of = |&mirrored: &bool| shifts.iter().map(move |&shift| View { mirrored, shift });
        mirrored.iter().flat_map(of).collect()
    }

    /// The views in words, after the name of what was measured; nothing for one view.
    pub fn described(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Mirrored => ", each with its mirror image",
            Self::Shifted => ", each in two shifts",
            Self::ShiftedMirrored => ", each and its mirror image in two shifts",
            Self::MirrorImage => ", mirrored",
        }
    }

    /// The mean over the views of the answers that `compute` gives.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, width of an answer]`, the shape of `compute`'s output
    pub fn average(self, images: Tensor<4>, compute: impl Fn(Tensor<4>) -> Tensor<2>) -> Tensor<2> {
        let views = self.list();
        let sum = views.iter().map(|view| compute(view.of(&images))).reduce(|sum, answer| sum + answer);
        let sum = sum.expect("there is a view");
        if views.len() == 1 { sum } else { sum.mul_scalar(1.0 / views.len() as f32) }
    }

    /// Checks that the model of `card` was trained with mirror images, if these views contain one. Returns a remark if
    /// its file has no recipe, so that this is unknown.
    ///
    /// # Errors
    /// If these views contain a mirror image and the model was trained without.
    pub fn check(self, card: &ModelCard) -> Result<Option<&'static str>> {
        if !self.has_mirror_image() {
            return Ok(None);
        }
        match &card.recipe {
            None if self != Self::MirrorImage && card.mirror_views => Ok(None),
            Some(recipe) if recipe.augmentation.horizontal_flip > 0.0 => Ok(None),
            Some(_) => usage!(
                "--tta also classifies the mirror image, and the model was trained without any (`horizontal_flip` is 0 in its \
                 recipe): mirrored digits, letters, or signs have another class or none; leave it out, or ask for --tta=shifts"
            ),
            None => Ok(Some(
                "the model file does not say whether the model was trained with mirror images: use --tta only if mirror images \
                 have the same class",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::ops::PadMode;
    use burn::tensor::{Device, Distribution};
    use vitrine_models::preset;

    use super::*;

    #[test]
    fn two_views_give_the_mean_of_two_forward_passes() {
        let device = Device::default();
        let model = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3).init(&device).unwrap();
        model.initialize();
        let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
        let values = |logits: Tensor<2>| logits.into_data().iter::<f32>().collect::<Vec<_>>();
        let logits =
            |views: Views, images: Tensor<4>| values(views.average(images, |images| model.forward(images)));
        let one = logits(Views::One, images.clone());
        assert_eq!(one, values(model.forward(images.clone())));
        let other = logits(Views::MirrorImage, images.clone());
        assert_eq!(other, values(model.forward(images.clone().flip([3]))));
        let both = logits(Views::Mirrored, images.clone());
        for (mean, (a, b)) in both.iter().zip(one.iter().zip(&other)) {
            assert!((mean - (a + b) / 2.0).abs() < 1e-6, "{mean} of {a} and {b}");
        }
        assert_ne!(one, other);
        let mirrored = logits(Views::Mirrored, images.flip([3]));
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
        assert!(both.iter().zip(&mirrored).all(close), "an image and its mirror image get the same answer");
    }

    #[test]
    fn shifts_reflect_the_edges_and_are_a_small_part_of_the_side() {
        let view = |mirrored, shift| View { mirrored, shift };
        assert_eq!(view(false, 0).rows(4), [0, 1, 2, 3]);
        assert_eq!(view(false, 1).rows(4), [1, 2, 3, 2]);
        assert_eq!(view(false, -1).rows(4), [1, 0, 1, 2]);
        assert_eq!(view(true, 0).columns(4), [3, 2, 1, 0]);
        assert_eq!(view(true, 1).columns(4), [2, 1, 0, 1]);
        assert_eq!(view(true, 1).rows(4), view(false, 1).rows(4));
        assert_eq!(view(false, 1).rows(96)[..2], [3, 4]);
        assert_eq!(view(false, -1).rows(96)[..5], [3, 2, 1, 0, 1]);
        assert_eq!([view(false, 1).rows(1), view(false, -1).rows(2)], [vec![0], vec![1, 0]]);
    }

    #[test]
    fn shifted_views_are_means_of_shifted_images() {
        let device = Device::default();
        let images = Tensor::<4>::random([2, 1, 4, 6], Distribution::Default, &device);
        let pixels = |images: Tensor<4>| images.flatten::<2>(1, 3);
        let values = |answers: Tensor<2>| answers.into_data().iter::<f32>().collect::<Vec<_>>();
        // The image moved to the upper left by a pixel, and to the lower right, with its reflected edges.
        let padded = images.clone().pad([(1, 1), (1, 1)], PadMode::Reflect);
        let cut = |top: usize, left: usize| padded.clone().narrow(2, top, 4).narrow(3, left, 6);
        let mean = (cut(2, 2) + cut(0, 0)).mul_scalar(0.5);
        let close = |a: Tensor<2>, b: Tensor<2>| {
            values(a).iter().zip(values(b)).all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-6)
        };
        assert!(close(Views::Shifted.average(images.clone(), pixels), pixels(mean.clone())));
        let mirrored_padded = padded.clone().flip([3]);
        let cut = |top: usize, left: usize| mirrored_padded.clone().narrow(2, top, 4).narrow(3, left, 6);
        let mirrored = (cut(2, 2) + cut(0, 0)).mul_scalar(0.5);
        let both = (mean + mirrored).mul_scalar(0.5);
        assert!(close(Views::ShiftedMirrored.average(images.clone(), pixels), pixels(both.clone())));
        // An image and its mirror image have the same views.
        let other = Views::ShiftedMirrored.average(images.flip([3]), pixels);
        assert!(close(other, pixels(both)));
    }

    #[test]
    fn views_are_told_by_their_parts() {
        let list = [(Views::One, 1), (Views::Mirrored, 2), (Views::Shifted, 2), (Views::ShiftedMirrored, 4)];
        for (views, count) in list {
            assert_eq!(Views::new(views.has_mirror_image(), views.has_shifts()), views);
            assert_eq!(views.list().len(), count, "{views:?}");
        }
        assert_eq!(Views::MirrorImage.list(), [View { mirrored: true, shift: 0 }]);
    }
}
