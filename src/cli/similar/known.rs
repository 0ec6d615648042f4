//! Images whose embeddings are known, recognized by their files, so that the model is asked about each only once.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::anyhow;
use vitrine_datasets::{ImageSource, path_of_shown};

use crate::embed::Embeddings;
use crate::predict::Asked;

/// The rows of embeddings by the resolved paths of their images. An image that is no file has none.
pub(super) struct Known(HashMap<PathBuf, usize>);

impl Known {
    pub(super) fn of(embeddings: &Embeddings) -> Self {
        let file = |path: &String| path_of_shown(path).canonicalize().ok();
        let rows = embeddings.paths.iter().enumerate();
        Self(rows.filter_map(|(row, path)| Some((file(path)?, row))).collect())
    }

    /// Adds to the tag of an image the row of its embedding, if that is known. The image is then left out, so that nobody decodes it.
    pub(super) fn mark<T>(&self, image: Asked<T, ImageSource>) -> Asked<(T, Option<usize>), ImageSource> {
        let Asked { tag, value } = image;
        let row = match &value {
            Ok(ImageSource::File(file)) if !self.0.is_empty() => {
                file.canonicalize().ok().and_then(|file| self.0.get(&file).copied())
            }
            Ok(_) | Err(_) => None,
        };
        let value = if row.is_some() { Err(anyhow!("its embedding is known")) } else { value };
        Asked { tag: (tag, row), value }
    }

    /// [`Self::mark`] for all images, in batches that have `size` images about which the model is asked, but for the last one.
    pub(super) fn mark_all<T>(
        self,
        batches: impl Iterator<Item = Vec<Asked<T, ImageSource>>>,
        size: usize,
    ) -> impl Iterator<Item = Vec<Asked<(T, Option<usize>), ImageSource>>> {
        let mut images = batches.flatten().map(move |image| self.mark(image));
        std::iter::from_fn(move || {
            let (mut batch, mut asked) = (Vec::new(), 0);
            while asked < size {
                let Some(image) = images.next() else { break };
                asked += usize::from(image.value.is_ok());
                batch.push(image);
            }
            (!batch.is_empty()).then_some(batch)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_known_by_any_path_and_is_not_decoded_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("in")).unwrap();
        for name in ["a.png", "b.png", "c.png"] {
            fs::write(path(name), name).unwrap();
        }
        let mut embeddings = Embeddings::new(1);
        for name in ["a.png", "photos.zip/b.png", "in/../c.png"] {
            embeddings.push(vitrine_datasets::shown(path(name)), &[0.0]);
        }
        let known = Known::of(&embeddings);
        for (name, row) in [("a.png", Some(0)), ("in/../a.png", Some(0)), ("b.png", None), ("c.png", Some(2))]
        {
            let Asked { tag, value } =
                known.mark(Asked { tag: name, value: Ok(ImageSource::File(path(name))) });
            assert_eq!((tag, value.is_err()), ((name, row), row.is_some()));
        }
        let missing = known.mark(Asked { tag: "d.png", value: Err(anyhow!("no such file")) });
        assert_eq!(
            (missing.tag, missing.value.unwrap_err().to_string()),
            (("d.png", None), "no such file".to_owned())
        );
    }

    #[test]
    fn batches_are_full_however_many_images_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(format!("{number}.png"));
        let mut embeddings = Embeddings::new(1);
        for number in 0..10 {
            fs::write(path(number), "").unwrap();
            if [1, 2, 3, 6, 9].contains(&number) {
                embeddings.push(vitrine_datasets::shown(path(number)), &[0.0]);
            }
        }
        let image = |number| match number {
            7 => Asked { tag: number, value: Err(anyhow!("no such file")) },
            _ => Asked { tag: number, value: Ok(ImageSource::File(path(number))) },
        };
        let batches = [0..3, 3..6, 6..9, 9..10].map(|numbers| numbers.map(image).collect::<Vec<_>>());
        let batches = Known::of(&embeddings).mark_all(batches.into_iter(), 2);
        let tags = batches.map(|batch| batch.into_iter().map(|image| image.tag).collect::<Vec<_>>());
        let tags: Vec<Vec<(usize, Option<usize>)>> = tags.collect();
        let known = |number: usize, row: usize| (number, Some(row));
        let asked = |number: usize| (number, None);
        assert_eq!(
            tags,
            [
                vec![asked(0), known(1, 0), known(2, 1), known(3, 2), asked(4)],
                vec![asked(5), known(6, 3), asked(7), asked(8)],
                vec![known(9, 4)]
            ]
        );
    }
}
