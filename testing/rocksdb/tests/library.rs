//! Tests of what the rest of the workspace takes for granted of the library it links.

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{DB, DBCompressionType, Options, WriteBatch};

#[test]
fn every_function_of_the_bindings_is_in_the_library() {
    let functions = flotilla_rocksdb::functions();
    assert!(functions.len() > 500, "the bindings declare {} functions", functions.len());
    assert!(functions.iter().any(|(name, _)| *name == "rocksdb_checkpoint_create"));
    for (name, address) in functions {
        assert!(!address.is_null(), "{name}");
    }
}

#[test]
fn a_checkpoint_has_what_was_written_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("db"), directory.path().join("checkpoint"));
    let db = DB::open(&options(), &path).unwrap();
    let mut batch = WriteBatch::default();
    for number in 0..10_000_u32 {
        batch.put(number.to_be_bytes(), value(number));
    }
    db.write(batch).unwrap();
    db.flush().unwrap();
    Checkpoint::new(&db).unwrap().create_checkpoint(&copy).unwrap();
    db.put(7_u32.to_be_bytes(), b"later").unwrap();
    drop(db);

    let db = DB::open(&options(), &copy).unwrap();
    for number in 0..10_000_u32 {
        assert_eq!(
            db.get(number.to_be_bytes()).unwrap().as_deref(),
            Some(value(number).as_slice()),
            "{number}"
        );
    }
    let db = DB::open(&options(), &path).unwrap();
    assert_eq!(db.get(7_u32.to_be_bytes()).unwrap().as_deref(), Some(&b"later"[..]));
}

/// Without the instruction each block costs many times the processor time, and nothing else would say so.
#[test]
fn checksums_use_the_processors_instruction() {
    let directory = tempfile::tempdir().unwrap();
    drop(DB::open(&options(), directory.path()).unwrap());
    #[expect(clippy::disallowed_methods, reason = "RocksDB's own log, in a directory of this test")]
    let log = std::fs::read_to_string(directory.path().join("LOG")).unwrap();
    let line =
        log.lines().find(|line| line.contains("Fast CRC32 supported")).expect("RocksDB says what it found");
    assert!(line.contains("Supported on "), "{line}");
}

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options
}

/// A value that can be compressed, and is another one for each number.
fn value(number: u32) -> Vec<u8> {
    format!("{number} ").repeat(20).into_bytes()
}
