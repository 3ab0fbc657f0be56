//! Sending a closed container's files to a node that is to have a replica.
//!
//! Every record is verified on its way: what a disk has lost is never sent, but marks this replica unhealthy.

use super::Served;
use crate::container_reader::{ContainerReader, ReadRecord, Reading};
use crate::datanode_disk::DatanodeDisk;
use crate::hash;
use crate::index::records::ReplicaState;
use crate::layout::{OWNERS_DIR, container_dir};
use bytes::{Bytes, BytesMut};
use proto::datanode::{
    ContainerFile, ContainerManifest, ContainerPart, FetchContainerRequest, FilePart, container_part,
};
use proto::{Code, Failure, Retry};
use raftlog::{Compacted, OwnerFile, ReadError, WalkEnd, owner_files};
use rpc::NOTHING_TAKEN_MAX;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;
use tokio::time::timeout;
use tonic::Status;
use tracing::{error, info};
use types::{ContainerId, OwnerId};

/// The most bytes of one message.
const PART_BYTES_MAX: usize = 1 << 20;
/// The name of the list of discarded bodies, which is small, and sent before the segments.
const DISCARDED: &str = "discarded";

/// A request whose container can be sent.
pub(super) struct Fetch {
    served: Served,
    disk: Arc<DatanodeDisk>,
    container: ContainerId,
    manifest: ContainerManifest,
    /// The first segment that counts, as the manifest says.
    first_segment: u32,
    /// The place to begin at: a number in the manifest's files, and an offset.
    from: (usize, u64),
    _permit: OwnedSemaphorePermit,
}

pub(super) async fn prepare(served: &Served, request: FetchContainerRequest) -> Result<Fetch, Failure> {
    let container = ContainerId(request.container);
    if served.disks.cluster().is_some_and(|here| here != request.cluster) {
        let why = format!("this node does not belong to cluster `{}`", request.cluster);
        return Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::WrongCluster, why) });
    }
    let elsewhere =
        |code, message: String| Failure { retry: Retry::Elsewhere, ..Failure::new(code, message) };
    let permit = served.copies.sends.clone().try_acquire_owned();
    let permit = permit.map_err(|_| {
        elsewhere(Code::Busy, "this node sends as many containers as it does at a time".to_owned())
    })?;
    let inventory = &served.disks.inventory;
    let Some(replica) = inventory.get(container) else {
        return Err(elsewhere(Code::NotFound, format!("container {container} is not on this node")));
    };
    if let Some(why) = replica.unhealthy {
        return Err(elsewhere(Code::Corrupt, format!("container {container} is unhealthy here: {why}")));
    }
    if replica.state != ReplicaState::Closed {
        return Err(elsewhere(Code::NotYet, format!("container {container} is not closed here")));
    }
    let disk = served.disks.get(replica.disk).cloned();
    let disk = disk.ok_or_else(|| Failure::internal(format!("the disk of container {container} is gone")))?;
    let (Some(hash), Some(last)) = (replica.hash, replica.last) else {
        disk.hashes_wanted.lock().expect("no holder panics").insert(container);
        let message = format!("the hash of container {container} is not computed yet");
        return Err(Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) });
    };
    let measure = disk.index.with(move |index| index.measure(container)).await.map_err(failed(container))?;
    let repeats = measure.map(|measure| measure.facts.repeats).unwrap_or_default();
    let owner = OwnerId::from(container);
    let read = async {
        let compacted = Compacted::read(&**disk.space.disk(), OWNERS_DIR, owner).await?;
        Ok((compacted, owner_files(&**disk.space.disk(), OWNERS_DIR, owner).await?))
    };
    let (compacted, files) = read.await.map_err(failed(container))?;
    let manifest = ContainerManifest {
        container: container.0,
        pipeline: replica.pipeline.0,
        files: sent_files(files),
        hash: hash::to_hex(&hash),
        last_term: last.term.0,
        last_index: last.index.0,
        repeats: repeats.into_iter().map(|index| index.0).collect(),
        compacted: match compacted.is_compacted() {
            true => compacted.without_end().encode(owner).into(),
            false => Bytes::new(),
        },
    };
    let from = match manifest.files.iter().position(|file| file.name == request.file) {
        Some(file) => (file, request.offset),
        None if request.file.is_empty() => (0, 0),
        None => return Err(Failure::invalid(format!("container {container} has no file {}", request.file))),
    };
    let first_segment = compacted.segments.start;
    Ok(Fetch { served: served.clone(), disk, container, manifest, first_segment, from, _permit: permit })
}

