//! Files of embeddings: an array with the paths of its rows, and the model that made them.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use vitrine_datasets::open_regular;

use super::Embeddings;
use crate::files::{AtomicFile, folder_of, has_extension};
use crate::{npy, weights_file};

/// The version of the description's format. A file with a higher one was written by a newer program.
const FORMAT: u32 = 1;
/// The tensor in a safetensors file.
const TENSOR: &str = "embeddings";
/// The key of the description in a safetensors header.
pub const DESCRIPTION: &str = "vitrine_embeddings";
/// The key of the paths in a safetensors header, a JSON list.
const PATHS: &str = "paths";
/// The longest header that readers of safetensors accept, in bytes.
const LONGEST_HEADER: usize = 100_000_000;
/// The most bytes of it that paths may take, which leaves enough for the description.
const LONGEST_PATHS: usize = LONGEST_HEADER - (1 << 16);
/// The extension of the file next to a NumPy file that has its paths and description.
const BESIDE_NPY: &str = "paths.json";

/// What a file says of its embeddings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The version of this format.
    pub format: u32,
    /// The program that wrote the file, with its version.
    pub program: String,
    /// The model that made the embeddings, as it was named; a repository has its commit, `hf:OWNER/NAME@COMMIT`.
    pub model: String,
    /// The SHA-256 of the model's file or files, in hexadecimal.
    pub model_sha256: String,
    /// Whether each row was scaled to a length of 1.
    pub normalized: bool,
    /// The folder in which relative paths begin, as seen from the folder of the file, if one of them is in the other, or else in full.
    /// Files of an earlier version do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
}

impl Description {
    /// The description of embeddings of a model whose files have this SHA-256.
    pub fn new(model: &str, model_sha256: String, normalized: bool) -> Self {
        Self {
            format: FORMAT,
            program: concat!("vitrine ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: model.to_owned(),
            model_sha256,
            normalized,
            base: None,
        }
    }

    /// The description in a file at `path`, whose relative paths begin in the working folder.
    fn at(&self, path: &Path) -> Self {
        Self { base: self.base.clone().or_else(|| base(path)), ..self.clone() }
    }
}

/// The working folder as seen from the folder of a file. `None` if it is not known, or its name is no text.
fn base(file: &Path) -> Option<String> {
    let working = std::env::current_dir().ok()?.canonicalize().ok()?;
    let folder = folder_of(file).canonicalize().ok()?;
    match (folder.strip_prefix(&working), working.strip_prefix(&folder)) {
        (Ok(below), _) if below.as_os_str().is_empty() => Some(".".to_owned()),
        (Ok(below), _) => Some(vec![".."; below.components().count()].join("/")),
        (_, Ok(below)) => Some(below.to_str()?.to_owned()),
        _ => Some(working.to_str()?.to_owned()),
    }
}

/// Embeddings in a file, or for one.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEmbeddings {
    /// What the file says of them.
    pub description: Description,
    /// The embeddings.
    pub embeddings: Embeddings,
}

/// The paths for the header of a safetensors file, as they become known: whether they will fit it.
#[derive(Clone, Debug)]
pub struct HeaderPaths {
    file: PathBuf,
    images: usize,
    bytes: usize,
}

impl HeaderPaths {
    /// No paths yet, for this file.
    pub fn of(file: &Path) -> Self {
        Self { file: file.to_owned(), images: 0, bytes: 0 }
    }

    /// Adds the path of an image.
    ///
    /// # Errors
    /// If the paths are too long by now.
    pub fn add(&mut self, path: &str) -> Result<()> {
        // The list of paths is a string itself. It has a comma for each path, and the quotes around a string are those of the list.
        let listed = serde_json::to_string(&serde_json::to_string(path)?)?;
        (self.images, self.bytes) = (self.images + 1, self.bytes + listed.len() - 1);
        ensure!(self.bytes <= LONGEST_PATHS, too_long(&self.file, self.images));
        Ok(())
    }
}

/// The error message for paths that do not fit the header.
fn too_long(file: &Path, images: usize) -> String {
    format!(
        "{}: the paths of {images} images are too long for the header of a safetensors file; write a .npy file",
        file.display()
    )
}

/// The file next to a NumPy file.
#[derive(Serialize, Deserialize)]
struct BesideNpy<P> {
    #[serde(flatten)]
    description: Description,
    /// The path of each row.
    paths: P,
}

impl StoredEmbeddings {
    /// Whether [`Self::load`] takes a file for one of embeddings: by its extension, `.npy` or `.safetensors`, or else by its
    /// content.
    pub fn recognizes(path: &Path) -> bool {
        let is_described =
            || weights_file::open(path).is_ok_and(|file| file.metadata.contains_key(DESCRIPTION));
        is_npy(path) || has_extension(path, "safetensors") || is_described()
    }

