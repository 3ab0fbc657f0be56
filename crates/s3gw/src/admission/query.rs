use crate::error::{GatewayError, Result};

/// The most parameters of a query. No operation has a tenth of them, and each is compared with all before it.
const PARAMETERS_MAX: usize = 128;

/// The parameters of a query, decoded, each name once, in the order they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. A name that is given twice is refused: two readers could each see another one of the
    /// two.
    pub(super) fn parse(raw: &str) -> Result<Query> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == PARAMETERS_MAX {
                let why = format!("There are more than {PARAMETERS_MAX} parameters.");
                return Err(GatewayError::InvalidArgument(why));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name, Plus::IsSpace)?, decode(value, Plus::IsSpace)?);
            if pairs.iter().any(|(other, _)| *other == name) {
                let why = format!("The parameter {} is given more than once.", name.escape_debug());
                return Err(GatewayError::InvalidArgument(why));
            }
            pairs.push((name, value));
        }
        Ok(Query(pairs))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Takes out the parameters whose names `is_wanted`, and returns them.
    pub(super) fn take(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| is_wanted(name));
        self.0 = kept;
        taken
    }

    /// The parameters whose names `is_wanted`, sorted and encoded as signatures have them, and as any reader
    /// decodes them again.
    pub(super) fn canonical(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let wanted = self.0.iter().filter(|(name, _)| is_wanted(name));
        let mut pairs: Vec<String> = wanted
            .map(|(name, value)| {
                format!("{}={}", encode(name, Slash::Encoded), encode(value, Slash::Encoded))
            })
            .collect();
        pairs.sort_unstable_by(|one, two| one.split('=').cmp(two.split('=')));
        pairs.join("&")
    }
}

/// The meaning of a plus sign.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Plus {
    IsSpace,
    IsPlus,
}

/// Undoes percent-encoding; what is left must be UTF-8.
pub(super) fn decode(text: &str, plus: Plus) -> Result<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                let (high, low) = high.zip(low).ok_or_else(invalid_uri)?;
                (high * 16 + low) as u8 // two digits
            }
            b'+' if plus == Plus::IsSpace => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).map_err(|_| invalid_uri())
}

fn invalid_uri() -> GatewayError {
    GatewayError::refused("InvalidURI", 400, "Couldn't parse the specified URI.")
}

/// Whether `/` is encoded; in paths it is not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slash {
    Encoded,
    Kept,
}

/// Percent-encodes a text as signatures have it.
pub(super) fn encode(text: &str, slash: Slash) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'~' | b'.' => encoded.push(byte as char),
            b'/' if slash == Slash::Kept => encoded.push('/'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_before_anybody_compares_them() {
        let query = Query::parse("%53ignature=a%2Fb&acl&x=1+2&&").unwrap();
        assert_eq!(query.get("Signature"), Some("a/b"));
        assert_eq!(query.get("acl"), Some(""));
        assert_eq!(query.get("x"), Some("1 2"));
        assert_eq!(query.canonical(|_| true), "Signature=a%2Fb&acl=&x=1%202");
    }

    #[test]
    fn what_is_given_twice_or_is_no_text_is_refused() {
        for wrong in ["a=1&a=2", "a=1&%61=2", "acl&acl", "a=%ff", "a=%4", "a=%zz", "%"] {
            assert!(Query::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_sorted_as_names() {
        let query = Query::parse("a-b=1&a=2&A=3").unwrap();
        assert_eq!(query.canonical(|_| true), "A=3&a=2&a-b=1");
    }
}
