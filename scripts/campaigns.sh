# shellcheck shell=bash
# Campaigns, which look for bugs for as long as one likes: ./dev crash, fuzz, drill, sim. Sourced by ./dev.

help_crash() {
    cat <<'HELP'
usage: ./dev crash [logs|containers] [--points N] [--seed S]

logs: runs random histories of many logs on a simulated disk, crashes them at N points (10000 when not given) before or after some
write or sync, also during recovery, and checks what is left against a model.
containers: as long as points are left (1000 when not given), a closed container of random blocks is discarded from and compacted,
one after the other and at the same time, and crashed at random steps of that, of the start after it, and of a rebuild of its
index; its blocks must be what they are to be, a rebuilt index the one that was there, and its hash that of a container that was
never compacted.
Without a word: both. Each begins with seed S (1 when not given); its last line is JSON: points, seeds, crashes, seconds. The first
violation stops it and names its seed; --points 1 --seed S runs that seed alone. The whole suites, planted bugs included:
./dev test raftlog/crash and ./dev test 'datanode compaction'
HELP
}

verb_crash() {
    local points='' seed=1 part=''
    while [[ $# -gt 0 ]]; do
        case $1 in
        logs | containers)
            [[ -z $part ]] || usage_error crash "one of them, or both"
            part=$1
            shift
            ;;
        --points | --seed)
            [[ ${2:-} =~ ^[0-9]{1,18}$ ]] || usage_error crash "$1 needs a number"
            [[ $1 == --points ]] && points=$2 || seed=$2
            shift 2
            ;;
        *) usage_error crash "what is '$1'?" ;;
        esac
    done
    ensure_build_environment
    cd "$root"
    scratch=$(mktemp -d)
    [[ $part == containers ]] || crash_campaign "${points:-10000}" "$seed" --test crash -- --exact campaign::campaign
    [[ $part == logs ]] || crash_campaign "${points:-1000}" "$seed" \
        --lib -- --exact compaction::crash_tests::campaign::campaign
}

# crash_campaign POINTS SEED WHAT...: everything but the result goes to stderr; libtest has its own last lines.
crash_campaign() {
    local points=$1 seed=$2 report=$scratch/crash.log
    shift 2
    FLOTILLA_CRASH_POINTS=$points FLOTILLA_CRASH_SEED=$seed \
        cargo test --locked --workspace "$@" --nocapture 2>&1 | tee "$report" >&2
    # libtest begins the line with the test's name.
    grep -oE '\{"points".*' "$report" || die "the campaign ended without a result"
}

help_fuzz() {
    cat <<'HELP'
usage: ./dev fuzz [log|messages|frames|handlers|om|s3] [--minutes N | --cases N] [--seed S]

For N minutes (1 when not given): decodes records and hard states that were damaged, cut, spliced or made up, with checksums
that fit or do not; damages whole data directories at rest and opens them; and lets the inspect tool look at all of it. Nothing
may panic, believe a length, change a file by looking, return wrong bytes, or silently lose what was durable. As long again it
decodes messages that strangers may send to each gRPC method: none may take more memory than its method's limits come to. As long
again it sends frames of strangers to a gRPC port: it is served on, and an honest caller is answered. And as long again it gives
the S3 gateway requests, chunked bodies, forms, ranges and documents: nothing passes that says something else than was
signed, no body of a stranger is read, what comes out of chunks is what was put in. As long again it says what is
nearly right to the handlers of all gRPC methods: to `flotilla dev` what ends nothing, and an honest client puts, gets and lists
in between; to clusters of eight processes, which are thrown away, anything. None ends, panics, takes much memory, or leaves a call without
an answer, nor when they start again from their disks. With --cases it gives the log engine, gRPC, its port, its handlers, and each of the
gateway's five targets, N inputs instead, however long that takes (docs/security.md). Begins with seed S (1 when not given). Prints each finding with its replay, stops after five of them (of frames, after one); the last lines
are JSON, one for each of the five: cases, seed, seeds, minutes, findings, targets. The exit status is 0 only without findings. --minutes 0 --seed S
runs seed S alone. With a word it tries only the log engine, messages, frames, handlers, the handlers of names (om), or the gateway.
The whole suite, planted bugs included:  ./dev test /fuzz
HELP
}

