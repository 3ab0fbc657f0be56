//! Operations that change the namespace, one per file: checked and resolved on the leader (`prepare`), then
//! the same everywhere (`apply`).
//!
//! `apply` is a pure function of tables, log index and command: time and random ids are in the command
//! already.

mod abort_upload;
mod changed_bucket;
mod commit_key;
mod commit_part;
mod complete_upload;
mod create_bucket;
mod create_upload;
mod create_volume;
mod delete_bucket;
mod delete_keys;
mod delete_volume;
mod end_receiving;
mod end_sending;
mod fence_containers;
mod file_orphans;
mod filing;
mod forget_blocks;
mod founded;
mod hold_bucket;
mod keep_buckets;
mod move_bucket;
mod note_groups;
mod note_held;
mod note_swept;
mod precondition;
mod receive_rows;
mod release_bucket;
mod remake_bucket;
mod requests;
mod restore_rows;
mod row_portion;
mod send_bucket;
mod settle_bucket;
mod settle_move;
mod sort_deleted;
mod start_sweep;
mod stop_sweep;
mod sweep_rows;
mod walk_dropped;

pub(crate) use delete_bucket::not_empty;
pub(crate) use fence_containers::FENCED_AT_ONCE;
pub(crate) use keep_buckets::KEPT_AT_ONCE;
pub(crate) use requests::{REMEMBERED, Remembered, about};
pub(crate) use row_portion::PIECES_AT_ONCE;
pub(crate) use settle_bucket::settle_id;

use crate::filed::Filed;
use crate::overlay::Overlay;
use crate::rules::COMMAND_BYTES_MAX;
use crate::tables::{BucketNamed, BucketNumber, InGroup, Refusal, bucket_record, left_key};
use anyhow::Context;
use bytes::Bytes;
use md5::{Digest, Md5};
use planted::Bug;
use prost::Message;
use proto::om::{BucketPlace, BucketRecord, OmCommand, OmReply, RememberedRequests, om_command, om_reply};
use proto::{Code, Failure, RequestId};
use requests::{Request, Requests};

/// One kind of command, from request to response.
pub(crate) trait Operation {
    type Request: Message;
    /// The command that stands in the log.
    type Command;
    type Response;
    const NAME: &'static str;
    const COMMAND_BYTES_MAX: usize = COMMAND_BYTES_MAX;

    /// Prepares on the leader: refuses what can never be carried out, and puts in what must not differ
    /// between members.
    fn prepare(request: Self::Request, fresh: Fresh) -> Result<Self::Command, Failure>;

    /// The request as its sender means it, which tells it from others that come under its id.
    fn asked(request: &Self::Request) -> Vec<u8> {
        request.encode_to_vec()
    }

    /// Applies on every member.
    fn apply(apply: &mut Apply<'_, '_>, command: Self::Command) -> Result<Self::Response, Refusal>;

    fn into_log(command: Self::Command) -> om_command::Command;
    fn into_reply(response: Self::Response) -> om_reply::Result;
    fn from_reply(reply: om_reply::Result) -> Option<Self::Response>;
}

/// The part of [`Operation`] that names its variant in log and reply.
macro_rules! wire {
    ($variant:ident) => {
        const NAME: &'static str = stringify!($variant);

        fn into_log(command: Self::Command) -> proto::om::om_command::Command {
            proto::om::om_command::Command::$variant(command)
        }

        fn into_reply(response: Self::Response) -> proto::om::om_reply::Result {
            proto::om::om_reply::Result::$variant(response)
        }

        fn from_reply(reply: proto::om::om_reply::Result) -> Option<Self::Response> {
            match reply {
                proto::om::om_reply::Result::$variant(response) => Some(response),
                _ => None,
            }
        }
    };
}
use wire;

/// The part of a command that the leader brings from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    /// 128 random bits.
    pub(crate) random: u128,
    pub(crate) now_ms: u64,
}

/// The command that stands in the log for a request.
pub(crate) fn prepare<O: Operation>(
    id: RequestId,
    place: Option<BucketPlace>,
    request: O::Request,
    fresh: Fresh,
) -> Result<OmCommand, Failure> {
    let request_digest = digest::<O>(&request);
    let command = Some(O::into_log(O::prepare(request, fresh)?));
    let BucketPlace { number: bucket, epoch, .. } = place.unwrap_or_default();
    let (now_ms, request_id) = (fresh.now_ms, proto::uuid_bytes(id.0));
    Ok(OmCommand { now_ms, request_id, request_digest, bucket, epoch, rules: filing::RULES, command })
}

