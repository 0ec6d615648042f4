//! One labelled picture: where its bytes are, and what they decode to.

use std::io::Cursor;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use crate::DatasetError;
use crate::files::{
    DEFAULT_FILE_BYTES, FileKind, HEAD_BYTES, Place, Reason, Spool, is_tga_name, read_regular,
};
use crate::jpeg;
use crate::memory::{self, Reserved};
use crate::source::shapes;

/// A decoded picture: 8 bits a channel, rows from the top, channels interleaved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: u8,
    /// `height * width * channels` bytes.
    pub pixels: Vec<u8>,
}

/// A decoded image whose memory counts as taken.
#[derive(Debug)]
pub struct Decoded {
    image: Image,
    reserved: Option<Reserved>,
}

impl Decoded {
    fn small(image: Image) -> Self {
        Self { image, reserved: None }
    }

    /// The image, whose memory counts no longer.
    pub fn into_image(self) -> Image {
        drop(self.reserved);
        self.image
    }
}

impl Deref for Decoded {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

/// Where a picture is. Nothing is decoded before [`Picture::decode`] is called.
#[derive(Clone, Debug)]
pub enum Picture {
    /// An image file.
    File(PathBuf),
    /// An encoded image file held in memory, as read from an archive.
    Encoded {
        /// What messages call it: the path inside the archive.
        name: String,
        /// The file's bytes.
        bytes: Arc<[u8]>,
    },
    /// An encoded image file in a temporary file, as read from a large archive.
    Spooled {
        /// What messages call it: the path inside the archive.
        name: String,
        /// The temporary file.
        spool: Arc<Spool>,
        /// Where the image's bytes are in it.
        place: Place,
    },
    /// Raw pixels inside a larger buffer, as in IDX files and CIFAR batches.
    Raw {
        /// What messages call it: file and position.
        name: String,
        /// The buffer of all pictures.
        buffer: Arc<[u8]>,
        /// First byte of this picture.
        offset: usize,
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// 1, or 3 as separate planes (the order of CIFAR's batches).
        channels: u8,
    },
    /// Drawn on demand by the `shapes` data set.
    Drawn {
        /// The class to draw.
        class: usize,
        /// Seed of everything that varies.
        seed: u64,
    },
}

/// A picture with its class.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Index into [`crate::DatasetInfo::classes`].
    pub label: usize,
    /// The picture.
    pub picture: Picture,
}

/// What an image may cost at most: larger ones are refused before memory is taken for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Longest side in pixels.
    pub max_side: u32,
    /// Bytes of the decoded image.
    pub max_bytes: u64,
    /// Bytes of the file.
    pub max_file_bytes: u64,
}

impl Default for DecodeLimits {
    /// 32,768 pixels a side, 640 MiB decoded (more than 200 megapixels in color) and 256 MiB of file.
    fn default() -> Self {
        Self { max_side: 1 << 15, max_bytes: 640 << 20, max_file_bytes: DEFAULT_FILE_BYTES }
    }
}

impl DecodeLimits {
    /// The same with another limit for the file, if there is one.
    pub fn with_max_file_bytes(self, bytes: Option<u64>) -> Self {
        Self { max_file_bytes: bytes.unwrap_or(self.max_file_bytes), ..self }
    }
}

