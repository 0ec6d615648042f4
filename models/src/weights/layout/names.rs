//! Changes of names that several layouts need.

/// Names with fragments exchanged in turn. Every fragment is whole: it begins and ends with a dot, or in the middle of a
/// number's name.
pub(super) fn exchange<'a>(name: &str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let dotted = format!(".{name}.");
    pairs.into_iter().fold(dotted, |name, (from, to)| name.replace(from, to)).trim_matches('.').to_owned()
}

/// `layers.S.downsample`, where S ends with it, to `layers.(S+1).downsample`, where S+1 begins with it.
pub(super) fn merge_of_next_stage(name: &str) -> String {
    let moved = name.strip_prefix("layers.").and_then(|rest| {
        let (stage, rest) = rest.split_once(".downsample.")?;
        Some(format!("layers.{}.downsample.{rest}", stage.parse::<usize>().ok()?.checked_add(1)?))
    });
    moved.unwrap_or_else(|| name.to_owned())
}

/// `layers.S.downsample` to the stage before: the way back.
pub(super) fn merge_of_previous_stage(name: &str) -> String {
    let moved = name.strip_prefix("layers.").and_then(|rest| {
        let (stage, rest) = rest.split_once(".downsample.")?;
        Some(format!("layers.{}.downsample.{rest}", stage.parse::<usize>().ok()?.checked_sub(1)?))
    });
    moved.unwrap_or_else(|| name.to_owned())
}
