//! The output of `vitrine inspect` as text.

use anyhow::Result;
use vitrine_datasets::{DuplicateGroup, Inspection, Split};
use vitrine_models::{Complexity, ModelConfig};

use crate::cli::output::{out, outln};
use crate::text::{self, first_few, printable};

/// The largest number of groups of equal images that are listed.
const NAMED_GROUPS: usize = 20;

/// Prints the number of parameters and the cost of an architecture, as comments before its TOML.
pub(super) fn summary(config: &ModelConfig, parameters: usize) -> Result<()> {
    let complexity = Complexity::of(config);
    let total = complexity.total();
    outln!("# {parameters} parameters, {} tokens, image {}", config.num_tokens(), config.image_size)?;
    outln!("# {:20} {:>12} multiply-adds per image", "all", count(total))?;
    for (kind, cost) in complexity.by_kind().into_iter().filter(|(_, cost)| *cost > 0) {
        outln!("# {kind:20} {:>12} {:5.1}%", count(cost), cost as f64 / total as f64 * 100.0)?;
    }
    outln!("# {:20} {:>12}B per image, all blocks", "attention maps", count(complexity.attention_bytes()))?;
    Ok(())
}

/// A number with a decimal prefix.
fn count(number: u64) -> String {
    let number = number as f64;
    match number {
        1e9.. => format!("{:.2} G", number / 1e9),
        1e6.. => format!("{:.2} M", number / 1e6),
        1e3.. => format!("{:.2} k", number / 1e3),
        _ => format!("{number} "),
    }
}

/// Prints a data set: sizes, colors, the number of images of each class in each split, and problems.
pub(super) fn data(inspection: &Inspection) -> Result<()> {
    let info = &inspection.info;
    outln!("{} ({}), {}", info.name, info.source, text::count(info.classes.len(), "class"))?;
    if let Some(sizes) = &inspection.sizes {
        let (w, h) = (sizes.width, sizes.height);
        outln!(
            "size: {}x{} to {}x{}, median {}x{} (width x height)",
            w.min,
            h.min,
            w.max,
            h.max,
            w.median,
            h.median
        )?;
    }
    outln!("color: {} images, gray: {}", inspection.color, inspection.gray)?;
    outln!("mean {:.4?}, std {:.4?} (of values from 0 to 1)", inspection.mean, inspection.std)?;
    outln!("largest class / smallest class: {:.2}", inspection.imbalance)?;
    class_table(inspection)?;
    faults(inspection)?;
    duplicates(inspection)?;
    if inspection.splits.iter().all(|counts| counts.split != Split::Test || counts.samples == 0) {
        outln!(
            "there is no test split: `vitrine evaluate` measures the images that a model was not trained on"
        )?;
    }
    Ok(())
}

/// Prints the number of images of each class in each split.
fn class_table(inspection: &Inspection) -> Result<()> {
    let classes: Vec<_> = inspection.info.classes.iter().map(|class| printable(class)).collect();
    let width = classes.iter().map(|class| class.chars().count()).max().unwrap_or(0).max(8);
    out!("\n{:width$}", "class")?;
    for counts in &inspection.splits {
        out!(" {:>9}", counts.split.to_string())?;
    }
    outln!()?;
    for (index, class) in classes.iter().enumerate() {
        out!("{class:width$}")?;
        for counts in &inspection.splits {
            out!(" {:>9}", counts.classes[index])?;
        }
        outln!()?;
    }
    out!("{:width$}", "all")?;
    for counts in &inspection.splits {
        out!(" {:>9}", counts.samples)?;
    }
    Ok(outln!()?)
}

/// Prints the files that cannot be read or are left out.
fn faults(inspection: &Inspection) -> Result<()> {
    if !inspection.corrupt.is_empty() || !inspection.left_out.unreadable.is_empty() {
        outln!()?;
    }
    for fault in &inspection.corrupt {
        outln!("unreadable ({}): {}: {}", fault.split, printable(&fault.image), printable(&fault.reason))?;
    }
    for fault in &inspection.left_out.unreadable {
        outln!("unreadable: {}: {}", printable(&fault.name), printable(&fault.message))?;
    }
    for (format, group) in &inspection.left_out.unsupported {
        outln!("\nnot supported: {} {format} ({})", group.count, group.names())?;
    }
    for line in inspection.left_out.others() {
        outln!("\n{line}")?;
    }
    Ok(())
}

/// Prints the number of unreadable images and of images that occur more than once. Lists groups of equal images, first
/// those that are in several splits or under several classes.
fn duplicates(inspection: &Inspection) -> Result<()> {
    let (leaks, conflicts) = (inspection.leaks().count(), inspection.conflicts().count());
    outln!(
        "\nunreadable images: {}; images that occur more than once: {} ({leaks} in several splits, \
         {conflicts} under several classes)",
        inspection.corrupt.len(),
        inspection.duplicates.len()
    )?;
    let (harmful, others): (Vec<&DuplicateGroup>, Vec<&DuplicateGroup>) =
        inspection.duplicates.iter().partition(|group| group.across_splits || group.conflicting_labels);
    for group in harmful.into_iter().chain(others).take(NAMED_GROUPS) {
        outln!("{}", equal_images(group))?;
    }
    if let Some(more) = inspection.duplicates.len().checked_sub(NAMED_GROUPS).filter(|more| *more > 0) {
        outln!("and {more} more, which --json lists")?;
    }
    Ok(())
}

/// A line with the names of equal images. Of images in the same split and class, it has the first few.
fn equal_images(group: &DuplicateGroup) -> String {
    match &group.images[..] {
        [first, ..] if !group.across_splits && !group.conflicting_labels => {
            let names = first_few(group.images.iter().map(|copy| &copy.image));
            format!("the same image ({}, {}): {names}", first.split, printable(&first.class))
        }
        images => {
            let images: Vec<String> = images
                .iter()
                .map(|copy| {
                    format!("{} ({}, {})", printable(&copy.image), copy.split, printable(&copy.class))
                })
                .collect();
            format!("the same image: {}", images.join(" = "))
        }
    }
}
