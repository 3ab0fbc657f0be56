//! One client with names of its own, of which it knows what they may be.

use crate::s3::S3;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// Names that a client changes at a time.
const NAMES: u32 = 40;
/// The time between an operation that was refused and the next one.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What a client has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) acknowledged: u64,
    pub(super) failed: u64,
    pub(super) reads: u64,
}

/// A name, and the versions of which it may have one; `None`: it is not there.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) key: String,
    pub(super) may_be: Vec<Option<u32>>,
}

impl Name {
    fn new(client: u32, number: u32) -> Name {
        Name { key: format!("c{client}/{number:06}"), may_be: vec![None] }
    }

    /// Whether something of which nobody knows the end may still come.
    fn is_uncertain(&self) -> bool {
        self.may_be.len() > 1
    }

    /// The only version it may have.
    pub(super) fn version(&self) -> Option<u32> {
        match self.may_be[..] {
            [version] => version,
            _ => None,
        }
    }

    fn changed(&mut self, to: Option<u32>, is_acknowledged: bool) {
        if is_acknowledged {
            self.may_be.clear();
        }
        self.may_be.push(to);
    }

    /// An error says what was found instead.
    pub(super) fn check(&self, found: Option<&[u8]>) -> Result<(), String> {
        let is = |version: &Option<u32>| match (version, found) {
            (None, None) => true,
            (Some(version), Some(found)) => found == body(&self.key, *version),
            _ => false,
        };
        match self.may_be.iter().any(is) {
            true => Ok(()),
            false => Err(format!("{self:?} is {:?} bytes that it cannot be", found.map(<[u8]>::len))),
        }
    }
}

/// Seven of ten are small; some have several chunks.
fn body(key: &str, version: u32) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed_of(key) ^ u64::from(version).rotate_left(40));
    let bytes = match random.random_range(0..20) {
        0..14 => random.random_range(1..5_000),
        14..19 => random.random_range(20_000..120_000),
        _ => random.random_range(1_200_000..2_500_000),
    };
    let mut body = vec![0; bytes];
    random.fill(&mut body[..]);
    body
}

fn seed_of(key: &str) -> u64 {
    key.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(super) struct Client {
    s3: S3,
    number: u32,
    random: SmallRng,
    versions: u32,
    names: Vec<Name>,
    /// Names that rest, as something of which nobody knows the end may still come.
    uncertain: Vec<Name>,
    begun: u32,
    pub(super) done: Done,
}

impl Client {
    pub(super) fn new(s3: S3, number: u32, seed: u64) -> Client {
        let random = SmallRng::seed_from_u64(seed ^ u64::from(number).rotate_left(32));
        let names = (0..NAMES).map(|at| Name::new(number, at)).collect();
        let (uncertain, done) = (Vec::new(), Done::default());
        Client { s3, number, random, versions: 0, names, uncertain, begun: NAMES, done }
    }

    /// Makes one operation; an error is one that must not be.
    pub(super) async fn operate(&mut self) -> Result<(), String> {
        let at = self.random.random_range(0..self.names.len());
        match self.random.random_range(0..20) {
            0..9 => self.put(at).await,
            9..13 => self.delete(at).await,
            13 => self.begin_upload(at).await,
            _ => return self.read(at).await,
        }
        self.rest_if_uncertain(at);
        Ok(())
    }

    /// The names that the client knows of.
    pub(super) fn names(self) -> impl Iterator<Item = Name> {
        self.names.into_iter().chain(self.uncertain)
    }

    async fn put(&mut self, at: usize) {
        self.versions += 1;
        let (version, name) = (self.versions, &mut self.names[at]);
        let done = self.s3.put(&name.key, body(&name.key, version)).await;
        name.changed(Some(version), done.is_ok());
        self.note(done).await;
    }

    async fn delete(&mut self, at: usize) {
        let name = &mut self.names[at];
        let done = self.s3.delete(&name.key).await;
        name.changed(None, done.is_ok());
        self.note(done).await;
    }

    /// An upload with one part, which nobody goes on with.
    async fn begin_upload(&mut self, at: usize) {
        let key = self.names[at].key.clone();
        let done = match self.s3.begin_upload(&key).await {
            Ok(upload) => self.s3.put_part(&key, &upload, 1, body(&key, 0)).await,
            Err(why) => Err(why),
        };
        self.note(done).await;
    }

    async fn read(&mut self, at: usize) -> Result<(), String> {
        match self.s3.get(&self.names[at].key).await {
            Ok(found) => {
                self.done.reads += 1;
                self.names[at].check(found.as_deref())
            }
            Err(why) => {
                self.note(Err(why)).await;
                Ok(())
            }
        }
    }

    async fn note(&mut self, done: Result<(), String>) {
        match done {
            Ok(()) => self.done.acknowledged += 1,
            Err(_) => {
                self.done.failed += 1;
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }

    fn rest_if_uncertain(&mut self, at: usize) {
        if self.names[at].is_uncertain() {
            let next = Name::new(self.number, self.begun);
            self.begun += 1;
            self.uncertain.push(std::mem::replace(&mut self.names[at], next));
        }
    }
}
