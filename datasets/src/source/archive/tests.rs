//! Archives of every layout, and what must not happen with damaged and hostile ones.

use std::fs::{self, File};
use std::io::{self, Cursor, Read, Write};
use std::path::PathBuf;

use tempfile::TempDir;
use zip::write::SimpleFileOptions;

use super::*;
use crate::source::cifar::tests::record;
use crate::source::idx::tests::{encode, gzip};
use crate::{ImageSource, source};

type Entries<'a> = &'a [(&'a str, &'a [u8])];

pub(crate) fn tar_of(entries: Entries<'_>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn zip_of(entries: Entries<'_>) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        match name.strip_suffix('/') {
            Some(name) => writer.add_directory(name, SimpleFileOptions::default()).unwrap(),
            None => {
                writer.start_file(*name, SimpleFileOptions::default()).unwrap();
                writer.write_all(bytes).unwrap();
            }
        }
    }
    writer.finish().unwrap().into_inner()
}

fn write(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// The same entries in each format.
fn archives(entries: Entries<'_>) -> Vec<(TempDir, PathBuf)> {
    let tar = tar_of(entries);
    vec![
        write("pets.tar", &tar),
        write("pets.tar.gz", &gzip(&tar)),
        write("pets.TGZ", &gzip(&tar)),
        write("pets.zip", &zip_of(entries)),
    ]
}

#[test]
fn class_folders_are_read_from_every_format() {
    let entries: Entries<'_> = &[
        ("./pets/", b""),
        ("./pets/train/dog/2.PNG", b"d"),
        ("./pets/train/cat/1.png", b"c"),
        ("./pets/.DS_Store/x.png", b"-"),
        ("__MACOSX/pets/._1.png", b"-"),
        ("./pets/labels.txt", b"-"),
        ("./pets/val/cat/3.jpg", b"v"),
        ("./pets/val/dog/4.jpg", b"w"),
    ];
    for (_folder, path) in archives(entries) {
        let found = source::read(&path).unwrap();
        assert_eq!(
            (found.classes, found.source),
            (vec!["cat".to_owned(), "dog".to_owned()], SourceKind::Archive)
        );
        let samples: Vec<_> = found.train.iter().chain(&found.val).collect();
        assert_eq!(samples.iter().map(|sample| sample.label).collect::<Vec<_>>(), [0, 1, 0, 1]);
        let ImageSource::Encoded { name, bytes } = &samples[0].source else {
            panic!("archives are read into memory")
        };
        assert_eq!(name, &format!("{}/pets/train/cat/1.png", path.display()));
        assert_eq!(bytes[..], *b"c");
    }
}

#[test]
fn idx_files_and_cifar_batches_are_read_from_archives() {
    let images = gzip(&encode(0x0803, &[2, 1, 1], &[0, 9]));
    let labels = encode(0x0801, &[2], &[0, 1]);
    for (_folder, path) in
        archives(&[("raw/train-images-idx3-ubyte.gz", &images), ("raw/train-labels-idx1-ubyte", &labels)])
    {
        let found = source::read(&path).unwrap();
        assert_eq!((found.train.len(), found.source), (2, SourceKind::Idx));
    }
    for (_folder, path) in archives(&[("cifar-10-batches-bin/data_batch_1.bin", &record(&[4]))]) {
        let found = source::read(&path).unwrap();
        assert_eq!((found.train[0].label, found.source), (4, SourceKind::Cifar));
    }
}

