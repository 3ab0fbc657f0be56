/// Why one path of a command failed; the others go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("`{0}': No such file or directory")]
    NotFound(String),
    #[error("`{0}': File exists")]
    Exists(String),
    #[error("`{0}': Is a directory")]
    IsDirectory(String),
    #[error("`{0}': Is not a directory")]
    NotDirectory(String),
    #[error("`{0}': {1}")]
    Refused(String, String),
    /// Nobody answered.
    #[error("{0}")]
    Cluster(String),
    #[error("{0}")]
    Usage(String),
    /// The arguments make no command.
    #[error("{0}")]
    Arguments(String),
}

impl Failure {
    /// A local file's error, in the words of the shell.
    pub(super) fn local(path: &str, error: &std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::NotFound => Failure::NotFound(path.to_owned()),
            std::io::ErrorKind::AlreadyExists => Failure::Exists(path.to_owned()),
            std::io::ErrorKind::IsADirectory => Failure::IsDirectory(path.to_owned()),
            _ => Failure::Refused(path.to_owned(), error.to_string()),
        }
    }
}
