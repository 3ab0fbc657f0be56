use super::connection::{Connection, Refused};
use super::objects::{Objects, Random, Size};
use super::processes::{cpu_seconds, own_cpu_seconds};
use super::sign::Asked;
use super::target::{Target, put};
use crate::blocks::{Window, Windows};
use anyhow::ensure;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One body in so many that are read is compared with what was written.
const COMPARED_EVERY: u64 = 16;
/// The number of objects on one page of a list.
const LISTED: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put,
    Get,
    Head,
    List,
    /// A mix: half GETs, a quarter PUTs, a fifth HEADs, the rest pages of a list.
    Mixed,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Put, Kind::Get, Kind::Head, Kind::List, Kind::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::Get => "get",
            Kind::Head => "head",
            Kind::List => "list",
            Kind::Mixed => "mixed",
        }
    }

    /// Whether the size of objects makes no difference.
    pub fn is_about_names(self) -> bool {
        matches!(self, Kind::Head | Kind::List)
    }

    fn draw(self, random: &mut Random) -> Kind {
        match self {
            Kind::Mixed => match random.below(20) {
                0..10 => Kind::Get,
                10..15 => Kind::Put,
                15..19 => Kind::Head,
                _ => Kind::List,
            },
            one => one,
        }
    }
}

/// The pace of load: how long it runs, and how much of it there has to be.
#[derive(Clone, Copy)]
pub struct Pace {
    pub windows: Windows,
    /// A window goes on until each client has had an answer, for so long at most.
    pub longest: Duration,
}

/// The measurements of windows of one target.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub operations: u64,
    /// The number of requests that were answered with 503, in warm-ups too.
    pub refused: u64,
    pub seconds: f64,
    /// The latencies in microseconds, sorted.
    latencies: Vec<u32>,
    /// Seconds of processor time, by process.
    pub cpu: Vec<(&'static str, f64)>,
    pub clients_cpu: f64,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    pub fn percentile_ms(&self, share: f64) -> f64 {
        let nth = (self.latencies.len() as f64 * share) as usize;
        let nth = nth.min(self.latencies.len().saturating_sub(1));
        self.latencies.get(nth).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
    }

    pub fn ms_per_operation(&self, seconds: f64) -> f64 {
        seconds * 1e3 / self.operations as f64
    }

    /// The processor time of all processes of the target.
    pub fn cpu_ms(&self) -> f64 {
        self.ms_per_operation(self.cpu.iter().map(|(_, seconds)| seconds).sum())
    }

    /// Adds another window of the same target.
    pub fn add(&mut self, other: Measured) {
        self.operations += other.operations;
        self.refused += other.refused;
        self.seconds += other.seconds;
        self.clients_cpu += other.clients_cpu;
        self.latencies.extend(other.latencies);
        self.latencies.sort_unstable();
        if self.cpu.is_empty() {
            self.cpu = other.cpu;
        } else {
            self.cpu.iter_mut().zip(other.cpu).for_each(|(mine, (_, seconds))| mine.1 += seconds);
        }
    }
}

/// Runs one window of load on a target that was filled with objects of this size.
pub fn run(
    target: &Target,
    kind: Kind,
    size: &Size,
    clients: usize,
    objects: &Objects,
    pace: Pace,
) -> anyhow::Result<Measured> {
    let window = Window::new();
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let client = |seed: usize| {
            let (window, ended) = (&window, &ended);
            scope.spawn(move || {
                let worked = Client::new(target, size, objects, seed)?.work(kind, window, ended);
                if worked.is_err() {
                    window.end();
                }
                worked
            })
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        std::thread::sleep(pace.windows.warm_up);
        let (cpu, clients_cpu, began) = (cpu_seconds(target), own_cpu_seconds(), Instant::now());
        ended.store(0, Ordering::Relaxed);
        window.count();
        std::thread::sleep(pace.windows.measured);
        while ended.load(Ordering::Relaxed) < clients as u64
            && began.elapsed() < pace.longest
            && !window.is_over()
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        window.end();
        let mut measured = Measured {
            seconds: began.elapsed().as_secs_f64(),
            clients_cpu: own_cpu_seconds() - clients_cpu,
            cpu: cpu_seconds(target),
            ..Measured::default()
        };
        measured.cpu.iter_mut().zip(cpu).for_each(|(after, (_, before))| after.1 -= before);
        for thread in threads {
            let (latencies, refused) = thread.join().expect("clients do not panic")?;
            measured.latencies.extend(latencies);
            measured.refused += refused;
        }
        measured.operations = measured.latencies.len() as u64;
        measured.latencies.sort_unstable();
        ensure!(measured.operations > 0, "{} answered nothing within {:?}", target.name, pace.longest);
        Ok(measured)
    })
}