#[test]
fn a_zip_with_needless_records_at_its_end_and_one_after_a_program_are_read() {
    // The first entry's header in the directory is as long as the records of ZIP64 are.
    let entries: Entries<'_> = &[("a/234567890123456789012345.png", b"a"), ("b/2.png", b"b")];
    let plain = zip_of(entries);
    let (rest, last) = plain.split_at(plain.len() - 22);
    let number = |at: usize| u64::from(u32::from_le_bytes(*last[at..].first_chunk().unwrap()));
    let (size, offset) = (number(12), number(16));
    assert_eq!(&rest[offset as usize + 76..][..4], b"PK\x01\x02");
    let counts = [2u64, 2, size, offset].map(u64::to_le_bytes).concat();
    let record = [&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[30, 3, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0], &counts];
    let end = rest.len() as u64;
    let locator = [&b"PK\x06\x07"[..], &[0; 4], &end.to_le_bytes(), &1u32.to_le_bytes()].concat();
    let with_records = [rest, &record.concat(), &locator, last].concat();
    let after_program = [&b"#!/bin/sh\nexec unzip $0\n"[..], &plain].concat();
    for bytes in [with_records, after_program] {
        let (_folder, path) = write("pets.zip", &bytes);
        assert_eq!(source::read(&path).unwrap().train.len(), 2);
    }
}

#[test]
fn a_path_out_of_the_archive_leads_nowhere() {
    let entries: Entries<'_> = &[("a/1.png", b"a"), ("b/2.png", b"b"), ("../../c/3.png", b"c")];
    let (_folder, path) = write("evil.zip", &zip_of(entries));
    let found = source::read(&path).unwrap();
    assert_eq!((found.classes, found.train.len()), (vec!["a".to_owned(), "b".to_owned()], 2));
}

#[test]
fn a_backslash_is_a_part_of_a_name_in_tar_and_stands_between_folders_in_zip() {
    let entries: Entries<'_> = &[(r"a\x/1.png", b"1"), (r"a\y/2.png", b"2"), ("b/3.png", b"3")];
    let (_folder, path) = write("pets.tar", &tar_of(entries));
    assert_eq!(source::read(&path).unwrap().classes, [r"a\x", r"a\y", "b"]);
    let (_folder, path) = write("pets.zip", &zip_of(&[(r"a\1.png", b"1"), (r"b\2.png", b"2")]));
    assert_eq!(source::read(&path).unwrap().classes, ["a", "b"]);
}

#[test]
fn of_several_files_of_one_name_the_others_are_named() {
    let entries: Entries<'_> = &[("a/1.png", b"first"), ("b/2.png", b"b"), ("./a/1.png", b"last")];
    for bytes in [("pets.tar", tar_of(entries)), ("pets.zip", zip_of(entries))] {
        let (_folder, path) = write(bytes.0, &bytes.1);
        let found = source::read(&path).unwrap();
        assert_eq!(found.train.len(), 2);
        let unreadable = &found.left_out.unreadable;
        assert!(unreadable.len() == 1 && unreadable[0].name.ends_with("a/1.png"), "{unreadable:?}");
    }
}

#[test]
fn what_follows_the_end_is_named_and_a_checksum_is_checked() {
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
fn a_name_with_a_line_break_in_an_extended_header_is_not_taken_for_another_one() {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, path) in [("?/1.png", "\u{e9}/1\n.png"), ("a/1.png", "a/1.png"), ("b/2.png", "b/2.png")] {
        let record = format!(" path={path}\n");
        let length = record.len() + 2;
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::XHeader);
        header.set_size(length as u64);
        header.set_cksum();
        builder.append(&header, format!("{length}{record}").as_bytes()).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(1);
        header.set_cksum();
        builder.append(&header, &b"-"[..]).unwrap();
    }
    let (_folder, path) = write("pets.tar", &builder.into_inner().unwrap());
    let found = source::read(&path).unwrap();
    assert_eq!(found.classes, ["a", "b"]);
    assert!(found.left_out.unreadable[0].message.contains("line break"), "{:?}", found.left_out);
}

