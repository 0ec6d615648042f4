//! Translations of names that several layouts need.

/// The name with fragments replaced by their partners, pair by pair. A fragment begins and ends with a dot, or inside a
/// numbered part of the name.
pub(super) fn exchange<'a>(name: &str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let dotted = format!(".{name}.");
    pairs.into_iter().fold(dotted, |name, (from, to)| name.replace(from, to)).trim_matches('.').to_owned()
}

/// Moves patch merging from the end of stage S (`layers.S.downsample`) to the beginning of the next stage
/// (`layers.(S+1).downsample`).
pub(super) fn merge_of_next_stage(name: &str) -> String {
    let moved = name.strip_prefix("layers.").and_then(|rest| {
        let (stage, rest) = rest.split_once(".downsample.")?;
        Some(format!("layers.{}.downsample.{rest}", stage.parse::<usize>().ok()?.checked_add(1)?))
    });
    moved.unwrap_or_else(|| name.to_owned())
}

/// Moves patch merging from the beginning of a stage to the end of the previous stage: the inverse of
/// [`merge_of_next_stage`].
pub(super) fn merge_of_previous_stage(name: &str) -> String {
    let moved = name.strip_prefix("layers.").and_then(|rest| {
        let (stage, rest) = rest.split_once(".downsample.")?;
        Some(format!("layers.{}.downsample.{rest}", stage.parse::<usize>().ok()?.checked_sub(1)?))
    });
    moved.unwrap_or_else(|| name.to_owned())
}