/// The response to a command, out of its reply.
pub(crate) fn response<O: Operation>(result: om_reply::Result) -> Result<O::Response, Failure> {
    O::from_reply(result).ok_or_else(|| Failure::internal("the reply is to another kind of request"))
}

/// The digest of a request, without what a leader adds to it, and without its bucket's place, which may
/// change between two tries.
fn digest<O: Operation>(request: &O::Request) -> Bytes {
    let md5 = Md5::new().chain_update(O::NAME).chain_update([0]).chain_update(O::asked(request));
    Bytes::copy_from_slice(&md5.finalize())
}

/// A command being applied: the tables as the commands before it left them, and its place in the log.
pub(crate) struct Apply<'a, 'db> {
    pub(crate) tables: &'a mut Overlay<'db>,
    pub(crate) index: u64,
    pub(crate) now_ms: u64,
    place: Option<InGroup>,
    /// The number of the bucket that the command is about, 0: of none. It is remembered with the request.
    about: u64,
    /// Requests of another group that the command brings along.
    brought: Vec<RememberedRequests>,
    /// The counts of what this entry has filed.
    filed: &'a mut Filed,
    /// The rules about blocks by which the command is applied: those of its leader's release.
    rules: u32,
}

impl<'a, 'db> Apply<'a, 'db> {
    pub(crate) fn new(
        tables: &'a mut Overlay<'db>,
        index: u64,
        filed: &'a mut Filed,
        command: &OmCommand,
    ) -> Apply<'a, 'db> {
        let OmCommand { now_ms, bucket: about, epoch, rules, .. } = *command;
        let place = (about != 0).then_some(InGroup { number: BucketNumber(about), epoch });
        Apply { tables, index, now_ms, place, about, brought: Vec::new(), filed, rules }
    }

    /// The record of the bucket that the command is about, and whose contents it may change: every command
    /// that does asks here.
    pub(crate) fn record(&mut self, volume: &str, bucket: &str) -> Result<BucketRecord, Refusal> {
        let record = bucket_record(self.tables, BucketNamed { place: self.place, volume, bucket })?;
        if record.frozen && !planted::has(Bug::FreezeLeftOut) {
            let why = format!("bucket `{bucket}` is being moved: its changes wait for the end of that");
            return Err(Refusal::Passing(Failure::new(Code::NotYet, why)));
        }
        self.about = record.id;
        Ok(record)
    }

    pub(crate) fn bucket(&mut self, volume: &str, bucket: &str) -> Result<BucketNumber, Refusal> {
        Ok(BucketNumber(self.record(volume, bucket)?.id))
    }

    /// Notes that what is here of a bucket is to be deleted, row by row.
    pub(crate) fn leave(&mut self, bucket: BucketNumber) {
        self.tables.put(left_key(bucket), self.index.to_le_bytes().to_vec());
    }
}

/// Carries out the commands of an entry in their order, each unless its request was answered before. A
/// refused one changes nothing but what is remembered of requests; an error means that the tables cannot be
/// read.
pub(crate) fn apply(
    tables: &mut Overlay<'_>,
    remembered: &mut Remembered,
    index: u64,
    commands: Vec<OmCommand>,
) -> anyhow::Result<Vec<OmReply>> {
    let is_of_backup =
        |command: &OmCommand| matches!(command.command, Some(om_command::Command::RestoreRows(_)));
    if commands.iter().all(is_of_backup) {
        return commands.into_iter().map(|command| restore(tables, index, command)).collect();
    }
    let now_ms = commands.first().map_or(0, |command| command.now_ms);
    let mut requests = Requests::begin(tables, remembered, now_ms)?;
    let (mut filed, mut replies) = (Filed::default(), Vec::with_capacity(commands.len()));
    for command in commands {
        replies.push(apply_one(tables, &mut requests, index, &mut filed, command)?);
    }
    requests.end(tables);
    filed.end(tables)?;
    Ok(replies)
}