verb_fuzz() {
    local minutes=1 cases="" seed=1 report status=0 part=""
    local -a tried=(--workspace)
    while [[ $# -gt 0 ]]; do
        case $1 in
        log | messages | frames | handlers | om | s3)
            [[ -z $part ]] || usage_error fuzz "one of them, or all"
            part=$1
            shift
            ;;
        --minutes | --cases | --seed)
            [[ ${2:-} =~ ^[0-9]{1,18}$ ]] || usage_error fuzz "$1 needs a number"
            case $1 in
            --minutes) minutes=$2 ;;
            --cases) cases=$2 ;;
            --seed) seed=$2 ;;
            esac
            shift 2
            ;;
        *) usage_error fuzz "what is '$1'?" ;;
        esac
    done
    ensure_build_environment
    cd "$root"
    scratch=$(mktemp -d)
    report=$scratch/fuzz.log
    # Everything but the result goes to stderr; libtest has its own last lines.
    [[ -z $cases ]] || export FLOTILLA_FUZZ_CASES=$cases
    case $part in
    log) tried=(--package flotilla-raftlog) ;;
    messages) tried=(--package flotilla-proto) ;;
    frames) tried=(--package flotilla-rpc) ;;
    handlers | om) tried=(--package flotilla-cli) ;;
    s3) tried=(--package flotilla-s3gw) ;;
    esac
    FLOTILLA_FUZZ_PART=$part FLOTILLA_FUZZ_MINUTES=$minutes FLOTILLA_FUZZ_SEED=$seed \
        cargo test --locked "${tried[@]}" --test fuzz -- --exact campaign::campaign --nocapture 2>&1 | tee "$report" >&2 || status=$?
    # libtest begins the line with the test's name.
    grep -oE '\{"cases".*' "$report" || die "the fuzzer ended without a result"
    return "$status"
}

help_drill() {
    cat <<'HELP'
usage: ./dev drill raft|cluster|doors [--repeat N] [--only NAME]
       ./dev drill space|om [--minutes N] [--seed S]
       ./dev drill clients

raft: processes with Raft groups on this machine, reaching each other through proxies that hold back or cut what they say, under
load: a node cut off from all, a node that does not hear the leader, kill -9 of leaders, a rolling restart,
two of three nodes lost and the third made the only member by force (`flotilla debug unsafe-reset-membership`), not
while they only hang, and the lost ones coming back. Checks that no
healthy leader is deposed, that successors come within the bound that the settings imply, that nothing acknowledged is lost and nothing
is done twice, that a rolling restart fails no write and makes no group stand still, that no group fails and no process panics, and
that the one that is left has all it had. Each N times (1 when not given), a quarter of a minute each.
The last line is JSON: runs, failures, failover times, acknowledged writes. The exit status is 0 only without failures.
The same as tests, once each:  ./dev test kvnode/drills

cluster: SCM, OM, three to five datanodes and a gateway as processes, under load from S3, lose something: lost-node (kill -9 of a datanode for good, then
another one is decommissioned), lost-majority (two datanodes for good, `accept-loss`), lost-good (two of three for good, after they closed what the third one lacks), pulled-disk (its directory is removed, under a running and under a stopped datanode), corruption (a bit
changes in a closed segment), bad-everywhere (in each of three replicas, in different blocks), full-disk, full-store (all of them at once) and read-only-disk (an ext4 of its own, where this may be mounted), power-cut (kill -9 of everything at once, and the disks of datanodes lose what was not synced, where a file system of their own may be mounted),
lost-scm, lost-scm-leader (of three, and a datanode with it), lost-scm-tail (a forced reset from a member that was away), lost-log (a member's
`hard-state`, while another one is away for longer than SCM waits), cut-leader (with chunks that nobody acknowledges, then it is the only one that is left), old-copy (of a disk, beside a member that was away: they lead without the one that has more), old-copies (the same with many
small containers: the others have never heard of some), old-copy-led (the same, and the others begin a term of the same number), full-follower (for good; then a node is lost), full-and-lost (both at once: nobody can commit), two-left (of three; then an empty third one comes),
two-left-and-full (a full disk in place of the lost node), wiped-node (empty again at its old address),
failed-sync (a block device that fails some writes, a restart, a loss of power; where this may be mounted), broken-path (a datanode that the gateway alone cannot reach), stuck-pipelines (four whose leader is left alone, beside one that works), cut-off (a datanode hears SCM and no other datanode), known-dead (a dead node when SCM's leader is killed), hanging-disk (what is written there waits; where a file system may be mounted and frozen),
ready-or-not (two of three datanodes go, then all: what the lights say) and two-clusters (a client between two), which check that alone.
Checks that writers notice nothing and are never without an acknowledgement for 3 s, as far as a majority is there, that pipelines are replaced, that every closed container
has three good replicas again, and that every acknowledged object reads back right, during the trouble and after it.
All of them N times (1 when not given), or the one called NAME; a minute each. The last line is JSON: runs, objects, what failed, what was skipped, and
for each drill the longest times. The exit status is 0 only without failures. Five of them are tests:  ./dev test 'cli/processes cluster::'

doors: tries from outside, against a cluster of processes, each door that was open once (unsigned headers that change a request, signatures of Version 2, bodies
and messages that take memory without end, a term that ends all elections, pages in a browser, files, logs, terminals, what was answered with success and did something else), with a line
for each: 'shut  NAME: what was seen' or 'OPEN  NAME: what was let in'; or the one called NAME, and no more. When all are shut, strangers at the gateway in front of a cluster, one crowd after the other: 1 500 requests that stop half-way, 1 000 readers of a byte
a second, 10 000 idle connections (as many as a quarter of the open files has room for, and says so), and nobody, each coming and going 21 times; then garbage
at S3, HTTP, gRPC and DNS, and huge heads, forms and bodies that lie at S3. All through it one client puts and gets 4 KiB: no request of it may fail, all stays ready, what was held is let go of, and
its p99 beside a crowd is at most 1.5 times that of the seconds just before the crowd came (all requests of its rounds together; not beside garbage, which is work; beside nobody it
says what the machine does by itself). N times (1 when not given), a quarter of an hour each. The last line is JSON: for each door whether it is shut, and what was seen; for each crowd p50 and p99 of the honest client with and without it, their ratios, the gateway's memory, open files.
All doors, and small crowds, as tests:  ./dev test 'cli/processes strangers::'

space: for N minutes (5 when not given) clients write, overwrite, delete and read objects and begin uploads that end nowhere, while gateways (in the middle of their
PUTs), OM, SCMs and datanodes are killed with -9 and come back, and a datanode's disk (where it may have a file system of its own) fills, and loses
what was not synced with its power. No read may have other bytes than the name may have. Then nine of ten names are deleted: all of it must go,
and what stays must be there to the byte. S chooses who is killed when. The last line is JSON: operations, kills, what is left on the disks, of what is live.
For some seconds, as a test:  ./dev test 'cli/processes space_drill::'

om: for N minutes (5 when not given) clients make and delete buckets, and put (on conditions too), read, list and delete one key in each, while the buckets move from group
to group and the three OMs are killed with -9 or stand still. Each bucket's history of questions and answers must be one that could have happened (Wing and Gong's search).
The last line is JSON: calls, histories, harm, moves, the longest call. For some seconds, as a test:  ./dev test 'cli/processes om_drill::'

clients: the stock S3 clients of ./dev test, against three OMs of which one after the other is killed with -9 and comes back. All must pass as they do without
that. The last line is JSON: steps that passed and failed, kills.
HELP
}

