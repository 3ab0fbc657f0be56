//! Names and bytes that are written, by number: whoever knows the seed can check them.

use bytes::Bytes;
use futures::Stream;
use proto::om::{Key, KeyAttributes};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::convert::Infallible;

/// The bytes that are drawn at a time.
const PIECE_BYTES: u64 = 64 << 10;
/// The name under which S3 shows the metadata that is drawn.
const METADATA_NAME: &str = "load";

#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) seed: u64,
    pub(super) name_bytes: usize,
    pub(super) directories: u64,
    pub(super) metadata_bytes: usize,
    pub(super) object_bytes: u64,
}

/// A number of a name, and how often it was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) number: u64,
    pub(super) version: u64,
}

impl Version {
    pub(super) fn first(number: u64) -> Version {
        Version { number, version: 0 }
    }
}

impl Content {
    /// The name with this number. Names are spread over the whole bucket: a number says nothing of where its
    /// name sorts.
    pub(super) fn name(&self, number: u64) -> Bytes {
        let mut drawn = self.draws(number, 0, Purpose::Name);
        let mut name = format!("load/{:x}/", self.seed);
        if self.directories > 0 {
            name += &format!("{:x}/", number % self.directories);
        }
        name += &format!("{:016x}-{number}-", drawn.next_u64());
        while name.len() < self.name_bytes {
            name += &format!("{:016x}", drawn.next_u64());
        }
        name.truncate(self.name_bytes);
        Bytes::from(name)
    }

    pub(super) fn attributes(&self, of: Version) -> KeyAttributes {
        let mut attributes = KeyAttributes::default();
        if self.metadata_bytes > 0 {
            let mut drawn = self.draws(of.number, of.version, Purpose::Metadata);
            let mut value = String::with_capacity(self.metadata_bytes + 16);
            while value.len() < self.metadata_bytes {
                value += &format!("{:016x}", drawn.next_u64());
            }
            value.truncate(self.metadata_bytes);
            attributes.user_metadata.insert(METADATA_NAME.to_owned(), value);
        }
        attributes
    }

    /// The key of a name without bytes.
    pub(super) fn key(&self, of: Version) -> Key {
        let (key, attributes) = (self.name(of.number), Some(self.attributes(of)));
        Key { key, etag: etag(of), attributes, ..Key::default() }
    }

    /// The object's bytes, in order.
    pub(super) fn pieces(&self, of: Version) -> impl Iterator<Item = Bytes> + Send + use<> {
        let mut drawn = self.draws(of.number, of.version, Purpose::Bytes);
        let bytes = self.object_bytes;
        (0..bytes.div_ceil(PIECE_BYTES)).map(move |nth| {
            let mut piece = vec![0; (bytes - nth * PIECE_BYTES).min(PIECE_BYTES) as usize];
            drawn.fill_bytes(&mut piece);
            Bytes::from(piece)
        })
    }

    pub(super) fn body(&self, of: Version) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + use<> {
        futures::stream::iter(self.pieces(of).map(Ok))
    }

    fn draws(&self, number: u64, version: u64, purpose: Purpose) -> SmallRng {
        let mut seed = <SmallRng as SeedableRng>::Seed::default();
        let words = [self.seed, number, version, purpose as u64];
        seed.chunks_exact_mut(8)
            .zip(words)
            .for_each(|(part, word)| part.copy_from_slice(&word.to_le_bytes()));
        let mut drawn = SmallRng::from_seed(seed);
        // Draws from seeds that differ in a bit or two begin alike: the first ones are thrown away.
        (0..8).for_each(|_| {
            drawn.next_u64();
        });
        drawn
    }
}

/// The ETag of a name without bytes, which has no hash of them: its number and version.
fn etag(of: Version) -> String {
    format!("{:032x}", (u128::from(of.number) << 64) | u128::from(of.version))
}

#[derive(Clone, Copy)]
enum Purpose {
    Name = 1,
    Metadata,
    Bytes,
}

/// Compares bytes that come in other pieces than they were drawn in.
pub(super) struct Comparison<I> {
    expected: I,
    rest: Bytes,
    at: u64,
}

impl<I: Iterator<Item = Bytes>> Comparison<I> {
    pub(super) fn with(expected: I) -> Comparison<I> {
        Comparison { expected, rest: Bytes::new(), at: 0 }
    }

    /// Compares the next bytes that came.
    ///
    /// # Errors
    /// The place of the first byte that differs, or from which on nothing was written.
    pub(super) fn compare(&mut self, mut bytes: Bytes) -> Result<(), u64> {
        while !bytes.is_empty() {
            if self.rest.is_empty() {
                self.rest = self.expected.next().ok_or(self.at)?;
            }
            let both = bytes.len().min(self.rest.len());
            let (read, expected) = (bytes.split_to(both), self.rest.split_to(both));
            if read != expected {
                let differs = read.iter().zip(&expected).position(|(read, expected)| read != expected);
                return Err(self.at + differs.unwrap_or_default() as u64);
            }
            self.at += both as u64;
        }
        Ok(())
    }

    /// Compares the end of the bytes, and returns how many came.
    ///
    /// # Errors
    /// The place where the bytes ended, if more were written.
    pub(super) fn end(mut self) -> Result<u64, u64> {
        match self.rest.is_empty() && self.expected.next().is_none() {
            true => Ok(self.at),
            false => Err(self.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const CONTENT: Content =
        Content { seed: 7, name_bytes: 80, directories: 0, metadata_bytes: 100, object_bytes: 200_000 };

    #[test]
    fn numbers_have_names_and_bytes_of_their_own_and_always_the_same() {
        let names: HashSet<Bytes> = (0..1000).map(|number| CONTENT.name(number)).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 80));
        let (one, again) = (Version::first(1), Version { number: 1, version: 1 });
        let bytes = |of| CONTENT.pieces(of).collect::<Vec<_>>().concat();
        assert_eq!(bytes(one).len(), 200_000);
        assert_eq!(bytes(one), bytes(one));
        assert_ne!(bytes(one), bytes(again));
        assert_ne!(CONTENT.attributes(one), CONTENT.attributes(again));
        assert_ne!(CONTENT.key(one), CONTENT.key(again));
        assert_ne!(Content { seed: 8, ..CONTENT }.name(1), CONTENT.name(1));
        let spread = Content { directories: 20, ..CONTENT };
        assert!(spread.name(39).starts_with(b"load/7/13/") && spread.name(39).len() == 80);
    }

    #[test]
    fn a_comparison_finds_what_differs_what_is_missing_and_what_is_too_much() {
        let all = CONTENT.pieces(Version::first(1)).collect::<Vec<_>>().concat();
        let compare = |bytes: &[u8]| {
            let mut comparison = Comparison::with(CONTENT.pieces(Version::first(1)));
            for part in bytes.chunks(999) {
                comparison.compare(Bytes::copy_from_slice(part))?;
            }
            comparison.end()
        };
        assert_eq!(compare(&all), Ok(200_000));
        assert_eq!(compare(&all[..100_000]), Err(100_000));
        assert_eq!(compare(&[&all[..], b"x"].concat()), Err(200_000));
        let mut wrong = all.clone();
        wrong[123_456] ^= 1;
        assert_eq!(compare(&wrong), Err(123_456));
    }
}
