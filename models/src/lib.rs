//! Vision Transformers on [burn](https://burn.dev): a tokenizer makes tokens of images
//! `[batch, channels, height, width]`, blocks of attention and MLPs transform the tokens, and a head computes class
//! logits.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use vitrine_models::preset;
//!
//! let config = preset::find("vit_pico_patch4_32").expect("listed").with_num_classes(10);
//! let device = Device::default();
//! let model = config.init(&device)?;
//! let images = Tensor::<4>::zeros([2, 3, 32, 32], &device);
//! assert_eq!(model.forward(images).dims(), [2, 10]);
//! # Ok::<(), vitrine_models::ConfigError>(())
//! ```
//!
//! An architecture is data: [`ModelConfig`] describes it completely, [`preset`] holds named ones, and [`weights`] reads
//! and writes parameters under timm's names.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[macro_use]
mod listed;

pub mod attention;
pub mod block;
pub mod complexity;
pub mod config;
pub mod drop_path;
pub mod embed;
pub mod graph;
pub mod head;
pub mod linear;
pub mod linear_probe;
pub mod memory;
pub mod mlp;
pub mod norm;
pub mod pooling;
pub mod position;
pub mod preset;
pub mod rotary;
pub mod stage;
#[cfg(test)]
extern crate self as vitrine_models;
#[cfg(test)]
mod testing;
mod validate;
pub mod vision_transformer;
pub mod weights;

pub use complexity::Complexity;
pub use config::{
    AttentionOptions, BlockStyle, ChannelAttention, ChannelGate, ConfigError, GatePlace, ImageSize, Mixer,
    MlpKind, ModelConfig, Normalizer, PerStage, Pool, Position, PositionPlace, RelativePosition,
    RotaryCoordinates, RotaryOptions, Score, Tokenizer,
};
pub use memory::StepMemory;
pub use vision_transformer::{NoMap, VisionTransformer};