verb_drill() {
    local repeat=1 only="" minutes=5 seed=1 report status=0 which
    case ${1:-} in
    clients)
        [[ $# -eq 1 ]] || usage_error drill "clients takes no arguments"
        drill_clients
        return
        ;;
    raft | cluster | doors | space | om)
        which=$1
        shift
        ;;
    *) usage_error drill "which drill? there are: raft, cluster, doors, space, om, clients" ;;
    esac
    while [[ $# -gt 0 ]]; do
        case $1 in
        --repeat)
            [[ ${2:-} =~ ^[1-9][0-9]{0,5}$ ]] || usage_error drill "$1 needs a number"
            repeat=$2
            shift 2
            ;;
        --only)
            [[ $which =~ ^(cluster|doors)$ && ${2:-} =~ ^[a-z0-9-]+$ ]] || usage_error drill "$1 needs the name of a drill of the cluster, or of a door"
            only=$2
            shift 2
            ;;
        --minutes | --seed)
            [[ $which =~ ^(space|om)$ && ${2:-} =~ ^[0-9]{1,18}$ ]] || usage_error drill "$1 needs a number, and is of space and om"
            case $1 in
            --minutes) minutes=$2 ;;
            --seed) seed=$2 ;;
            esac
            shift 2
            ;;
        *) usage_error drill "what is '$1'?" ;;
        esac
    done
    ensure_build_environment
    cd "$root"
    scratch=$(mktemp -d)
    report=$scratch/drill.log
    # Everything but the result goes to stderr; libtest has its own last lines.
    local target=(--test drills -- --exact campaign::campaign)
    local result='\{"acknowledged_writes".*'
    if [[ $which == cluster ]]; then
        target=(--test processes -- --exact cluster::drill)
        result='\{"acknowledged_objects".*'
    elif [[ $which == doors ]]; then
        target=(--test processes -- --exact strangers::drill)
        result='\{.*"strangers_drill":.*'
        # Every connection is an open file, here and there; where more may not be had the drill says what it leaves out.
        ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
    elif [[ $which == space ]]; then
        target=(--test processes -- --exact space_drill::drill)
        result='\{"acknowledged".*"space_drill".*'
    elif [[ $which == om ]]; then
        target=(--test processes -- --exact om_drill::drill)
        result='\{"calls".*"drill":"om".*'
    else
        # These run the finished binary too, and find it beside their own.
        cargo build --locked --workspace --bin flotilla --test drills >&2
    fi
    if [[ $which =~ ^(space|om)$ ]]; then
        export FLOTILLA_DRILL_MINUTES=$minutes FLOTILLA_DRILL_SEED=$seed
    fi
    FLOTILLA_DRILL_REPEAT=$repeat FLOTILLA_DRILL_ONLY=$only cargo test --locked --workspace "${target[@]}" --ignored --nocapture 2>&1 | tee "$report" >&2 || status=$?
    grep -oE "$result" "$report" || die "the drills ended without a result"
    return "$status"
}

