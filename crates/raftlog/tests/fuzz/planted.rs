//! The fuzzer finds what it is there to find.

use crate::campaign::without_panic;
use crate::directory::{self, Sight};
use crate::files::is_segment;
use crate::liar::Lie;
use crate::record::{Decoder, decoder};
use crate::wire::{self, field, fit_record};
use crate::{hard_state, record};
use bytes::Bytes;
use disk::Disk;
use disk::sim::{Random, SimDisk};
use diskhooks::{Act, HookedDisk};
use std::sync::Arc;

/// Some seed reports it, in words that fit.
fn finds(what: &str, seeds_max: u64, says: &str, case: impl Fn(&mut Random) -> Result<(), String>) {
    let mut found = (1..=seeds_max).filter_map(|seed| without_panic(|| case(&mut Random::new(seed))).err());
    let why = found.next().unwrap_or_else(|| panic!("{what}: nothing in {seeds_max} seeds"));
    assert!(why.contains(says), "{what}: {why}");
    println!("{what}: {}", why.lines().next().unwrap_or_default().chars().take(200).collect::<String>());
}

fn in_records(what: &str, says: &str, decode: Decoder) {
    finds(what, 3000, says, |random| record::case(random, decode).map(drop));
}

#[test]
fn a_decoder_that_ignores_checksums_is_found() {
    in_records("checksums ignored", "encoded to other bytes", |bytes| {
        let mut fitted = bytes.to_vec();
        fit_record(&mut fitted);
        decoder(&fitted.into())
    });
}

#[test]
fn a_decoder_that_misses_a_bound_check_is_found() {
    in_records("a bound check missing", "range", |bytes| {
        let decoded = decoder(bytes);
        if bytes.starts_with(b"FLog\x01") && bytes.len() >= wire::HEADER_BYTES {
            let _ = &bytes[wire::HEADER_BYTES..wire::HEADER_BYTES + field(bytes, 60)];
        }
        decoded
    });
}

#[test]
fn a_decoder_that_believes_a_length_is_found() {
    in_records("a length believed", "allocated at once", |bytes| {
        if bytes.starts_with(b"FLog\x01") && bytes.len() >= wire::HEADER_BYTES {
            drop(Vec::<u8>::with_capacity(field(bytes, 64).min(64 << 20)));
        }
        decoder(bytes)
    });
}

#[test]
fn a_decoder_that_takes_unknown_flags_is_found() {
    in_records("unknown flags taken", "encoded to other bytes", |bytes| {
        let mut masked = bytes.to_vec();
        if masked.len() > 7 && wire::fits(&masked) {
            (masked[6], masked[7]) = (masked[6] & 1, 0);
            fit_record(&mut masked);
        }
        decoder(&masked.into())
    });
}

#[test]
fn a_hard_state_whose_checksum_is_ignored_is_found() {
    finds("hard state's checksum ignored", 3000, "encoded to other bytes", |random| {
        let fitted = |mut bytes: Vec<u8>| {
            for at in [0, 4096] {
                if let Some(slot) = bytes.get_mut(at..at + wire::SLOT_BYTES) {
                    wire::fit_slot(slot);
                }
            }
            hard_state::reader(bytes)
        };
        hard_state::case(random, fitted).map(drop)
    });
}

#[test]
fn slots_read_from_each_others_place_are_found() {
    finds("slots exchanged", 3000, "encoded to other bytes", |random| {
        let swapped = |bytes: Vec<u8>| {
            let mut read = hard_state::reader(bytes);
            read.slots.swap(0, 1);
            read
        };
        hard_state::case(random, swapped).map(drop)
    });
}

fn in_directories(what: &str, says: &str, sight: Sight) {
    finds(what, 150, says, |random| directory::case(random, sight).map(drop));
}

#[test]
fn recovery_that_ignores_checksums_is_found() {
    in_directories("segments' checksums ignored", "", |disk| Lie::ChecksumsIgnored.wrap(disk));
}

#[test]
fn recovery_that_forgets_the_durable_mark_is_found() {
    in_directories("the durable mark forgotten", "was durable", |disk| {
        let without_mark = |path: &str, _: u64, bytes: Bytes| {
            let mut bytes = bytes.to_vec();
            if path.ends_with("hard-state")
                && bytes.len() == wire::SLOT_BYTES
                && wire::newest_slot(&bytes).is_some()
            {
                bytes[5] &= !16;
                bytes[72..88].fill(0);
                wire::fit_slot(&mut bytes);
            }
            bytes.into()
        };
        seen(disk, without_mark)
    });
}

#[test]
fn recovery_that_believes_any_place_is_found() {
    in_directories("a record's place ignored", "", |disk| {
        let at_home = |path: &str, offset: u64, bytes: Bytes| {
            let mut bytes = bytes.to_vec();
            let Some((owner, segment)) = place_of(path) else { return bytes.into() };
            for start in wire::records(&bytes) {
                if !wire::fits(&bytes[start..]) {
                    break;
                }
                bytes[start + 16..start + 24].copy_from_slice(&owner.to_le_bytes());
                bytes[start + 48..start + 56].copy_from_slice(&(offset + start as u64).to_le_bytes());
                bytes[start + 56..start + 60].copy_from_slice(&segment.to_le_bytes());
                fit_record(&mut bytes[start..]);
            }
            bytes.into()
        };
        seen(disk, at_home)
    });
}

fn place_of(path: &str) -> Option<(u64, u32)> {
    let mut parts = path.strip_suffix(".seg").filter(|_| is_segment(path))?.rsplit('/');
    let segment = u32::from_str_radix(parts.next()?, 16).ok()?;
    Some((u64::from_str_radix(parts.next()?, 16).ok()?, segment))
}

/// A disk seen through a planted bug: `see` is a false way to answer a read of path, offset and bytes.
fn seen(disk: SimDisk, see: impl Fn(&str, u64, Bytes) -> Bytes + Send + Sync + 'static) -> Arc<dyn Disk> {
    Arc::new(HookedDisk::new(Arc::new(disk), |_| Act::Pass).showing(see))
}
