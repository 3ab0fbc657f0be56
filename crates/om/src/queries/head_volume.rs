use super::{Query, Reach};
use crate::tables::{InGroup, Refusal, volume_existing};
use proto::om::{HeadVolumeRequest, HeadVolumeResponse};
use statedb::Db;

/// Whether a volume exists.
pub(crate) struct HeadVolume;

impl Query for HeadVolume {
    type Request = HeadVolumeRequest;
    type Response = HeadVolumeResponse;
    const REACH: Reach = Reach::Records;

    fn read(db: &Db, _: Option<InGroup>, request: HeadVolumeRequest) -> Result<HeadVolumeResponse, Refusal> {
        Ok(HeadVolumeResponse { volume: Some(volume_existing(db, &request.volume)?) })
    }
}
