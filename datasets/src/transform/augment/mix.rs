//! Random erasing, mixup, and CutMix, which work on normalized values.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Beta, StandardNormal};

use super::{Augmentation, MixMode};

/// Smallest and largest share of the image to erase, as in timm.
const ERASED: [f64; 2] = [0.02, 1.0 / 3.0];
/// Smallest height / width of an erased rectangle; the largest is its inverse.
const ERASED_RATIO: f64 = 0.3;

/// A rectangle of the rows `top..bottom` and the columns `left..right`.
#[derive(Clone, Copy, Debug)]
struct Region {
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
}

/// How an image is changed by its partner.
#[derive(Clone, Copy, Debug)]
enum Mixing {
    /// Not at all.
    Keep,
    /// Mixup: the image keeps this share of its values and takes the rest from the partner's.
    Blend(f64),
    /// CutMix: the image takes the pixels of a rectangle.
    Paste(Region),
}

impl Augmentation {
    /// Replaces a rectangle of a normalized image by Gaussian noise, with the probability `random_erasing`
    /// ([arXiv:1708.04896](https://arxiv.org/abs/1708.04896)).
    ///
    /// # Shapes
    ///
    /// - values: `[channels, height, width]`
    ///
    /// # Panics
    ///
    /// If the length of `values` does not match its shape.
    pub fn erase(&self, values: &mut [f32], shape: [usize; 3], rng: &mut ChaCha8Rng) {
        let [channels, height, width] = shape;
        assert_eq!(values.len(), channels * height * width, "values and shape must agree");
        if self.random_erasing <= 0.0 || rng.random::<f64>() >= self.random_erasing {
            return;
        }
        let Some(region) = erased_region(height, width, rng) else { return };
        for plane in values.chunks_exact_mut(height * width) {
            for row in plane.chunks_exact_mut(width).take(region.bottom).skip(region.top) {
                row[region.left..region.right].fill_with(|| rng.sample(StandardNormal));
            }
        }
    }

    /// Mixes the images and targets of a batch: the first with the last, the second with the last but one, and so on,
    /// as timm does.
    ///
    /// `mix_mode` tells whether the batch, each pair, or each image has a draw of its own. A draw decides whether to
    /// mix, with the probability `mix_probability`; whether by mixup
    /// ([arXiv:1710.09412](https://arxiv.org/abs/1710.09412)) or by CutMix
    /// ([arXiv:1905.04899](https://arxiv.org/abs/1905.04899)), with equal probability if both have an alpha; lambda,
    /// from Beta(alpha, alpha); and the rectangle of CutMix. The middle image of an odd batch is not mixed. The caller
    /// takes care of `mix_until`.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, height, width]`
    /// - targets: `[batch, classes]`; rows sum to 1 before and after
    ///
    /// # Panics
    ///
    /// If the length of `images` or `targets` does not match its shape.
    pub fn mix(
        &self,
        images: &mut [f32],
        targets: &mut [f32],
        shape: [usize; 4],
        classes: usize,
        rng: &mut ChaCha8Rng,
    ) {
        let [batch, channels, height, width] = shape;
        let length = channels * height * width;
        assert_eq!(images.len(), batch * length, "images and shape must agree");
        assert_eq!(targets.len(), batch * classes, "targets and shape must agree");
        if self.mixup <= 0.0 && self.cutmix <= 0.0 {
            return;
        }
        let size = [height, width];
        let of_batch = (self.mix_mode == MixMode::Batch).then(|| self.draw_mixing(size, rng));
        for (images, targets) in pairs(images, length).zip(pairs(targets, classes)) {
            let first = of_batch.unwrap_or_else(|| self.draw_mixing(size, rng));
            let second = if self.mix_mode == MixMode::Elem { self.draw_mixing(size, rng) } else { first };
            let mixings = [first, second];
            exchange(images, mixings, |mixing, own, other| mixing.take(own, other, size));
            exchange(targets, mixings, |mixing, own, other| {
                Mixing::Blend(mixing.kept_share(size)).take(own, other, size);
            });
        }
    }

