//! Frames that nobody of ours wrote, for the port that calls come to.

mod campaign;
mod frames;