/// A client that makes one request after the other on one connection.
pub(super) struct Client<'a> {
    target: &'a Target,
    size: &'a Size,
    objects: &'a Objects,
    connection: Connection,
    random: Random,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        target: &'a Target,
        size: &'a Size,
        objects: &'a Objects,
        seed: usize,
    ) -> anyhow::Result<Client<'a>> {
        let connection = target.connect()?;
        Ok(Client { target, size, objects, connection, random: Random::new(seed as u64) })
    }

    /// The latencies of operations that ended while they counted, and the number of those that were refused.
    fn work(mut self, kind: Kind, window: &Window, ended: &AtomicU64) -> anyhow::Result<(Vec<u32>, u64)> {
        let (mut latencies, mut refused) = (Vec::new(), 0);
        while !window.is_over() {
            let one = kind.draw(&mut self.random);
            let begun = Instant::now();
            match self.operate(one) {
                Ok(()) => {
                    window.note(begun, &mut latencies);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                // The refusal of a body that was not read ends the connection.
                Err(failure) if failure.is::<Refused>() => {
                    refused += 1;
                    self.connection = self.target.connect()?;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok((latencies, refused))
    }

    pub(super) fn operate(&mut self, kind: Kind) -> anyhow::Result<()> {
        match kind {
            Kind::Put => self.put(),
            Kind::Get => self.get(),
            Kind::Head => self.head(),
            Kind::List => self.list(),
            Kind::Mixed => unreachable!("one is drawn of it"),
        }
    }

    fn put(&mut self) -> anyhow::Result<()> {
        let number = self.objects.next_number();
        let path = format!("/{}/put-{}/{number:08}", self.target.bucket, self.size.name);
        let body = self.objects.body(self.size, number);
        self.connection.ask(put(&path, body.len()), body, |_, _| Ok(())).map(drop)
    }

    fn get(&mut self) -> anyhow::Result<()> {
        let number = self.random.below(self.size.kept);
        let expected = self.objects.body(self.size, number);
        let compared = self.random.below(COMPARED_EVERY) == 0;
        let path = self.target.kept(self.size, number);
        let asked = Asked { method: "GET", path: &path, query: "", body_bytes: 0 };
        let bytes = self.connection.ask(asked, b"", |at, part| {
            let same = !compared || expected.get(at..at + part.len()) == Some(part);
            ensure!(same, "what came at {at} is not what was written");
            Ok(())
        })?;
        ensure!(bytes == expected.len(), "{bytes} bytes of {}", expected.len());
        Ok(())
    }

    fn head(&mut self) -> anyhow::Result<()> {
        let path = self.target.kept(self.size, self.random.below(self.size.kept));
        let asked = Asked { method: "HEAD", path: &path, query: "", body_bytes: 0 };
        let bytes = self.connection.ask(asked, b"", |_, _| Ok(()))?;
        ensure!(bytes == self.size.bytes, "{bytes} bytes of {}", self.size.bytes);
        Ok(())
    }

    /// Lists a page that begins anywhere but at the end.
    fn list(&mut self) -> anyhow::Result<()> {
        let first = self.random.below(self.size.kept.saturating_sub(LISTED).max(1));
        let path = format!("/{}", self.target.bucket);
        let name = self.size.name;
        let after = format!("kept-{name}%2F{first:08}");
        let query = format!("list-type=2&max-keys={LISTED}&prefix=kept-{name}%2F&start-after={after}");
        let mut keys = 0;
        let mut text = Vec::new();
        self.connection.ask(
            Asked { method: "GET", path: &path, query: &query, body_bytes: 0 },
            b"",
            |_, part| {
                text.extend_from_slice(part);
                Ok(())
            },
        )?;
        let mut rest = &text[..];
        while let Some(at) = rest.windows(5).position(|five| five == b"<Key>") {
            keys += 1;
            rest = &rest[at + 5..];
        }
        let expected = LISTED.min(self.size.kept - 1 - first);
        ensure!(keys == expected, "{keys} keys of {expected}");
        Ok(())
    }
}
