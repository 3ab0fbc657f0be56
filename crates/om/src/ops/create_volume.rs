//! A new volume, which has no bucket yet.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::{VOLUME, check_volume_name};
use crate::tables::{Read, Refusal, volume_key};
use prost::Message;
use proto::om::{CreateVolumeRequest, CreateVolumeResponse, Volume};
use proto::{Code, Failure};

pub(crate) struct CreateVolume;

impl Operation for CreateVolume {
    type Request = CreateVolumeRequest;
    type Command = CreateVolumeRequest;
    type Response = CreateVolumeResponse;
    wire!(CreateVolume);

    fn prepare(request: CreateVolumeRequest, _: Fresh) -> Result<CreateVolumeRequest, Failure> {
        check_volume_name(&request.volume)?;
        Ok(request)
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Refusal> {
        let name = command.volume;
        let key = volume_key(&name);
        if name == VOLUME || apply.tables.get(&key)?.is_some() {
            return Err(Failure::new(Code::VolumeExists, format!("volume `{name}` exists already")).into());
        }
        let volume = Volume { name, created_ms: apply.now_ms };
        apply.tables.put(key, volume.encode_to_vec());
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::ops::{CreateBucket, DeleteBucket, DeleteVolume};
    use proto::om::{CreateBucketRequest, DeleteBucketRequest, DeleteVolumeRequest};

    fn create(volume: &str) -> CreateVolumeRequest {
        CreateVolumeRequest { volume: volume.to_owned() }
    }

    fn delete(volume: &str) -> DeleteVolumeRequest {
        DeleteVolumeRequest { volume: volume.to_owned() }
    }

    fn bucket(volume: &str) -> CreateBucketRequest {
        CreateBucketRequest { volume: volume.to_owned(), bucket: "photos".to_owned(), group: Some(5) }
    }

    #[test]
    fn a_volume_is_made_once_has_buckets_of_its_own_and_is_deleted_when_it_has_none() {
        let mut root = Namespace::new();
        root.check_refused::<CreateBucket>(bucket("mine"), Code::NoSuchVolume);
        let made = root.run::<CreateVolume>(create("mine")).unwrap().volume.unwrap();
        assert_eq!((made.name.as_str(), made.created_ms), ("mine", root.now_ms));
        root.check_refused::<CreateVolume>(create("mine"), Code::VolumeExists);
        root.check_refused::<CreateVolume>(create("s3v"), Code::VolumeExists);
        root.check_refused::<CreateVolume>(create("Mine"), Code::Invalid);
        // The bucket is another one than that of the same name in s3v. While it is being made it counts, too.
        root.run::<CreateBucket>(bucket("mine")).unwrap();
        root.check_refused::<DeleteVolume>(delete("mine"), Code::VolumeNotEmpty);
        root.check_refused::<DeleteVolume>(delete("min"), Code::NoSuchVolume);
        root.check_refused::<DeleteVolume>(delete("s3v"), Code::Invalid);
        let here = CreateBucketRequest { volume: "other".into(), bucket: "photos".into(), group: Some(0) };
        root.run::<CreateVolume>(create("other")).unwrap();
        root.run::<CreateBucket>(here).unwrap();
        let gone = DeleteBucketRequest { volume: "other".into(), bucket: "photos".into() };
        root.run::<DeleteBucket>(gone).unwrap();
        root.run::<DeleteVolume>(delete("other")).unwrap();
        root.check_refused::<DeleteVolume>(delete("other"), Code::NoSuchVolume);
        assert!(root.bucket("photos").is_ok(), "s3v has its own still");
    }

    #[test]
    fn a_request_that_comes_again_takes_effect_once() {
        let mut root = Namespace::new();
        let made = root.run_as::<CreateVolume>(7, create("mine")).unwrap();
        root.run_as::<DeleteVolume>(8, delete("mine")).unwrap();
        assert_eq!(root.run_as::<CreateVolume>(7, create("mine")).unwrap(), made);
        root.check_refused::<DeleteVolume>(delete("mine"), Code::NoSuchVolume);
        root.run::<CreateVolume>(create("mine")).unwrap();
        root.run_as::<DeleteVolume>(8, delete("mine")).unwrap();
        root.check_refused::<CreateVolume>(create("mine"), Code::VolumeExists);
    }
}