/// Takes in rows of a backup. Nobody is served yet: what is remembered of requests begins when all have come.
fn restore(tables: &mut Overlay<'_>, index: u64, mut command: OmCommand) -> anyhow::Result<OmReply> {
    let what = command.command.take().context("it has rows of a backup")?;
    let mut filed = Filed::default();
    let result = match apply_what(&mut Apply::new(tables, index, &mut filed, &command), what) {
        Ok(result) => {
            tables.keep_command();
            result
        }
        Err(Refusal::Failure(failure) | Refusal::Passing(failure)) => {
            tables.undo_command();
            om_reply::Result::Error(failure.into())
        }
        Err(Refusal::Broken(error)) => return Err(error.context(format!("apply command {index}"))),
    };
    Ok(OmReply { result: Some(result) })
}

fn apply_one(
    tables: &mut Overlay<'_>,
    requests: &mut Requests<'_>,
    index: u64,
    filed: &mut Filed,
    mut command: OmCommand,
) -> anyhow::Result<OmReply> {
    let pieces = filing::brought(&command);
    let what = command
        .command
        .take()
        .ok_or_else(|| anyhow::anyhow!("command {index} is unknown; a newer flotilla wrote it"))?;
    let request = Request { id: command.request_id.clone(), digest: command.request_digest.clone() };
    if let Some(answer) = requests.answered(tables, &request, &what)? {
        return Ok(answer);
    }
    if let Some(full) = requests.full() {
        return Ok(full);
    }
    let filed_before = *filed;
    let mut apply = Apply::new(tables, index, filed, &command);
    let result = apply_what(&mut apply, what);
    let (about, brought) = (apply.about, std::mem::take(&mut apply.brought));
    if result.is_err() {
        apply.tables.undo_command();
        *apply.filed = filed_before;
    }
    let result = match result {
        Ok(result) => {
            brought.into_iter().for_each(|brought| requests.take_over(brought));
            result
        }
        Err(Refusal::Failure(failure)) => {
            apply.delete_refused(pieces)?;
            om_reply::Result::Error(failure.into())
        }
        Err(Refusal::Passing(failure)) => {
            return Ok(OmReply { result: Some(om_reply::Result::Error(failure.into())) });
        }
        Err(Refusal::Broken(error)) => return Err(error.context(format!("apply command {index}"))),
    };
    let answer = OmReply { result: Some(result) };
    requests.remember(request, about, &answer);
    tables.keep_command();
    Ok(answer)
}

/// The operations by their files. A command in the log is carried out by the one that has its name.
macro_rules! operations {
    ($($file:ident: $($operation:ident),+;)*) => {
        $($(pub(crate) use $file::$operation;)+)*

        fn apply_what(
            apply: &mut Apply<'_, '_>,
            what: om_command::Command,
        ) -> Result<om_reply::Result, Refusal> {
            match what {
                $($(om_command::Command::$operation(command) => run::<$operation>(apply, command),)+)*
            }
        }
    };
}

operations! {
    abort_upload: AbortUpload;
    commit_key: CommitKey;
    commit_part: CommitPart;
    complete_upload: CompleteUpload;
    create_bucket: CreateBucket;
    create_upload: CreateUpload;
    create_volume: CreateVolume;
    delete_bucket: DeleteBucket;
    delete_keys: DeleteKeys;
    delete_volume: DeleteVolume;
    end_receiving: EndReceiving;
    end_sending: EndSending;
    fence_containers: FenceContainers;
    file_orphans: FileOrphans;
    forget_blocks: ForgetBlocks;
    founded: Founded;
    hold_bucket: HoldBucket;
    keep_buckets: KeepBuckets;
    move_bucket: MoveBucket;
    note_groups: NoteGroups;
    note_held: NoteHeld;
    note_swept: NoteSwept;
    receive_rows: ReceiveRows;
    release_bucket: ReleaseBucket;
    remake_bucket: RemakeBucket;
    restore_rows: RestoreRows;
    send_bucket: BeginRun, FreezeBucket, SendBucket;
    settle_bucket: SettleBucket;
    settle_move: MoveEnded, ResettleMove, SettleMove;
    sort_deleted: SortDeleted;
    start_sweep: StartSweep;
    stop_sweep: StopSweep;
    sweep_rows: SweepRows;
    walk_dropped: WalkDropped;
}

fn run<O: Operation>(apply: &mut Apply<'_, '_>, command: O::Command) -> Result<om_reply::Result, Refusal> {
    O::apply(apply, command).map(O::into_reply)
}

#[cfg(test)]
pub(crate) mod testing;
