//! Appends to 1, 8 and 64 logs on the real disk, ours beside raft-engine, RocksDB's WAL and raw system calls.
//! Ends with one line of JSON. `./dev bench wal [--quick] [--only=raw,raftlog] [part of a case's name, as
//! 64x4KiB/16]`

use flotilla_benches::wal::{CONTENDERS, Case, Plan, report, run_case};
use serde_json::json;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let filter = arguments.iter().find(|argument| !argument.starts_with("--"));
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("--only="));
    let known = |argument: &&String| *argument == "--quick" || argument.starts_with("--only=");
    if let Some(unknown) = arguments.iter().filter(|a| a.starts_with("--")).find(|argument| !known(argument))
    {
        refuse(&format!("unknown argument {unknown}"));
    }
    let names: Vec<&str> = only.map_or(CONTENDERS.to_vec(), |names| names.split(',').collect());
    if let Some(unknown) = names.iter().find(|name| !CONTENDERS.contains(name)) {
        refuse(&format!("no contender is called {unknown}; there are {}", CONTENDERS.join(" ")));
    }
    let plan = if quick { Plan::QUICK } else { Plan::FULL };
    let mut figures = Vec::new();
    let mut cases = Case::all();
    cases.retain(|case| filter.is_none_or(|filter| case.name().contains(filter.as_str())));
    if cases.is_empty() {
        let names: Vec<_> = Case::all().iter().map(Case::name).collect();
        refuse(&format!("no case has such a name; there are {}", names.join(" ")));
    }
    for case in cases {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        figures.push(report(case, &run_case(case, plan, &names, dir.path())));
    }
    println!("{}", json!({"bench": "wal", "quick": quick, "figures": figures}));
}

fn refuse(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(2);
}
