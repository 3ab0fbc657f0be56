use crate::any_member::AnyMember;
use crate::avoided::Avoided;
use crate::channels::Channels;
use crate::counted::{self, Counted};
use crate::locate::Locations;
use crate::memory::Memory;
use crate::om::{OmCaller, OmWire};
use crate::om_seeker::OmSeeker;
use crate::pipelines::Pipelines;
use crate::view::{self, View};
use crate::writable::any_is_writable;
use crate::{ClientError, ClientOptions, OmReads};
use bytes::Bytes;
use futures::Stream;
use md5many::Md5Many;
use metrics::Exposition;
use proto::Seeker;
use proto::datanode::Ack;
use proto::om::{Key, KeyAttributes, ListBucketsRequest, Precondition};
use proto::scm::ListPipelinesRequest;
use proto::scm::scm_client::ScmClient;
use rpc::Link;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

/// The whole store, seen from outside. Cheap to clone; its connections and tasks end with the last clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// The acknowledgement that its writes ask for.
    ack: Ack,
}

struct Shared {
    options: ClientOptions,
    channels: Channels,
    view: watch::Receiver<Arc<View>>,
    pipelines: Pipelines,
    locations: Locations,
    avoided: Avoided,
    memory: Memory,
    md5_many: Md5Many,
    counted: Arc<Counted>,
    scm: Arc<Seeker>,
    om: OmCaller,
    /// Follows SCM's watch until the client is gone.
    follower: tokio::task::JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// A put that succeeded: what it left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub etag: String,
    pub size: u64,
    pub modified_ms: u64,
    /// The acknowledgement that each byte has had.
    pub reached: Ack,
}

impl Client {
    /// Connects lazily: nothing has to be up yet. Must be called inside a tokio runtime.
    ///
    /// # Panics
    /// When `options` contradict themselves; see [`ClientOptions::validate`].
    pub fn connect(options: ClientOptions) -> Client {
        let channels = Channels::beside(&options.local);
        Client::with(options, channels)
    }

    /// [`Client::connect`] by other ways than TCP.
    pub fn over(options: ClientOptions, connector: Arc<dyn rpc::Connector>) -> Client {
        Client::with(options, Channels::over(&connector))
    }

    fn with(options: ClientOptions, channels: Channels) -> Client {
        if let Err(wrong) = options.validate() {
            panic!("client options: {wrong}");
        }
        let seeker = |addresses: &str| Seeker::parse(addresses).expect("validated: addresses are host:port");
        let scm = Arc::new(seeker(&options.scm));
        let (view_sender, view) = watch::channel(Arc::new(View::default()));
        let om = OmSeeker::new(options.om.as_deref().map(seeker), view.clone());
        let follower = tokio::spawn(view::follow(scm.clone(), channels.clone(), view_sender));
        let pipelines = Pipelines::new(options.clone(), channels.clone(), view.clone());
        let locations = Link::over(scm.clone(), channels.of_calls(), options.call_timeout);
        let locations = Locations::new(locations, view.clone(), options.locations_max);
        let counted = Arc::<Counted>::default();
        let memory = Memory::new(options.memory_bytes_max);
        let (call_timeout, deadline) = (options.call_timeout, options.write_deadline);
        let any_member = options.om_reads == OmReads::Any;
        let wire = OmWire { channels: channels.clone(), view: view.clone(), call_timeout, any_member };
        let any_member = any_member.then(|| AnyMember::new(options.local.clone(), counted.clone()));
        let om = OmCaller::new(om, wire, any_member, deadline, counted.clone());
        Client {
            shared: Arc::new(Shared {
                options,
                channels,
                view,
                pipelines,
                locations,
                avoided: Avoided::default(),
                memory,
                md5_many: Md5Many::default(),
                counted,
                scm,
                om,
                follower,
            }),
            ack: Ack::Majority,
        }
    }

    /// A client of the same store whose writes ask for another acknowledgement. A majority is asked for
    /// otherwise; all replicas are waited for as long as [`ClientOptions::ack_all_within`] says.
    pub fn with_ack(&self, ack: Ack) -> Client {
        Client { shared: self.shared.clone(), ack }
    }

    pub(crate) fn ack(&self) -> Ack {
        self.ack
    }

