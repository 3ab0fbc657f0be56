//! Begins a multipart upload. Its id is random, so that nobody guesses another's.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::{check_attributes, check_key, check_volume};
use crate::tables::{Refusal, upload_key};
use prost::Message;
use proto::Failure;
use proto::om::{CreateUploadCommand, CreateUploadRequest, CreateUploadResponse, Upload};

pub(crate) struct CreateUpload;

impl Operation for CreateUpload {
    type Request = CreateUploadRequest;
    type Command = CreateUploadCommand;
    type Response = CreateUploadResponse;
    wire!(CreateUpload);

    fn prepare(request: CreateUploadRequest, fresh: Fresh) -> Result<CreateUploadCommand, Failure> {
        check_volume(&request.volume)?;
        check_key(&request.key)?;
        check_attributes(request.attributes.as_ref())?;
        Ok(CreateUploadCommand { request: Some(request), upload: format!("{:032x}", fresh.random) })
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: CreateUploadCommand,
    ) -> Result<CreateUploadResponse, Refusal> {
        let CreateUploadCommand { request, upload } = command;
        let request = request.ok_or_else(|| Failure::invalid("the command has no request"))?;
        let bucket = apply.bucket(&request.volume, &request.bucket)?;
        let CreateUploadRequest { key, attributes, .. } = request;
        let table_key = upload_key(bucket, &key, &upload);
        let record = Upload { key, upload: upload.clone(), created_ms: apply.now_ms, attributes };
        apply.tables.put(table_key, record.encode_to_vec());
        Ok(CreateUploadResponse { upload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use proto::Code;

    #[test]
    fn uploads_to_one_key_are_independent() {
        let mut namespace = Namespace::new();
        let request = |bucket: &str, key: &'static str| CreateUploadRequest {
            volume: "s3v".into(),
            bucket: bucket.into(),
            key: key.into(),
            attributes: None,
        };
        let one = namespace.run::<CreateUpload>(request("photos", "a")).unwrap().upload;
        let other = namespace.run::<CreateUpload>(request("photos", "a")).unwrap().upload;
        assert_ne!(one, other);
        assert_eq!(one.len(), crate::tables::UPLOAD_ID_BYTES);
        assert_eq!(namespace.records(b"u").len(), 2);
        namespace.check_refused::<CreateUpload>(request("music", "a"), Code::NoSuchBucket);
        namespace.check_refused::<CreateUpload>(request("photos", ""), Code::Invalid);
    }
}
