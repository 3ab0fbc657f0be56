//! The roles that a server may have.

use clap::ValueEnum;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Storage container manager: nodes, pipelines, containers
    Scm,
    /// Object manager: the namespace
    Om,
    /// Stores data
    Datanode,
    /// The S3 gateway
    S3,
}

impl Role {
    /// The role's name, as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Scm => "scm",
            Role::Om => "om",
            Role::Datanode => "datanode",
            Role::S3 => "s3",
        }
    }
}
