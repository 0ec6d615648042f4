//! The errors of stores, as messages show them.

use object_store::Error;

/// The longest message of a server that is repeated whole.
const LONGEST_MESSAGE: usize = 500;
/// Where S3's keys are asked for if the environment has none.
const MACHINE_ROLE: &str = "/latest/api/token";
const NO_KEYS: &str = "there are no keys (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket), \
                       and this machine has no role";

/// An error and its innermost cause without line breaks, without its middle if it is long.
pub(super) fn in_one_line(error: &Error) -> String {
    let mut text = error.to_string();
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let cause = innermost.to_string();
    if !text.contains(&cause) {
        text = format!("{text}: {cause}");
    }
    if text.contains(MACHINE_ROLE) {
        text = format!("{NO_KEYS}: {text}");
    }
    let text: Vec<char> = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
    if text.len() <= LONGEST_MESSAGE {
        return text.into_iter().collect();
    }
    let [start, end] = [&text[..LONGEST_MESSAGE / 2], &text[text.len() - LONGEST_MESSAGE / 2..]];
    start.iter().chain(&[' ', '.', '.', '.', ' ']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_servers_are_cut_and_have_no_line_breaks() {
        let source = format!("<xml>\n  {}", "ä ".repeat(1000)).into();
        let text = in_one_line(&Error::Generic { store: "S3", source });
        assert!(text.contains("<xml> ä ä") && text.chars().count() == LONGEST_MESSAGE + 5, "{text}");
    }
}
