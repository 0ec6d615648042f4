//! Tests of manifests: formats, labels, splits, and errors.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::source;

/// A folder with four image files in `images/` and a manifest of the given name and content.
fn folder(manifest: &str, content: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("images")).unwrap();
    for name in ["a", "b", "c", "d"] {
        fs::write(folder.path().join(format!("images/{name}.png")), name).unwrap();
    }
    let path = folder.path().join(manifest);
    fs::write(&path, content).unwrap();
    (folder, path)
}

#[test]
fn the_three_formats_give_the_same_data_set() {
    let csv = "\u{feff}path, label,split\nimages/a.png,\"cat, tabby\",train\nimages/b.png,dog,train\n\
               images/c.png,\"cat, tabby\",valid\nimages/d.png,dog,val\n";
    let tsv = "label\tpath\tsource\tsplit\ncat, tabby\timages/a.png\tx\ttrain\ndog\timages/b.png\t\ttrain\n\
               cat, tabby\timages/c.png\ty\tval\ndog\timages/d.png\t\tvalidation\n";
    let jsonl = r#"{"path": "images/a.png", "label": "cat, tabby", "split": "train"}
        {"path": "images/b.png", "label": "dog", "split": "train", "other": 1}

        {"path": "images/c.png", "label": "cat, tabby", "split": "val"}
        {"path": "images/d.png", "label": "dog", "split": "Val"}"#;
    for (name, content) in [("list.csv", csv), ("list.TSV", tsv), ("list.jsonl", jsonl)] {
        let (folder, manifest) = folder(name, content);
        let found = source::read(&manifest).unwrap();
        assert_eq!(found.classes, ["cat, tabby", "dog"], "{name}");
        let labels = |samples: &[crate::Sample]| {
            samples.iter().filter_map(|sample| sample.labels.only()).collect::<Vec<_>>()
        };
        assert_eq!((labels(&found.train), labels(&found.val)), (vec![0, 1], vec![0, 1]), "{name}");
        let ImageSource::File(path) = &found.val[1].source else { panic!("a manifest lists files") };
        assert_eq!(path, &folder.path().join("images/d.png"));
    }
}

#[test]
fn labels_may_be_numbers_and_splits_may_be_absent() {
    let (_folder, manifest) = folder(
        "list.jsonl",
        "{\"path\":\"images/a.png\",\"label\":1}\n{\"path\":\"images/b.png\",\"label\":0}\n",
    );
    let found = source::read(&manifest).unwrap();
    assert_eq!(
        (found.classes, found.train.len(), found.val.len()),
        (vec!["0".to_owned(), "1".to_owned()], 2, 0)
    );
}

#[test]
fn the_error_for_a_missing_column_explains_the_cause() {
    for (name, content, expected) in [
        ("list.csv", "path;label\nimages/a.png;cat\n", "separated by semicolons"),
        ("list.csv", "path\tlabel\nimages/a.png\tcat\n", "separated by tabs"),
        ("list.tsv", "path,label\nimages/a.png,cat\n", "separated by commas"),
        ("list.csv", "", "is empty"),
        ("list.csv", "file,label\nimages/a.png,cat\n", "no column 'path', only file, label"),
        ("list.csv", "path,label,Label\nimages/a.png,cat,dog\n", "two columns 'label'"),
    ] {
        let (_folder, manifest) = folder(name, content);
        let message = source::read(&manifest).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(name), "{message}");
    }
}

