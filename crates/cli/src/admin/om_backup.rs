//! `flotilla admin om backup`: all names, as they belong together, into a directory (docs/adr/0016).

use super::om_groups::oms;
use super::om_wire::{Om, Rows};
use super::scm::Scm;
use crate::answer::Answer;
use crate::backup::{BackupDir, BackupId, GroupBackup, Manifest};
use crate::output::complain;
use crate::table::{human_bytes, table};
use crate::version::VERSION;
use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use proto::om::backup_part::Part;
use proto::scm::{ListOmsResponse, ListScmMembersRequest};
use proto::{Failure, ROOT_OF_NAMES};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, interval, sleep};
use types::{Clock, SystemClock};

/// The time within which all groups must once be led, and no bucket be made, deleted or moved for a moment.
const BEGIN_MAX: Duration = Duration::from_secs(60);
const BEGIN_PAUSE: Duration = Duration::from_millis(200);
/// The most times that a backup is begun: leaders may die meanwhile.
const TRIES_MAX: u32 = 5;
const TELL_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(scm: &mut Scm, path: &Path) -> anyhow::Result<Answer> {
    let dir = BackupDir::create(path)?;
    let cluster = cluster(scm).await?;
    let mut tries = 1;
    let manifest = loop {
        match take(scm, &cluster, &dir).await {
            Ok(manifest) => break manifest,
            // The failure is OM's, not this machine's.
            Err(error) if tries < TRIES_MAX && error.downcast_ref::<Failure>().is_some() => {
                complain(&format!("{error:#}; the backup is begun again"));
                tries += 1;
                dir.clear()?;
            }
            Err(error) => return Err(error),
        }
    };
    Ok(answer(path, &manifest, "backed up"))
}

/// Reads a backup and says whether it is whole; asks nobody.
pub(super) fn verify(path: &Path) -> anyhow::Result<Answer> {
    let (dir, manifest) = BackupDir::open(path)?;
    dir.verify(&manifest)?;
    Ok(answer(path, &manifest, "whole"))
}

pub(super) async fn cluster(scm: &mut Scm) -> anyhow::Result<String> {
    let members = scm.look(async |client| client.list_scm_members(ListScmMembersRequest {}).await).await?;
    Ok(members.cluster)
}

async fn take(scm: &mut Scm, cluster: &str, dir: &BackupDir) -> anyhow::Result<Manifest> {
    let (sources, taken_ms) = begin(scm, cluster).await?;
    let backup = BackupId::new();
    let tables_format = sources[0].head.format;
    let taken = Taken::default();
    let copies = try_join_all(sources.into_iter().map(|source| copy(source, dir, backup, &taken)));
    let mut groups = tokio::select! {
        groups = copies => groups?,
        never = tell(&taken) => match never {},
    };
    groups.sort_by_key(|group| group.group);
    let (cluster, flotilla) = (cluster.to_owned(), VERSION.to_owned());
    let manifest = Manifest { cluster, backup, taken_ms, flotilla, tables_format, groups };
    dir.finish(&manifest)?;
    Ok(manifest)
}

