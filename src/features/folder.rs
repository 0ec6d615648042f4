//! The folders of kept features: one for each backbone with its preprocessing, in the user's cache folder.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use sha2::{Digest, Sha256};
use vitrine_datasets::Preprocessing;
use vitrine_models::weights::{NamedTensor, is_head, to_timm};
use vitrine_models::{ModelConfig, VisionTransformer};

use crate::device::FoundDevice;
use crate::predict::Views;
use crate::weights_file::checksum;

/// The version of the files' format, and of everything else that this program does to an image.
const VERSION: (&str, u32) = (env!("CARGO_PKG_VERSION"), 6);

/// The cache folder of this program: `VITRINE_CACHE`, or else `vitrine` in `XDG_CACHE_HOME` or in `~/.cache`. `None` if there
/// is no home folder.
pub fn default_folder() -> Option<PathBuf> {
    folder_from(|name| std::env::var_os(name), std::env::home_dir())
}

fn folder_from(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let value = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = || value("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
    value("VITRINE_CACHE").or_else(|| Some(caches()?.join("vitrine")))
}

/// The name of the folder for the features of a model on a device: a hash of all that they depend on, except for the image.
///
/// That is the version of the program, the weights without the head, the architecture, the preprocessing, the views of an
/// image, and the device.
///
/// # Errors
/// If the architecture cannot be written as JSON.
pub fn identity(
    model: &VisionTransformer,
    preprocessing: &Preprocessing,
    views: Views,
    device: &FoundDevice,
) -> Result<String> {
    #[derive(Serialize)]
    struct Identity<'a> {
        version: (&'a str, u32),
        backbone: String,
        architecture: ModelConfig,
        preprocessing: &'a Preprocessing,
        views: &'a str,
        device: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        int8: bool,
    }
    let identity = Identity {
        version: VERSION,
        backbone: backbone(model),
        // The head is not part of the backbone, and the number of classes is that of the head.
        architecture: ModelConfig { num_classes: 1, ..model.config().clone() },
        preprocessing,
        views: views.described(),
        device: &device.name,
        int8: model.is_quantized(),
    };
    let digest = Sha256::digest(serde_json::to_vec(&identity)?);
    Ok(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// The checksum of a model's weights without the head.
fn backbone(model: &VisionTransformer) -> String {
    let tensors: Vec<NamedTensor> =
        to_timm(model).into_iter().filter(|tensor| !is_head(&tensor.name)).collect();
    checksum(&tensors)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use vitrine_datasets::{CropRounding, Interpolation, ResizeRule};
    use vitrine_models::preset;
    use vitrine_models::weights::from_timm;

    use super::*;
    use crate::device;
    use crate::predict::Views;

    #[test]
    fn the_folder_is_the_stated_one_or_in_the_cache_of_the_user() {
        let folder = |variables: &[(&str, &str)], home: Option<&str>| {
            let find = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            };
            folder_from(find, home.map(PathBuf::from))
        };
        let path = |path: &str| Some(Path::new(path).to_owned());
        assert_eq!(folder(&[], Some("/home/a")), path("/home/a/.cache/vitrine"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/c"), ("VITRINE_CACHE", "")], None), path("/c/vitrine"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/c"), ("VITRINE_CACHE", "/v")], None), path("/v"));
        assert_eq!(folder(&[], None), None);
    }

    #[test]
    fn features_depend_on_weights_preprocessing_and_views_but_not_on_the_head() {
        let (device, _) = device::select(Some("cpu")).unwrap();
        let preprocessing = Preprocessing {
            image_size: [32, 32],
            channels: 3,
            resize: ResizeRule::Squash,
            interpolation: Interpolation::Bilinear,
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
            crop_rounding: CropRounding::default(),
        };
        let config = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3);
        let model = config.init(&device.device).unwrap();
        model.initialize();
        let of = |model: &VisionTransformer, mean: f32, views: Views| {
            let preprocessing = Preprocessing { mean: vec![mean; 3], ..preprocessing.clone() };
            identity(model, &preprocessing, views, &device).unwrap()
        };
        // The same model with other values in the head, or in everything else.
        let changed = |head: bool| {
            let mut tensors = to_timm(&model);
            let changed = tensors.iter_mut().filter(|tensor| is_head(&tensor.name) == head);
            changed.for_each(|tensor| tensor.values.fill(1.0));
            from_timm(model.clone(), tensors).unwrap()
        };
        let usual = of(&model, 0.5, Views::One);
        assert_eq!(usual.len(), 32);
        assert_eq!(usual, of(&changed(true), 0.5, Views::One));
        assert_ne!(usual, of(&changed(false), 0.5, Views::One));
        assert_ne!(usual, of(&model, 0.25, Views::One));
        assert_ne!(usual, of(&model, 0.5, Views::Mirrored));
    }
}
