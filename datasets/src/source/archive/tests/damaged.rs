//! Damaged, cut, oversized, and hostile archives.

use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::contents::{ArchiveContents, UnpackLimits};
use super::super::{ArchiveFormat, read, read_archive, read_tar, read_zip};
use super::{Entries, archives, gzip, tar_of, write, zip_of};
use crate::{ImageSource, source};

#[test]
fn data_after_the_end_and_a_wrong_checksum_are_reported() {
    let whole = tar_of(&[("a/1.png", b"1"), ("b/2.png", b"2")]);
    let left_out = |name: &str, bytes: &[u8]| {
        let (_folder, path) = write(name, bytes);
        let unreadable = source::read(&path).unwrap().left_out.unreadable;
        unreadable.into_iter().map(|bad| bad.message).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(left_out("pets.tar", &whole), "");
    assert_eq!(left_out("pets.tar.gz", &gzip(&whole)), "");
    assert!(left_out("two.tar", &[&whole[..], &whole].concat()).contains("first end marker"));
    let mut wrong = gzip(&whole);
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    assert!(left_out("wrong.tar.gz", &wrong).contains("damaged at its end"));
}

#[test]
fn the_error_for_a_damaged_or_empty_archive_names_it() {
    let whole = tar_of(&[("cat/1.png", &[7; 2000]), ("dog/1.png", b"d")]);
    let zipped = zip_of(&[("cat/1.png", &[7; 2000]), ("dog/1.png", b"d")]);
    for (name, bytes, part) in [
        ("cut.tar", whole[..1000].to_vec(), "damaged"),
        ("cut.tar.gz", gzip(&whole)[..60].to_vec(), "damaged"),
        ("cut.zip", zipped[..60].to_vec(), "damaged or not a zip file"),
        ("empty.tar", tar_of(&[]), "holds no images"),
        ("empty.zip", zip_of(&[("cat/", b"")]), "holds no images"),
        ("loose.zip", zip_of(&[("1.png", b"")]), "in no class folder"),
        ("hole.zip", zip_of(&[("a/1.png", b""), ("b/1.png", b""), ("c/", b"")]), "'c' holds no images"),
    ] {
        let (_folder, path) = write(name, &bytes);
        let message = source::read(&path).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(part), "{message} lacks {part}");
    }
}

#[test]
fn an_archive_that_unpacks_to_more_than_the_limit_is_refused() {
    let bomb = zip_of(&[("cat/1.png", &[0; 60]), ("cat/2.png", &[0; 60])]);
    let (_folder, path) = write("bomb.zip", &bomb);
    let mut contents = ArchiveContents::new(&path, UnpackLimits { file: 100, memory: 100, images: 100 });
    let file = BufReader::new(File::open(&path).unwrap());
    let message = read_zip(file, &mut contents).unwrap_err().to_string();
    assert!(message.contains("bomb.zip") && message.contains("'cat/2.png'"), "{message}");
}

#[test]
fn a_tar_archive_that_was_truncated_between_files_gives_a_remark() {
    let tar = tar_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d"), ("dog/3.png", b"e")]);
    for (length, faults) in [(tar.len(), 0), (2 * 1024, 1), (3 * 1024, 1)] {
        for (name, bytes) in [("pets.tar", tar[..length].to_vec()), ("pets.tar.gz", gzip(&tar[..length]))] {
            let (_folder, path) = write(name, &bytes);
            let found = source::read(&path).unwrap();
            assert_eq!(found.train.len(), if length == 2 * 1024 { 2 } else { 3 });
            assert_eq!(found.left_out.unreadable.len(), faults, "{name}, {length} bytes");
        }
    }
}

/// The places in a zip archive where a header with this signature begins.
fn places(zip: &[u8], signature: &[u8]) -> Vec<usize> {
    (0..zip.len()).filter(|&at| zip[at..].starts_with(signature)).collect()
}

/// A zip archive of six images, of which three are damaged, each in another way, and of a damaged file that is no image.
fn damaged_zip() -> (TempDir, PathBuf) {
    let names = ["a/1.png", "a/2.png", "a/3.png", "a/4.png", "b/5.png", "b/6.png", "notes.txt"];
    let mut zip = zip_of(&names.map(|name| (name, name.as_bytes())));
    let (local, listed) = (places(&zip, b"PK\x03\x04"), places(&zip, b"PK\x01\x02"));
    // Checksums that are wrong, a block of a kind that deflate does not have, and no header.
    zip[listed[0] + 16] ^= 1;
    zip[listed[6] + 16] ^= 1;
    let content = local[1] + 30 + names[1].len() + usize::from(zip[local[1] + 28]);
    zip[content] = 0xff;
    zip[local[2]] = 0;
    write("pets.zip", &zip)
}

#[test]
fn damaged_images_of_a_zip_archive_are_left_out_and_the_others_are_read() {
    let (_folder, path) = damaged_zip();
    let found = source::read(&path).unwrap();
    assert_eq!((found.classes, found.train.len()), (vec!["a".to_owned(), "b".to_owned()], 3));
    let bad = &found.left_out.unreadable;
    let names: Vec<&str> = bad.iter().filter_map(|bad| bad.name.rsplit('/').next()).collect();
    assert_eq!(names, ["1.png", "2.png", "3.png"]);
    assert!(bad.iter().all(|bad| bad.message.starts_with("it is damaged: ")), "{bad:?}");
    assert_eq!(found.left_out.no_images.count, 1);
}

