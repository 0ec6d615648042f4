//! Stands for object stores in a program that was built without them: there are no objects.

use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail};

use super::Unavailable;
use crate::usage::usage;

/// No object.
#[derive(Clone)]
pub(crate) struct Object(());

/// No object that is being read.
pub(crate) struct Fetch(());

/// Refuses the URL of an object.
///
/// # Errors
/// Always.
pub(crate) fn object(url: &str) -> Result<Object> {
    usage!("{url}: {MISSING}; build it with `--features bulk`")
}

const MISSING: &str = "this binary was built without object stores";

impl Fetch {
    pub(crate) fn wait(self) -> Result<Vec<u8>> {
        bail!(MISSING)
    }
}

impl Object {
    pub(crate) fn url(&self) -> &str {
        ""
    }

    pub(crate) fn join(&self, _: &str) -> Self {
        Self(())
    }

    pub(crate) fn is_root(&self) -> bool {
        false
    }

    pub(crate) fn is_hidden(&self, _: &Self) -> bool {
        false
    }

    pub(crate) fn is_folder(&self) -> Result<bool> {
        bail!(MISSING)
    }

    pub(crate) fn exists(&self) -> Result<bool> {
        bail!(MISSING)
    }

    pub(crate) fn fetch(&self, _: u64) -> Fetch {
        Fetch(())
    }

    pub(crate) fn with_reader<T>(
        &self,
        _: impl FnOnce(&mut dyn Read) -> T,
    ) -> Result<(T, Option<Unavailable>)> {
        bail!(MISSING)
    }

    pub(crate) fn list(&self) -> impl Iterator<Item = Result<Self>> + use<> {
        std::iter::empty()
    }

    pub(crate) fn read(&self, _: u64) -> Result<Option<Vec<u8>>> {
        bail!(MISSING)
    }

    pub(crate) fn create(&self, _: &[u8]) -> Result<bool> {
        bail!(MISSING)
    }

    pub(crate) fn upload(&self, _: &Path) -> Result<()> {
        bail!(MISSING)
    }
}