impl Picture {
    /// What messages call the picture.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Encoded { name, .. } | Self::Spooled { name, .. } | Self::Raw { name, .. } => name.clone(),
            Self::Drawn { class, seed } => format!("{} {seed:016x}", shapes::CLASSES[*class]),
        }
    }

    /// The file that it is; nothing for what lies in an archive or a buffer.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Encoded { .. } | Self::Spooled { .. } | Self::Raw { .. } | Self::Drawn { .. } => None,
        }
    }

    /// Decodes the picture: grey files to 1 channel, all others to 3.
    ///
    /// The format is told by the content, not the name. EXIF orientation is applied, alpha is dropped (as PIL's
    /// `convert("RGB")` does), 16 bits are scaled to 8, and of an animation the first frame counts.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is no picture, is cut short or exceeds the limits; the message names it.
    pub fn decode(&self, limits: &DecodeLimits) -> Result<Image, DatasetError> {
        Ok(self.decode_for_use(limits)?.into_image())
    }

    /// As [`Picture::decode`], for work on many threads: the memory of a large image counts as taken until the result is
    /// dropped, and other threads wait with theirs while there is too little.
    ///
    /// # Errors
    ///
    /// As [`Picture::decode`].
    pub fn decode_for_use(&self, limits: &DecodeLimits) -> Result<Decoded, DatasetError> {
        match self {
            Self::Raw { buffer, offset, width, height, channels, .. } => {
                let length = *width as usize * *height as usize * usize::from(*channels);
                let planes = buffer.get(*offset..*offset + length).ok_or_else(|| {
                    let reason = "it lies beyond the end of its file".to_owned();
                    DatasetError::Picture { picture: self.name(), reason }
                })?;
                Ok(Decoded::small(Image {
                    width: *width,
                    height: *height,
                    channels: *channels,
                    pixels: interleave(planes, usize::from(*channels)),
                }))
            }
            Self::Drawn { class, seed } => Ok(Decoded::small(shapes::draw(*class, *seed))),
            Self::File(_) | Self::Encoded { .. } | Self::Spooled { .. } => {
                self.with_bytes(limits, |name, bytes| decode_bytes(name, bytes, limits))
            }
        }
    }

    /// Whether the image can be read as far as its first bytes tell: it is there, within the limits, of a known format
    /// with a header that makes sense, and a JPEG has its end. No pixels are decoded.
    ///
    /// # Errors
    ///
    /// As [`Picture::decode`].
    pub fn probe(&self, limits: &DecodeLimits) -> Result<(), DatasetError> {
        match self {
            Self::Raw { .. } | Self::Drawn { .. } => Ok(()),
            Self::File(_) | Self::Encoded { .. } | Self::Spooled { .. } => {
                self.with_bytes(limits, |name, bytes| probe_bytes(name, bytes, limits))
            }
        }
    }

    /// Hands the name and the encoded bytes of an image file to `work`.
    fn with_bytes<T>(
        &self,
        limits: &DecodeLimits,
        work: impl FnOnce(&str, &[u8]) -> Result<T, String>,
    ) -> Result<T, DatasetError> {
        let done = match self {
            Self::File(path) => {
                let _turn = memory::turn_of_large_file(path);
                read_regular(path, limits.max_file_bytes)
                    .and_then(|bytes| work(&path.to_string_lossy(), &bytes))
            }
            Self::Encoded { name, bytes } => work(name, bytes),
            Self::Spooled { name, spool, place } => {
                spool.get(*place).map_err(|error| error.to_string()).and_then(|bytes| work(name, &bytes))
            }
            Self::Raw { .. } | Self::Drawn { .. } => Err("it has no encoded bytes".to_owned()),
        };
        done.map_err(|reason| DatasetError::Picture { picture: self.name(), reason })
    }
}

/// The format by the content; TGA, which has no signature, by the name.
fn format_of(name: &str, bytes: &[u8]) -> Result<ImageFormat, String> {
    if let FileKind::Unsupported(format) = FileKind::of_content(&bytes[..bytes.len().min(HEAD_BYTES)]) {
        return Err(Reason::Unsupported(format).message());
    }
    match image::guess_format(bytes) {
        Ok(format) if format.reading_enabled() => Ok(format),
        _ if is_tga_name(name) => Ok(ImageFormat::Tga),
        _ if bytes.is_empty() => Err("the file is empty".to_owned()),
        _ => Err("it is no picture of a known format".to_owned()),
    }
}

/// The format of what is not cut short, as far as that is known without decoding.
fn whole_format(name: &str, bytes: &[u8]) -> Result<ImageFormat, String> {
    let format = format_of(name, bytes)?;
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err("the JPEG file is cut short".to_owned());
    }
    Ok(format)
}

fn probe_bytes(name: &str, bytes: &[u8], limits: &DecodeLimits) -> Result<(), String> {
    match whole_format(name, bytes)? {
        ImageFormat::Jpeg => jpeg::probe(bytes, limits),
        format => decoder(format, bytes, limits).map(drop),
    }
}

/// The decoder of an image whose header is within the limits.
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
    let decoder = reader.into_decoder().map_err(|error| error.to_string())?;
    if decoder.total_bytes() > limits.max_bytes {
        let (width, height) = decoder.dimensions();
        return Err(format!("{width}x{height} pixels are more than the limit of {} bytes", limits.max_bytes));
    }
    Ok(decoder)
}

