//! The cost of idle groups: three real processes, a member of each group in each of them. Ends with one line
//! of JSON. `./dev bench idle [--groups=N] [--seconds=N] [--modes=awake,dozing] [--hold]`

use flotilla_benches::idle::{Mode, NodePlan, Plan, run_mode, run_node};
use serde_json::json;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(plan) = NodePlan::of(&arguments) {
        return run_node(plan);
    }
    let value = |name: &str| {
        let prefix = format!("--{name}=");
        arguments.iter().find_map(|argument| argument.strip_prefix(&prefix))
    };
    let number = |name: &str, default: u64| {
        value(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("--{name} is a number")))
    };
    let plan = Plan {
        groups: number("groups", 200),
        measured: Duration::from_secs(number("seconds", 20)),
        is_held: arguments.iter().any(|argument| argument == "--hold"),
    };
    let modes: Vec<Mode> = value("modes").unwrap_or("awake,dozing").split(',').map(Mode::of).collect();
    let figures: Vec<_> = modes.into_iter().map(|mode| run_mode(mode, &plan)).collect();
    println!(
        "{}",
        json!({"bench": "idle", "groups": plan.groups, "seconds": plan.measured.as_secs(), "figures": figures})
    );
}
