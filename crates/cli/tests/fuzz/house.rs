use crate::processes::{Door, Processes};
use crate::reach::{Reach, channel};
use crate::s3::S3;
use crate::watch::Watch;
use crate::wire::{cluster_of, datanodes};
use std::time::{Duration, Instant};

/// What strangers find, so that they can name it; the honest client has a bucket of its own.
pub(crate) const STRANGERS_BUCKET: &str = "strangers";
pub(crate) const STRANGERS_KEYS: &[&str] = &["key-0", "key-1", "a/b/c"];
const HONEST_BUCKET: &str = "honest";

const STARTED_MAX: Duration = Duration::from_secs(120);
/// An honest client is served by then, on a machine that stands still now and again; containers and pipelines
/// that a stranger had closed are replaced before.
const SERVED_MAX: Duration = Duration::from_secs(120);
/// The most memory of a process, of which a debug build was seen with 124 MiB: messages come one after the
/// other, at most 48 wait, and few have more than 16 KiB.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// For as long processes are watched that are not ready after a restart, as may be where strangers could do
/// anything.
const RESTART_WATCHED: Duration = Duration::from_secs(5);

/// A whole cluster, with something in it.
pub(crate) struct House {
    processes: Processes,
    pub(crate) watch: Watch,
    s3: S3,
    honest: S3,
    pub(crate) reach: Reach,
    pub(crate) cluster: String,
    rounds: u64,
}

impl House {
    pub(crate) async fn start(start: fn() -> Processes) -> House {
        let processes = on_a_thread(start).await;
        let watch = processes.watch(1, MEMORY_BYTES_MAX);
        let [s3, honest] = clients(&processes.door());
        let cluster = cluster_of(channel(processes.scm())).await.expect("it tells its name");
        let reach = processes.reach(&[]);
        let mut house = House { processes, watch, s3, honest, reach, cluster, rounds: 0 };
        within(STARTED_MAX, async || house.furnish().await).await.expect("it gets ready");
        let datanodes = datanodes(house.reach.serving("/flotilla.scm.v1.Scm/"), &house.cluster).await;
        house.reach = house.processes.reach(&datanodes);
        house
    }

    /// Puts what strangers can name, which they may have deleted.
    pub(crate) async fn furnish(&self) -> Result<(), String> {
        make(&self.s3).await?;
        for key in STRANGERS_KEYS {
            self.s3.put(key, vec![7; 3000]).await?;
        }
        let upload = self.s3.begin_upload("upload").await?;
        self.s3.put_part("upload", &upload, 1, vec![7; 3000]).await
    }

    /// Puts, gets and lists an object as one does who knows nothing of strangers.
    pub(crate) async fn serves(&mut self) -> Result<(), String> {
        self.rounds += 1;
        let (key, body) = (format!("honest-{}", self.rounds), vec![self.rounds as u8; 70_000]);
        within(SERVED_MAX, async || {
            // A stranger may delete it, as he may anything.
            make(&self.honest).await?;
            self.honest.put(&key, body.clone()).await.map_err(|why| format!("put: {why}"))?;
            match self.honest.get(&key).await.map_err(|why| format!("get: {why}"))? {
                Some(got) if got == body => {}
                got => return Err(format!("get: {:?} bytes", got.map(|got| got.len()))),
            }
            let list = reqwest::get(self.honest.list_url()).await.map_err(|why| format!("list: {why}"))?;
            let listed = list.text().await.map_err(|why| format!("list: {why}"))?;
            listed.contains(&key).then_some(()).ok_or_else(|| format!("list: {listed}"))
        })
        .await
        .map_err(|why| format!("an honest client is not served within {SERVED_MAX:?}: {why}"))
    }

    /// Kills the processes, and has them start from what is on their disks. Answers the most memory that one
    /// had.
    pub(crate) async fn starts_again(mut self, must_serve: bool) -> Result<u64, String> {
        let peak_bytes = self.watch.peak_bytes;
        self.processes.start_again();
        self.watch = self.processes.watch(2, MEMORY_BYTES_MAX);
        self.watch.peak_bytes = peak_bytes;
        if must_serve {
            let mut processes = self.processes;
            self.processes = on_a_thread(move || {
                processes.wait_ready();
                processes
            })
            .await;
            [self.s3, self.honest] = clients(&self.processes.door());
            self.serves().await?;
        }
        let until = Instant::now() + if must_serve { Duration::ZERO } else { RESTART_WATCHED };
        loop {
            self.watch.look().map_err(|why| format!("after a restart: {why}"))?;
            if Instant::now() >= until {
                return Ok(self.watch.peak_bytes);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Waits for processes on a thread of its own: others have theirs to wait for.
async fn on_a_thread(wait: impl FnOnce() -> Processes + Send + 'static) -> Processes {
    tokio::task::spawn_blocking(wait).await.expect("they get ready")
}

fn clients(door: &Door) -> [S3; 2] {
    [STRANGERS_BUCKET, HONEST_BUCKET]
        .map(|bucket| S3::new(&door.endpoint, &door.access_key, &door.secret_key, bucket))
}

async fn make(s3: &S3) -> Result<(), String> {
    match s3.create_bucket().await {
        Err(why) if !why.contains("BucketAlreadyOwnedByYou") => Err(format!("a bucket: {why}")),
        _ => Ok(()),
    }
}

async fn within(time: Duration, holds: impl AsyncFn() -> Result<(), String>) -> Result<(), String> {
    let give_up = Instant::now() + time;
    loop {
        match tokio::time::timeout_at(give_up.into(), holds()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) if Instant::now() >= give_up => return Err(why),
            Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(_) => return Err("no answer".to_owned()),
        }
    }
}
