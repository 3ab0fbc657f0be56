//! How soon and at what cost deleted bytes come back on a whole cluster of processes. Ends with one line of
//! JSON. `./dev bench space [--quick] [--only=deleted|overwritten|compacted] [--small=N] [--large=N]
//! [--reclaim-after=SECONDS]`

use flotilla_benches::space::{Part, Plan};
use serde_json::{Map, json};
use std::time::Duration;

fn plan_of(arguments: &[String]) -> Result<(Plan, Vec<Part>), String> {
    let mut plan = Plan { small: 200_000, large: 20_000, reclaim_after: Duration::from_secs(10) };
    let mut parts = Part::ALL.to_vec();
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
    for argument in arguments {
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        match (name, value) {
            ("--quick", "") => (plan.small, plan.large) = (20_000, 2_000),
            ("--only", value) => {
                let named = Part::ALL.into_iter().find(|part| part.name() == value);
                parts = vec![named.ok_or_else(|| format!("there is no part `{value}`"))?];
            }
            ("--small", value) => plan.small = number(value)?,
            ("--large", value) => plan.large = number(value)?,
            ("--reclaim-after", value) => plan.reclaim_after = Duration::from_secs(number(value)?),
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    Ok((plan, parts))
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (plan, parts) = plan_of(&arguments).unwrap_or_else(|wrong| {
        eprintln!("{wrong}");
        std::process::exit(2);
    });
    let mut line = Map::from_iter([("bench".into(), json!("space")), ("arguments".into(), json!(arguments))]);
    for part in parts {
        let figures = part.run(&plan)?;
        println!("{}: {figures:#}", part.name());
        line.insert(part.name().into(), figures);
    }
    println!("{}", serde_json::Value::from(line));
    Ok(())
}
