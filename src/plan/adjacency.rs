//! The edges between patches that an architecture file names as another file.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The key of the edges in an architecture file.
const KEY: &str = "adjacency";

/// A row of a file of edges.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edge {
    from: usize,
    to: usize,
}

/// The table of an architecture file whose edges are in a file of their own, with these edges in their place; `None` if it
/// names no such file. The name is relative to the folder of `architecture`.
///
/// # Errors
/// When the file cannot be read or is not a CSV file with the columns `from` and `to`; the message names it.
pub(super) fn with_edges(text: &str, architecture: &Path) -> Result<Option<toml::Table>> {
    // A text that is not TOML is reported by the reader of the architecture.
    let Ok(mut table) = text.parse::<toml::Table>() else { return Ok(None) };
    let Some(name) = table.get(KEY).and_then(toml::Value::as_str) else { return Ok(None) };
    let file = architecture.with_file_name(name);
    let edges = read(&file).with_context(|| format!("`{KEY}` of {}", architecture.display()))?;
    let patch = |index: usize| i64::try_from(index).map(toml::Value::Integer);
    let pairs = edges.iter().map(|edge| Ok(toml::Value::Array(vec![patch(edge.from)?, patch(edge.to)?])));
    table.insert(KEY.to_owned(), toml::Value::Array(pairs.collect::<Result<_>>()?));
    Ok(Some(table))
}

fn read(file: &Path) -> Result<Vec<Edge>> {
    let named = || format!("{}: expected a CSV file with the columns from,to", file.display());
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(file).with_context(named)?;
    reader.deserialize().collect::<Result<_, _>>().with_context(named)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::read_model;

    const MODEL: &str = "image_size = 8\npatch_size = 4\nembed_dim = 8\ndepth = 1\nnum_heads = 1\n\
        mixers = [\"adjacency\"]\nadjacency = \"edges.csv\"\n";

    #[test]
    fn edges_are_read_from_the_file_next_to_the_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let (model, edges) = (folder.path().join("model.toml"), folder.path().join("edges.csv"));
        std::fs::write(&model, MODEL).unwrap();
        let error = format!("{:#}", read_model(&model).unwrap_err());
        assert!(error.contains("edges.csv") && error.contains("model.toml"), "{error}");
        for (text, wrong) in [
            ("a,b\n0,1\n", "from"),
            ("from,to\n0,x\n", "line: 2"),
            ("from,to\n0,4\n", "beyond those of the grid"),
        ] {
            std::fs::write(&edges, text).unwrap();
            let error = format!("{:#}", read_model(&model).unwrap_err());
            assert!(error.contains(wrong), "{error}");
        }
        std::fs::write(&edges, "from,to\n0,1\n3, 2\n").unwrap();
        assert_eq!(read_model(&model).unwrap().adjacency, Some(vec![[0, 1], [3, 2]]));
    }
}
