//! Conditions on what is there at the moment a command is applied.

use proto::om::{Key, Precondition};
use proto::{Code, Failure};

pub(super) fn check(
    precondition: Option<&Precondition>,
    key: &[u8],
    existing: Option<&Key>,
) -> Result<(), Failure> {
    let Some(Precondition { absent, etag, present }) = precondition else { return Ok(()) };
    let failed = |why: String| Err(Failure::new(Code::PreconditionFailed, why));
    let name = key.escape_ascii();
    match existing {
        Some(_) if *absent => failed(format!("key `{name}` exists")),
        Some(existing) if !etag.is_empty() && existing.etag != *etag => {
            failed(format!("key `{name}` has etag `{}`, not `{etag}`", existing.etag))
        }
        None if *present || !etag.is_empty() => {
            Err(Failure::new(Code::NoSuchKey, format!("no key `{name}`, which a condition asks for")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_or_say_why_not() {
        let key = Key { etag: "e".into(), ..Key::default() };
        let condition = |absent, etag: &str, present| Precondition { absent, etag: etag.into(), present };
        let cases = [
            (condition(false, "", false), Ok(()), Ok(())),
            (condition(true, "", false), Err(Code::PreconditionFailed), Ok(())),
            (condition(false, "e", false), Ok(()), Err(Code::NoSuchKey)),
            (condition(false, "f", false), Err(Code::PreconditionFailed), Err(Code::NoSuchKey)),
            (condition(false, "", true), Ok(()), Err(Code::NoSuchKey)),
            (condition(true, "e", false), Err(Code::PreconditionFailed), Err(Code::NoSuchKey)),
        ];
        for (condition, if_there, if_missing) in cases {
            let code = |existing| check(Some(&condition), b"k", existing).map_err(|failure| failure.code);
            assert_eq!(code(Some(&key)), if_there, "{condition:?}");
            assert_eq!(code(None), if_missing, "{condition:?}");
        }
        assert_eq!(check(None, b"k", None), Ok(()));
    }
}
