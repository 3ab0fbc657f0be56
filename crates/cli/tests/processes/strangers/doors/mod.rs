//! Each door that the store once left open to strangers, or behind which something else was done than was
//! said, tried from outside against a cluster of processes. A door that is added is one entry of [`DOORS`].
//!
//! Each tries beside what must be refused the same as it should be asked, which must succeed: a door that
//! lets nobody in is broken, too, and a refusal of anything would say nothing.

mod bodies;
mod crowds;
mod house;
mod keys;
mod machine;
mod newcomers;
mod objects;
mod request;
mod rpc;
mod signatures;
mod uploads;

use futures::future::LocalBoxFuture;
use house::House;
use serde_json::{Map, Value, json};

/// What was let in, or what should have been served and was not.
type Failed = String;
/// What a closed door looks like.
type Seen = Result<String, Failed>;
type Door = for<'a> fn(&'a mut House) -> LocalBoxFuture<'a, Seen>;

macro_rules! doors {
    ($($name:literal: $door:path,)*) => { &[$(($name, |house| Box::pin($door(house)))),*] };
}

const DOORS: &[(&str, Door)] = doors! {
    // Open to strangers.
    "copy-source-presigned": signatures::copy_source_presigned,
    "copy-source-signed": signatures::copy_source_signed,
    "host-unsigned": signatures::host_unsigned,
    "version-2": signatures::version_2,
    "century": signatures::century,
    "form-body": bodies::form_body,
    "large-documents": bodies::large_documents,
    "endless-chunk": bodies::endless_chunk,
    "scm-term": rpc::scm_term,
    "heartbeats": rpc::heartbeats,
    "log-regex": rpc::log_regex,
    "rpc-connections": rpc::rpc_connections,
    "browser": machine::browser,
    "sighup": machine::sighup,
    "second-signal": machine::second_signal,
    "file-modes": machine::file_modes,
    "terminal": machine::terminal,
    "debug-log": machine::debug_log,
    "secret-in-ps": machine::secret_in_ps,
    "secret-file": machine::secret_file,
    // Success, and something else done.
    "sub-resources": objects::sub_resources,
    "unknown-host": objects::unknown_host,
    "copy-if-none-match": objects::copy_if_none_match,
    "checksums": objects::checksums,
    "acl-on-multipart": uploads::acl_on_multipart,
    "bucket-tags": uploads::bucket_tags,
    "complete-again": uploads::complete_again,
    "uploads-of-odd-keys": uploads::uploads_of_odd_keys,
    "carriage-returns": uploads::carriage_returns,
    "max-parts-zero": uploads::max_parts_zero,
    "early-refusal": bodies::early_refusal,
    // The first minutes of a new user.
    "probes": newcomers::probes,
    "region-us": newcomers::region_us,
    "messages": newcomers::messages,
    // Leaned on by many at once.
    "idle-addresses": crowds::idle_addresses,
    "slow-streams": crowds::slow_streams,
    "half-documents": crowds::half_documents,
    "half-messages": crowds::half_messages,
    "metrics-crowd": crowds::metrics_crowd,
};

/// Each door that was tried, and what was seen of it.
#[derive(Default)]
pub(super) struct Tried(Vec<(&'static str, Seen)>);

impl Tried {
    /// Tries all, or the one called `only`, with a line for each.
    pub(super) async fn all(only: Option<&str>) -> Tried {
        let wanted: Vec<_> = DOORS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
        let names = || DOORS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        assert!(!wanted.is_empty(), "{only:?} is no door; there are: {}", names());
        let mut house = House::start().await;
        let mut tried = Tried::default();
        for (name, door) in wanted {
            tried.note(name, door(&mut house).await);
        }
        tried
    }

    fn note(&mut self, name: &'static str, seen: Seen) {
        println!("{}", line(name, &seen));
        self.0.push((name, seen));
    }

    /// A field for each.
    pub(super) fn figures(&self) -> Map<String, Value> {
        let of = |seen: &Seen| match seen {
            Ok(seen) => json!({"shut": true, "seen": seen}),
            Err(failed) => json!({"shut": false, "seen": failed}),
        };
        self.0.iter().map(|(name, seen)| ((*name).to_owned(), of(seen))).collect()
    }

    /// The lines of those that are not shut.
    pub(super) fn open(&self) -> Vec<String> {
        self.0.iter().filter(|(_, seen)| seen.is_err()).map(|(name, seen)| line(name, seen)).collect()
    }
}

fn line(name: &str, seen: &Seen) -> String {
    match seen {
        Ok(seen) => format!("shut  {name}: {seen}"),
        Err(failed) => format!("OPEN  {name}: {failed}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_door_is_shut() {
    let tried = Tried::all(None).await;
    assert_eq!(tried.0.len(), DOORS.len());
    assert_eq!(tried.open(), Vec::<String>::new());
}

#[test]
fn a_door_that_is_open_is_told() {
    let mut tried = Tried::default();
    tried.note("gate", Ok("403".to_owned()));
    tried.note("window", Err("200, and a thief".to_owned()));
    assert_eq!(tried.open(), ["OPEN  window: 200, and a thief"]);
    assert_eq!(Value::Object(tried.figures())["window"]["shut"], false);
}
