//! The most that disks take while the same objects are written again and again.

use super::cluster::SpaceCluster;
use super::plan::{CONTAINER_BYTES_MAX, KIB, Plan, REPLICAS, objects};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::time::Instant;

const OVERWRITES: u64 = 10;

pub(super) fn run(plan: &Plan) -> anyhow::Result<Value> {
    let cluster = SpaceCluster::start(plan.reclaim_after, CONTAINER_BYTES_MAX);
    let small = objects(plan.small, 4 * KIB);
    let again = format!("objects {small} --clients 64");
    cluster.load(&again)?;
    let (first, peak) = (cluster.disks().bytes(), cluster.disks().peak());
    let begun = Instant::now();
    for _ in 0..OVERWRITES {
        cluster.load(&again)?;
    }
    let took = begun.elapsed();
    let live_bytes = plan.small * 4 * KIB * REPLICAS;
    let check = cluster.load(&format!("check {small} --stays 1 --clients 16"));
    check.context("what was overwritten is not what it should be")?;
    let most = peak.bytes();
    ensure!(most > 0, "nobody looked");
    let figures = json!({
        "objects": plan.small, "times": OVERWRITES, "seconds": took.as_secs_f64(), "live_bytes": live_bytes,
        "first_of_live": first as f64 / live_bytes as f64, "most_of_live": most as f64 / live_bytes as f64,
    });
    Ok(figures)
}
