//! `flotilla admin om restore`: all names are lost, and come back as a backup has them (docs/adr/0016). What
//! was done may be done again: a restore that was broken off goes on where it was.

use super::om_backup::{answer, cluster, taken_at};
use super::om_groups::oms;
use super::om_wire::Om;
use super::scm::Scm;
use crate::answer::Answer;
use crate::backup::{BackupDir, Manifest};
use crate::output::complain;
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use proto::om::{BackupRows, RestoreRowsRequest};
use proto::scm::{BeginOmRestoreRequest, EndOmRestoreRequest};
use proto::{Failure, Retry};
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time for which a group may take nothing: an OM may have to be started first, and says so a second
/// later.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time within which groups that have their rows serve.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
const TELL_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(scm: &mut Scm, path: &Path, is_sure: bool) -> anyhow::Result<Answer> {
    let (dir, manifest) = BackupDir::open(path)?;
    dir.verify(&manifest)?;
    let here = cluster(scm).await?;
    let of = &manifest.cluster;
    ensure!(
        *of == here,
        "the backup is of cluster {of}, and this is cluster {here}: the names would be of other data"
    );
    let (format, known) = (manifest.tables_format, om::TABLES_FORMAT);
    ensure!(
        format == known,
        "the backup has tables of format {format}, this version restores {known}: restore it with flotilla {}",
        manifest.flotilla
    );
    if !is_sure {
        let shown = answer(path, &manifest, "whole, and not restored");
        let text = format!(
            "{}\nWhat was written, deleted, made or moved since {} is GONE when it is restored. That is for a cluster that lost \
             all its names: repeat it with --yes-i-lose-what-was-written-since\n",
            shown.text,
            taken_at(&manifest)
        );
        return Ok(Answer { text, exit_code: 1, ..shown });
    }
    let backup = Bytes::copy_from_slice(&manifest.backup.0.to_be_bytes());
    let groups = manifest.groups.iter().map(|group| group.group).collect();
    let begin = BeginOmRestoreRequest { backup: backup.clone(), taken_ms: manifest.taken_ms, groups };
    let waiting = scm.change(async |client| client.begin_om_restore(begin.clone()).await).await?.groups;
    let mut restore = Restore { scm, cluster: here, dir, manifest, backup };
    for group in &waiting {
        restore.group(*group).await?;
    }
    restore.end(&waiting).await?;
    let shown = answer(path, &restore.manifest, "restored");
    let text = format!(
        "{}what was written since is gone; what datanodes have of it belongs to no key, and stays\n",
        shown.text
    );
    Ok(Answer { text, ..shown })
}

struct Restore<'a> {
    scm: &'a mut Scm,
    cluster: String,
    dir: BackupDir,
    manifest: Manifest,
    backup: Bytes,
}

/// How far a group has come.
struct Progress {
    group: u64,
    taken: u64,
    of: u64,
    /// The moment when the group came that far.
    since: Instant,
    told: Instant,
}

impl Progress {
    fn note(&mut self, taken: u64) {
        if taken != self.taken {
            (self.taken, self.since) = (taken, Instant::now());
        }
        if self.told.elapsed() > TELL_EVERY {
            self.told = Instant::now();
            complain(&format!("group {}: {taken} of {} parts", self.group, self.of));
        }
    }
}

impl Restore<'_> {
    /// Sends a group's rows until it has all of them.
    async fn group(&mut self, group: u64) -> anyhow::Result<()> {
        let of = self.manifest.group(group).map_or(1, |known| known.parts);
        let now = Instant::now();
        let mut progress = Progress { group, taken: 0, of, since: now, told: now };
        let mut said = String::new();
        loop {
            let Err(error) = self.send(&mut progress).await else { return Ok(()) };
            let is_final = match error.downcast_ref::<Failure>() {
                Some(failure) => failure.retry == Retry::No,
                None => true,
            };
            if is_final || progress.since.elapsed() > PATIENCE {
                return Err(error
                    .context(format!("restore group {group} of names; the same command goes on from here")));
            }
            let why = format!("{error:#}");
            if why != said {
                complain(&format!("group {group}: {why}"));
                said = why;
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends what the OM that has begun the group has not got yet.
    async fn send(&mut self, progress: &mut Progress) -> anyhow::Result<()> {
        let group = progress.group;
        let Some(address) = self.place(group).await? else { return Ok(()) };
        let mut om = Om::connect(&address, &self.cluster).await?;
        let known = self.manifest.group(group);
        let request = RestoreRowsRequest {
            group,
            backup: self.backup.clone(),
            entries: known.map_or(0, |known| known.entries),
            format: self.manifest.tables_format,
            ..RestoreRowsRequest::default()
        };
        let mut reader = match known {
            Some(_) => Some(self.dir.reader(&self.manifest, group)?),
            None => None,
        };
        let come = om.restore(request.clone()).await?.seq;
        progress.note(come);
        if come >= progress.of {
            return Ok(());
        }
        for seq in 1..=progress.of {
            let rows = match &mut reader {
                Some(reader) => reader.next()?.context("the backup ends before its end")?,
                // The group was made after the backup: nothing is in it.
                None => BackupRows::default(),
            };
            if seq <= come {
                continue;
            }
            let is_last = seq == progress.of;
            om.restore(RestoreRowsRequest { seq, rows: rows.rows, is_last, ..request.clone() }).await?;
            progress.note(seq);
        }
        Ok(())
    }

    /// The address of the OM that has begun the group for the rows; `None`: it is founded with them already.
    async fn place(&mut self, group: u64) -> anyhow::Result<Option<String>> {
        let listed = oms(self.scm).await?;
        let info =
            listed.groups.into_iter().find(|info| info.group.as_ref().is_some_and(|it| it.group == group));
        let info = info.with_context(|| format!("SCM knows no group {group} of names any more"))?;
        let told = info.group.unwrap_or_default();
        if told.is_founded {
            return Ok(None);
        }
        ensure!(
            told.backup == self.backup,
            "group {group} of names waits for this backup no more: somebody decided otherwise"
        );
        match told.members.into_iter().find(|member| !member.address.is_empty()) {
            Some(member) => Ok(Some(member.address)),
            None => Err(Failure::unanswered(info.problem).into()),
        }
    }

    /// Ends the restore, and waits until all groups serve: from here on all of them may, or none.
    async fn end(&mut self, waiting: &[u64]) -> anyhow::Result<()> {
        let end = EndOmRestoreRequest { backup: self.backup.clone() };
        if !waiting.is_empty() {
            self.scm.change(async |client| client.end_om_restore(end.clone()).await).await?;
        }
        let give_up = Instant::now() + SERVES_WITHIN;
        loop {
            let listed = oms(self.scm).await?;
            let Some(down) = listed.groups.into_iter().find(|info| info.is_down) else { return Ok(()) };
            if Instant::now() >= give_up {
                let group = down.group.map_or(0, |it| it.group);
                bail!(
                    "all names are restored, and group {group} does not serve after {SERVES_WITHIN:?}: {}",
                    down.problem
                );
            }
            sleep(PAUSE).await;
        }
    }
}
