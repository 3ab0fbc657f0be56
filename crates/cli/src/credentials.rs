use anyhow::{Context, bail};
use std::path::Path;
use uuid::Uuid;

/// The key pair of a `flotilla dev` cluster, made at its first start and kept in a file that only the owner reads.
pub(crate) struct Credentials {
    pub access_key: String,
    pub secret_key: String,
}

impl Credentials {
    pub(crate) fn load_or_create(path: &Path) -> anyhow::Result<Credentials> {
        match disk::read_file(path).with_context(|| format!("read {}", path.display()))? {
            Some(contents) => Self::parse(&contents).with_context(|| format!("read {}", path.display())),
            None => {
                let credentials = Self::random();
                let contents = format!(
                    "AWS_ACCESS_KEY_ID={}\nAWS_SECRET_ACCESS_KEY={}\n",
                    credentials.access_key, credentials.secret_key
                );
                disk::write_private_file_durably(path, contents.as_bytes())
                    .with_context(|| format!("write {}", path.display()))?;
                Ok(credentials)
            }
        }
    }

    fn random() -> Credentials {
        let hex = |n: usize| Uuid::new_v4().simple().to_string().to_uppercase()[..n].to_owned();
        Credentials {
            access_key: format!("FLOT{}", hex(16)),
            secret_key: format!("{}{}", Uuid::new_v4().simple(), &Uuid::new_v4().simple().to_string()[..8]),
        }
    }

    fn parse(contents: &[u8]) -> anyhow::Result<Credentials> {
        let text = std::str::from_utf8(contents).context("not text")?;
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim().to_owned())
        };
        match (value("AWS_ACCESS_KEY_ID"), value("AWS_SECRET_ACCESS_KEY")) {
            (Some(access_key), Some(secret_key)) if !access_key.is_empty() && secret_key.len() >= 8 => {
                Ok(Credentials { access_key, secret_key })
            }
            _ => bail!(
                "expected lines AWS_ACCESS_KEY_ID=... and AWS_SECRET_ACCESS_KEY=... (8 characters at least)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_the_same_after_the_first_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let first = Credentials::load_or_create(&path).unwrap();
        let second = Credentials::load_or_create(&path).unwrap();
        assert_eq!((first.access_key, first.secret_key), (second.access_key, second.secret_key));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_a_new_key() {
        assert!(Credentials::parse(b"AWS_ACCESS_KEY_ID=x\n").is_err());
        assert!(Credentials::parse(b"\xff\xfe").is_err());
    }
}
