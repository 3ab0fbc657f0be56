//! Measurements anyone can rerun: see README.md in this folder.
