//! Which images a model has learned from: it goes with the model, so that none of them ever counts as held out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vitrine_datasets::{Fingerprint, KeySet, Split};

/// What a model was trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainedOn {
    /// Number of different images that the weights were fitted to, those of the weights that training began with
    /// included.
    pub images: usize,
    /// What the splits of the data set held when training began; `train` is the whole of an unsplit one.
    pub splits: BTreeMap<Split, Fingerprint>,
    /// These images, as base64.
    #[serde(with = "encoded", skip_serializing_if = "KeySet::is_empty")]
    pub keys: KeySet,
}

impl TrainedOn {
    /// What was trained on, beginning with weights that know of `earlier` images.
    pub fn new(splits: BTreeMap<Split, Fingerprint>, keys: &KeySet, earlier: Option<&Self>) -> Self {
        let keys = earlier.map_or_else(|| keys.clone(), |earlier| keys.union(&earlier.keys));
        Self { images: keys.len(), splits, keys }
    }

    /// For people to read: without the keys.
    pub fn summary(&self) -> Self {
        Self { keys: KeySet::default(), ..self.clone() }
    }
}

mod encoded {
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

    use vitrine_datasets::{ContentKey, DecodeLimits, ImageSource};

    use super::*;

    fn keys(seeds: std::ops::Range<u64>) -> KeySet {
        seeds
            .map(|seed| ContentKey::of(&ImageSource::Drawn { class: 0, seed }, &DecodeLimits::default()))
            .collect()
    }

    #[test]
    fn it_survives_being_written_and_knows_what_came_before() {
        let earlier = TrainedOn::new(BTreeMap::new(), &keys(0..30), None);
        let print = Fingerprint { images: 40, hash: "00".repeat(16) };
        let splits = BTreeMap::from([(Split::Train, print)]);
        let trained_on = TrainedOn::new(splits, &keys(20..60), Some(&earlier));
        assert_eq!((trained_on.images, trained_on.keys.len()), (60, 60));
        let json = serde_json::to_string(&trained_on).unwrap();
        assert_eq!(serde_json::from_str::<TrainedOn>(&json).unwrap(), trained_on);
        let summary = toml::to_string(&trained_on.summary()).unwrap();
        assert!(summary.contains("images = 60") && !summary.contains("keys"), "{summary}");
        let broken = json.replace("\"keys\":\"", "\"keys\":\"////");
        assert!(serde_json::from_str::<TrainedOn>(&broken).is_err());
    }
}
