//! The keys of a site file, as the reading functions ask for them.
//!
//! A test holds `docs/configuration.md` to this list, and fuzzing takes its keys from it.

use std::path::Path;

use super::read;
use super::reader::survey;
use super::service::ServiceDirectories;

/// How messages call the file itself.
pub const ROOT: &str = "the site file";

/// A table of the site file and the keys it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// How messages and the documentation call it, such as `[node]` or `volume.file`.
    pub title: &'static str,
    /// Its keys.
    pub keys: Vec<&'static str>,
}

/// Every section of a site file.
pub fn sections() -> Vec<Section> {
    survey(ROOT, Path::new("/"), |reader| read::site(reader, &ServiceDirectories::default()))
}