#[test]
fn names_that_are_not_utf8_stay_apart() {
    let names: [&[u8]; 4] = [b"cl\xe9/\xe4.png", b"cl\xe9/\xf6.png", b"cl\xe8/1.png", b"cl\xc3\xa9/1.png"];
    let mut builder = tar::Builder::new(Vec::new());
    for name in names {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_size(1);
        header.set_cksum();
        builder.append(&header, &b"-"[..]).unwrap();
    }
    let (_folder, path) = write("pets.tar", &builder.into_inner().unwrap());
    let found = source::read(&path).unwrap();
    assert_eq!(found.classes, [r"cl\xE8", r"cl\xE9", "clé"]);
    let names: Vec<String> = found.train.iter().map(|sample| sample.source.name()).collect();
    assert_eq!(names.len(), 4);
    assert_eq!(names[1], format!(r"{}/cl\xE9/\xE4.png", path.display()));
    // A name of the same length in its place.
    let mut zip = zip_of(&[("cl1/1.png", b"1"), ("cl2/1.png", b"2")]);
    for (name, byte) in [(b"cl1", 0xe9), (b"cl2", 0xe8)] {
        let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(name)).collect();
        assert_eq!(places.len(), 2, "in its header and in the directory");
        places.into_iter().for_each(|at| zip[at + 2] = byte);
    }
    let (_folder, path) = write("pets.zip", &zip);
    assert_eq!(source::read(&path).unwrap().classes, ["clΘ", "clΦ"], "as MS-DOS wrote them");
}

#[test]
fn a_damaged_or_empty_archive_is_named() {
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
fn no_damage_makes_the_reader_panic() {
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

#[test]
fn what_unpacks_to_too_much_is_refused() {
    let bomb = zip_of(&[("cat/1.png", &[0; 60]), ("cat/2.png", &[0; 60])]);
    let (_folder, path) = write("bomb.zip", &bomb);
    let mut contents = Contents::new(&path, Limits { file: 100, memory: 100, images: 100 });
    let file = BufReader::new(File::open(&path).unwrap());
    let message = read_zip(file, &mut contents).unwrap_err().to_string();
    assert!(message.contains("bomb.zip") && message.contains("'cat/2.png'"), "{message}");
}

#[test]
fn an_archive_is_known_by_its_content_whatever_it_is_called() {
    let entries: Entries<'_> = &[("cat/1.png", b"c"), ("dog/2.png", b"d")];
    let tar = tar_of(entries);
    for bytes in [tar.clone(), gzip(&tar), zip_of(entries)] {
        for name in ["pets.tar", "pets.tar.gz", "pets.zip", "pets", "pets.tar.xz"] {
            let (_folder, path) = write(name, &bytes);
            assert_eq!(source::read(&path).unwrap().train.len(), 2, "{name}");
        }
    }
    for (start, kind) in OTHERS {
        let (_folder, path) = write("pets.tar.xz", start);
        let message = source::read(&path).unwrap_err().to_string();
        assert!(message.contains(kind) && message.contains("pack it as"), "{message}");
    }
}

#[test]
fn a_tar_archive_that_was_cut_between_two_files_is_said_to_have_no_end() {
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

#[test]
fn a_zip_archive_that_is_encrypted_or_otherwise_compressed_is_not_called_damaged() {
    let mut zip = zip_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d")]);
    for (start, flags) in [(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)] {
        let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(start)).collect();
        places.into_iter().for_each(|at| zip[at + flags] |= 1);
    }
    let (_folder, path) = write("pets.zip", &zip);
    let message = source::read(&path).unwrap_err().to_string();
    assert!(message.contains("Password") && message.contains("unpack it"), "{message}");
    let mut zip = zip_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d")]);
    for (start, method) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(start)).collect();
        places.into_iter().for_each(|at| zip[at + method] = 12);
    }
    let (_folder, path) = write("pets.zip", &zip);
    let message = source::read(&path).unwrap_err().to_string();
    assert!(message.contains("compressed by") && message.contains("unpack it"), "{message}");
}

