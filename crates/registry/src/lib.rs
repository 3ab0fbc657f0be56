//! The front of SCM's registry (docs/registry.md): [`RegistryClient`] finds who answers, [`Registrar`] keeps
//! an instance registered, [`Mirror`] follows all instances, [`http`] and [`dns`] are for those who speak no
//! gRPC.

mod client;
pub mod dns;
pub mod http;
mod json;
mod mirror;
mod registrar;

pub use client::RegistryClient;
pub use json::{event_to_json, health, health_word, instance_to_json, key_to_json};
pub use mirror::Mirror;
pub use registrar::{Registrar, Registration, label_of_address};
