//! timm's names for Vision Transformers, with the constructor and the arguments that each name stands for.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// One line per name: name, class, height, width, and the constructor's arguments as JSON.
/// `tests/reference/list_timm.py` writes it.
const TABLE: &str = include_str!("timm_architectures.tsv");

/// An architecture that timm has a name for.
pub(crate) struct TimmArchitecture {
    pub(crate) name: &'static str,
    /// The Python class.
    pub(crate) class: &'static str,
    /// Height and width in pixels, if the name implies them.
    pub(crate) image_size: Option<[usize; 2]>,
    /// The constructor's arguments that differ from their defaults.
    pub(crate) arguments: Map<String, Value>,
}

static ARCHITECTURES: LazyLock<Vec<TimmArchitecture>> =
    LazyLock::new(|| TABLE.lines().filter_map(parse).collect());

fn parse(line: &'static str) -> Option<TimmArchitecture> {
    let mut fields = line.split('\t');
    let (name, class) = (fields.next()?, fields.next()?);
    let size: [usize; 2] = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
    let arguments = serde_json::from_str(fields.next()?).ok()?;
    Some(TimmArchitecture { name, class, image_size: Some(size).filter(|size| size[0] > 0), arguments })
}

impl TimmArchitecture {
    /// The architecture of a name, with or without the tag of its weights (`.augreg_in21k`).
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        let name = name.split('.').next().unwrap_or(name);
        ARCHITECTURES.iter().find(|architecture| architecture.name == name)
    }

    /// The architecture with the longest name that a file name begins with; hyphens count as underscores. Microsoft's names of
    /// Swin v2 have `patch4` besides.
    pub(crate) fn of_file_name(file: &str) -> Option<&'static Self> {
        let file = file.replace('-', "_");
        let file = if file.starts_with("swinv2_") { file.replace("_patch4", "") } else { file };
        ARCHITECTURES
            .iter()
            .filter(|architecture| file.starts_with(architecture.name))
            .max_by_key(|architecture| architecture.name.len())
    }
}

/// Whether a name of a Swin v2 says that windows were enlarged after pre-training, such as `window12to16`.
pub(crate) fn has_enlarged_windows(name: &str) -> bool {
    name.split(['_', '-', '.'])
        .any(|part| part.strip_prefix("window").is_some_and(|sizes| sizes.contains("to")))
}

/// The unsupported feature that a word in one of timm's names stands for.
pub(crate) fn unsupported_feature(name: &str) -> Option<&'static str> {
    const FEATURES: [(&str, &str); 9] = [
        ("rope", "rotary positions"),
        ("eva", "rotary positions (EVA)"),
        ("eva02", "rotary positions (EVA)"),
        ("beit3", "further norms in its blocks (BEiT 3)"),
        ("relpos", "relative positions in a plain model"),
        ("srelpos", "relative positions in a plain model"),
        ("samvit", "windows in a plain model (SAM)"),
        ("naflexvit", "patches of images of changing shapes (NaFlex)"),
        ("cr", "another Swin v2 than Microsoft's"),
    ];
    let mut words = name.split(['_', '.', '-']);
    words.find_map(|word| FEATURES.into_iter().find(|(known, _)| *known == word)).map(|(_, feature)| feature)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        assert_eq!(ARCHITECTURES.len(), TABLE.lines().count());
        let tiny = TimmArchitecture::find("vit_tiny_patch16_384.augreg_in21k_ft_in1k").unwrap();
        assert_eq!((tiny.class, tiny.image_size), ("VisionTransformer", Some([384, 384])));
        assert_eq!(tiny.arguments["embed_dim"], 192);
        assert_eq!(TimmArchitecture::find("cait_xxs24_224").unwrap().class, "Cait");
        assert_eq!(TimmArchitecture::find("vit_small_patch16_dinov3").unwrap().class, "Eva");
        for unknown in ["vit_small_patch16_1000", "resnet50"] {
            assert!(TimmArchitecture::find(unknown).is_none(), "{unknown}");
        }
    }

    #[test]
    fn a_file_name_stands_for_the_longest_name_that_it_begins_with() {
        for (file, name) in [
            ("vit-base-patch16-224-miil-1a2b", Some("vit_base_patch16_224_miil")),
            ("deit-tiny-distilled-patch16-224-b40b3cf7", Some("deit_tiny_distilled_patch16_224")),
            (
                "swinv2_base_patch4_window12to16_192to256_22kto1k_ft",
                Some("swinv2_base_window12to16_192to256"),
            ),
            ("my_vit_tiny_patch16_224", None),
        ] {
            let found = TimmArchitecture::of_file_name(file).map(|architecture| architecture.name);
            assert_eq!(found, name, "{file}");
        }
    }

    #[test]
    fn enlarged_windows_are_recognized_by_name() {
        for (name, is_enlarged) in [
            ("swinv2_base_window12to16_192to256", true),
            ("swinv2_base_patch4_window12to24_192to384_22kto1k_ft", true),
            ("swinv2_tiny_window8_256", false),
            ("swin_tiny_patch4_window7_224_22kto1k", false),
            ("my-swinv2-window12to16.ema", true),
        ] {
            assert_eq!(has_enlarged_windows(name), is_enlarged, "{name}");
        }
    }

    #[test]
    fn unsupported_features_are_recognized_by_whole_words() {
        for (name, expected) in [
            ("vit_small_patch16_rope_ape_224", Some("rotary")),
            ("beit3_base_patch16_224", Some("BEiT 3")),
            ("eva02_tiny_patch14_224", Some("EVA")),
            ("swinv2_cr_tiny_224", Some("Swin v2")),
            ("vit_tiny_patch16_224", None),
            // `crop` begins with `cr` but is another word.
            ("vit_crop_224", None),
        ] {
            let found = unsupported_feature(name);
            assert!(found.is_some() == expected.is_some(), "{name}: {found:?}");
            assert!(
                expected.is_none_or(|part| found.is_some_and(|found| found.contains(part))),
                "{name}: {found:?}"
            );
        }
    }
}
