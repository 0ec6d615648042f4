//! Tests of archives: layouts, names, and formats here; damage and unusual entries in files of their own.

mod damaged;
mod special_entries;

use std::fs;
use std::io::{Cursor, Write};
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

/// Archives of the same entries in every format.
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
        assert_eq!(
            samples.iter().filter_map(|sample| sample.labels.only()).collect::<Vec<_>>(),
            [0, 1, 0, 1]
        );
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
        assert_eq!((found.train[0].labels.only(), found.source), (Some(4), SourceKind::Cifar));
    }
}

#[test]
fn zip_archives_with_redundant_zip64_records_or_behind_a_program_are_read() {
    // With a name of this length, the first entry of the central directory is as long as the two ZIP64 records
    // together.
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
fn paths_that_lead_out_of_the_archive_are_left_out() {
    let entries: Entries<'_> = &[("a/1.png", b"a"), ("b/2.png", b"b"), ("../../c/3.png", b"c")];
    let (_folder, path) = write("evil.zip", &zip_of(entries));
    let found = source::read(&path).unwrap();
    assert_eq!((found.classes, found.train.len()), (vec!["a".to_owned(), "b".to_owned()], 2));
}

#[test]
fn backslashes_separate_folders_in_zip_but_not_in_tar() {
    let entries: Entries<'_> = &[(r"a\x/1.png", b"1"), (r"a\y/2.png", b"2"), ("b/3.png", b"3")];
    let (_folder, path) = write("pets.tar", &tar_of(entries));
    assert_eq!(source::read(&path).unwrap().classes, [r"a\x", r"a\y", "b"]);
    let (_folder, path) = write("pets.zip", &zip_of(&[(r"a\1.png", b"1"), (r"b\2.png", b"2")]));
    assert_eq!(source::read(&path).unwrap().classes, ["a", "b"]);
}

#[test]
fn the_last_of_several_files_with_the_same_name_is_used_with_a_remark() {
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
fn different_names_that_are_not_utf8_give_different_classes_and_images() {
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
    // Patch a byte of each name that is not UTF-8 into the zip archive.
    let mut zip = zip_of(&[("cl1/1.png", b"1"), ("cl2/1.png", b"2")]);
    for (name, byte) in [(b"cl1", 0xe9), (b"cl2", 0xe8)] {
        let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(name)).collect();
        assert_eq!(places.len(), 2, "once in its header and once in the central directory");
        places.into_iter().for_each(|at| zip[at + 2] = byte);
    }
    let (_folder, path) = write("pets.zip", &zip);
    assert_eq!(source::read(&path).unwrap().classes, ["clΘ", "clΦ"], "decoded as code page 437");
}

#[test]
fn archives_are_recognized_by_their_first_bytes_whatever_their_name() {
    let entries: Entries<'_> = &[("cat/1.png", b"c"), ("dog/2.png", b"d")];
    let tar = tar_of(entries);
    for bytes in [tar.clone(), gzip(&tar), zip_of(entries)] {
        for name in ["pets.tar", "pets.tar.gz", "pets.zip", "pets", "pets.tar.xz"] {
            let (_folder, path) = write(name, &bytes);
            assert_eq!(source::read(&path).unwrap().train.len(), 2, "{name}");
        }
    }
    for (start, kind) in UNSUPPORTED {
        let (_folder, path) = write("pets.tar.xz", start);
        let message = source::read(&path).unwrap_err().to_string();
        assert!(message.contains(kind) && message.contains("pack it as"), "{message}");
    }
}

#[test]
fn images_are_recognized_by_their_first_bytes_and_other_files_are_counted() {
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
