//! The time that a MiB of each body takes, by how many bodies go side by side.

use bytes::Bytes;
use flotilla_md5many::{Md5, Md5Many};
use tokio::time::Instant;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    let bytes: Bytes = (0..16usize << 20).map(|at| (at * 31 + (at >> 8)) as u8).collect();
    let begun = Instant::now();
    let mut alone = Md5::default();
    alone.update(&bytes);
    println!("alone, on this thread: {:.2} ms", begun.elapsed().as_secs_f64() * 1000.0 / 16.0);
    let expected = alone.finish();
    for bodies in [1, 2, 4, 8, 16] {
        let many = Md5Many::default();
        let begun = Instant::now();
        let found = runtime.block_on(async {
            let all: Vec<_> = (0..bodies).map(|_| many.update(Md5::default(), bytes.clone())).collect();
            let mut found = Vec::new();
            for pending in all {
                found.push(pending.await.expect("it goes on").finish());
            }
            found
        });
        let each = begun.elapsed().as_secs_f64() * 1000.0 / 16.0 / f64::from(bodies);
        assert!(found.iter().all(|found| *found == expected));
        println!("{bodies:2} side by side: {each:.2} ms for a MiB of each");
    }
}
