//! Deletes a volume without buckets.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::VOLUME;
use crate::tables::{Refusal, bucket_key, check_places_known, volume_existing, volume_key};
use proto::om::{DeleteVolumeRequest, DeleteVolumeResponse};
use proto::{Code, Failure};

pub(crate) struct DeleteVolume;

impl Operation for DeleteVolume {
    type Request = DeleteVolumeRequest;
    type Command = DeleteVolumeRequest;
    type Response = DeleteVolumeResponse;
    wire!(DeleteVolume);

    fn prepare(request: DeleteVolumeRequest, _: Fresh) -> Result<DeleteVolumeRequest, Failure> {
        match request.volume == VOLUME {
            true => Err(Failure::invalid(format!("the volume `{VOLUME}`, which S3 sees, stays"))),
            false => Ok(request),
        }
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Refusal> {
        let volume = volume_existing(apply.tables, &command.volume)?.name;
        check_places_known(apply.tables)?;
        if apply.tables.scan(&bucket_key(&volume, "")).next().transpose()?.is_some() {
            return Err(Failure::new(Code::VolumeNotEmpty, format!("volume `{volume}` has buckets")).into());
        }
        apply.tables.delete(volume_key(&volume));
        Ok(DeleteVolumeResponse {})
    }
}