    /// Writes the embeddings as NumPy's float32 array `[images, dim]`, and next to it the paths of its rows and the
    /// description: `a.paths.json` for `a.npy`. The values are written from where they are, without a copy.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save_npy(&self, path: &Path) -> Result<()> {
        let Self { description, embeddings } = self;
        let beside = paths_beside(path);
        let mut array = AtomicFile::create(path)?;
        array.write(&npy::header("<f4", &[embeddings.len(), embeddings.dim]))?;
        array.write(bytemuck::cast_slice(&embeddings.values))?;
        let content = BesideNpy { description: description.at(path), paths: &embeddings.paths };
        let mut paths = AtomicFile::create(&beside)?;
        paths.write(&serde_json::to_vec(&content)?)?;
        // Now that both are written: a crash between the two leaves an array without paths, and never one with those of another.
        if let Err(error) = fs::remove_file(&beside)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("{}: cannot be replaced", beside.display()));
        }
        array.finish()?;
        paths.finish()
    }

    /// Writes the embeddings as the tensor `embeddings` of a safetensors file, with the paths of its rows as a JSON list in
    /// the header's entry `paths`, and the description as JSON in its entry `vitrine_embeddings`. The values are written
    /// from where they are, without a copy.
    ///
    /// # Errors
    /// If the paths are too long for a header, or the file cannot be written.
    pub fn save_safetensors(&self, path: &Path) -> Result<()> {
        let Self { description, embeddings } = self;
        let values: &[u8] = bytemuck::cast_slice(&embeddings.values);
        let header = json!({
            "__metadata__": {
                DESCRIPTION: serde_json::to_string(&description.at(path))?,
                PATHS: serde_json::to_string(&embeddings.paths)?,
            },
            TENSOR: {
                "dtype": "F32",
                "shape": [embeddings.len(), embeddings.dim],
                "data_offsets": [0, values.len()],
            },
        });
        let mut header = header.to_string();
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        ensure!(header.len() <= LONGEST_HEADER, too_long(path, embeddings.len()));
        let mut file = AtomicFile::create(path)?;
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(header.as_bytes())?;
        file.write(values)?;
        file.finish()
    }

    /// The folder in which the relative paths of a file at `path` begin. `None` for the working folder, also if the file does not say.
    pub fn base(&self, path: &Path) -> Option<PathBuf> {
        let base = folder_of(path).join(self.description.base.as_ref()?);
        let [base_now, working] = [base.as_path(), Path::new(".")].map(|folder| folder.canonicalize().ok());
        (base_now != working).then_some(base)
    }

    /// Reads a file that one of the two methods above has written. Its extension tells which, or else its content.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, has no paths, or was written by a newer program.
    pub fn load(path: &Path) -> Result<Self> {
        let stored = if is_npy(path) { Self::load_npy(path)? } else { Self::load_safetensors(path)? };
        let Embeddings { paths, values, dim } = &stored.embeddings;
        ensure!(
            paths.len() * dim == values.len() && *dim > 0,
            "{}: the file names {} paths, and its array has another number of rows",
            path.display(),
            paths.len()
        );
        if values.iter().any(|value| !value.is_finite()) {
            bail!("{}: a value is NaN or infinite", path.display());
        }
        if stored.description.format > FORMAT {
            bail!("{}: written by a newer vitrine; update vitrine", path.display());
        }
        Ok(stored)
    }

    fn load_npy(path: &Path) -> Result<Self> {
        let beside = paths_beside(path);
        let described =
            || format!("{}, which has the paths of the rows of {}", beside.display(), path.display());
        if !beside.exists() {
            bail!("{}: there is no such file; `vitrine embed` writes both", described());
        }
        let (file, _) = open_regular(&beside, u64::MAX)
            .map_err(|problem| anyhow!("{}: cannot be opened: {problem}", described()))?;
        let content: BesideNpy<Vec<String>> = serde_json::from_reader(BufReader::new(file))
            .with_context(|| format!("{}: not written by `vitrine embed`, or damaged", described()))?;
        let ([_, dim], values) = npy::read_matrix(path)?;
        let embeddings = Embeddings { paths: content.paths, values, dim };
        Ok(Self { description: content.description, embeddings })
    }

    fn load_safetensors(path: &Path) -> Result<Self> {
        let file = weights_file::open(path)?;
        let other = || format!("{}: not a file of embeddings, which `vitrine embed` writes", path.display());
        let entry = |name: &str| file.metadata.get(name).with_context(other);
        let description = serde_json::from_str(entry(DESCRIPTION)?).with_context(other)?;
        let paths = serde_json::from_str(entry(PATHS)?).with_context(other)?;
        let tensor = file.tensors.iter().find(|tensor| tensor.name == TENSOR).with_context(other)?.read()?;
        let [_, dim] = tensor.shape[..] else { bail!(other()) };
        Ok(Self { description, embeddings: Embeddings { paths, values: tensor.values, dim } })
    }
}

