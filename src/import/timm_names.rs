//! What timm calls its Vision Transformers.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// Name, class, height and width, and the constructor's arguments as JSON: written by `tests/reference/list_timm.py`.
const TABLE: &str = include_str!("timm_architectures.tsv");

/// What a name stands for.
pub(super) struct Named {
    pub(super) name: &'static str,
    /// The constructor.
    pub(super) class: &'static str,
    /// Height and width, where the name implies them.
    pub(super) image_size: Option<[usize; 2]>,
    /// Of the constructor, where they are not its defaults.
    pub(super) arguments: Map<String, Value>,
}

static NAMES: LazyLock<Vec<Named>> = LazyLock::new(|| TABLE.lines().filter_map(parse).collect());

fn parse(line: &'static str) -> Option<Named> {
    let mut fields = line.split('\t');
    let (name, class) = (fields.next()?, fields.next()?);
    let size: [usize; 2] = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
    let arguments = serde_json::from_str(fields.next()?).ok()?;
    Some(Named { name, class, image_size: Some(size).filter(|size| size[0] > 0), arguments })
}

/// The architecture of a name, with or without the tag of its weights (`.augreg_in21k`).
pub(super) fn find(name: &str) -> Option<&'static Named> {
    let name = name.split('.').next().unwrap_or(name);
    NAMES.iter().find(|named| named.name == name)
}

/// The architecture that a file's name begins with: the longest.
pub(super) fn begin(file: &str) -> Option<&'static Named> {
    let file = file.replace('-', "_");
    NAMES.iter().filter(|named| file.starts_with(named.name)).max_by_key(|named| named.name.len())
}

/// Whether the name of a Swin v2 says `window12to16` or its like.
pub(super) fn has_enlarged_windows(name: &str) -> bool {
    name.split('_').any(|part| part.strip_prefix("window").is_some_and(|sizes| sizes.contains("to")))
}

/// The part of a name of timm's that tells why it is not among ours.
pub(super) fn foreign_part(name: &str) -> Option<&'static str> {
    const PARTS: [(&str, &str); 12] = [
        ("rope", "rotary positions"),
        ("dinov3", "rotary positions (DINOv3)"),
        ("eva", "rotary positions (EVA)"),
        ("eva02", "rotary positions (EVA)"),
        ("beit", "relative positions in a plain model (BEiT)"),
        ("beitv2", "relative positions in a plain model (BEiT)"),
        ("beit3", "further norms in its blocks (BEiT 3)"),
        ("relpos", "relative positions in a plain model"),
        ("srelpos", "relative positions in a plain model"),
        ("samvit", "windows in a plain model (SAM)"),
        ("naflexvit", "patches of images of changing shapes (NaFlex)"),
        ("cr", "another Swin v2 than Microsoft's"),
    ];
    let mut words = name.split(['_', '.', '-']);
    words.find_map(|word| PARTS.into_iter().find(|(part, _)| *part == word)).map(|(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        assert_eq!(NAMES.len(), TABLE.lines().count());
        let named = find("vit_tiny_patch16_384.augreg_in21k_ft_in1k").unwrap();
        assert_eq!((named.class, named.image_size), ("VisionTransformer", Some([384, 384])));
        assert_eq!(named.arguments["embed_dim"], 192);
        assert_eq!(
            begin("deit-tiny-distilled-patch16-224-b40b3cf7").unwrap().name,
            "deit_tiny_distilled_patch16_224"
        );
        assert!(find("vit_small_patch16_rope_224").is_none() && find("resnet50").is_none());
        assert!(foreign_part("vit_small_patch16_rope_ape_224").unwrap().contains("rotary"));
    }

    #[test]
    fn the_longest_name_counts_and_parts_of_names_are_whole_words() {
        let longest = begin("vit-base-patch16-224-miil-1a2b").unwrap();
        assert_eq!(longest.name, "vit_base_patch16_224_miil");
        assert!(begin("my_vit_tiny_patch16_224").is_none());
        assert_eq!(find("cait_xxs24_224").unwrap().class, "Cait");
        for (name, is_enlarged) in [
            ("swinv2_base_window12to16_192to256", true),
            ("swinv2_base_patch4_window12to24_192to384_22kto1k_ft", true),
            ("swinv2_tiny_window8_256", false),
            ("swin_tiny_patch4_window7_224_22kto1k", false),
        ] {
            assert_eq!(has_enlarged_windows(name), is_enlarged, "{name}");
        }
        for (name, part) in [
            ("beitv2_base_patch16_224", Some("BEiT")),
            ("eva02_tiny_patch14_224", Some("EVA")),
            ("swinv2_cr_tiny_224", Some("Swin v2")),
            ("vit_tiny_patch16_224", None),
            // It holds `cr` and is no word.
            ("vit_crop_224", None),
        ] {
            let found = foreign_part(name);
            assert!(found.is_some() == part.is_some(), "{name}: {found:?}");
            assert!(
                part.is_none_or(|part| found.is_some_and(|found| found.contains(part))),
                "{name}: {found:?}"
            );
        }
    }
}
