use crate::error::{GatewayError, Result};

/// The place where a listing goes on, as an opaque word for clients: a version and the last key in
/// hexadecimal, so that any key survives URLs and XML.
pub(crate) fn token(after: &[u8]) -> String {
    let mut token = String::with_capacity(1 + after.len() * 2);
    token.push('1');
    for byte in after {
        token.push_str(&format!("{byte:02x}"));
    }
    token
}

pub(crate) fn parse_token(token: &str) -> Result<Vec<u8>> {
    let wrong = || GatewayError::InvalidArgument("The continuation token provided is incorrect".to_owned());
    let hex = token.strip_prefix('1').ok_or_else(wrong)?.as_bytes();
    if !hex.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    hex.chunks(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(wrong)
}

/// The number of entries that a page may have: at most 1000, whatever the client asks.
pub(crate) fn limit(asked: Option<i32>, name: &str) -> Result<u32> {
    match asked {
        None => Ok(1000),
        Some(asked) => u32::try_from(asked).map(|asked| asked.min(1000)).map_err(|_| {
            GatewayError::InvalidArgument(format!(
                "Argument {name} must be an integer between 0 and 2147483647"
            ))
        }),
    }
}

/// Encodes a text as `encoding-type=url` asks, for keys that XML cannot carry. Slashes stay, as AWS leaves
/// them.
pub(crate) fn url_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
                encoded.push(byte as char)
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_carry_any_key() {
        for key in [&b""[..], b"a/b", b"\x00\xff%+ ", "höhe".as_bytes()] {
            assert_eq!(parse_token(&token(key)).unwrap(), key);
        }
        for wrong in ["", "2ab", "1a", "1zz", "1é"] {
            assert!(parse_token(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn page_sizes_are_capped() {
        assert_eq!(limit(None, "max-keys").unwrap(), 1000);
        assert_eq!(limit(Some(0), "max-keys").unwrap(), 0);
        assert_eq!(limit(Some(5000), "max-keys").unwrap(), 1000);
        assert!(limit(Some(-1), "max-keys").is_err());
    }

    #[test]
    fn url_encoding_leaves_slashes() {
        assert_eq!(url_encode("a/b c+d%é"), "a/b%20c%2Bd%25%C3%A9");
    }
}