fn decode_bytes(name: &str, bytes: &[u8], limits: &DecodeLimits) -> Result<Decoded, String> {
    let format = whole_format(name, bytes)?;
    if format == ImageFormat::Jpeg
        && let Some((picture, reserved)) = jpeg::decode(bytes, limits)?
    {
        let channels = if picture.color().has_color() { 3 } else { 1 };
        let (width, height) = (picture.width(), picture.height());
        let image = Image { width, height, channels, pixels: picture.into_bytes() };
        return Ok(Decoded { image, reserved: Some(reserved) });
    }
    let mut decoder = decoder(format, bytes, limits)?;
    let reserved = memory::reserve(memory::cost(format, decoder.total_bytes(), bytes));
    // Broken EXIF data says nothing about the pixels.
    let orientation = decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms);
    let colour = decoder.color_type();
    let picture = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
    // Bits first: turning takes a second copy.
    let (mut picture, channels) = match colour {
        ColorType::L8 | ColorType::La8 | ColorType::L16 | ColorType::La16 => {
            (DynamicImage::ImageLuma8(picture.into_luma8()), 1)
        }
        _ => (DynamicImage::ImageRgb8(picture.into_rgb8()), 3),
    };
    picture.apply_orientation(orientation);
    let (width, height) = (picture.width(), picture.height());
    if width == 0 || height == 0 {
        return Err("it has no pixels".to_owned());
    }
    let image = Image { width, height, channels, pixels: picture.into_bytes() };
    Ok(Decoded { image, reserved: Some(reserved) })
}

/// Whether the end marker is there: decoders fill in what a truncated file lacks.
///
/// Walks from segment to segment, so that neither a thumbnail inside nor what cameras append counts.
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

