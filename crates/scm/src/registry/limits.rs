//! Limits of what a name, a key, an instance may look like. The leader checks them before a command goes into
//! the log.

use super::health::CONNECTIVITY;
use proto::Failure;
use proto::registry::{Check, Health, Instance};
use std::collections::BTreeSet;
use std::time::Duration;

/// The most instances: ten for each node of the largest cluster that SCM is made for.
pub(super) const INSTANCES_MAX: u64 = 10_000;
/// The most bytes of an instance, with all it says of itself when it registers.
const INSTANCE_BYTES_MAX: usize = 16 << 10;
/// The most bytes of an instance's checks, as it registers and with each renewal: half a kilobyte of words
/// for each check. So an instance grows to 24 KiB at the most.
const CHECKS_BYTES_MAX: usize = 8 << 10;
/// The longest DNS label.
const LABEL_BYTES_MAX: usize = 63;
const CHECKS_MAX: usize = 16;
/// The most keys. The registry is for what a cluster needs to know of itself, not for data: its keys and
/// values, 64 MiB at most, are in the memory of each member, and in each snapshot.
pub(super) const KEYS_MAX: u64 = 65_536;
pub(super) const KEYS_BYTES_MAX: u64 = 64 << 20;
const KEY_BYTES_MAX: usize = 512;
const VALUE_BYTES_MAX: usize = 64 << 10;
/// The most deletions in one command: its events fit into the history several times over.
pub(super) const DELETIONS_MAX: u64 = 1000;
/// The shortest time to live: in less than a second, the way to the leader and back would count.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

pub(super) fn check_instance(instance: &Instance) -> Result<(), Failure> {
    check_label("service", &instance.service)?;
    check_label("id", &instance.id)?;
    check_ttl(instance.ttl_ms)?;
    check_checks(&instance.checks)?;
    for (name, address) in &instance.addresses {
        check_label("name of an address", name)?;
        check_address(address)?;
    }
    let bytes = prost::Message::encoded_len(instance);
    if bytes > INSTANCE_BYTES_MAX {
        return Err(too_large(format!("an instance has {bytes} bytes, at most {INSTANCE_BYTES_MAX}")));
    }
    Ok(())
}

/// Refuses names that DNS cannot carry as they are.
pub(super) fn check_label(what: &str, label: &str) -> Result<(), Failure> {
    let has_right_letters =
        label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let has_dash_at_end = label.starts_with('-') || label.ends_with('-');
    if label.is_empty() || label.len() > LABEL_BYTES_MAX || !has_right_letters || has_dash_at_end {
        return Err(Failure::invalid(format!(
            "{what} `{label}` must be 1 to {LABEL_BYTES_MAX} of a-z, 0-9 and -, with no - at its ends"
        )));
    }
    Ok(())
}

pub(super) fn check_ttl(ttl_ms: u64) -> Result<(), Failure> {
    if !(TTL_MIN..=TTL_MAX).contains(&Duration::from_millis(ttl_ms)) {
        let message = format!(
            "a time to live is from {} s to {} s, not {ttl_ms} ms",
            TTL_MIN.as_secs(),
            TTL_MAX.as_secs()
        );
        return Err(Failure::invalid(message));
    }
    Ok(())
}

pub(super) fn check_checks(checks: &[Check]) -> Result<(), Failure> {
    if checks.len() > CHECKS_MAX {
        return Err(Failure::invalid(format!("{} checks, at most {CHECKS_MAX}", checks.len())));
    }
    let bytes: usize = checks.iter().map(prost::Message::encoded_len).sum();
    if bytes > CHECKS_BYTES_MAX {
        return Err(too_large(format!("checks have {bytes} bytes, at most {CHECKS_BYTES_MAX}")));
    }
    let mut names = BTreeSet::new();
    for check in checks {
        check_label("name of a check", &check.name)?;
        if check.name == CONNECTIVITY {
            return Err(Failure::invalid(format!("the check `{CONNECTIVITY}` is SCM's own")));
        }
        if has_commands(&check.output.replace(['\n', '\t'], "")) {
            return Err(Failure::invalid(format!(
                "the output of the check `{}` has control characters that do not end a line",
                check.name
            )));
        }
        if check.health() == Health::Unspecified {
            return Err(Failure::invalid(format!("the check `{}` says nothing", check.name)));
        }
        if !names.insert(&check.name) {
            return Err(Failure::invalid(format!("the check `{}` is there twice", check.name)));
        }
    }
    Ok(())
}

fn check_address(address: &str) -> Result<(), Failure> {
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    let is_host = !host.is_empty() && !has_commands(host);
    if !is_host || address.len() > 255 || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(Failure::invalid(format!("address {address:?} must be \"host:port\"")));
    }
    Ok(())
}

