use super::convert::matches;
use super::gateway::Gateway;
use crate::conditions::precondition;
use crate::error::{GatewayError, Result};
use bytes::Bytes;
use client::S3_VOLUME;
use s3s::dto::*;

const KEYS_MAX: usize = 1000;

impl Gateway {
    /// Deletes an object; that it is not there is success too, as everywhere in S3.
    pub(super) async fn object_delete(&self, input: DeleteObjectInput) -> Result<DeleteObjectOutput> {
        if input.version_id.as_deref().is_some_and(|version| version != "null") {
            return Err(GatewayError::NoSuchVersion);
        }
        let precondition = precondition(matches(input.if_match), None)?;
        let keys = vec![Bytes::from(input.key)];
        self.client.delete_keys(S3_VOLUME, &input.bucket, keys, precondition).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn objects_delete(&self, input: DeleteObjectsInput) -> Result<DeleteObjectsOutput> {
        let objects = input.delete.objects;
        // No object has an empty name: to say that it is deleted would be of what the client did not mean.
        if objects.is_empty()
            || objects.len() > KEYS_MAX
            || objects.iter().any(|object| object.key.is_empty())
        {
            return Err(GatewayError::MalformedXml);
        }
        let (mut keys, mut errors) = (Vec::new(), Vec::new());
        for object in objects {
            let refused =
                if object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some() {
                    Some(("NotImplemented", "Conditions in a multi-object delete are not implemented."))
                } else if object.version_id.as_deref().is_some_and(|version| version != "null") {
                    Some(("NoSuchVersion", "The specified version does not exist."))
                } else {
                    None
                };
            match refused {
                None => keys.push(object.key),
                Some((code, message)) => errors.push(Error {
                    code: Some(code.to_owned()),
                    key: Some(object.key),
                    message: Some(message.to_owned()),
                    version_id: object.version_id,
                }),
            }
        }
        if !keys.is_empty() {
            let names = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
            self.client.delete_keys(S3_VOLUME, &input.bucket, names, None).await?;
        }
        let deleted = keys.into_iter().map(|key| DeletedObject { key: Some(key), ..Default::default() });
        let quiet = input.delete.quiet == Some(true);
        Ok(DeleteObjectsOutput {
            deleted: (!quiet).then(|| deleted.collect()),
            errors: (!errors.is_empty()).then_some(errors),
            ..Default::default()
        })
    }
}
