//! A compact set of images, which a model file stores as the images that the model was trained on: 40 bits per image.

use crate::ContentKey;

/// Bytes per image.
const WIDTH: usize = 5;

/// A set of images, each stored as 40 bits of its [`ContentKey`]. The probability that an image which is not in a set
/// of a million images is taken for one of them is one in a million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet(Vec<u64>);

impl KeySet {
    /// Whether the image is in the set.
    pub fn contains(&self, key: ContentKey) -> bool {
        self.0.binary_search(&key.short()).is_ok()
    }

    /// Number of different images.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The union of this set and another.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied())
    }

    /// Serializes the set: five bytes per image, the highest first, in ascending order.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|key| key.to_be_bytes()[8 - WIDTH..].to_vec()).collect()
    }

    /// Reads a set that [`Self::to_bytes`] wrote; `None` if the length is no multiple of five or the order is not
    /// ascending.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let key = |bytes: &[u8]| bytes.iter().fold(0, |key, &byte| key << 8 | u64::from(byte));
        let (keys, rest) = bytes.as_chunks::<WIDTH>();
        let keys: Vec<u64> = keys.iter().map(|bytes| key(bytes)).collect();
        (rest.is_empty() && keys.is_sorted_by(|a, b| a < b)).then_some(Self(keys))
    }

    fn of(keys: impl Iterator<Item = u64>) -> Self {
        let mut keys: Vec<u64> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        Self(keys)
    }
}

impl FromIterator<ContentKey> for KeySet {
    fn from_iter<T: IntoIterator<Item = ContentKey>>(keys: T) -> Self {
        Self::of(keys.into_iter().map(ContentKey::short))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, ImageSource};

    fn key(seed: u64) -> ContentKey {
        ContentKey::of(&ImageSource::Drawn { class: 0, seed }, &DecodeLimits::default())
    }

    #[test]
    fn a_set_contains_its_images_and_is_read_back() {
        let set: KeySet = (0..1000).chain(500..700).map(key).collect();
        assert_eq!(set.len(), 1000);
        assert!((0..1000).all(|seed| set.contains(key(seed))));
        assert!(!(1000..9000).any(|seed| set.contains(key(seed))));
        let bytes = set.to_bytes();
        assert_eq!(bytes.len(), 5000);
        assert_eq!(KeySet::from_bytes(&bytes), Some(set.clone()));
        let more: KeySet = (900..1100).map(key).collect();
        assert_eq!(set.union(&more).len(), 1100);
        assert!(KeySet::from_bytes(&[]).is_some_and(|set| set.is_empty()));
    }

    #[test]
    fn bytes_of_wrong_length_or_order_are_no_set() {
        let bytes = (0..3).map(key).collect::<KeySet>().to_bytes();
        assert_eq!(KeySet::from_bytes(&bytes[..14]), None);
        assert_eq!(KeySet::from_bytes(&[&bytes[5..], &bytes[..5]].concat()), None);
        assert_eq!(KeySet::from_bytes(&[&bytes[..5], &bytes[..5]].concat()), None);
    }
}