fn interleave(planes: &[u8], channels: usize) -> Vec<u8> {
    if channels == 1 {
        return planes.to_vec();
    }
    let area = planes.len() / channels;
    (0..planes.len()).map(|index| planes[index % channels * area + index / channels]).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use image::{GrayAlphaImage, LumaA, Rgb, Rgb32FImage, RgbImage, RgbaImage};

    use super::*;

    fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        picture.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    fn decode(bytes: Vec<u8>) -> Result<Image, DatasetError> {
        Picture::Encoded { name: "a picture".into(), bytes: bytes.into() }.decode(&DecodeLimits::default())
    }

    fn sample() -> DynamicImage {
        DynamicImage::ImageRgb8(RgbImage::from_fn(23, 17, |x, y| Rgb([x as u8 * 9, y as u8 * 11, 77])))
    }

    #[test]
    fn every_format_gives_the_same_pixels() {
        let expected = sample().into_rgb8().into_raw();
        for format in
            [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::Pnm, ImageFormat::WebP]
        {
            let image = decode(encoded(&sample(), format)).unwrap();
            assert_eq!((image.width, image.height, image.channels), (23, 17, 3), "{format:?}");
            assert_eq!(image.pixels, expected, "{format:?}");
        }
        for format in [ImageFormat::Jpeg, ImageFormat::Gif] {
            assert_eq!(decode(encoded(&sample(), format)).unwrap().pixels.len(), expected.len());
        }
    }

    #[test]
    fn grey_alpha_and_sixteen_bits_are_converted() {
        let grey = GrayAlphaImage::from_pixel(3, 2, LumaA([90, 10]));
        let image = decode(encoded(&DynamicImage::ImageLumaA8(grey), ImageFormat::Png)).unwrap();
        assert_eq!((image.channels, image.pixels), (1, vec![90; 6]));
        let clear = RgbaImage::from_pixel(2, 1, image::Rgba([1, 2, 3, 0]));
        let image = decode(encoded(&DynamicImage::ImageRgba8(clear), ImageFormat::Png)).unwrap();
        assert_eq!(image.pixels, [1, 2, 3, 1, 2, 3]);
        let fine =
            DynamicImage::ImageRgb32F(Rgb32FImage::from_pixel(1, 1, Rgb([0.0, 0.5, 1.0]))).into_rgb16();
        let image = decode(encoded(&DynamicImage::ImageRgb16(fine), ImageFormat::Png)).unwrap();
        assert_eq!(image.pixels, [0, 128, 255]);
    }

    #[test]
    fn what_is_cut_short_is_an_error_that_names_the_picture() {
        for format in
            [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Bmp, ImageFormat::Gif, ImageFormat::WebP]
        {
            let whole = encoded(&sample(), format);
            for length in [whole.len() / 2, whole.len() * 9 / 10] {
                let error = decode(whole[..length].to_vec()).unwrap_err().to_string();
                assert!(error.contains("a picture"), "{format:?}: {error}");
            }
        }
        assert!(decode(b"this is text".to_vec()).unwrap_err().to_string().contains("no picture"));
    }

    #[test]
    fn the_end_of_a_jpeg_is_that_of_its_own_picture() {
        let jpeg = encoded(&sample(), ImageFormat::Jpeg);
        let film = [&jpeg[..], b"film\xff\xda\x00\x08and sound"].concat();
        assert_eq!(decode(film).unwrap(), decode(jpeg.clone()).unwrap());
        let length = (jpeg.len() as u16 + 2).to_be_bytes();
        let with_thumbnail = [&jpeg[..2], b"\xff\xe1", &length, &jpeg, &jpeg[2..]].concat();
        assert!(decode(with_thumbnail.clone()).is_ok());
        assert!(decode(with_thumbnail[..with_thumbnail.len() - jpeg.len() / 4].to_vec()).is_err());
    }

    #[test]
    fn a_file_is_known_by_its_content_and_named_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("photo.jpg");
        std::fs::File::create(&path).unwrap().write_all(&encoded(&sample(), ImageFormat::Png)).unwrap();
        let picture = Picture::File(path.clone());
        assert_eq!(picture.decode(&DecodeLimits::default()).unwrap().width, 23);
        std::fs::write(&path, "text").unwrap();
        let error = picture.decode(&DecodeLimits::default()).unwrap_err().to_string();
        assert!(error.contains("photo.jpg"), "{error}");
    }

    #[test]
    fn bombs_are_refused_by_their_header() {
        let limits = DecodeLimits { max_side: 20, ..DecodeLimits::default() };
        let bytes = encoded(&sample(), ImageFormat::Png);
        let picture = Picture::Encoded { name: "bomb".into(), bytes: bytes.clone().into() };
        assert!(picture.decode(&limits).is_err());
        let limits = DecodeLimits { max_bytes: 1000, ..DecodeLimits::default() };
        assert!(picture.decode(&limits).is_err());
    }

    #[test]
    fn a_probe_finds_what_the_header_and_the_end_of_a_jpeg_tell() {
        let folder = tempfile::tempdir().unwrap();
        let limits = DecodeLimits::default();
        let probe = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            Picture::File(path).probe(&limits).map_err(|error| error.to_string())
        };
        let jpeg = encoded(&sample(), ImageFormat::Jpeg);
        assert!(probe("whole.jpg", &jpeg).is_ok());
        for (name, bytes, part) in [
            ("cut.jpg", &jpeg[..jpeg.len() / 2], "cut short"),
            ("text.png", b"this is text", "known format"),
            ("empty.png", b"", "empty"),
            ("photo.png", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC images are not supported"),
        ] {
            let message = probe(name, bytes).unwrap_err();
            assert!(message.contains(name) && message.contains(part), "{message}");
        }
        assert!(Picture::File(folder.path().join("nothing.png")).probe(&limits).is_err());
    }

    #[test]
    fn icons_and_targa_images_are_decoded() {
        let small = sample().into_rgba8();
        let icon = encoded(&DynamicImage::ImageRgba8(small), ImageFormat::Ico);
        assert_eq!(decode(icon).unwrap().pixels, sample().into_rgb8().into_raw());
        let bytes: Arc<[u8]> = encoded(&sample(), ImageFormat::Tga).into();
        let decode = |name: &str| {
            Picture::Encoded { name: name.into(), bytes: Arc::clone(&bytes) }.decode(&DecodeLimits::default())
        };
        assert_eq!(decode("a.TGA").unwrap().pixels, sample().into_rgb8().into_raw());
        assert!(decode("a.png").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn an_endless_file_is_refused() {
        let message = Picture::File("/dev/zero".into()).decode(&DecodeLimits::default()).unwrap_err();
        assert!(message.to_string().contains("/dev/zero: it is a device"), "{message}");
    }

    #[test]
    fn an_image_in_use_counts_as_taken_memory() {
        let picture = Picture::Encoded {
            name: "large".into(),
            bytes: encoded(&DynamicImage::new_rgb8(2000, 1000), ImageFormat::Png).into(),
        };
        let decoded = picture.decode_for_use(&DecodeLimits::default()).unwrap();
        let Some(reserved) = &decoded.reserved else { panic!("an image file is accounted for") };
        assert!(reserved.bytes() >= decoded.pixels.len() as u64);
        assert_eq!(decoded.into_image(), picture.decode(&DecodeLimits::default()).unwrap());
    }

    #[test]
    fn exif_orientation_is_applied() {
        // A JPEG with an EXIF block that says "rotate by 90 degrees" after the start marker.
        let jpeg = encoded(&sample(), ImageFormat::Jpeg);
        let exif =
            b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        let turned = [&jpeg[..2], exif, &jpeg[2..]].concat();
        let image = decode(turned).unwrap();
        assert_eq!((image.width, image.height), (17, 23));
    }

    #[test]
    fn planes_become_pixels() {
        let picture = Picture::Raw {
            name: "batch".into(),
            buffer: vec![9, 1, 2, 11, 12, 21, 22].into(),
            offset: 1,
            width: 2,
            height: 1,
            channels: 3,
        };
        assert_eq!(picture.decode(&DecodeLimits::default()).unwrap().pixels, [1, 11, 21, 2, 12, 22]);
    }
}