/// The file with the paths, next to a NumPy file.
pub fn paths_beside(npy: &Path) -> PathBuf {
    npy.with_extension(BESIDE_NPY)
}

/// Whether a file is read as one of NumPy: by its extension, or else by its first bytes.
fn is_npy(path: &Path) -> bool {
    has_extension(path, "npy") || !has_extension(path, "safetensors") && npy::begins(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn stored() -> StoredEmbeddings {
        let mut embeddings = Embeddings::new(3);
        embeddings.push("a \"quoted\"\n.png".to_owned(), &[1.0, -2.0, 0.5]);
        embeddings.push("Füchse.png".to_owned(), &[0.0, 1e-20, 3.0]);
        let description = Description::new("run/model.safetensors", "ab".repeat(32), true);
        StoredEmbeddings { description, embeddings }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let [npy, safetensors] = ["a.npy", "b.c.safetensors"].map(|name| folder.path().join(name));
        stored().save_npy(&npy).unwrap();
        stored().save_safetensors(&safetensors).unwrap();
        for path in [&npy, &safetensors] {
            let found = StoredEmbeddings::load(path).unwrap();
            // Neither folder is in the other.
            let working = std::env::current_dir().unwrap().canonicalize().unwrap();
            assert_eq!(found.description.base.as_deref(), working.to_str());
            assert_eq!(found.base(path), None);
            let description = Description { base: None, ..found.description };
            assert_eq!(StoredEmbeddings { description, ..found }, stored(), "{}", path.display());
            assert!(StoredEmbeddings::recognizes(path));
        }
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.npy", "a.paths.json", "b.c.safetensors"]);
    }

    #[test]
    fn a_file_of_another_name_is_recognized_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let [npy, safetensors, text] = ["rows", "rows.dat", "text"].map(|name| folder.path().join(name));
        stored().save_npy(&npy).unwrap();
        stored().save_safetensors(&safetensors).unwrap();
        for path in [&npy, &safetensors] {
            assert!(StoredEmbeddings::recognizes(path), "{}", path.display());
            assert_eq!(StoredEmbeddings::load(path).unwrap().embeddings, stored().embeddings);
        }
        fs::write(&text, "no array").unwrap();
        assert!(!StoredEmbeddings::recognizes(&text) && !StoredEmbeddings::recognizes(folder.path()));
    }

    #[test]
    fn paths_are_refused_as_soon_as_they_are_too_long_for_the_header() {
        let paths = stored().embeddings.paths;
        let mut counted = HeaderPaths::of(Path::new("a.safetensors"));
        paths.iter().for_each(|path| counted.add(path).unwrap());
        let written = json!(serde_json::to_string(&paths).unwrap()).to_string();
        // A comma after the last path in place of the brackets and quotes around the list.
        assert_eq!(counted.bytes, written.len() - 3);
        let mut full = HeaderPaths { bytes: LONGEST_PATHS - 8, ..counted };
        full.add("a").unwrap();
        let error = full.add("b").unwrap_err().to_string();
        assert!(
            error.starts_with("a.safetensors: the paths of 4 images") && error.contains(".npy"),
            "{error}"
        );
    }

    #[test]
    fn files_without_paths_or_of_another_kind_are_refused_with_their_name() {
        let folder = tempfile::tempdir().unwrap();
        let npy = folder.path().join("a.npy");
        let refused = |path: &Path| format!("{:#}", StoredEmbeddings::load(path).unwrap_err());
        stored().save_npy(&npy).unwrap();
        let mut longer = stored();
        longer.embeddings.push("c.png".to_owned(), &[1.0; 3]);
        let other = folder.path().join("b.npy");
        longer.save_npy(&other).unwrap();
        fs::copy(paths_beside(&other), paths_beside(&npy)).unwrap();
        assert!(refused(&npy).contains("3 paths"), "{}", refused(&npy));
        fs::write(paths_beside(&npy), "{}").unwrap();
        assert!(refused(&npy).contains("a.paths.json"), "{}", refused(&npy));
        fs::remove_file(paths_beside(&npy)).unwrap();
        assert!(refused(&npy).contains("there is no such file"), "{}", refused(&npy));
        let safetensors = folder.path().join("c.safetensors");
        fs::write(&safetensors, "no array").unwrap();
        assert!(refused(&safetensors).contains("c.safetensors"));
        let newer =
            StoredEmbeddings { description: Description { format: 9, ..stored().description }, ..stored() };
        newer.save_safetensors(&safetensors).unwrap();
        assert!(refused(&safetensors).contains("newer vitrine"));
        let mut broken = stored();
        broken.embeddings.values[1] = f32::NAN;
        broken.save_npy(&npy).unwrap();
        assert!(refused(&npy).contains("NaN"), "{}", refused(&npy));
    }
}
