//! Decoding an image file into pixels, within limits of size and memory.

use std::io::Cursor;
use std::ops::Deref;
use std::sync::Arc;

use image::error::{ImageError, LimitErrorKind};
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, LumaA, Rgba};

use super::icon;
use super::jpeg;
use super::limits::DecodeLimits;
use super::memory::{self, Reserved};
use super::orientation;
use super::pixels::Image;
use super::tiff;
use crate::files::{FileKind, HEAD_BYTES, Reason, guess_format, is_tga_name};

/// A decoded image that holds a reservation in the memory budget for decoding.
#[derive(Debug)]
pub struct Decoded {
    image: Arc<Image>,
    pub(crate) reserved: Option<Reserved>,
}

impl Decoded {
    /// A small image, which needs no reservation.
    pub(crate) fn small(image: impl Into<Arc<Image>>) -> Self {
        Self { image: image.into(), reserved: None }
    }

    /// Releases the reservation and returns the image, which is copied if its source has it too.
    pub fn into_image(self) -> Image {
        drop(self.reserved);
        Arc::unwrap_or_clone(self.image)
    }
}

impl Deref for Decoded {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

/// The format of an image file by its first bytes, or for TGA, which has no signature, by its name.
fn format_of(name: &str, bytes: &[u8]) -> Result<ImageFormat, String> {
    if let FileKind::Unsupported(format) = FileKind::of_content(&bytes[..bytes.len().min(HEAD_BYTES)]) {
        return Err(Reason::Unsupported(format).message());
    }
    match guess_format(bytes) {
        Some(format) if format.reading_enabled() => Ok(format),
        _ if is_tga_name(name) => Ok(ImageFormat::Tga),
        _ if bytes.is_empty() => Err("the file is empty".to_owned()),
        _ => Err("it is not an image of a known format".to_owned()),
    }
}

/// The format of an image file with its bytes, if the file is complete as far as that can be seen without decoding it. Of an icon that
/// has a PNG file, these are those of the PNG file.
fn whole_format<'a>(name: &str, bytes: &'a [u8]) -> Result<(ImageFormat, &'a [u8]), String> {
    let format = format_of(name, bytes)?;
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err("the JPEG file is cut short".to_owned());
    }
    if format == ImageFormat::Ico
        && let Some(png) = icon::png(bytes)
    {
        return Ok((ImageFormat::Png, png));
    }
    Ok((format, bytes))
}

/// Checks format, header, limits, and for JPEG the end marker, without decoding pixels.
pub(crate) fn probe_bytes(name: &str, bytes: &[u8], limits: &DecodeLimits) -> Result<(), String> {
    match whole_format(name, bytes)? {
        (ImageFormat::Jpeg, bytes) => jpeg::probe(bytes, limits),
        (format, bytes) => decoder(format, bytes, limits).map(drop),
    }
}

/// A decoder for an image, if the size in its header is within the limits.
fn decoder<'a>(
    format: ImageFormat,
    bytes: &'a [u8],
    limits: &DecodeLimits,
) -> Result<impl ImageDecoder + 'a, String> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut allowed = image::Limits::no_limits();
    allowed.max_image_width = Some(limits.max_side);
    allowed.max_image_height = Some(limits.max_side);
    allowed.max_alloc = Some(limits.max_bytes);
    reader.limits(allowed);
    let decoder = reader.into_decoder().map_err(|error| match error {
        ImageError::Limits(error) if error.kind() == LimitErrorKind::DimensionError => {
            format!("a side is longer than the limit of {} pixels", limits.max_side)
        }
        ImageError::Unsupported(error) => format!("{error}: convert it to PNG or JPEG"),
        error => error.to_string(),
    })?;
    if decoder.total_bytes() > limits.max_bytes {
        let (width, height) = decoder.dimensions();
        return Err(format!(
            "{width}x{height} pixels take {} MB, more than the limit of {} MB",
            decoder.total_bytes() / 1_000_000,
            limits.max_bytes / 1_000_000
        ));
    }
    Ok(decoder)
}

