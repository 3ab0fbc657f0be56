//! OMs, as backups and restores ask them.

use anyhow::Context;
use proto::Failure;
use proto::om::backup_part::Part;
use proto::om::om_client::OmClient;
use proto::om::{BackUpRequest, BackupHead, BackupPart, RestoreRowsRequest, RestoreRowsResponse};
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

const CONNECT_MAX: Duration = Duration::from_secs(3);
/// The time for an answer of an OM: one that takes longer hangs.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The OM at an address, which must be of the cluster.
#[derive(Clone)]
pub(super) struct Om {
    client: OmClient<Channel>,
    cluster: String,
}

/// The rows of one group, as they come.
pub(super) struct Rows {
    pub(super) head: BackupHead,
    parts: Streaming<BackupPart>,
}

impl Om {
    pub(super) async fn connect(address: &str, cluster: &str) -> anyhow::Result<Om> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.with_context(|| format!("`{address}` is not host:port"))?;
        let channel = endpoint.connect_timeout(CONNECT_MAX).connect().await;
        let channel = channel.map_err(|_| Failure::unanswered(format!("no OM answers at {address}")))?;
        let client = OmClient::new(channel)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        Ok(Om { client, cluster: cluster.to_owned() })
    }

    /// Opens the rows of a group, which from then on are those of one moment.
    pub(super) async fn back_up(&mut self, group: u64) -> anyhow::Result<Rows> {
        let request = proto::in_cluster(Request::new(BackUpRequest { group }), &self.cluster);
        let begun = async {
            let mut parts = self.client.back_up(request).await?.into_inner();
            Ok::<_, tonic::Status>((parts.message().await?, parts))
        };
        let (first, parts) = timeout(ANSWER_MAX, begun).await.map_err(|_| hangs())?.map_err(Failure::from)?;
        match first.and_then(|first| first.part) {
            Some(Part::Head(head)) => Ok(Rows { head, parts }),
            _ => Err(Failure::internal(format!("what OM sends of group {group} does not begin with a head"))
                .into()),
        }
    }

    pub(super) async fn restore(
        &mut self,
        request: RestoreRowsRequest,
    ) -> anyhow::Result<RestoreRowsResponse> {
        let request = proto::in_cluster(Request::new(request), &self.cluster);
        let restored = timeout(ANSWER_MAX, self.client.restore_rows(request)).await.map_err(|_| hangs())?;
        Ok(restored.map_err(Failure::from)?.into_inner())
    }
}

impl Rows {
    pub(super) async fn next(&mut self) -> anyhow::Result<Part> {
        let next = timeout(ANSWER_MAX, self.parts.message()).await.map_err(|_| hangs())?;
        let group = self.head.group;
        let next = next.map_err(|status| {
            let failure = Failure::from(status);
            Failure {
                message: format!("the rows of group {group} broke off: {}", failure.message),
                ..failure
            }
        })?;
        let ended = || Failure::unanswered(format!("the rows of group {group} broke off"));
        Ok(next.and_then(|next| next.part).ok_or_else(ended)?)
    }
}

fn hangs() -> Failure {
    Failure::unanswered(format!("OM does not answer within {ANSWER_MAX:?}"))
}