    /// Waits until a pipeline would take a byte and OM answers. The error names no address, so it may be
    /// shown to anybody.
    pub async fn ready(&self, within: Duration) -> anyhow::Result<()> {
        /// The pause between two rounds of questions.
        const ASK_AGAIN: Duration = Duration::from_millis(200);
        let until = Instant::now() + within;
        let writable = async {
            while !any_is_writable(&self.view(), &self.shared.channels).await {
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        if tokio::time::timeout_at(until, writable).await.is_err() {
            let view = self.view();
            anyhow::ensure!(!view.cluster.is_empty(), "SCM does not answer");
            anyhow::bail!(
                "no pipeline takes a byte; {} are open as far as SCM has said",
                view.pipelines.len()
            );
        }
        let one = ListBucketsRequest { volume: crate::S3_VOLUME.to_owned(), limit: 1, ..Default::default() };
        match tokio::time::timeout_at(until, self.list_buckets(one)).await {
            Ok(Ok(listed)) => {
                let view = self.view();
                let groups = &view.om_groups;
                let is_full = listed.is_full || !groups.is_empty() && groups.iter().all(|it| it.lacks_room);
                anyhow::ensure!(!is_full, "OM can change no name: its disks are full");
                Ok(())
            }
            Ok(Err(failure)) => {
                let is_foreign = failure.code() == Some(proto::Code::WrongCluster);
                debug!(%failure, "OM has no answer for a question whether it is there");
                anyhow::ensure!(
                    !is_foreign,
                    "OM belongs to another cluster than SCM, whose cluster {} this process follows from its start to its end",
                    self.view().cluster
                );
                anyhow::bail!("OM has no answer")
            }
            Err(_) => anyhow::bail!("OM does not answer"),
        }
    }

    /// Writes an object: its blocks, then one commit.
    pub async fn put<S, E>(
        &self,
        volume: &str,
        bucket: &str,
        key: &[u8],
        attributes: KeyAttributes,
        precondition: Option<Precondition>,
        body: S,
    ) -> Result<Put, ClientError>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let written = self.write_blocks(body).await?;
        let (etag, size, reached) = (written.etag(), written.size, written.reached);
        let key = Key {
            key: Bytes::copy_from_slice(key),
            size,
            etag: etag.clone(),
            modified_ms: 0,
            attributes: Some(attributes),
            pieces: written.pieces,
            part_sizes: Vec::new(),
            ..Key::default()
        };
        let modified_ms = self.commit_key(volume, bucket, key, precondition).await?;
        Ok(Put { etag, size, modified_ms, reached })
    }

    /// The pipelines as SCM told last.
    pub fn view(&self) -> Arc<View> {
        self.shared.view.borrow().clone()
    }

    /// Changes of [`Client::view`].
    pub fn watch_view(&self) -> watch::Receiver<Arc<View>> {
        self.shared.view.clone()
    }

    /// All pipelines SCM knows, closed ones too.
    pub async fn list_pipelines(&self) -> Result<Vec<proto::scm::Pipeline>, ClientError> {
        let request = self.in_cluster(ListPipelinesRequest {});
        let answer = self.scm()?.list_pipelines(request).await.map_err(proto::Failure::from)?;
        Ok(answer.into_inner().pipelines)
    }

    fn in_cluster<T>(&self, request: T) -> tonic::Request<T> {
        proto::in_cluster(tonic::Request::new(request), &self.view().cluster)
    }

    fn scm(&self) -> Result<ScmClient<rpc::Channel>, ClientError> {
        let channel = self.channels().to(&self.shared.scm.address())?;
        Ok(ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX))
    }

    pub(crate) fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    pub(crate) fn channels(&self) -> &Channels {
        &self.shared.channels
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.shared.pipelines
    }

    pub(crate) fn locations(&self) -> &Locations {
        &self.shared.locations
    }

    /// Adds what the client sees of the cluster to the metrics.
    pub fn expose(&self, exposition: &mut Exposition) {
        self.shared.counted.expose(exposition);
        counted::expose_memory(&self.shared.memory, exposition);
        counted::expose_md5(self.shared.md5_many.counts(), exposition);
    }

    pub(crate) fn counted(&self) -> &Arc<Counted> {
        &self.shared.counted
    }

    pub(crate) fn md5_many(&self) -> &Md5Many {
        &self.shared.md5_many
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    pub(crate) fn avoided(&self) -> &Avoided {
        &self.shared.avoided
    }

    pub(crate) fn om(&self) -> &OmCaller {
        &self.shared.om
    }
}