#[test]
fn an_image_over_the_limit_is_named_and_the_rest_is_read() {
    let entries: Entries<'_> =
        &[("a/1.png", b"a"), ("a/2.png", &[0; 3000]), ("b/3.png", b"b"), ("b/4.png", &[0; 1000])];
    for (_folder, path) in archives(entries) {
        let format = Format::of(&path.to_string_lossy().to_ascii_lowercase()).unwrap();
        let found = read(&path, format, 1000).unwrap();
        assert_eq!(found.train.len(), 3, "{}", path.display());
        let [bad] = &found.left_out.unreadable[..] else { panic!("{:?}", found.left_out) };
        assert!(bad.name.ends_with("a/2.png") && bad.message.contains("1000 bytes"), "{bad:?}");
    }
}

/// An entry of `size` zero bytes behind a header that says so, without holding them.
fn bomb(kind: tar::EntryType, size: u64) -> impl Read {
    let mut header = tar::Header::new_gnu();
    header.set_path("cat/1.png").unwrap();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(0).take(size))
}

#[test]
fn gigabytes_of_nothing_take_no_memory() {
    let limits = Limits { file: 1000, memory: 1000, images: 10_000 };
    let mut contents = Contents::new(Path::new("bomb.tar"), limits);
    read_tar(bomb(tar::EntryType::Regular, 3 << 20).chain(io::repeat(0).take(1024)), &mut contents).unwrap();
    assert_eq!(contents.left_out.unreadable.len(), 1);
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
        let message = read_tar(bomb(kind, 6 << 30), &mut contents).unwrap_err().to_string();
        assert!(message.contains("bomb.tar") && message.contains("a header of more than"), "{message}");
    }
}

/// What is said of each entry that cannot be read, by its name in the archive.
fn unreadable(found: &Found) -> Vec<(&str, &str)> {
    let bad = found.left_out.unreadable.iter();
    bad.map(|bad| (bad.name.split_once("/pets.").unwrap().1, bad.message.as_str())).collect()
}

const LINK: &str = "a link inside an archive: unpack it and give the folder";

#[test]
fn links_and_devices_of_a_zip_archive_are_named() {
    let options = SimpleFileOptions::default();
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for name in ["cat/1.png", "dog/2.png", "dog/pipe.png"] {
        writer.start_file(name, options.unix_permissions(0o644)).unwrap();
    }
    writer.add_symlink("dog/3.png", "../cat/1.png", options).unwrap();
    writer.add_symlink("dog/.4.png", "../cat/1.png", options).unwrap();
    writer.add_symlink("rat", "cat", options).unwrap();
    let mut zip = writer.finish().unwrap().into_inner();
    let directory = (0..zip.len()).rfind(|&at| zip[at..].starts_with(b"dog/pipe.png")).unwrap() - 46;
    assert_eq!(zip[directory + 41] >> 4, 0o10, "the type of a file in its mode");
    zip[directory + 41] = 0o01 << 4;
    let (_folder, path) = write("pets.zip", &zip);
    let found = source::read(&path).unwrap();
    assert_eq!((found.train.len(), found.left_out.hidden.count), (2, 1));
    let pipe = ("zip/dog/pipe.png", "it is a named pipe, not a regular file");
    assert_eq!(unreadable(&found), [pipe, ("zip/dog/3.png", LINK), ("zip/rat", LINK)]);
}

