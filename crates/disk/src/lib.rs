//! The only code that touches data files.
//!
//! Everything above works against [`Disk`] and [`File`], whose futures complete when the operation has; what
//! is durable when is said on each method. [`RealDisk`] is a data directory on this machine; [`sim::SimDisk`]
//! is one that crashes, fails and fills up on demand, for tests.

#![allow(clippy::disallowed_methods)] // this is the crate that the refused methods of std::fs point to

mod data_directory;
mod direct;
mod disk_io;
mod health;
mod in_place;
mod interface;
mod link;
mod path;
mod pool;
mod queue;
mod read_fault;
mod read_only;
mod real_disk;
mod real_file;
mod record_file;
mod ring;
pub mod sim;
mod small_file;
mod stamp;
mod syscalls;

pub use data_directory::DataDirectory;
pub use disk_io::DiskIo;
pub use interface::{Disk, File, IoFuture, Space, is_full, may_be_repeated};
pub use link::link_dir;
pub use read_fault::ReadFault;
pub use read_only::open_read_only;
pub use real_disk::{OpenDiskError, RealDisk};
pub use record_file::{ReadRecordError, RecordFile};
pub use small_file::{read_file, write_file_durably, write_private_file_durably};
pub use stamp::Stamp;
pub use syscalls::space;
pub use syscalls::{give_back_freed_memory, keep_new_files_private, raise_open_files_limit};