help_sim() {
    cat <<'HELP'
usage: ./dev sim [--seeds N] [--seed S] [--threads T] [--trace] [--planted NAME] [--all] [--optimized]
       ./dev sim cluster [--seeds N] [--seed S] [--threads T] [--trace] [--planted NAME] [--all] [--optimized]
       ./dev sim om [--seeds N] [--seed S] [--threads T] [--trace] [--planted NAME] [--all] [--optimized]

Simulates N clusters (50 when not given), each from a seed, beginning with seed S (1 when not given): three to six processes with
several Raft groups on simulated disks and a simulated network, all on one thread and on virtual time, with partitions, lost and slow
messages, crashes that lose what was not synced, slow and full disks, clocks that drift, transfers, restarts, members that change,
snapshots, and phases in which groups doze. What must hold of Raft and of its clients is checked with each message that a leader sends,
each batch that is applied (the whole state after it), each answer to a client, and each log of a new leader; all logs and states once more
at the end. A panic anywhere in a process is a violation. After the faults every group must be well again in time. One seed in 16 is run twice and must
take the same steps. The first violation ends it and names its seed: --seeds 1 --seed S runs that alone, --trace prints all events.
Each seed runs in a process of its own, T of them (2 when not given) side by side. --all goes on after a violation.
The last line is JSON. The exit status is 0 only without violations.
--planted runs them with a bug that is to be found (an unknown NAME lists them). A slice of it, and the planted bugs:  ./dev test sim/sim

`cluster` simulates N clusters (50 when not given) of the real SCM and five to seven real datanodes with one or two disks each, while clients
write blocks and read them: processes are killed and lose power, the network is cut, disks fill up, fail and are lost, nodes are given up,
decommissioned and lost for good, stand still for up to a minute, misread, bits flip in closed containers. Three of four have a scheme, harm
in several steps to one pipeline or to SCM: a leader is cut off with chunks that nobody acknowledges and comes back alone; a log is lost or
damaged while another member lags and the third is away, lost, or harmed as well; a disk is full for good; SCM loses two disks and is reset. A
read never answers other bytes than were written, whichever node is asked. At the end every acknowledged block must stand in a closed container
with three good replicas, byte for byte the same on the disks; where two of three members lost what they could prove, the container may
wait instead, named as trouble and untouched. The counts in the last line say how often each happened.

`om` simulates the namespace N times (50 when not given): one or three SCMs, three or four real OMs with several groups of names, and four to
eight clients who make few buckets, delete them, make them again, put keys (with conditions too), read, list and delete them, while the
buckets move from group to group, answers are lost and requests come late. OMs and SCM are killed and lose power, stand still, lose a disk,
have it full or failing, are cut off, lead no more, have clocks that run apart and jump. Each bucket's history must be one that could have
happened; in the end every move has ended, all members of a group have the same rows to the byte, and they are what the root says of
them.

--optimized builds it anew, optimized and with the same checks, in a directory of its own: for some hundred seeds and more.
HELP
}

verb_sim() {
    local argument profile=dev directory=debug arguments=()
    for argument in "$@"; do
        if [[ $argument == --optimized ]]; then
            profile=campaign directory=campaign
            continue
        fi
        arguments+=("$argument")
        [[ $argument =~ ^([0-9]{1,18}|[a-z][a-z-]*|--seeds?|--threads|--trace|--planted|--all)$ ]] || usage_error sim "what is '$argument'?"
    done
    ensure_build_environment
    cd "$root"
    # The features of the tests, so that nothing is built twice: see build_binary.
    cargo build --locked --quiet --profile "$profile" --workspace --bin flotilla-sim --test layering
    "$(target_directory)/$directory/flotilla-sim" "${arguments[@]}"
}