/// A tar archive of entries of these kinds, each with three bytes of content where it may have some.
fn tar_of_kinds(kinds: &[(u8, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &(kind, name) in kinds {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        let is_sparse = kind == b'S';
        header.set_size(if is_sparse { 512 } else { 3 * u64::from(!b"123456".contains(&kind)) });
        if let (true, Some(gnu)) = (is_sparse, header.as_gnu_mut()) {
            // An exbibyte of nothing before a block of content.
            gnu.sparse[0].set_offset(1 << 60);
            gnu.sparse[0].set_length(512);
            gnu.set_real_size((1 << 60) + 512);
        }
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        if !b"123456".contains(&kind) {
            bytes.extend_from_slice(&[b"abc".as_slice(), &[0; 509]].concat());
        }
    }
    [bytes, vec![0; 1024]].concat()
}

#[test]
fn what_is_no_file_in_a_tar_archive_is_named() {
    let tar = tar_of_kinds(&[
        (b'5', "cat"),
        (b'0', "cat/1.png"),
        (b'1', "cat/2.png"),
        (b'2', "cat/3.png"),
        (b'3', "cat/4.png"),
        (b'4', "cat/.5.png"),
        (b'6', "cat/6.png"),
        (b'S', "cat/7.png"),
        (b'g', "pax_global_header"),
        (b'V', "a label"),
        (b'Q', "cat/8.png"),
        (b'7', "dog/1.png"),
        (b'S', "dog/2.png"),
    ]);
    let (_folder, path) = write("pets.tar", &tar);
    let found = source::read(&path).unwrap();
    assert_eq!((found.train.len(), found.left_out.hidden.count), (2, 1));
    let sparse = "a sparse file inside an archive: unpack it and give the folder";
    let expected = [
        ("tar/cat/2.png", LINK),
        ("tar/cat/3.png", LINK),
        ("tar/cat/4.png", "it is a device, not a regular file"),
        ("tar/cat/6.png", "it is a named pipe, not a regular file"),
        ("tar/cat/7.png", sparse),
        ("tar/cat/8.png", "of a kind that is not known: unpack the archive and give the folder"),
        ("tar/dog/2.png", sparse),
    ];
    assert_eq!(unreadable(&found), expected);
    // Cut after a sparse file.
    let (_folder, path) = write("pets.tar", &tar[..tar.len() - 1024]);
    let message = source::read(&path).unwrap().left_out.unreadable.pop().unwrap().message;
    assert!(message.contains("no end marker"), "{message}");
}

#[test]
fn a_sparse_file_of_a_posix_archive_is_named_as_it_was() {
    let mut builder = tar::Builder::new(Vec::new());
    let sparse = [
        ("GNU.sparse.major", b"1".as_slice()),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"cat/2.png"),
        ("GNU.sparse.realsize", b"1000000"),
    ];
    for (name, extensions) in [
        ("cat/1.png", &[("SCHILY.xattr.user.bytes", b"1\n2".as_slice())][..]),
        ("cat/GNUSparseFile.7/2.png", &sparse),
        ("dog/3.png", &[]),
    ] {
        builder.append_pax_extensions(extensions.iter().copied()).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(3);
        builder.append_data(&mut header, name, &b"abc"[..]).unwrap();
    }
    let (_folder, path) = write("pets.tar", &builder.into_inner().unwrap());
    let found = source::read(&path).unwrap();
    assert_eq!(found.train.len(), 2);
    assert!(matches!(unreadable(&found)[..], [("tar/cat/2.png", message)] if message.contains("sparse")));
}

#[test]
fn a_large_archive_is_put_away_in_a_temporary_file() {
    let png = |value: u8| {
        let mut bytes = Cursor::new(Vec::new());
        image::GrayImage::from_pixel(2, 1, image::Luma([value]))
            .write_to(&mut bytes, image::ImageFormat::Png)
            .unwrap();
        bytes.into_inner()
    };
    let (first, second, third) = (png(1), png(2), png(3));
    let tar = tar_of(&[("a/1.png", &first), ("b/2.png", &second), ("b/3.png", &third)]);
    let limits = Limits { file: 1000, memory: first.len() as u64, images: 10_000 };
    let mut contents = Contents::new(Path::new("large.tar"), limits);
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
fn images_are_known_by_their_content_and_what_is_left_out_is_counted() {
    let entries: Entries<'_> = &[
        ("a/1", b"GIF89a"),
        ("b/2.png", b""),
        ("b/3.heic", b""),
        ("b/notes.txt", b"GIF89a"),
        ("b/.hidden", b""),
    ];
    for (_folder, path) in archives(entries) {
        let found = source::read(&path).unwrap();
        assert_eq!(found.train.len(), 2);
        let left_out = found.left_out;
        assert_eq!(left_out.unsupported["HEIC"].count, 1);
        assert_eq!((left_out.no_images.count, left_out.hidden.count), (1, 1));
    }
}
