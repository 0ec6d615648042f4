//! The colormap viridis, in which equal steps of a value look equally large, also in gray and to the color-blind (van der
//! Walt and Smith 2015).

use maud::{Markup, html};

/// Eleven colors of matplotlib's viridis, at 0, 0.1, ..., 1.
const VIRIDIS: [[u8; 3]; 11] = [
    [68, 1, 84],
    [72, 36, 117],
    [65, 68, 135],
    [53, 95, 141],
    [42, 120, 142],
    [33, 145, 140],
    [34, 168, 132],
    [68, 191, 112],
    [122, 209, 81],
    [189, 223, 38],
    [253, 231, 37],
];

/// The color of a value from 0 to 1.
pub(super) fn viridis(value: f32) -> [u8; 3] {
    let place = value.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f32;
    let low = (place as usize).min(VIRIDIS.len() - 2);
    let share = place - low as f32;
    std::array::from_fn(|channel| {
        let [a, b] = [VIRIDIS[low], VIRIDIS[low + 1]].map(|color| f32::from(color[channel]));
        (a + share * (b - a)).round() as u8
    })
}

/// The colors of all maps of a page, from the least to the most, as a bar. Its style is that of all pages.
pub(crate) fn color_scale() -> Markup {
    let colors: Vec<String> =
        VIRIDIS.iter().map(|[red, green, blue]| format!("#{red:02x}{green:02x}{blue:02x}")).collect();
    let background = format!("background: linear-gradient(to right, {})", colors.join(", "));
    html! {
        div class="scale" {
            span { "counts least" }
            span class="colors" style=(background) {}
            span { "counts most" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lightness L* of CIELAB for an sRGB color.
    fn lightness(color: [u8; 3]) -> f32 {
        let linear = color.map(|byte| {
            let value = f32::from(byte) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        });
        let luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
        116.0 * luminance.cbrt() - 16.0
    }

    #[test]
    fn equal_steps_are_equal_steps_of_lightness() {
        let steps: Vec<f32> = (0..=20).map(|step| lightness(viridis(step as f32 / 20.0))).collect();
        for pair in steps.windows(2) {
            assert!((2.0..6.0).contains(&(pair[1] - pair[0])), "{steps:?}");
        }
        assert_eq!((viridis(-1.0), viridis(2.0)), ([68, 1, 84], [253, 231, 37]));
    }
}
