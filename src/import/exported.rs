//! Files that vitrine wrote for another library: their header holds what the model was, so that it comes back unchanged.

use anyhow::{Context, Result};
use vitrine_models::weights::Reading;

use super::description::Description;
use super::{Account, Files, Imported, Options, check, class_names, recognize};
use crate::model_file::ModelCard;
use crate::weights_file::Entry;

/// The model of a file whose header describes it; a file of class names counts more.
///
/// # Errors
/// When the tensors are not those of the header's architecture; the message names them and the way out.
pub(super) fn read(
    card: ModelCard,
    files: Files,
    entries: Vec<Entry>,
    mut notes: Vec<String>,
    options: &Options,
) -> Result<Imported> {
    let layout = recognize(&entries, options.layout)?;
    notes.push(
        "written by vitrine: architecture, classes and preprocessing are those of the file's header"
            .to_owned(),
    );
    let (mut account, tensors, _) = Account::of(layout, files, entries, notes)?;
    let reading = Reading { config: card.model, has_head: true, notes: Vec::new(), guesses: Vec::new() };
    check(&tensors, &reading).context(
        "the file's header does not describe its tensors, which were changed since; state the architecture with --config",
    )?;
    let description = Description { classes: Some(card.classes), ..Description::default() };
    let classes = class_names(&reading, &description, options, &mut account.notes)?;
    let card = ModelCard::new(reading.config, classes, card.preprocessing);
    Ok(Imported { card, tensors, has_head: true, account })
}
