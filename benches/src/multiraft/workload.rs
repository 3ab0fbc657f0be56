use super::gateway::Gateway;
use super::time::SLOWED;
use disk::sim::Random;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

const OBJECT_BYTES_MIN: f64 = 1024.0;
const OBJECT_BYTES_MAX: f64 = (64 << 20) as f64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Objects arrive whatever becomes of those before them (Poisson), at so many bytes a second on average.
    Open { bytes_per_second: u64 },
    /// So many writers, each with one object after another: as much as the cluster takes.
    Closed { writers: usize },
}

impl Load {
    /// Writes objects until `end`, and waits for the last one. The seed decides when they come and how large
    /// they are; the logs have no influence on that, so all configurations get the same ones.
    pub(super) async fn run(self, gateway: Arc<Gateway>, seed: u64, end: Instant) {
        let mut writing = JoinSet::new();
        match self {
            Load::Open { bytes_per_second } => {
                let mut random = Random::new(seed);
                let seconds_between = mean_object_bytes() / bytes_per_second as f64 * f64::from(SLOWED);
                let mut arrival = Instant::now();
                loop {
                    arrival += Duration::from_secs_f64(-uniform(&mut random).ln() * seconds_between);
                    if arrival >= end {
                        break;
                    }
                    let bytes = object_bytes(&mut random);
                    sleep_until(arrival).await;
                    let gateway = gateway.clone();
                    writing.spawn(async move { gateway.write_object(bytes).await });
                    while writing.try_join_next().is_some() {}
                }
            }
            Load::Closed { writers } => {
                for writer in 0..writers as u64 {
                    let mut random = Random::new(seed ^ (writer << 32));
                    let gateway = gateway.clone();
                    writing.spawn(async move {
                        while Instant::now() < end {
                            gateway.write_object(object_bytes(&mut random)).await;
                        }
                    });
                }
            }
        }
        while let Some(written) = writing.join_next().await {
            written.expect("writers do not panic");
        }
    }
}

/// A random size, log-uniform: as many objects between 1 and 2 KiB as between 32 and 64 MiB. Nearly all bytes
/// are in large ones.
fn object_bytes(random: &mut Random) -> u64 {
    (OBJECT_BYTES_MIN * (OBJECT_BYTES_MAX / OBJECT_BYTES_MIN).powf(uniform(random))) as u64
}

fn mean_object_bytes() -> f64 {
    (OBJECT_BYTES_MAX - OBJECT_BYTES_MIN) / (OBJECT_BYTES_MAX / OBJECT_BYTES_MIN).ln()
}

/// A random number in (0, 1].
fn uniform(random: &mut Random) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_as_large_on_average_as_the_load_is_computed_with() {
        let mut random = Random::new(1);
        let count = 200_000;
        let sizes: Vec<u64> = (0..count).map(|_| object_bytes(&mut random)).collect();
        assert!(sizes.iter().all(|bytes| (1024..=64 << 20).contains(bytes)));
        let mean = sizes.iter().sum::<u64>() as f64 / count as f64;
        assert!((mean / mean_object_bytes() - 1.0).abs() < 0.02, "{mean} and {}", mean_object_bytes());
    }
}
