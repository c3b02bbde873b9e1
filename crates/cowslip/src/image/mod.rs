//! Images: frozen arenas in a file, and back. `docs/image-format.md` defines the format.
//!
//! ```text
//!  Frozen ──[save]──▶ file ──[Image::open]──▶ checked header, description, index
//!                                                  └─ a chunk at a time, checked before it is seen
//! ```

mod buffer;
mod bytes;
mod chunk;
mod compression;
mod copy;
mod description;
mod diff;
mod format;
mod layout;
mod merge;
mod open;
mod places;
mod restore;
mod save;
mod storage;
mod unchanged;
mod write;

pub use crate::progress::{OnProgress, Progress};
pub use compression::Compression;
pub use description::{ArenaDescription, Description, Piece, Root};
pub use diff::{ArenaDiff, Diff, DiffRange};
pub use format::{Checksum, Identity as ImageIdentity};
pub use merge::{MergeOptions, merge, merge_to};
pub use open::{Image, ImageSummary};
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use restore::served;
pub use restore::{MappedImage, OnDamage, RestoreOptions, Restored, Strategy, Via};
pub use save::{Changes, SaveOptions, save, save_to};
pub use storage::{ImageSink, ImageSource, OnArrival, Urgency};
pub use write::Saved;