    /// Draws whether to mix, how, and how much. At least one of mixup and CutMix must have an alpha above 0.
    fn draw_mixing(&self, [height, width]: [usize; 2], rng: &mut ChaCha8Rng) -> Mixing {
        if rng.random::<f64>() >= self.mix_probability {
            return Mixing::Keep;
        }
        let cut = self.cutmix > 0.0 && (self.mixup <= 0.0 || rng.random_bool(0.5));
        let lambda = draw_lambda(if cut { self.cutmix } else { self.mixup }, rng);
        if cut { Mixing::Paste(pasted_region(height, width, lambda, rng)) } else { Mixing::Blend(lambda) }
    }
}

impl Mixing {
    /// The share of its own content that an image of this height and width keeps.
    fn kept_share(self, [height, width]: [usize; 2]) -> f64 {
        match self {
            Self::Keep => 1.0,
            Self::Blend(lambda) => lambda,
            Self::Paste(Region { top, bottom, left, right }) => {
                1.0 - ((bottom - top) * (right - left)) as f64 / (height * width).max(1) as f64
            }
        }
    }

    /// Changes the rows of `own`, given those of its partner `other`.
    fn take(self, own: &mut [f32], other: &[f32], [height, width]: [usize; 2]) {
        match self {
            Self::Keep => {}
            Self::Blend(share) => {
                let share = share as f32;
                own.iter_mut()
                    .zip(other)
                    .for_each(|(own, other)| *own = *own * share + *other * (1.0 - share));
            }
            Self::Paste(region) => {
                for (row, (own, other)) in
                    own.chunks_exact_mut(width).zip(other.chunks_exact(width)).enumerate()
                {
                    if (region.top..region.bottom).contains(&(row % height)) {
                        own[region.left..region.right].copy_from_slice(&other[region.left..region.right]);
                    }
                }
            }
        }
    }
}

/// Changes each of two rows, given the original values of the other.
fn exchange(
    (first, second): (&mut [f32], &mut [f32]),
    mixings: [Mixing; 2],
    change: impl Fn(Mixing, &mut [f32], &[f32]),
) {
    if let [Mixing::Keep, Mixing::Keep] = mixings {
        return;
    }
    let before = first.to_vec();
    change(mixings[0], first, second);
    change(mixings[1], second, &before);
}

/// Draws a rectangle to erase that is smaller than the image, in at most ten attempts.
fn erased_region(height: usize, width: usize, rng: &mut ChaCha8Rng) -> Option<Region> {
    let longest = -ERASED_RATIO.ln();
    (0..10).find_map(|_| {
        let area = (height * width) as f64 * rng.random_range(ERASED[0]..=ERASED[1]);
        let ratio = rng.random_range(-longest..=longest).exp();
        let side = |area: f64| area.sqrt().round().max(1.0) as usize;
        let (rows, columns) = (side(area * ratio), side(area / ratio));
        (rows < height && columns < width).then(|| {
            let (top, left) = (rng.random_range(0..=height - rows), rng.random_range(0..=width - columns));
            Region { top, bottom: top + rows, left, right: left + columns }
        })
    })
}

/// A rectangle with the share 1 - lambda of the area, centered on a random pixel and clipped to the image.
fn pasted_region(height: usize, width: usize, lambda: f64, rng: &mut ChaCha8Rng) -> Region {
    let side = (1.0 - lambda).max(0.0).sqrt();
    let mut span = |size: usize| {
        let half = (size as f64 * side) as usize / 2;
        let center = rng.random_range(0..size.max(1));
        (center.saturating_sub(half), (center + half).min(size))
    };
    let ((top, bottom), (left, right)) = (span(height), span(width));
    Region { top, bottom, left, right }
}

/// A draw from Beta(alpha, alpha).
fn draw_lambda(alpha: f64, rng: &mut ChaCha8Rng) -> f64 {
    let lambda = Beta::new(alpha, alpha).map_or(1.0, |beta| rng.sample(beta));
    // For an alpha too small for floating point, the result is not finite. The distribution is then concentrated at 0
    // and 1.
    if lambda.is_finite() { lambda } else { 1.0 }
}

