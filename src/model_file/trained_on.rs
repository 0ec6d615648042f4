//! The record of the images that a model was trained on, stored in its file, so that no evaluation mistakes one of them
//! for held-out data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vitrine_datasets::{ContentKey, Fingerprint, KeySet, Split};

/// The images that a model was trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainedOn {
    /// Number of different training images, including those of the pretrained weights and of the head.
    pub images: usize,
    /// The fingerprint of each split of the data set when training began, before images were held out for validation.
    /// All images of a data set without splits count as `train`.
    pub splits: BTreeMap<Split, Fingerprint>,
    /// The content keys of the training images; base64 in JSON.
    #[serde(with = "base64_keys", skip_serializing_if = "KeySet::is_empty")]
    pub keys: KeySet,
    /// The content keys of the validation images from which the head has learned after they had judged it, and the rest of the
    /// model has not; base64 in JSON.
    #[serde(with = "base64_keys", default, skip_serializing_if = "KeySet::is_empty")]
    pub head_keys: KeySet,
}

impl TrainedOn {
    /// A record of the images `keys`, joined with the `earlier` record of pretrained weights.
    pub fn new(splits: BTreeMap<Split, Fingerprint>, keys: &KeySet, earlier: Option<&Self>) -> Self {
        let keys = earlier.map_or_else(|| keys.clone(), |earlier| keys.union(&earlier.keys));
        Self { images: keys.len(), splits, keys, head_keys: KeySet::default() }
    }

    /// The record of a model whose head, and nothing else, has also learned from the images `keys`.
    pub fn with_head_images(self, keys: KeySet) -> Self {
        Self { images: self.keys.union(&keys).len(), head_keys: keys, ..self }
    }

    /// The record of the model without its head.
    pub fn without_head_images(self) -> Self {
        Self { images: self.keys.len(), head_keys: KeySet::default(), ..self }
    }

    /// Whether any part of the model has learned from this image.
    pub fn contains(&self, key: ContentKey) -> bool {
        self.keys.contains(key) || self.head_keys.contains(key)
    }

    /// The record without the keys, for display.
    pub fn summary(&self) -> Self {
        Self { keys: KeySet::default(), head_keys: KeySet::default(), ..self.clone() }
    }
}

/// The keys as a base64 string.
mod base64_keys {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use vitrine_datasets::KeySet;

    pub(super) fn serialize<S: Serializer>(keys: &KeySet, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(keys.to_bytes()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KeySet, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        KeySet::from_bytes(&bytes).ok_or_else(|| D::Error::custom("the keys of images are not in order"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use vitrine_datasets::{DecodeLimits, ImageSource};

    use super::*;

    fn keys(seeds: std::ops::Range<u64>) -> KeySet {
        seeds
            .map(|seed| ContentKey::of(&ImageSource::Drawn { class: 0, seed }, &DecodeLimits::default()))
            .collect()
    }

    #[test]
    fn a_record_survives_json_and_includes_the_images_of_earlier_training() {
        let earlier = TrainedOn::new(BTreeMap::new(), &keys(0..30), None);
        let print = Fingerprint { images: 40, hash: "00".repeat(16) };
        let splits = BTreeMap::from([(Split::Train, print)]);
        let trained_on = TrainedOn::new(splits, &keys(20..60), Some(&earlier));
        assert_eq!((trained_on.images, trained_on.keys.len()), (60, 60));
        let json = serde_json::to_string(&trained_on).unwrap();
        assert_eq!(serde_json::from_str::<TrainedOn>(&json).unwrap(), trained_on);
        let summary = toml::to_string(&trained_on.summary()).unwrap();
        assert!(summary.contains("images = 60") && !summary.contains("keys"), "{summary}");
        let refitted = trained_on.clone().with_head_images(keys(50..70));
        assert_eq!((refitted.images, refitted.keys.len()), (70, 60));
        let again: TrainedOn = serde_json::from_str(&serde_json::to_string(&refitted).unwrap()).unwrap();
        assert_eq!(again, refitted);
        let key = |seed| ContentKey::of(&ImageSource::Drawn { class: 0, seed }, &DecodeLimits::default());
        assert!([key(1), key(65)].into_iter().all(|key| again.contains(key)) && !again.contains(key(70)));
        assert_eq!(again.without_head_images(), trained_on);
        let broken = json.replace("\"keys\":\"", "\"keys\":\"////");
        assert!(serde_json::from_str::<TrainedOn>(&broken).is_err());
    }
}
