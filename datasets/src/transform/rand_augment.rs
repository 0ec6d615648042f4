//! stub
/// x
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, Copy)]
pub struct RandAugment {}
