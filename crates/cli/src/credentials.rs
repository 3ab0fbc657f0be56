use anyhow::{Context, bail};
use std::convert::Infallible;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uuid::Uuid;

/// The variable in which systemd says where the files are that a unit's `LoadCredential=` names.
const SYSTEMD_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// The name of the secret key's file among those.
const SYSTEMD_NAME: &str = "flotilla-secret-key";

/// The directory of the credentials that systemd started this process with, if with any.
pub(crate) fn systemd_directory() -> Option<PathBuf> {
    std::env::var_os(SYSTEMD_DIRECTORY).map(PathBuf::from)
}

/// A text that is shown to nobody.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Secret, Infallible> {
        Ok(Secret(text.to_owned()))
    }
}

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The gateway's secret key: from the command line or the environment, else from a file, else from
    /// systemd's directory. Empty when nobody gave one.
    pub(crate) fn find(
        given: Option<Secret>,
        file: Option<&Path>,
        systemd: Option<&Path>,
    ) -> anyhow::Result<Secret> {
        if let Some(given) = given {
            let words = std::env::args_os().skip(1);
            if words.map(|word| word.to_string_lossy().into_owned()).any(|word| is_secret_option(&word)) {
                tracing::warn!(
                    "everybody on this machine sees --secret-key: use --secret-key-file, or FLOTILLA_SECRET_KEY"
                );
            }
            return Ok(given);
        }
        if let Some(file) = file {
            return Secret::read(file)?.with_context(|| format!("there is no {}", file.display()));
        }
        let Some(directory) = systemd else { return Ok(Secret::default()) };
        Ok(Secret::read(&directory.join(SYSTEMD_NAME))?.unwrap_or_default())
    }

    fn read(path: &Path) -> anyhow::Result<Option<Secret>> {
        let read = disk::read_file(path).with_context(|| format!("read {}", path.display()))?;
        let Some(contents) = read else { return Ok(None) };
        if path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0) {
            tracing::warn!(path = %path.display(), "everybody on this machine may read the secret key: chmod 600");
        }
        let text = String::from_utf8(contents).with_context(|| format!("{} is no text", path.display()))?;
        Ok(Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned())))
    }
}

fn is_secret_option(word: &str) -> bool {
    word == "--secret-key" || word.starts_with("--secret-key=")
}

/// The longest access key: AWS has no longer ones.
const ACCESS_KEY_BYTES_MAX: usize = 128;

/// An access key that fits into a signature, which has it between `=`, `/` and `,`. Empty is none.
pub(crate) fn access_key(text: &str) -> Result<String, String> {
    let is_fit = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',' | b'=' | b'"' | b'\\');
    match text.len() <= ACCESS_KEY_BYTES_MAX && text.bytes().all(is_fit) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{ACCESS_KEY_BYTES_MAX} letters, digits and signs at most, without spaces, '/', ',', '=', '\"' and '\\'"
        )),
    }
}

/// The key pair of a `flotilla dev` cluster, made at its first start and kept in a file that only the owner
/// reads.
pub(crate) struct Credentials {
    pub access_key: String,
    pub secret_key: Secret,
}

impl Credentials {
    pub(crate) fn load_or_create(path: &Path) -> anyhow::Result<Credentials> {
        match disk::read_file(path).with_context(|| format!("read {}", path.display()))? {
            Some(contents) => Self::parse(&contents).with_context(|| format!("read {}", path.display())),
            None => {
                let credentials = Self::random();
                let contents = format!(
                    "AWS_ACCESS_KEY_ID={}\nAWS_SECRET_ACCESS_KEY={}\n",
                    credentials.access_key,
                    credentials.secret_key.reveal()
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
            secret_key: Secret(format!(
                "{}{}",
                Uuid::new_v4().simple(),
                &Uuid::new_v4().simple().to_string()[..8]
            )),
        }
    }

    fn parse(contents: &[u8]) -> anyhow::Result<Credentials> {
        let text = std::str::from_utf8(contents).context("not text")?;
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim().to_owned())
        };
        match (value("AWS_ACCESS_KEY_ID"), value("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret_key)) if !id.is_empty() && secret_key.len() >= 8 => {
                let wrong = |why| anyhow::anyhow!("AWS_ACCESS_KEY_ID={id}: {why}");
                let access_key = access_key(&id).map_err(wrong)?;
                Ok(Credentials { access_key, secret_key: Secret(secret_key) })
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
    fn a_secret_is_read_from_its_file_and_shown_to_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        Secret::find(None, Some(&path), None).unwrap_err();
        disk::write_private_file_durably(&path, b" a secret of some length\n").unwrap();
        let secret = Secret::find(None, Some(&path), None).unwrap();
        assert_eq!(secret.reveal(), " a secret of some length");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        let given = Secret::find(Some("another one".parse().unwrap()), Some(&path), None).unwrap();
        assert_eq!(given.reveal(), "another one");
        assert!(is_secret_option("--secret-key=x") && !is_secret_option("--secret-key-file"));
    }

    #[test]
    fn systemd_hands_a_secret_over_in_a_file_of_its_directory_unless_another_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let found = |file: Option<&Path>| Secret::find(None, file, Some(dir.path()));
        assert_eq!(found(None).unwrap().reveal(), "", "other credentials may be all there are");
        disk::write_private_file_durably(&dir.path().join("flotilla-secret-key"), b"of systemd\n").unwrap();
        assert_eq!(found(None).unwrap().reveal(), "of systemd");
        let named = dir.path().join("key");
        found(Some(&named)).unwrap_err();
        disk::write_private_file_durably(&named, b"of a file\n").unwrap();
        assert_eq!(found(Some(&named)).unwrap().reveal(), "of a file");
        assert_eq!(Secret::find(None, None, None).unwrap().reveal(), "");
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_a_new_key() {
        assert!(Credentials::parse(b"AWS_ACCESS_KEY_ID=x\n").is_err());
        let parse = |id| {
            Credentials::parse(format!("AWS_ACCESS_KEY_ID={id}\nAWS_SECRET_ACCESS_KEY=12345678\n").as_bytes())
        };
        assert!(parse("a/b").is_err(), "no signature can name it");
        assert_eq!(parse("ab").unwrap().access_key, "ab");
        assert!(Credentials::parse(b"\xff\xfe").is_err());
    }
}