#[test]
fn damaged_images_of_a_zip_archive_hold_back_no_other_in_a_stream() {
    let (_folder, path) = damaged_zip();
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    let others = read_archive(&path, 1000, |image| {
        match image {
            Ok(image) => whole.push(image.name()),
            Err((name, problem)) => damaged.push(format!("{name}: {problem}")),
        }
        ControlFlow::Continue(())
    });
    assert_eq!(others.unwrap().no_images.count, 1);
    let ends = |names: &[String], parts: [&str; 3]| {
        names.len() == 3 && names.iter().zip(parts).all(|(name, part)| name.contains(part))
    };
    assert!(ends(&whole, ["pets.zip/a/4.png", "pets.zip/b/5.png", "pets.zip/b/6.png"]), "{whole:?}");
    let parts = ["a/1.png: it is damaged", "a/2.png: it is damaged", "a/3.png: it is damaged"];
    assert!(ends(&damaged, parts), "{damaged:?}");
}

#[test]
fn encrypted_zip_archives_and_other_compressions_are_reported_as_unsupported() {
    let mut zip = zip_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d")]);
    for (start, flags) in [(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)] {
        places(&zip, start).into_iter().for_each(|at| zip[at + flags] |= 1);
    }
    let (_folder, path) = write("pets.zip", &zip);
    let message = source::read(&path).unwrap_err().to_string();
    assert!(message.contains("Password") && message.contains("unpack it"), "{message}");
    let mut zip = zip_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d")]);
    for (start, method) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        places(&zip, start).into_iter().for_each(|at| zip[at + method] = 12);
    }
    let (_folder, path) = write("pets.zip", &zip);
    let message = source::read(&path).unwrap_err().to_string();
    assert!(message.contains("compressed by") && message.contains("unpack it"), "{message}");
}

#[test]
fn an_image_over_the_size_limit_is_left_out_and_the_others_are_read() {
    let entries: Entries<'_> =
        &[("a/1.png", b"a"), ("a/2.png", &[0; 3000]), ("b/3.png", b"b"), ("b/4.png", &[0; 1000])];
    for (_folder, path) in archives(entries) {
        let format = ArchiveFormat::of(&path.to_string_lossy().to_ascii_lowercase()).unwrap();
        let found = read(&path, format, 1000).unwrap();
        assert_eq!(found.train.len(), 3, "{}", path.display());
        let [bad] = &found.left_out.unreadable[..] else { panic!("{:?}", found.left_out) };
        assert!(
            bad.name.ends_with("a/2.png") && bad.message.contains("1000 bytes") && bad.is_too_large,
            "{bad:?}"
        );
    }
}

/// A tar entry of `size` zero bytes, which are generated while it is read.
fn bomb(kind: tar::EntryType, size: u64) -> impl Read {
    let mut header = tar::Header::new_gnu();
    header.set_path("cat/1.png").unwrap();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(0).take(size))
}

#[test]
fn oversized_entries_and_headers_are_not_read_into_memory() {
    let limits = UnpackLimits { file: 1000, memory: 1000, images: 10_000 };
    let mut contents = ArchiveContents::new(Path::new("bomb.tar"), limits);
    read_tar(bomb(tar::EntryType::Regular, 3 << 20).chain(io::repeat(0).take(1024)), &mut contents).unwrap();
    assert_eq!(contents.left_out.unreadable.len(), 1);
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
        let message = read_tar(bomb(kind, 6 << 30), &mut contents).unwrap_err().to_string();
        assert!(message.contains("bomb.tar") && message.contains("a header of more than"), "{message}");
    }
}

#[test]
fn images_beyond_the_memory_limit_go_to_a_temporary_file() {
    let png = |value: u8| {
        let mut bytes = Cursor::new(Vec::new());
        image::GrayImage::from_pixel(2, 1, image::Luma([value]))
            .write_to(&mut bytes, image::ImageFormat::Png)
            .unwrap();
        bytes.into_inner()
    };
    let (first, second, third) = (png(1), png(2), png(3));
    let tar = tar_of(&[("a/1.png", &first), ("b/2.png", &second), ("b/3.png", &third)]);
    let limits = UnpackLimits { file: 1000, memory: first.len() as u64, images: 10_000 };
    let mut contents = ArchiveContents::new(Path::new("large.tar"), limits);
    read_tar(&tar[..], &mut contents).unwrap();
    let images: Vec<&ImageSource> = contents.listing.images.values().collect();
    assert!(matches!(images[0], ImageSource::Encoded { .. }));
    assert!(matches!(images[2], ImageSource::Spooled { .. }));
    for (image, value) in images.iter().zip([1, 2, 3]) {
        assert_eq!(image.decode(&crate::DecodeLimits::default()).unwrap().pixels, [value; 2]);
    }
    assert_eq!(images[2].name(), "large.tar/b/3.png");
}

#[test]
fn damage_at_any_position_is_no_panic() {
    let entries: Entries<'_> = &[("pets/cat/1.png", &[7; 700]), ("pets/dog/1.png", b"d")];
    let folder = TempDir::new().unwrap();
    for (name, bytes) in
        [("a.tar", tar_of(entries)), ("a.tar.gz", gzip(&tar_of(entries))), ("a.zip", zip_of(entries))]
    {
        let path = folder.path().join(name);
        for position in (0..bytes.len()).step_by(17) {
            fs::write(&path, &bytes[..position]).unwrap();
            let message = source::read(&path).map_or_else(|error| error.to_string(), |_| String::from(name));
            assert!(message.contains(name), "{message}");
            let mut flipped = bytes.clone();
            flipped[position] ^= 0xff;
            fs::write(&path, flipped).unwrap();
            let message = source::read(&path).map_or_else(|error| error.to_string(), |_| String::from(name));
            assert!(message.contains(name), "{message}");
        }
    }
}
