//! Single images: their sources, their pixels, and decoding within limits of size and memory.

mod decode;
pub(crate) mod drawing;
mod icon;
mod jpeg;
mod limits;
mod memory;
mod orientation;
mod pixels;
mod sample;
mod tiff;

pub use decode::Decoded;
pub use limits::DecodeLimits;
pub use pixels::Image;
pub use sample::{ImageSource, Sample};

pub(crate) use decode::probe_bytes;
