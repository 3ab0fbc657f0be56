use crate::idle::{Mode, NodePlan};
use crate::usage::Usage;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// The time for elections: longer than 200 groups need to elect their leaders on a busy machine.
const SETTLE_MAX: Duration = Duration::from_secs(120);
/// The time after which first heartbeats and what follows on elections are over.
const WARM_UP: Duration = Duration::from_secs(5);

pub struct Plan {
    pub groups: u64,
    pub measured: Duration,
    /// Whether to say the process ids before measuring, for a profiler.
    pub is_held: bool,
}

/// A node's process and the pipes to it. Ends when it is dropped.
struct Node {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Node {
    fn start(plan: &NodePlan) -> Node {
        let program = std::env::current_exe().expect("know where this bench is");
        let mut child = Command::new(program)
            .args(plan.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a node");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut node = Node { child, input, output };
        assert_eq!(node.hear(), "started");
        node
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_ref().expect("open until dropped"), "{line}").expect("the node listens");
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the node answers");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> Value {
        self.say(line);
        serde_json::from_str(&self.hear()).expect("the node answers in JSON")
    }

    fn count(&mut self, what: &str) -> u64 {
        self.ask("status")[what].as_u64().expect("a count")
    }

    fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Measures three nodes with all groups, at rest; then with a command in each group.
pub fn run_mode(mode: Mode, plan: &Plan) -> Value {
    let dir = tempfile::tempdir().expect("make a temporary directory");
    let ports = free_ports();
    let mut nodes: Vec<_> = (0..NODES)
        .map(|node| {
            let dir = dir.path().join(format!("node-{node}"));
            std::fs::create_dir(&dir).expect("make a node's directory");
            Node::start(&NodePlan { mode, node, ports: ports.clone(), groups: plan.groups, dir })
        })
        .collect();
    let empty: Vec<_> = nodes.iter().map(Node::usage).collect();
    // The first group brings tables and threads that all groups share.
    open(&mut nodes, "open first");
    settle(&mut nodes, mode, 1);
    let with_one: Vec<_> = nodes.iter().map(Node::usage).collect();
    for (n, (with_one, empty)) in with_one.iter().zip(&empty).enumerate() {
        let mib = |usage: &Usage| usage.resident_bytes as f64 / f64::from(1 << 20);
        println!(
            "{}, node {n}: {:.1} MiB with one group, {:.1} without",
            mode.name(),
            mib(with_one),
            mib(empty)
        );
    }

    open(&mut nodes, "open rest");
    settle(&mut nodes, mode, plan.groups);
    let rest = measure(&mut nodes, &with_one, mode.name(), plan);

    let touched: Vec<_> = nodes.iter_mut().map(|node| node.ask("touch")).collect();
    println!("a command in each group: {}", json!(touched));
    settle(&mut nodes, mode, plan.groups);
    let after = measure(&mut nodes, &with_one, "after a command in each group", plan);
    let first_group_bytes = with_one[0].resident_bytes - empty[0].resident_bytes;
    json!({"mode": mode.name(), "first_group_bytes": first_group_bytes, "rest": rest, "touched": touched, "after_touch": after})
}

fn open(nodes: &mut [Node], which: &str) {
    nodes.iter_mut().for_each(|node| node.say(which));
    nodes.iter_mut().for_each(|node| assert_eq!(node.hear(), "opened"));
}

fn free_ports() -> Vec<u16> {
    let listeners: Vec<_> =
        (0..NODES).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("a bound address").port()).collect()
}

/// Waits until all groups have leaders, and doze where they should.
fn settle(nodes: &mut [Node], mode: Mode, groups: u64) {
    let deadline = Instant::now() + SETTLE_MAX;
    let dozing = if mode == Mode::Dozing { groups } else { 0 };
    for node in nodes.iter_mut() {
        while node.count("led") < groups || node.count("dozing") < dozing {
            assert!(Instant::now() < deadline, "groups do not settle: {}", node.ask("status"));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    std::thread::sleep(WARM_UP);
}

fn measure(nodes: &mut [Node], with_one: &[Usage], title: &str, plan: &Plan) -> Value {
    if plan.is_held {
        println!("{title}: processes {:?}", nodes.iter().map(|node| node.child.id()).collect::<Vec<_>>());
    }
    let requests: Vec<_> = nodes.iter_mut().map(|node| node.count("requests")).collect();
    let before: Vec<_> = nodes.iter().map(Node::usage).collect();
    std::thread::sleep(plan.measured);
    let figures = nodes.iter_mut().enumerate().map(|(n, node)| {
        let usage = node.usage();
        let rates = usage.since(&before[n]);
        let status = node.ask("status");
        let requests = status["requests"].as_u64().expect("a count") - requests[n];
        let requests_per_second = requests as f64 / rates.over.as_secs_f64();
        let resident_bytes = usage.resident_bytes.saturating_sub(with_one[n].resident_bytes);
        let kib_per_group = resident_bytes as f64 / 1024.0 / (plan.groups - 1) as f64;
        println!(
            "{title}, node {n}: {:.2} % of a core, {kib_per_group:.1} KiB a group, \
             {requests_per_second:.1} requests and {:.0} wakeups a second, {} of {} groups doze, leads {}",
            rates.cpu_percent, rates.wakeups_per_second, status["dozing"], plan.groups, status["leads"],
        );
        json!({
            "cpu_percent": rates.cpu_percent,
            "kib_per_group": kib_per_group,
            "requests_per_second": requests_per_second,
            "wakeups_per_second": rates.wakeups_per_second,
            "dozing": status["dozing"],
            "leads": status["leads"],
        })
    });
    Value::Array(figures.collect())
}
