use crate::error::{GatewayError, Result};
use proto::om::{Key, Precondition};

/// The value of an `If-Match` or `If-None-Match` header. ETags are without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Any,
    Etag(String),
}

impl Match {
    fn holds(&self, key: &Key) -> bool {
        match self {
            Match::Any => true,
            Match::Etag(etag) => *etag == key.etag,
        }
    }
}

/// Conditions on reading an object, or on the source of a copy. Times are in milliseconds since the epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) if_match: Option<Match>,
    pub(crate) if_none_match: Option<Match>,
    pub(crate) if_modified_since_ms: Option<i64>,
    pub(crate) if_unmodified_since_ms: Option<i64>,
}

impl Conditions {
    /// Checks in the order of RFC 9110: an ETag that is given decides, and the time beside it does not count.
    pub(crate) fn check(&self, key: &Key) -> Result<()> {
        // HTTP dates have no fractions of a second.
        let modified_ms = i64::try_from(key.modified_ms / 1000 * 1000).unwrap_or(i64::MAX);
        match (&self.if_match, self.if_unmodified_since_ms) {
            (Some(if_match), _) if !if_match.holds(key) => return Err(GatewayError::PreconditionFailed),
            (None, Some(since_ms)) if modified_ms > since_ms => return Err(GatewayError::PreconditionFailed),
            _ => {}
        }
        let not_modified =
            || GatewayError::NotModified { etag: key.etag.clone(), modified_ms: key.modified_ms };
        match (&self.if_none_match, self.if_modified_since_ms) {
            (Some(if_none_match), _) if if_none_match.holds(key) => Err(not_modified()),
            (None, Some(since_ms)) if modified_ms <= since_ms => Err(not_modified()),
            _ => Ok(()),
        }
    }

    /// Checks the source of a copy, where nothing is ever "not modified".
    pub(crate) fn check_source(&self, key: &Key) -> Result<()> {
        match self.check(key) {
            Err(GatewayError::NotModified { .. }) => Err(GatewayError::PreconditionFailed),
            other => other,
        }
    }
}

/// Conditions on writing a key, checked by OM at the moment of the commit.
pub(crate) fn precondition(
    if_match: Option<Match>,
    if_none_match: Option<Match>,
) -> Result<Option<Precondition>> {
    let mut precondition = Precondition::default();
    match if_none_match {
        None => {}
        Some(Match::Any) => precondition.absent = true,
        Some(Match::Etag(_)) => {
            return Err(GatewayError::NotImplemented("If-None-Match with an ETag, on a write,"));
        }
    }
    match if_match {
        None => {}
        Some(Match::Any) => precondition.present = true,
        Some(Match::Etag(etag)) => precondition.etag = Some(etag),
    }
    Ok((precondition != Precondition::default()).then_some(precondition))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { etag: "abc".to_owned(), modified_ms: 10_500, ..Default::default() }
    }

    fn etag(etag: &str) -> Option<Match> {
        Some(Match::Etag(etag.to_owned()))
    }

    #[test]
    fn reads_follow_rfc_9110() {
        let check = |conditions: Conditions| match conditions.check(&key()) {
            Ok(()) => 200,
            Err(GatewayError::NotModified { .. }) => 304,
            Err(GatewayError::PreconditionFailed) => 412,
            Err(other) => panic!("{other:?}"),
        };
        let none = Conditions::default;
        assert_eq!(check(none()), 200);
        assert_eq!(check(Conditions { if_match: etag("abc"), ..none() }), 200);
        assert_eq!(check(Conditions { if_match: etag("x"), ..none() }), 412);
        assert_eq!(check(Conditions { if_none_match: etag("abc"), ..none() }), 304);
        assert_eq!(check(Conditions { if_none_match: Some(Match::Any), ..none() }), 304);
        assert_eq!(check(Conditions { if_none_match: etag("x"), ..none() }), 200);
        assert_eq!(check(Conditions { if_modified_since_ms: Some(10_000), ..none() }), 304);
        assert_eq!(check(Conditions { if_modified_since_ms: Some(9_000), ..none() }), 200);
        assert_eq!(check(Conditions { if_unmodified_since_ms: Some(10_000), ..none() }), 200);
        assert_eq!(check(Conditions { if_unmodified_since_ms: Some(9_000), ..none() }), 412);
        // The ETag decides, and not the time beside it.
        let both = Conditions { if_match: etag("abc"), if_unmodified_since_ms: Some(0), ..none() };
        assert_eq!(check(both), 200);
        let both = Conditions { if_none_match: etag("x"), if_modified_since_ms: Some(99_000), ..none() };
        assert_eq!(check(both), 200);
    }

    #[test]
    fn a_write_asks_for_what_it_was_told_also_for_an_empty_etag() {
        let asked = |if_match| precondition(if_match, None).unwrap();
        assert_eq!(asked(None), None);
        let empty = Precondition { etag: Some(String::new()), ..Precondition::default() };
        assert_eq!(asked(etag("")), Some(empty));
    }

    #[test]
    fn the_source_of_a_copy_is_never_just_not_modified() {
        let conditions = Conditions { if_none_match: etag("abc"), ..Default::default() };
        assert!(matches!(conditions.check_source(&key()), Err(GatewayError::PreconditionFailed)));
    }

    #[test]
    fn writes_hand_their_conditions_to_om() {
        assert_eq!(precondition(None, None).unwrap(), None);
        assert!(precondition(None, Some(Match::Any)).unwrap().unwrap().absent);
        assert!(precondition(Some(Match::Any), None).unwrap().unwrap().present);
        assert_eq!(precondition(etag("e"), None).unwrap().unwrap().etag.as_deref(), Some("e"));
        assert!(precondition(None, etag("e")).is_err());
    }
}