/// The files that are sent: segments in their order, after the list of what was discarded in them. Their
/// indexes are a cache, which the new replica makes for itself if it ever needs them.
fn sent_files(files: Vec<OwnerFile>) -> Vec<ContainerFile> {
    let is_list = |file: &OwnerFile| file.name == DISCARDED;
    let (lists, rest): (Vec<_>, Vec<_>) = files.into_iter().partition(is_list);
    let segments = rest.into_iter().filter(|file| file.segment().is_some());
    let sent = lists.into_iter().chain(segments);
    sent.map(|file| ContainerFile { name: file.name, bytes: file.bytes }).collect()
}

/// The reason why sending ended before its end.
enum Broken {
    /// Nobody listens any more.
    Left,
    Failed(Failure),
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Broken {
        Broken::Failed(failure)
    }
}

/// The bytes that are sent next, which follow each other in one file.
struct Pending {
    name: String,
    offset: u64,
    data: BytesMut,
}

impl Fetch {
    /// Sends what was asked for; an error ends the answer.
    pub(super) async fn run(self, parts: Sender<Result<ContainerPart, Status>>) {
        let container = self.container;
        match self.send_all(&parts).await {
            Ok(()) => info!(%container, "sent a container"),
            Err(Broken::Left) => {}
            Err(Broken::Failed(failure)) => {
                self.served.copies.counters.sending_failed.fetch_add(1, Ordering::Relaxed);
                info!(%container, %failure, "cannot send a container");
                // When nobody listens any more, nobody needs the answer.
                let _ = parts.send(Err(failure.into())).await;
            }
        }
    }

    async fn send_all(&self, parts: &Sender<Result<ContainerPart, Status>>) -> Result<(), Broken> {
        let manifest = container_part::Part::Manifest(self.manifest.clone());
        send(parts, manifest).await?;
        let (first, offset) = self.from;
        let mut first_segment = None;
        for (n, file) in self.manifest.files.iter().enumerate().skip(first) {
            let begin = if n == first { offset } else { 0 };
            match (OwnerFile { name: file.name.clone(), bytes: file.bytes }).segment() {
                None => self.send_list(parts, &file.name, begin).await?,
                Some(segment) => {
                    first_segment = Some((segment, begin));
                    break;
                }
            }
        }
        match first_segment {
            Some((segment, begin)) => self.send_segments(parts, segment, begin).await,
            None => Ok(()),
        }
    }

    /// Sends the list of what was discarded, which has its own checksums: the receiver's verification relies
    /// upon them.
    async fn send_list(
        &self,
        parts: &Sender<Result<ContainerPart, Status>>,
        name: &str,
        begin: u64,
    ) -> Result<(), Broken> {
        // One that is damaged is not sent: its receiver would find that out at the end.
        self.disk.discards(self.container).await.map_err(failed(self.container))?;
        let path = format!("{}/{name}", container_dir(self.container));
        let read = async {
            let file = self.disk.real.open(&path, false).await?;
            let bytes = file.len().await?.saturating_sub(begin);
            file.read_at(begin, usize::try_from(bytes).unwrap_or(usize::MAX)).await
        };
        let bytes = read.await.map_err(|error| failed(self.container)(error.into()))?;
        let mut offset = begin;
        for data in bytes.chunks(PART_BYTES_MAX) {
            let data = Bytes::copy_from_slice(data);
            let bytes = data.len() as u64;
            self.send_part(parts, name, offset, data).await?;
            offset += bytes;
        }
        Ok(())
    }

    async fn send_segments(
        &self,
        parts: &Sender<Result<ContainerPart, Status>>,
        segment: u32,
        begin: u64,
    ) -> Result<(), Broken> {
        let reading = Reading::FromSegment(segment);
        let reader = self.disk.reader(self.container, reading).await;
        let mut reader = reader.map_err(failed(self.container))?;
        if reader.discards().compacted().segments.start != self.first_segment {
            return Err(self.compacted_meanwhile());
        }
        let mut pending = Pending { name: String::new(), offset: 0, data: BytesMut::new() };
        loop {
            let record = match reader.next().await {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(ReadError::Compacted(_)) => return Err(self.compacted_meanwhile()),
                Err(failure) if failure.condemns() => return Err(self.damaged(failure.to_string()).await),
                Err(failure) => return Err(failed(self.container)(failure.into()).into()),
            };
            let (place, bytes) = (record.walked.meta.place, record.walked.bytes);
            if place.segment == segment && place.offset + bytes <= begin {
                continue;
            }
            let skip = if place.segment == segment { begin.saturating_sub(place.offset) } else { 0 };
            self.send_record(parts, &mut pending, &reader, &record, skip).await?;
        }
        if let Some(WalkEnd::Bad { segment, offset, why }) = &reader.contents().end {
            return Err(self.damaged(format!("segment {segment:08x}, byte {offset}: {why}")).await);
        }
        self.send_pending(parts, &mut pending).await?;
        self.send_end(parts).await
    }

