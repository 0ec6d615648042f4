//! Entries that are neither files nor folders, and entries whose name is in an extended header.

use std::io::Cursor;

use zip::write::SimpleFileOptions;

use super::write;
use crate::source::{self, SourceData};

#[test]
fn an_entry_whose_name_has_a_line_break_is_left_out() {
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

/// The name in the archive and the message of each unreadable entry.
fn unreadable(found: &SourceData) -> Vec<(&str, &str)> {
    let bad = found.left_out.unreadable.iter();
    bad.map(|bad| (bad.name.split_once("/pets.").unwrap().1, bad.message.as_str())).collect()
}

const LINK: &str = "a link inside an archive: unpack it and give the folder";

#[test]
fn links_and_pipes_in_a_zip_archive_are_reported() {
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
    assert_eq!(zip[directory + 41] >> 4, 0o10, "the mode has the type of a regular file");
    zip[directory + 41] = 0o01 << 4;
    let (_folder, path) = write("pets.zip", &zip);
    let found = source::read(&path).unwrap();
    assert_eq!((found.train.len(), found.left_out.hidden.count), (2, 1));
    let pipe = ("zip/dog/pipe.png", "it is a named pipe, not a regular file");
    assert_eq!(unreadable(&found), [pipe, ("zip/dog/3.png", LINK), ("zip/rat", LINK)]);
}

/// A tar archive of entries of these types and names. Each has three bytes of content, if its type may have any.
fn tar_of_kinds(kinds: &[(u8, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &(kind, name) in kinds {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        let is_sparse = kind == b'S';
        header.set_size(if is_sparse { 512 } else { 3 * u64::from(!b"123456".contains(&kind)) });
        if let (true, Some(gnu)) = (is_sparse, header.as_gnu_mut()) {
            // A hole of an exbibyte, followed by a block of content.
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
fn tar_entries_that_are_no_regular_files_are_reported() {
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
    // The same archive without its end marker, directly after a sparse file.
    let (_folder, path) = write("pets.tar", &tar[..tar.len() - 1024]);
    let message = source::read(&path).unwrap().left_out.unreadable.pop().unwrap().message;
    assert!(message.contains("no end marker"), "{message}");
}

#[test]
fn a_sparse_file_in_a_posix_archive_is_reported_by_its_true_name() {
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