/// Whether a text holds what terminals obey. Everybody may register, and operators look at what is there.
fn has_commands(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// Refuses the name of a service that none can have for being too long: whoever waits for it keeps it.
pub(super) fn check_asked(service: &str) -> Result<(), Failure> {
    match service.len() {
        0..=LABEL_BYTES_MAX => Ok(()),
        bytes => {
            Err(too_large(format!("the name of a service has {bytes} bytes, at most {LABEL_BYTES_MAX}")))
        }
    }
}

/// Refuses what cannot be a key, or the prefix of one. A prefix may be empty: that is all keys.
pub(super) fn check_key(key: &str, is_prefix: bool) -> Result<(), Failure> {
    if key.is_empty() && !is_prefix {
        return Err(Failure::invalid("a key must not be empty"));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(too_large(format!("a key has {} bytes, at most {KEY_BYTES_MAX}", key.len())));
    }
    if key.chars().any(char::is_control) {
        return Err(Failure::invalid("a key must not contain control characters"));
    }
    Ok(())
}

pub(super) fn check_value(value: &[u8]) -> Result<(), Failure> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(too_large(format!("a value has {} bytes, at most {VALUE_BYTES_MAX}", value.len())));
    }
    Ok(())
}

fn too_large(message: String) -> Failure {
    Failure::new(proto::Code::TooLarge, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Code;

    #[test]
    fn labels_are_what_dns_takes() {
        for good in ["a", "s3gw", "10-0-0-1-7400", &"x".repeat(63)] {
            assert_eq!(check_label("id", good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"x".repeat(64)] {
            assert!(check_label("id", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_instance_is_bounded() {
        let good = Instance {
            service: "web".into(),
            id: "1".into(),
            ttl_ms: 5000,
            addresses: [("http".to_owned(), "[::1]:80".to_owned())].into(),
            checks: vec![Check {
                name: "disk".into(),
                health: Health::Warning as i32,
                output: String::new(),
            }],
            ..Instance::default()
        };
        assert_eq!(check_instance(&good), Ok(()));
        let refused = |change: &dyn Fn(&mut Instance)| {
            let mut instance = good.clone();
            change(&mut instance);
            check_instance(&instance).unwrap_err().code
        };
        assert_eq!(refused(&|it| it.ttl_ms = 999), Code::Invalid);
        assert_eq!(refused(&|it| it.ttl_ms = u64::MAX), Code::Invalid);
        assert_eq!(refused(&|it| it.checks[0].name = CONNECTIVITY.into()), Code::Invalid);
        assert_eq!(refused(&|it| it.checks[0].health = 9), Code::Invalid);
        assert_eq!(refused(&|it| it.checks.push(it.checks[0].clone())), Code::Invalid);
        assert_eq!(refused(&|it| drop(it.addresses.insert("x".into(), "h".into()))), Code::Invalid);
        assert_eq!(refused(&|it| drop(it.addresses.insert("x".into(), "\x1b[2Jh:1".into()))), Code::Invalid);
        assert_eq!(refused(&|it| it.checks[0].output = "\x1b[2J".into()), Code::Invalid);
        assert_eq!(refused(&|it| drop(it.metadata.insert("x".into(), "y".repeat(20_000)))), Code::TooLarge);
        assert_eq!(refused(&|it| it.checks[0].output = "y".repeat(8 << 10)), Code::TooLarge);
        let check = Check { output: "y".repeat(8 << 10), ..good.checks[0].clone() };
        assert_eq!(check_checks(&[check]).unwrap_err().code, Code::TooLarge, "of a renewal too");
    }

    #[test]
    fn an_instance_says_nothing_that_a_terminal_obeys() {
        let saying = |output: &str| Check {
            name: "disk".into(),
            health: Health::Warning as i32,
            output: output.to_owned(),
        };
        assert_eq!(check_checks(&[saying("full:\n\t/data é")]), Ok(()));
        for bad in ["\x1b[2J", "a\rb", "\u{9b}2J", "\u{7f}"] {
            assert_eq!(check_checks(&[saying(bad)]).unwrap_err().code, Code::Invalid, "{bad:?}");
            let refused = check_address(&format!("{bad}h:80")).unwrap_err();
            assert_eq!(refused.code, Code::Invalid);
            assert!(!refused.message.contains(char::is_control), "{refused}");
        }
        assert_eq!(check_address("h\n:80").unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn keys_and_values_are_bounded() {
        assert_eq!(check_key(&"k".repeat(512), false), Ok(()));
        assert_eq!(check_key(&"k".repeat(513), false).unwrap_err().code, Code::TooLarge);
        assert_eq!(check_key("", true), Ok(()));
        assert!(check_key("", false).is_err() && check_key("a\nb", false).is_err());
        assert_eq!(check_value(&[0; 64 << 10]), Ok(()));
        assert_eq!(check_value(&[0; (64 << 10) + 1]).unwrap_err().code, Code::TooLarge);
    }
}
