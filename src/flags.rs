//! Which command-line flag to name for an error of `vitrine-datasets`, which states limits and numbers but knows no
//! flags.

use vitrine_datasets::{BadFile, DatasetError, Fault};

/// The flag for the limit on the size of an image file.
const MAX_FILE_SIZE: &str = "--max-file-size";

/// All messages of an error and its causes, followed by the flag that sets the limit or number in question, if there is
/// one.
pub fn explained(error: &anyhow::Error) -> String {
    let flag = error.chain().find_map(|cause| flag_of(cause.downcast_ref()?));
    flag.map_or_else(|| format!("{error:#}"), |flag| format!("{error:#} ({flag})"))
}

/// Whether the value of a flag is the cause of an error: a number that does not suit the data set.
pub fn is_wrong_value(error: &anyhow::Error) -> bool {
    let is_wrong_value = |cause: &DatasetError| {
        matches!(cause, DatasetError::ValidationFraction { .. } | DatasetError::Folds { .. })
    };
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_wrong_value))
}

/// Name and message of an unreadable image, followed by the flag that sets the limit on its size, if it is larger.
pub fn described(bad: &BadFile) -> String {
    let BadFile { name, message, is_too_large } = bad;
    if *is_too_large { format!("{name}: {message} ({MAX_FILE_SIZE})") } else { format!("{name}: {message}") }
}

/// A hint for a list of unreadable images, some of which are larger than the limit.
pub fn size_hint() -> String {
    format!("{MAX_FILE_SIZE} sets the largest image file that is read")
}

fn flag_of(error: &DatasetError) -> Option<&'static str> {
    match error {
        DatasetError::ValidationFraction { .. } => Some("--val-fraction"),
        DatasetError::Folds { .. } => Some("--folds"),
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
    fn the_flag_follows_the_message_of_the_error_that_it_belongs_to() {
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
        assert!(is_wrong_value(&error(DatasetError::ValidationFraction { fraction: 2.0 })));
        assert!(!is_wrong_value(&error(image(Fault::TooLarge { bytes: 2, limit: 1 }))));
        let bad = |fault| described(&BadFile::new("a.png", &fault));
        assert_eq!(bad(Fault::Other("it is empty".to_owned())), "a.png: it is empty");
        assert!(bad(Fault::TooLarge { bytes: 2, limit: 1 }).ends_with("bytes (--max-file-size)"));
    }
}