    /// Sends a record from byte `skip` on; of one whose body was given up only what is before the body.
    async fn send_record(
        &self,
        parts: &Sender<Result<ContainerPart, Status>>,
        pending: &mut Pending,
        reader: &ContainerReader,
        record: &ReadRecord,
        skip: u64,
    ) -> Result<(), Broken> {
        let ReadRecord { walked, is_discarded } = record;
        let place = walked.meta.place;
        let name = format!("{:08x}.seg", place.segment);
        let mut at = 0;
        let mut piece = walked.head.clone();
        loop {
            let bytes = piece.len() as u64;
            let cut = skip.saturating_sub(at).min(bytes) as usize;
            self.add(parts, pending, &name, place.offset + at + cut as u64, piece.slice(cut..)).await?;
            at += bytes;
            if at >= walked.bytes || *is_discarded {
                return Ok(());
            }
            let body_at = (at - walked.head.len() as u64) as usize;
            piece = match reader.read_body(record, body_at).await {
                Ok(piece) => piece,
                Err(failure) => return Err(self.unreadable(reader, record, failure).await),
            };
        }
    }

    async fn add(
        &self,
        parts: &Sender<Result<ContainerPart, Status>>,
        pending: &mut Pending,
        name: &str,
        offset: u64,
        data: Bytes,
    ) -> Result<(), Broken> {
        let follows = pending.name == name && pending.offset + pending.data.len() as u64 == offset;
        if !follows || pending.data.len() + data.len() > PART_BYTES_MAX {
            self.send_pending(parts, pending).await?;
            *pending = Pending { name: name.to_owned(), offset, data: BytesMut::new() };
        }
        pending.data.extend_from_slice(&data);
        Ok(())
    }

    async fn send_pending(
        &self,
        parts: &Sender<Result<ContainerPart, Status>>,
        pending: &mut Pending,
    ) -> Result<(), Broken> {
        let mut offset = pending.offset;
        let mut data = std::mem::take(&mut pending.data).freeze();
        while !data.is_empty() {
            let part = data.split_to(data.len().min(PART_BYTES_MAX));
            let bytes = part.len() as u64;
            self.send_part(parts, &pending.name, offset, part).await?;
            offset += bytes;
        }
        Ok(())
    }

    /// Sends an empty last part, so that a stream that breaks off is not taken for a whole one: the last
    /// bytes may be those of a body that is not sent.
    async fn send_end(&self, parts: &Sender<Result<ContainerPart, Status>>) -> Result<(), Broken> {
        let Some(last) = self.manifest.files.last() else { return Ok(()) };
        self.send_part(parts, &last.name, last.bytes, Bytes::new()).await
    }

    async fn send_part(
        &self,
        parts: &Sender<Result<ContainerPart, Status>>,
        name: &str,
        offset: u64,
        data: Bytes,
    ) -> Result<(), Broken> {
        let copies = &self.served.copies;
        copies.sending.take(data.len()).await;
        copies.counters.sent_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let crc = crc32c::crc32c(&data);
        let part = FilePart { name: name.to_owned(), offset, data, crc };
        send(parts, container_part::Part::File(part)).await
    }

    /// The failure of a record that does not check: damage, unless its block was deleted since the sending
    /// began.
    async fn unreadable(&self, reader: &ContainerReader, record: &ReadRecord, failure: ReadError) -> Broken {
        if !failure.condemns() {
            return failed(self.container)(failure.into()).into();
        }
        if reader.check_is_as_it_was().await.is_err() {
            return self.compacted_meanwhile();
        }
        match reader.is_discarded_by_now(record).await {
            Ok(true) => {
                let message =
                    format!("blocks of container {} were deleted while it was sent", self.container);
                Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) }.into()
            }
            Ok(false) => self.damaged(failure.to_string()).await,
            Err(error) => failed(self.container)(error.into()).into(),
        }
    }

    /// The failure of a copy whose source was compacted meanwhile: its receiver begins anew.
    fn compacted_meanwhile(&self) -> Broken {
        let message = format!("container {} was compacted while it was sent", self.container);
        Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) }.into()
    }

    async fn damaged(&self, why: String) -> Broken {
        let message = format!("container {} is damaged on this node: {why}", self.container);
        self.disk.mark_unhealthy(self.container, why).await;
        Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Corrupt, message) }.into()
    }
}

async fn send(
    parts: &Sender<Result<ContainerPart, Status>>,
    part: container_part::Part,
) -> Result<(), Broken> {
    let sent = timeout(NOTHING_TAKEN_MAX, parts.send(Ok(ContainerPart { part: Some(part) }))).await;
    sent.map_err(|_| Broken::Left)?.map_err(|_| Broken::Left)
}

fn failed(container: ContainerId) -> impl Fn(anyhow::Error) -> Failure {
    move |failure| {
        error!(%container, error = format!("{failure:#}"), "cannot read a container that is to be sent");
        let message = format!("read container {container}: {failure:#}");
        Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) }
    }
}