/// Opens the rows of all groups, again and again, until they belong together. Whatever was acknowledged
/// before the returned time is in them.
async fn begin(scm: &mut Scm, cluster: &str) -> anyhow::Result<(Vec<Rows>, u64)> {
    let give_up = Instant::now() + BEGIN_MAX;
    let mut said = String::new();
    loop {
        let listed = oms(scm).await?;
        let taken_ms = SystemClock.now_ms();
        let begun = match leaders(&listed) {
            Ok(leaders) => begin_once(&leaders, cluster).await,
            Err(error) => Err(error),
        };
        let why = match begun {
            Ok(sources) => return Ok((sources, taken_ms)),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= give_up {
            bail!("no backup could be begun within {BEGIN_MAX:?}: {why}");
        }
        if why != said {
            complain(&why);
            said = why;
        }
        sleep(BEGIN_PAUSE).await;
    }
}

/// The groups, and the addresses of their leaders.
fn leaders(listed: &ListOmsResponse) -> anyhow::Result<Vec<(u64, String)>> {
    let leader = |info: &proto::scm::OmGroupInfo| {
        let group = info.group.clone().unwrap_or_default();
        let leader =
            group.members.iter().find(|member| member.om == info.leader_om && !member.address.is_empty());
        match leader.filter(|_| group.is_founded) {
            Some(leader) => Ok((group.group, leader.address.clone())),
            None => bail!("group {} of names has no leader: {}", group.group, info.problem),
        }
    };
    let leaders = listed.groups.iter().map(leader).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(leaders.iter().any(|(group, _)| *group == ROOT_OF_NAMES), "SCM knows no group 0 of names");
    Ok(leaders)
}

/// Opens the rows of all groups once. The root is asked first and last. Where the places of buckets are the
/// same both times, they are those by which all groups in between stood, and those of any later backup of the
/// same moment.
async fn begin_once(leaders: &[(u64, String)], cluster: &str) -> anyhow::Result<Vec<Rows>> {
    // One connection to each OM, however many groups it leads: an OM takes few of one address.
    let addresses: BTreeSet<&String> = leaders.iter().map(|(_, address)| address).collect();
    let connected = addresses.into_iter().map(async |address| {
        let om = Om::connect(address, cluster).await?;
        anyhow::Ok((address.clone(), om))
    });
    let oms: HashMap<String, Om> = try_join_all(connected).await?.into_iter().collect();
    let oms = &oms;
    let open = |group: u64, address: String| async move {
        let rows = oms[&address].clone().back_up(group).await;
        rows.with_context(|| format!("group {group} of names, at {address}"))
    };
    let root =
        leaders.iter().find(|(group, _)| *group == ROOT_OF_NAMES).context("SCM knows no group 0 of names")?;
    let first = open(ROOT_OF_NAMES, root.1.clone()).await?;
    let others = leaders.iter().filter(|(group, _)| *group != ROOT_OF_NAMES);
    let others = try_join_all(others.map(|(group, address)| open(*group, address.clone()))).await?;
    let last = open(ROOT_OF_NAMES, root.1.clone()).await?.head;
    if first.head.places.is_empty() || first.head.places != last.places {
        bail!("a bucket was made, deleted or moved at this moment: once more");
    }
    let format = first.head.format;
    let sources: Vec<Rows> = std::iter::once(first).chain(others).collect();
    ensure!(
        sources.iter().all(|source| source.head.format == format),
        "OMs of different versions lead groups: wait until all are upgraded"
    );
    Ok(sources)
}

/// The rows and bytes that have come.
#[derive(Default)]
struct Taken {
    rows: AtomicU64,
    bytes: AtomicU64,
    groups: AtomicU64,
}

async fn copy(
    mut source: Rows,
    dir: &BackupDir,
    backup: BackupId,
    taken: &Taken,
) -> anyhow::Result<GroupBackup> {
    let mut writer = dir.writer(backup, source.head.clone())?;
    let group = source.head.group;
    loop {
        match source.next().await? {
            Part::Rows(rows) => {
                let before = writer.bytes();
                writer.write(&rows)?;
                taken.rows.fetch_add(rows.rows.len() as u64, Relaxed);
                taken.bytes.fetch_add(writer.bytes() - before, Relaxed);
            }
            Part::End(end) => {
                let written = writer.finish()?;
                let (rows, sent) = (written.rows, end.rows);
                ensure!(rows == sent, "of {sent} rows of group {group} {rows} have come");
                taken.groups.fetch_add(1, Relaxed);
                return Ok(written);
            }
            Part::Head(_) => bail!("group {group} sent another head among its rows"),
        }
    }
}

async fn tell(taken: &Taken) -> std::convert::Infallible {
    let mut ticks = interval(TELL_EVERY);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let (rows, bytes) = (taken.rows.load(Relaxed), human_bytes(taken.bytes.load(Relaxed)));
        complain(&format!("{rows} rows, {bytes}; {} groups are whole", taken.groups.load(Relaxed)));
    }
}

/// The time of a backup, for people.
pub(super) fn taken_at(manifest: &Manifest) -> String {
    let at = OffsetDateTime::from_unix_timestamp((manifest.taken_ms / 1000) as i64).ok();
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{} ms", manifest.taken_ms))
}

pub(super) fn answer(path: &Path, manifest: &Manifest, done: &str) -> Answer {
    let (dir, at) = (path.display(), taken_at(manifest));
    let rows: Vec<[String; 5]> = manifest
        .groups
        .iter()
        .map(|group| {
            let position = format!("{} of term {}", group.index, group.term);
            let [number, parts, rows] = [group.group, group.parts, group.rows].map(|it| it.to_string());
            [number, position, rows, parts, human_bytes(group.bytes)]
        })
        .collect();
    let text = format!(
        "{}\n{dir}: {done}: the names of cluster {} as they were at {at}, {} rows\n",
        table(["GROUP", "LAST ENTRY", "ROWS", "PARTS", "BYTES"], &rows),
        manifest.cluster,
        manifest.rows(),
    );
    let mut json = json!(manifest);
    json["directory"] = json!(path.display().to_string());
    json["taken"] = json!(at);
    json["rows"] = json!(manifest.rows());
    json["bytes"] = json!(manifest.bytes());
    Answer::new(text, json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::scm::{OmGroup, OmGroupInfo, OmMember};

    #[test]
    fn a_backup_needs_a_leader_of_every_group() {
        let info = |group, leader_om, is_founded| {
            let member = |om| OmMember { om, address: format!("om{om}:1"), ..OmMember::default() };
            let group =
                OmGroup { group, members: vec![member(1), member(2)], is_founded, ..OmGroup::default() };
            OmGroupInfo { group: Some(group), leader_om, problem: "why".to_owned(), ..OmGroupInfo::default() }
        };
        let of = |groups| leaders(&ListOmsResponse { groups, ..ListOmsResponse::default() });
        let both = of(vec![info(0, 2, true), info(7, 1, true)]).unwrap();
        assert_eq!(both, [(0, "om2:1".to_owned()), (7, "om1:1".to_owned())]);
        for (groups, words) in [
            (vec![info(0, 2, true), info(7, 0, true)], "group 7 of names has no leader: why"),
            (vec![info(0, 2, true), info(7, 1, false)], "group 7 of names has no leader: why"),
            (vec![info(7, 1, true)], "no group 0"),
        ] {
            let said = of(groups).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
