use crate::output::printable;
use std::fmt;

/// A place in the store: `/volume/bucket/key`. Directories inside a bucket are prefixes that end in `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StorePath {
    Root,
    Volume(String),
    Bucket(String, String),
    /// The key has no slash at either end.
    Key(String, String, String),
}

impl StorePath {
    /// Parses a path. Repeated and trailing slashes mean nothing, as in any file system. (S3 knows keys that
    /// contain them; those are reached through S3.)
    pub(super) fn parse(text: &str) -> Result<StorePath, String> {
        let text = text.strip_prefix("flotilla:").unwrap_or(text);
        if !text.starts_with('/') {
            return Err(format!("`{text}': paths begin with /volume/bucket, for example /s3v/photos/2026"));
        }
        let mut words = text.split('/').filter(|word| !word.is_empty());
        let (volume, bucket) = (words.next(), words.next());
        let key = words.collect::<Vec<_>>().join("/");
        if key.split('/').any(|word| word == "." || word == "..") {
            return Err(format!("`{text}': `.' and `..' have no meaning here"));
        }
        Ok(match (volume, bucket) {
            (None, _) => StorePath::Root,
            (Some(volume), None) => StorePath::Volume(volume.to_owned()),
            (Some(volume), Some(bucket)) if key.is_empty() => {
                StorePath::Bucket(volume.to_owned(), bucket.to_owned())
            }
            (Some(volume), Some(bucket)) => StorePath::Key(volume.to_owned(), bucket.to_owned(), key),
        })
    }

    /// The path's last word; empty for the root.
    pub(super) fn name(&self) -> &str {
        match self {
            StorePath::Root => "",
            StorePath::Volume(volume) => volume,
            StorePath::Bucket(_, bucket) => bucket,
            StorePath::Key(_, _, key) => key.rsplit('/').next().expect("a split has a first part"),
        }
    }

    /// The place of `name` in this directory.
    pub(super) fn child(&self, name: &str) -> StorePath {
        match self {
            StorePath::Root => StorePath::Volume(name.to_owned()),
            StorePath::Volume(volume) => StorePath::Bucket(volume.clone(), name.to_owned()),
            StorePath::Bucket(volume, bucket) => {
                StorePath::Key(volume.clone(), bucket.clone(), name.to_owned())
            }
            StorePath::Key(volume, bucket, key) => {
                StorePath::Key(volume.clone(), bucket.clone(), format!("{key}/{name}"))
            }
        }
    }
}

/// The path for people: see [`printable`].
impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorePath::Root => write!(f, "/"),
            StorePath::Volume(volume) => write!(f, "/{volume}"),
            StorePath::Bucket(volume, bucket) => write!(f, "/{volume}/{bucket}"),
            StorePath::Key(volume, bucket, key) => write!(f, "/{volume}/{bucket}/{}", printable(key)),
        }
    }
}

/// Splits `SOURCE... DESTINATION`; there is one path at least.
pub(super) fn split_last(paths: &[String]) -> (&[String], &String) {
    let (last, first) = paths.split_last().expect("the parser asks for a path");
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_parse_and_print() {
        let check =
            |text: &str, prints: &str| assert_eq!(StorePath::parse(text).unwrap().to_string(), prints);
        check("/", "/");
        check("/s3v/", "/s3v");
        check("//s3v//b/", "/s3v/b");
        check("/s3v/b/x//y/", "/s3v/b/x/y");
        check("/s3v/b/x\x1b[2J\ny", "/s3v/b/x\\u001b[2J\\ny");
        assert!(StorePath::parse("photos").unwrap_err().contains("/volume/bucket"));
        assert!(StorePath::parse("/s3v/b/../c").is_err());
    }

    #[test]
    fn children_and_names_agree() {
        for text in ["/", "/s3v", "/s3v/b", "/s3v/b/k"] {
            let child = StorePath::parse(text).unwrap().child("x");
            assert_eq!(child.name(), "x");
            assert_eq!(StorePath::parse(&child.to_string()), Ok(child));
        }
    }
}