#[test]
fn a_missing_file_is_an_unreadable_sample() {
    let (_folder, manifest) = folder("list.csv", "path,label\nimages/a.png,cat\nimages/x.png,dog\n");
    let found = source::read(&manifest).unwrap();
    let limits = crate::DecodeLimits::default();
    let message = found.train[1].source.decode(&limits).unwrap_err().to_string();
    assert!(message.contains("x.png"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_manifest_that_is_a_device_is_refused() {
    let folder = TempDir::new().unwrap();
    for name in ["list.csv", "list.jsonl"] {
        let manifest = folder.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", &manifest).unwrap();
        let message = source::read(&manifest).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("a device"), "{message}");
    }
}

#[test]
fn a_manifest_may_have_only_a_test_split() {
    let (_folder, manifest) = folder("list.csv", "path,label,split\nimages/a.png,cat,test\n");
    let found = source::read(&manifest).unwrap();
    assert_eq!((found.classes, found.train.len(), found.test.len()), (vec!["cat".to_owned()], 0, 1));
}

/// Checks that each manifest (file name, content) gives an error with all the given parts.
fn assert_errors(cases: &[(&str, &str, &[&str])]) {
    for (name, content, parts) in cases {
        let (_folder, manifest) = folder(name, content);
        let message = source::read(&manifest).unwrap_err().to_string();
        for part in *parts {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}

#[test]
fn errors_name_the_line_and_the_problem() {
    assert_errors(&[
        (
            "list.csv",
            "file,label\nimages/a.png,cat\n",
            &["list.csv, line 1", "no column 'path'", "file, label"],
        ),
        ("list.csv", "path,class\nimages/a.png,cat\n", &["no column 'label'", "path, class"]),
        (
            "list.csv",
            "path,label\nimages/x.png,cat\nimages/y.png,dog\n",
            &["list.csv", "images/x.png", "relative to the manifest"],
        ),
        ("list.csv", "path,label\n,cat\n", &["line 2", "no path"]),
        ("list.csv", "path,label\nimages/a.png\n", &["list.csv, line 2"]),
        ("list.csv", "path,label\nimages/a.png,\n", &["line 2", "images/a.png", "no label"]),
        (
            "list.tsv",
            "path\tlabel\tsplit\nimages/a.png\tcat\tholdout\n",
            &["list.tsv, line 2", "'holdout'", "train, val or test"],
        ),
        ("list.csv", "path,label,split\nimages/a.png,cat,\n", &["line 2", "''", "train, val or test"]),
        ("list.csv", "path,label\n", &["list.csv", "no rows"]),
        ("list.csv", "", &["list.csv", "is empty"]),
    ]);
}

#[test]
fn errors_in_json_lines_name_the_line_and_the_problem() {
    assert_errors(&[
        (
            "list.jsonl",
            "{\"path\":\"images/a.png\",\"label\":\"cat\"}\n\n{\"path\":1}\n",
            &["list.jsonl, line 3"],
        ),
        ("list.jsonl", "{\"path\":\"images/a.png\"}\n", &["line 1", "missing field `label`"]),
        (
            "list.jsonl",
            "{\"path\":\"images/a.png\",\"label\":1.5}\n",
            &["line 1", "string, a whole number, or an array"],
        ),
    ]);
}

#[test]
fn several_labels_are_separated_or_in_an_array() {
    let csv = "path,label,split\nimages/a.png,cat | dog,train\nimages/b.png,,train\nimages/c.png,dog,val\n";
    let spaces = "path\tlabel\tsplit\nimages/a.png\tcat  dog cat\ttrain\nimages/b.png\t\ttrain\nimages/c.png\tdog\tval\n";
    let jsonl = r#"{"path": "images/a.png", "labels": ["dog", "cat"], "split": "train"}
        {"path": "images/b.png", "label": [], "split": "train"}
        {"path": "images/c.png", "label": "dog", "split": "val"}"#;
    for (name, content, separator) in
        [("list.csv", csv, Some('|')), ("list.tsv", spaces, Some(' ')), ("list.jsonl", jsonl, None)]
    {
        let (_folder, manifest) = folder(name, content);
        let found = source::read_with(&manifest, u64::MAX, separator).unwrap();
        assert!(found.multi_label, "{name}");
        assert_eq!(found.classes, ["cat", "dog"], "{name}");
        let labels = |samples: &[crate::Sample]| {
            samples.iter().map(|sample| sample.labels.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(labels(&found.train), [vec![0, 1], vec![]], "{name}");
        assert_eq!(labels(&found.val), [vec![1]], "{name}");
    }
    let (_folder, manifest) = folder("list.csv", "path,label\nimages/a.png,cat|dog\n");
    let found = source::read(&manifest).unwrap();
    assert_eq!((found.classes, found.multi_label), (vec!["cat|dog".to_owned()], false));
}

#[test]
fn a_separator_needs_a_manifest_and_labels_between_separators() {
    let (folder, manifest) = folder("list.csv", "path,label\nimages/a.png,cat||dog\n");
    let message = source::read_with(&manifest, u64::MAX, Some('|')).unwrap_err().to_string();
    assert!(message.contains("line 2") && message.contains("'images/a.png' is empty"), "{message}");
    let message = source::read_with(folder.path(), u64::MAX, Some('|')).unwrap_err().to_string();
    assert!(message.contains("no effect"), "{message}");
    let arrays = "{\"path\":\"images/a.png\",\"label\":[\"cat|dog\"]}\n";
    for (text, is_refused) in [("", true), ("{\"path\":\"images/b.png\",\"label\":\"cat|dog\"}\n", false)] {
        let (_folder, manifest) = self::folder("list.jsonl", &format!("{arrays}{text}"));
        let found = source::read_with(&manifest, u64::MAX, Some('|'));
        let message = found.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(
            message.contains("list.jsonl: a separator of labels has no effect"),
            is_refused,
            "{message}"
        );
    }
}