/// Decodes an image file: to one channel if it is gray, to three otherwise.
pub(crate) fn decode_bytes(name: &str, bytes: &[u8], limits: &DecodeLimits) -> Result<Decoded, String> {
    let (format, bytes) = whole_format(name, bytes)?;
    if format == ImageFormat::Jpeg
        && let Some((source, reserved)) = jpeg::decode(bytes, limits)?
    {
        let channels = if source.color().has_color() { 3 } else { 1 };
        let (width, height) = (source.width(), source.height());
        let image = Image { width, height, channels, pixels: source.into_bytes() };
        return Ok(Decoded { image: image.into(), reserved: Some(reserved) });
    }
    let mut decoder = decoder(format, bytes, limits)?;
    let reserved = memory::reserve(memory::cost(format, decoder.total_bytes(), bytes));
    let orientation = orientation::of_decoder(&mut decoder, format, bytes);
    let color = decoder.color_type();
    let source = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
    // Convert to 8 bits before rotating, which needs a second copy of the image.
    let (mut source, channels) = match color {
        ColorType::L8 | ColorType::L16 => (DynamicImage::ImageLuma8(source.into_luma8()), 1),
        ColorType::La8 | ColorType::La16 => {
            let mut source = source.into_luma_alpha8();
            if alpha_counts(format, source.pixels().map(|LumaA([_, alpha])| *alpha)) {
                source.pixels_mut().for_each(|LumaA([gray, alpha])| *gray = on_white(*gray, *alpha));
            }
            (DynamicImage::ImageLuma8(DynamicImage::ImageLumaA8(source).into_luma8()), 1)
        }
        _ if color.has_alpha() => {
            let mut source = source.into_rgba8();
            let is_premultiplied = format == ImageFormat::Tiff && tiff::is_premultiplied(bytes);
            let blend: fn(u8, u8) -> u8 = if is_premultiplied { added_to_white } else { on_white };
            if alpha_counts(format, source.pixels().map(|Rgba([.., alpha])| *alpha)) {
                for Rgba([colors @ .., alpha]) in source.pixels_mut() {
                    colors.iter_mut().for_each(|color| *color = blend(*color, *alpha));
                }
            }
            (DynamicImage::ImageRgb8(DynamicImage::ImageRgba8(source).into_rgb8()), 3)
        }
        _ => (DynamicImage::ImageRgb8(source.into_rgb8()), 3),
    };
    source.apply_orientation(orientation);
    let (width, height) = (source.width(), source.height());
    if width == 0 || height == 0 {
        return Err("it has no pixels".to_owned());
    }
    let image = Image { width, height, channels, pixels: source.into_bytes() };
    Ok(Decoded { image: image.into(), reserved: Some(reserved) })
}

/// Whether the alpha of an image counts. Programs that write BMP or TGA may leave it at 0 everywhere, although nothing is transparent;
/// viewers show such an image as opaque.
fn alpha_counts(format: ImageFormat, mut alphas: impl Iterator<Item = u8>) -> bool {
    !matches!(format, ImageFormat::Bmp | ImageFormat::Tga) || alphas.any(|alpha| alpha > 0)
}

/// A value of a pixel on a white background, as a viewer shows it. The color that a transparent pixel has in its file is arbitrary,
/// and may well be that of what is drawn next to it, which then disappears.
fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

/// [`on_white`] of a value that is multiplied by the alpha already.
fn added_to_white(value: u8, alpha: u8) -> u8 {
    value.saturating_add(255 - alpha)
}

/// Whether a JPEG file has its end marker. Decoders do not report a truncated file, but fill in the missing pixels.
///
/// The search goes from segment to segment, so that it finds neither the end marker of an embedded thumbnail nor one in
/// data that a camera has appended to the file.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0xd0..=0xd8 | 0xff);
    let mut rest = bytes;
    while let Some(place) = rest.windows(2).position(is_marker) {
        let (marker, segment) = (rest[place + 1], &rest[place + 2..]);
        if marker == 0xd9 {
            return true;
        }
        let length = segment.first_chunk().map_or(0, |length| u16::from_be_bytes(*length));
        rest = segment.get(usize::from(length)..).unwrap_or_default();
    }
    false
}
