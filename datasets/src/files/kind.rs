//! The one list of image formats: those that are decoded, and those that are only known by name.

use image::ImageFormat;

/// Endings of the image files that are decoded.
const SUPPORTED: [&str; 18] = [
    "png", "jpg", "jpeg", "jpe", "jfif", "webp", "bmp", "dib", "gif", "tif", "tiff", "pnm", "pbm", "pgm",
    "ppm", "pam", "ico", "tga",
];

/// Endings of image formats that are not decoded, unless the content says otherwise.
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

/// Endings of what cameras write. Most of it begins like a TIFF file that holds a thumbnail: the content does not tell.
const CAMERA_RAW: [&str; 10] = ["dng", "nef", "cr2", "cr3", "arw", "raf", "orf", "rw2", "pef", "srw"];

/// Endings of what lies next to images: it is not opened.
const NO_IMAGE: [&str; 36] = [
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

/// How much of a file [`FileKind::of`] looks at.
pub(crate) const HEAD_BYTES: usize = 256;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// An image that is decoded.
    Image,
    /// An image of a format that is not decoded, with the format's name.
    Unsupported(&'static str),
    /// Anything else.
    Other,
}

impl FileKind {
    /// What a file is by its name, or by its first bytes where the name does not tell.
    pub(crate) fn of(name: &str, head: impl FnOnce() -> Vec<u8>) -> Self {
        let extension = extension(name);
        if SUPPORTED.contains(&extension.as_str()) {
            return Self::Image;
        }
        if name.ends_with('~') || NO_IMAGE.contains(&extension.as_str()) {
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

    /// What a file is by its first bytes alone; formats without a signature, such as TGA, are not told.
    pub(crate) fn of_content(head: &[u8]) -> Self {
        let Ok(format) = image::guess_format(head) else { return without_guess(head) };
        match format {
            ImageFormat::Png
            | ImageFormat::Jpeg
            | ImageFormat::Gif
            | ImageFormat::WebP
            | ImageFormat::Tiff => Self::Image,
            // Two or four bytes are too few to go by.
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

/// The formats that the decoder does not guess.
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

/// Whether the size of the second header is one that there is.
fn is_bmp(head: &[u8]) -> bool {
    let size = head.get(14..18).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    matches!(size, Some(12 | 16 | 40 | 52 | 56 | 64 | 108 | 124))
}

/// Whether a number or a comment follows, or in a PAM file the end of the line.
fn is_pnm(head: &[u8]) -> bool {
    match head {
        [b'P', b'7', b'\n', ..] => true,
        [b'P', _, space, next, ..] => space.is_ascii_whitespace() && (next.is_ascii_digit() || *next == b'#'),
        _ => false,
    }
}

/// Whether there are a few images, and the reserved byte of the first is 0.
fn is_ico(head: &[u8]) -> bool {
    matches!(head, [0, 0, 1, 0, 1..=64, 0, _, _, _, 0, ..])
}

/// Whether a file's name ends like that of an image that is decoded.
pub fn is_image_name(name: &str) -> bool {
    SUPPORTED.contains(&extension(name).as_str())
}

/// Whether a file's name is that of a TGA image, which has no signature.
pub(crate) fn is_tga_name(name: &str) -> bool {
    extension(name) == "tga"
}

/// Whether a file or folder is one that tools leave behind, not part of a data set.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == "__MACOSX"
}

/// What follows the last dot, in lower case.
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
    fn a_known_ending_tells_in_any_case() {
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
    fn without_one_the_content_tells() {
        let bmp = [b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".as_slice(), &[0; 20]].concat();
        for head in
            [PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\x10\0\0\0WEBPVP8 ", b"II*\0", &bmp, b"P6 3 2"]
        {
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
    fn text_that_begins_like_an_image_is_none() {
        for head in [b"BMW, Audi and others".as_slice(), b"P1 is the first point", b"P6", b"", b"BM"] {
            assert_eq!(kind("README", head), FileKind::Other, "{head:?}");
        }
        assert_eq!(kind("movie", b"\0\0\0\x18ftypisom\0\0\0\0mp42"), FileKind::Other);
        assert_eq!(kind("photo.heic", b""), FileKind::Unsupported("HEIC"));
        assert_eq!(kind("icon", &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), FileKind::Other);
    }
}
