//! Files from untrusted sources: recognizing images, walking folders, opening files safely, and listing files that are
//! not used.

mod bad_file;
mod fault;
mod kind;
mod left_out;
mod regular;
mod shown;
mod spool;
mod unfinished;
mod walk;

pub use bad_file::BadFile;
pub use fault::Fault;
pub use kind::{FileKind, is_image_name};
pub use left_out::{Group, LeftOut, Reason};
pub use regular::{DEFAULT_FILE_BYTES, open_regular, read_regular};
pub use shown::{path_of_shown, shown};
pub use spool::{Place, Spool};
pub use unfinished::{Unfinished, remove_unfinished};
pub use walk::{Entry, Walk};

pub(crate) use kind::{HEAD_BYTES, guess_format, is_hidden, is_tga_name};
pub(crate) use shown::{folder_of, shown_bytes};
