//! Names of command-line flags for the errors of `vitrine-datasets`. That crate states numbers and limits in its
//! errors, but knows no flags.

use vitrine_datasets::{BadFile, DatasetError, Fault};

/// The flag for the limit on the size of an image file.
const MAX_FILE_SIZE: &str = "--max-file-size";

/// All messages of an error and its causes, followed by the flag that sets the limit or number in question, if there is
/// one.
pub fn explained(error: &anyhow::Error) -> String {
    let flag = error.chain().find_map(|cause| flag_of(cause.downcast_ref()?));
    flag.map_or_else(|| format!("{error:#}"), |flag| format!("{error:#} ({flag})"))
}

/// Whether the cause of an error is a flag that does not suit the data set, such as more folds than it has images.
pub fn is_wrong_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(DatasetError::Folds { .. } | DatasetError::LabelSeparator { .. }))
    })
}

/// The name and the error message of an unreadable image, followed by the flag for the size limit if the image exceeds
/// that limit.
pub fn described(bad: &BadFile) -> String {
    let BadFile { name, message, is_too_large } = bad;
    if *is_too_large { format!("{name}: {message} ({MAX_FILE_SIZE})") } else { format!("{name}: {message}") }
}

/// A hint that follows a list of unreadable images if some of them exceed the size limit.
pub fn size_hint() -> String {
    format!("{MAX_FILE_SIZE} sets the largest image file that is read")
}

/// The flag that sets the number or limit in an error, if there is one.
fn flag_of(error: &DatasetError) -> Option<&'static str> {
    match error {
        DatasetError::ValidationFraction { .. } => Some("--val-fraction"),
        DatasetError::Folds { .. } => Some("--folds"),
        DatasetError::LabelSeparator { .. } => Some("--label-separator"),
        DatasetError::Image { fault: Fault::TooLarge { .. }, .. } => Some(MAX_FILE_SIZE),
        DatasetError::NoImages { left_out, .. } if left_out.has_too_large() => Some(MAX_FILE_SIZE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use vitrine_datasets::{LeftOut, Reason};

    use super::*;

    #[test]
    fn error_messages_end_with_the_flag_that_sets_the_limit() {
        let image = |fault| DatasetError::Image { image: "a.png".to_owned(), fault };
        let no_images = |fault| {
            let mut left_out = Box::<LeftOut>::default();
            left_out.add("a.png".to_owned(), Reason::Unreadable(fault));
            DatasetError::NoImages { path: "data".into(), expected: "class folders", left_out }
        };
        let error = |error: DatasetError| Err::<(), _>(error).context("data").unwrap_err();
        for (cause, flag) in [
            (image(Fault::TooLarge { bytes: 2, limit: 1 }), Some("--max-file-size")),
            (image(Fault::Other("it is empty".to_owned())), None),
            (DatasetError::ValidationFraction { fraction: 2.0 }, Some("--val-fraction")),
            (no_images(Fault::TooLarge { bytes: 2, limit: 1 }), Some("--max-file-size")),
            (no_images(Fault::Other("it is empty".to_owned())), None),
        ] {
            let message = cause.to_string();
            let flag = flag.map_or_else(String::new, |flag| format!(" ({flag})"));
            assert_eq!(explained(&error(cause)), format!("data: {message}{flag}"));
        }
        let (data, smallest) = ("pets".to_owned(), "'cat' 2".to_owned());
        let folds = error(DatasetError::Folds { folds: 5, data, images: 2, smallest });
        assert!(is_wrong_usage(&folds) && explained(&folds).ends_with(" (--folds)"));
        assert!(!is_wrong_usage(&error(image(Fault::TooLarge { bytes: 2, limit: 1 }))));
        let bad = |fault| described(&BadFile::new("a.png", &fault));
        assert_eq!(bad(Fault::Other("it is empty".to_owned())), "a.png: it is empty");
        assert!(bad(Fault::TooLarge { bytes: 2, limit: 1 }).ends_with("bytes (--max-file-size)"));
    }
}
