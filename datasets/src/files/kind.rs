//! Image formats: recognizing those that can be decoded, those that cannot, and other files, by name and first bytes.

use image::ImageFormat;

/// File extensions of the image formats that can be decoded.
const SUPPORTED: [&str; 18] = [
    "png", "jpg", "jpeg", "jpe", "jfif", "webp", "bmp", "dib", "gif", "tif", "tiff", "pnm", "pbm", "pgm",
    "ppm", "pam", "ico", "tga",
];

/// File extensions of image formats that cannot be decoded, with the format's name. They count only if the first bytes
/// are not those of another image format.
const UNSUPPORTED: [(&str, &str); 20] = [
    ("heic", "HEIC"),
    ("heif", "HEIC"),
    ("hif", "HEIC"),
    ("avif", "AVIF"),
    ("jp2", "JPEG 2000"),
    ("j2k", "JPEG 2000"),
    ("jpf", "JPEG 2000"),
    ("jpx", "JPEG 2000"),
    ("jxl", "JPEG XL"),
    ("jxr", "JPEG XR"),
    ("exr", "OpenEXR"),
    ("hdr", "Radiance HDR"),
    ("qoi", "QOI"),
    ("dds", "DDS"),
    ("ff", "farbfeld"),
    ("psd", "PSD"),
    ("xcf", "XCF"),
    ("svg", "SVG"),
    ("dcm", "DICOM"),
    ("nii", "NIfTI"),
];

/// File extensions of camera raw formats. Most of these files begin as a TIFF file with a thumbnail, so the first bytes
/// would mislead.
const CAMERA_RAW: [&str; 10] = ["dng", "nef", "cr2", "cr3", "arw", "raf", "orf", "rw2", "pef", "srw"];

/// File extensions of other files that are common next to images. Such files are not opened.
const NOT_IMAGES: [&str; 36] = [
    "txt",
    "md",
    "json",
    "jsonl",
    "csv",
    "tsv",
    "xml",
    "yaml",
    "yml",
    "toml",
    "html",
    "htm",
    "py",
    "ipynb",
    "db",
    "ini",
    "log",
    "bak",
    "tmp",
    "part",
    "crdownload",
    "zip",
    "gz",
    "tar",
    "tgz",
    "7z",
    "pdf",
    "npy",
    "npz",
    "pt",
    "pth",
    "safetensors",
    "mat",
    "mp4",
    "mov",
    "avi",
];

/// Number of first bytes that [`FileKind::of`] examines.
pub(crate) const HEAD_BYTES: usize = 256;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// An image of a format that can be decoded.
    Image,
    /// An image of a format that cannot be decoded, with the format's name.
    Unsupported(&'static str),
    /// Anything else.
    Other,
}

impl FileKind {
    /// The kind of the file by its name alone.
    pub fn by_name(name: &str) -> Self {
        Self::of(name, Vec::new)
    }

    /// The kind of a file by the extension of its name, or by its first bytes if the extension is not enough.
    pub(crate) fn of(name: &str, head: impl FnOnce() -> Vec<u8>) -> Self {
        let extension = extension(name);
        if SUPPORTED.contains(&extension.as_str()) {
            return Self::Image;
        }
        if name.ends_with('~') || NOT_IMAGES.contains(&extension.as_str()) {
            return Self::Other;
        }
        if CAMERA_RAW.contains(&extension.as_str()) {
            return Self::Unsupported("camera raw");
        }
        match (Self::of_content(&head()), UNSUPPORTED.iter().find(|(ending, _)| *ending == extension)) {
            (Self::Other, Some((_, format))) => Self::Unsupported(format),
            (kind, _) => kind,
        }
    }

    /// The kind of a file by its first bytes alone. Formats without a signature, such as TGA, give [`Self::Other`].
    pub(crate) fn of_content(head: &[u8]) -> Self {
        let Some(format) = guess_format(head) else { return without_guess(head) };
        match format {
            ImageFormat::Png
            | ImageFormat::Jpeg
            | ImageFormat::Gif
            | ImageFormat::WebP
            | ImageFormat::Tiff => Self::Image,
            // These signatures have only two or four bytes, which other files may begin with by chance.
            ImageFormat::Bmp if is_bmp(head) => Self::Image,
            ImageFormat::Pnm if is_pnm(head) => Self::Image,
            ImageFormat::Ico if is_ico(head) => Self::Image,
            ImageFormat::Avif => Self::Unsupported("AVIF"),
            ImageFormat::Dds => Self::Unsupported("DDS"),
            ImageFormat::Hdr => Self::Unsupported("Radiance HDR"),
            ImageFormat::OpenExr => Self::Unsupported("OpenEXR"),
            ImageFormat::Qoi => Self::Unsupported("QOI"),
            ImageFormat::Farbfeld => Self::Unsupported("farbfeld"),
            _ => Self::Other,
        }
    }
}

/// The format of an image file by its first bytes. The decoder of TIFF reads BigTIFF, too, which is not recognized without it.
pub(crate) fn guess_format(head: &[u8]) -> Option<ImageFormat> {
    let is_big_tiff = [b"II+\0", b"MM\0+"].iter().any(|start| head.starts_with(*start));
    if is_big_tiff { Some(ImageFormat::Tiff) } else { image::guess_format(head).ok() }
}

