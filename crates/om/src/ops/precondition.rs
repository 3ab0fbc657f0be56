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
        Some(Key { etag: found, .. }) if etag.as_ref().is_some_and(|etag| etag != found) => {
            let wanted = etag.as_deref().unwrap_or_default();
            failed(format!("key `{name}` has etag `{found}`, not `{wanted}`"))
        }
        None if *present || etag.is_some() => {
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
        let condition = |absent, etag: Option<&str>, present| Precondition {
            absent,
            etag: etag.map(str::to_owned),
            present,
        };
        let cases = [
            (condition(false, None, false), Ok(()), Ok(())),
            (condition(true, None, false), Err(Code::PreconditionFailed), Ok(())),
            (condition(false, Some("e"), false), Ok(()), Err(Code::NoSuchKey)),
            (condition(false, Some("f"), false), Err(Code::PreconditionFailed), Err(Code::NoSuchKey)),
            (condition(false, Some(""), false), Err(Code::PreconditionFailed), Err(Code::NoSuchKey)),
            (condition(false, None, true), Ok(()), Err(Code::NoSuchKey)),
            (condition(true, Some("e"), false), Err(Code::PreconditionFailed), Err(Code::NoSuchKey)),
        ];
        for (condition, if_there, if_missing) in cases {
            let code = |existing| check(Some(&condition), b"k", existing).map_err(|failure| failure.code);
            assert_eq!(code(Some(&key)), if_there, "{condition:?}");
            assert_eq!(code(None), if_missing, "{condition:?}");
        }
        assert_eq!(check(None, b"k", None), Ok(()));
    }
}