/// Pairs of rows: the first and the last, the second and the last but one, and so on.
fn pairs(rows: &mut [f32], length: usize) -> impl Iterator<Item = (&mut [f32], &mut [f32])> {
    let length = length.max(1);
    let half = rows.len() / length / 2 * length;
    let (front, back) = rows.split_at_mut(rows.len() - half);
    front.chunks_exact_mut(length).zip(back.chunks_exact_mut(length).rev())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const SHAPE: [usize; 4] = [5, 2, 8, 6];
    const LENGTH: usize = 2 * 8 * 6;

    /// Five images and their targets. Image `n` is filled with `n` and has the class `n`.
    fn batch() -> (Vec<f32>, Vec<f32>) {
        let images = (0..5 * LENGTH).map(|i| (i / LENGTH) as f32).collect();
        let targets = (0..25).map(|i| if i % 6 == 0 { 1.0 } else { 0.0 }).collect();
        (images, targets)
    }

    fn mixed(augmentation: &Augmentation, seed: u64) -> (Vec<f32>, Vec<f32>) {
        let (mut images, mut targets) = batch();
        augmentation.mix(&mut images, &mut targets, SHAPE, 5, &mut ChaCha8Rng::seed_from_u64(seed));
        (images, targets)
    }

    fn mean(values: &[f32]) -> f32 {
        values.iter().sum::<f32>() / values.len() as f32
    }

    /// Checks that the mean of each image matches its target, which must hold since image `n` was filled with `n`.
    fn assert_shares_agree(images: &[f32], targets: &[f32]) {
        for (row, target) in targets.chunks(5).enumerate() {
            assert!(
                (target.iter().sum::<f32>() - 1.0).abs() < 1e-5 && target.iter().all(|&share| share >= 0.0)
            );
            let expected: f32 = target.iter().enumerate().map(|(class, share)| class as f32 * share).sum();
            let got = mean(&images[row * LENGTH..(row + 1) * LENGTH]);
            assert!((got - expected).abs() < 1e-4, "image {row}: {got} and {expected}");
            assert!((target[row] + target[4 - row] - if row == 2 { 2.0 } else { 1.0 }).abs() < 1e-5);
        }
    }

    #[test]
    fn targets_of_cutmix_are_the_shares_of_pasted_pixels() {
        let cutmix = Augmentation { cutmix: 1.0, ..Augmentation::none() };
        let mut changed = 0;
        for seed in 0..200 {
            let (images, targets) = mixed(&cutmix, seed);
            assert_shares_agree(&images, &targets);
            assert!(images[..LENGTH].iter().all(|&value| value == 0.0 || value == 4.0));
            assert!(images[2 * LENGTH..3 * LENGTH].iter().all(|&value| value == 2.0));
            changed += usize::from(images != batch().0);
            assert_eq!((images, targets), mixed(&cutmix, seed));
        }
        assert!(changed > 150, "{changed}");
    }

    #[test]
    fn targets_of_mixup_are_the_shares_of_blending() {
        let mixup = Augmentation { mixup: 0.8, ..Augmentation::none() };
        let mut shares = Vec::new();
        for seed in 0..2000 {
            let (images, targets) = mixed(&mixup, seed);
            assert_shares_agree(&images, &targets);
            assert!(images[..LENGTH].iter().all(|&value| value == images[0]));
            shares.push(targets[0]);
        }
        // Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1)).
        let center = mean(&shares);
        let variance = mean(&shares.iter().map(|share| (share - 0.5).powi(2)).collect::<Vec<_>>());
        assert!((center - 0.5).abs() < 0.03 && (variance - 1.0 / 10.4).abs() < 0.01, "{center} {variance}");
    }

    #[test]
    fn each_batch_draws_whether_to_mix_and_how() {
        let both = Augmentation { mixup: 1.0, cutmix: 1.0, mix_probability: 0.5, ..Augmentation::none() };
        let (mut blended, mut pasted) = (0, 0);
        for seed in 0..1000 {
            let (images, targets) = mixed(&both, seed);
            assert_shares_agree(&images, &targets);
            let whole = images[..LENGTH].iter().all(|&value| value == 0.0 || value == 4.0);
            blended += usize::from(!whole);
            pasted += usize::from(whole && images != batch().0);
        }
        assert!((200..300).contains(&blended) && (180..300).contains(&pasted), "{blended} {pasted}");
    }

    /// The share of itself that each image keeps, from its target, after checking that its mean matches.
    fn kept(augmentation: &Augmentation, seed: u64) -> [f32; 5] {
        let (images, targets) = mixed(augmentation, seed);
        for (row, target) in targets.chunks(5).enumerate() {
            assert!((target.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{target:?}");
            let expected: f32 = target.iter().enumerate().map(|(class, share)| class as f32 * share).sum();
            let got = mean(&images[row * LENGTH..(row + 1) * LENGTH]);
            assert!((got - expected).abs() < 1e-4, "image {row}: {got} and {expected}");
        }
        std::array::from_fn(|row| targets[row * 6])
    }

    #[test]
    fn the_mode_decides_whether_a_batch_a_pair_or_an_image_has_a_draw() {
        let both = Augmentation { mixup: 1.0, cutmix: 1.0, mix_probability: 0.8, ..Augmentation::none() };
        let (mut pairs_alike, mut images_alike) = (0, 0);
        for seed in 0..200 {
            let shares = |mix_mode| kept(&Augmentation { mix_mode, ..both.clone() }, seed);
            let batch = shares(MixMode::Batch);
            assert!(batch[0] == batch[1] && batch[0] == batch[3] && batch[0] == batch[4] && batch[2] == 1.0);
            let pair = shares(MixMode::Pair);
            assert!(pair[0] == pair[4] && pair[1] == pair[3] && pair[2] == 1.0, "{pair:?}");
            pairs_alike += usize::from(pair[0] == pair[1]);
            let elem = shares(MixMode::Elem);
            assert_eq!(elem[2], 1.0);
            images_alike += usize::from(elem[0] == elem[4]);
        }
        // Shares agree if neither image is mixed, or rarely if rectangles have the same size.
        assert!(pairs_alike < 40 && images_alike < 40, "{pairs_alike} {images_alike}");
    }

    #[test]
    fn batches_without_alpha_or_partner_are_not_mixed() {
        assert_eq!(mixed(&Augmentation::none(), 1), batch());
        let never = Augmentation { mixup: 1.0, cutmix: 1.0, mix_probability: 0.0, ..Augmentation::none() };
        assert_eq!(mixed(&never, 1), batch());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for alpha in [1e-300, 1e-3, 1.0, 1e300] {
            let both = Augmentation { mixup: alpha, cutmix: alpha, ..Augmentation::none() };
            let (mut image, mut target) = ([0.25; 12], [0.0, 1.0]);
            both.mix(&mut image, &mut target, [1, 3, 2, 2], 2, &mut rng);
            assert_eq!((image, target), ([0.25; 12], [0.0, 1.0]));
            both.mix(&mut [], &mut [], [0, 3, 2, 2], 2, &mut rng);
            for seed in 0..20 {
                let (images, targets) = mixed(&both, seed);
                assert_shares_agree(&images, &targets);
            }
        }
    }

    #[test]
    fn erasing_replaces_a_rectangle_by_gaussian_noise() {
        let erasing = Augmentation { random_erasing: 1.0, ..Augmentation::none() };
        let mut noise = Vec::new();
        for seed in 0..100 {
            let mut values = vec![9.0; 3 * 40 * 30];
            erasing.erase(&mut values, [3, 40, 30], &mut ChaCha8Rng::seed_from_u64(seed));
            let erased: Vec<usize> = (0..1200).filter(|&place| values[place] != 9.0).collect();
            assert!((20..=410).contains(&erased.len()), "{}", erased.len());
            let (top, bottom) = (erased[0] / 30, erased[erased.len() - 1] / 30);
            let columns = erased.len() / (bottom - top + 1);
            for &place in &erased {
                assert!((erased[0] % 30..erased[0] % 30 + columns).contains(&(place % 30)));
                assert!(values[1200 + place] != 9.0 && values[2400 + place] != 9.0);
            }
            noise.extend(values.into_iter().filter(|&value| value != 9.0));
        }
        let variance = mean(&noise.iter().map(|value| value * value).collect::<Vec<_>>());
        assert!(mean(&noise).abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{variance}");
    }

    #[test]
    fn images_are_erased_with_the_given_probability() {
        let erasing = Augmentation { random_erasing: 0.25, ..Augmentation::none() };
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let erased = (0..1000).filter(|_| {
            let mut values = [9.0; 64];
            erasing.erase(&mut values, [1, 8, 8], &mut rng);
            values != [9.0; 64]
        });
        assert!((200..300).contains(&erased.count()));
        let mut one = [9.0];
        erasing.erase(&mut one, [1, 1, 1], &mut rng);
        assert_eq!(one, [9.0]);
    }
}