/// The kind of a file whose format the image decoder does not recognize.
fn without_guess(head: &[u8]) -> FileKind {
    let at = |offset: usize, bytes: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(bytes));
    if at(4, b"ftyp") {
        let brands = head.get(8..).unwrap_or_default();
        let has = |names: &[&[u8; 4]]| brands.chunks_exact(4).any(|brand| names.iter().any(|n| *n == brand));
        if has(&[b"avif", b"avis"]) {
            return FileKind::Unsupported("AVIF");
        }
        if has(&[b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"]) {
            return FileKind::Unsupported("HEIC");
        }
    }
    let signatures: [(usize, &[u8], &str); 6] = [
        (0, b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
        (0, b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (0, b"II\xbc\x01", "JPEG XR"),
        (0, b"8BPS", "PSD"),
        (128, b"DICM", "DICOM"),
    ];
    let format = signatures.iter().find(|(offset, bytes, _)| at(*offset, bytes));
    format.map_or(FileKind::Other, |(_, _, format)| FileKind::Unsupported(format))
}

/// Whether the length field of the second header of a BMP file has one of the values in use.
fn is_bmp(head: &[u8]) -> bool {
    let size = head.get(14..18).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    matches!(size, Some(12 | 16 | 40 | 52 | 56 | 64 | 108 | 124))
}

/// Whether the magic number of a PNM file is followed by a number or a comment, or that of a PAM file by a line break.
fn is_pnm(head: &[u8]) -> bool {
    match head {
        [b'P', b'7', b'\n', ..] => true,
        [b'P', _, space, next, ..] => space.is_ascii_whitespace() && (next.is_ascii_digit() || *next == b'#'),
        _ => false,
    }
}

/// Whether the header of an ICO file states 1 to 64 images and its reserved bytes are 0.
fn is_ico(head: &[u8]) -> bool {
    matches!(head, [0, 0, 1, 0, 1..=64, 0, _, _, _, 0, ..])
}

/// Whether a file's name has the extension of an image format that can be decoded.
pub fn is_image_name(name: &str) -> bool {
    SUPPORTED.contains(&extension(name).as_str())
}

/// Whether a file's name has the extension of a TGA image, a format without a signature.
pub(crate) fn is_tga_name(name: &str) -> bool {
    extension(name) == "tga"
}

/// Whether a file or folder is hidden or left behind by a tool, and so not part of a data set.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == "__MACOSX"
}

/// The extension of a file name, in lower case; empty if there is none.
fn extension(name: &str) -> String {
    name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    fn kind(name: &str, head: &[u8]) -> FileKind {
        FileKind::of(name, || head.to_vec())
    }

    #[test]
    fn known_extensions_decide_without_opening_the_file() {
        for name in ["a.png", "a.JPG", "b.c.JpEg", "x.ico", "x.TGA", "x.jfif"] {
            assert_eq!(FileKind::of(name, || panic!("{name} is not opened")), FileKind::Image);
            assert!(is_image_name(name));
        }
        for name in ["notes.txt", "Thumbs.db", "LABELS.CSV", "a.png.part", "a.png~"] {
            assert_eq!(FileKind::of(name, || panic!("{name} is not opened")), FileKind::Other);
        }
        assert_eq!(kind("a.NEF", b"II*\0"), FileKind::Unsupported("camera raw"));
    }

    #[test]
    fn other_extensions_leave_the_decision_to_the_first_bytes() {
        let bmp = [b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".as_slice(), &[0; 20]].concat();
        for head in [
            PNG,
            b"\xff\xd8\xff\xe0",
            b"GIF89a",
            b"RIFF\x10\0\0\0WEBPVP8 ",
            b"II*\0",
            b"MM\0+",
            &bmp,
            b"P6 3 2",
        ] {
            for name in ["image", "image.dat", "n01440764_10026", "photo.heic"] {
                assert_eq!(kind(name, head), FileKind::Image, "{name} {head:?}");
            }
        }
        let dicom = [&[0; 128][..], b"DICM"].concat();
        for (head, format) in [
            (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic".as_slice(), "HEIC"),
            (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", "AVIF"),
            (b"\0\0\0\x1cftypavif\0\0\0\0", "AVIF"),
            (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
            (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
            (b"8BPS\0\x01", "PSD"),
            (&dicom, "DICOM"),
        ] {
            assert_eq!(kind("image", head), FileKind::Unsupported(format));
        }
    }

    #[test]
    fn text_that_begins_like_an_image_is_not_taken_for_one() {
        for head in [b"BMW, Audi and others".as_slice(), b"P1 is the first point", b"P6", b"", b"BM"] {
            assert_eq!(kind("README", head), FileKind::Other, "{head:?}");
        }
        assert_eq!(kind("movie", b"\0\0\0\x18ftypisom\0\0\0\0mp42"), FileKind::Other);
        assert_eq!(kind("photo.heic", b""), FileKind::Unsupported("HEIC"));
        assert_eq!(kind("icon", &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), FileKind::Other);
    }
}
