use rusty_s3::actions::CreateMultipartUpload;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::time::Duration;

/// An S3 client that knows nothing of Flotilla: presigned requests over plain HTTP.
#[derive(Clone)]
pub(crate) struct S3 {
    http: reqwest::Client,
    bucket: Bucket,
    credentials: Credentials,
}

const SIGNED_FOR: Duration = Duration::from_secs(600);

impl S3 {
    pub(crate) fn new(endpoint: &str, access_key: &str, secret_key: &str, bucket: &str) -> S3 {
        let endpoint = endpoint.parse().expect("an endpoint is a URL");
        let bucket =
            Bucket::new(endpoint, UrlStyle::Path, bucket.to_owned(), "us-east-1").expect("a bucket URL");
        let http =
            reqwest::Client::builder().timeout(Duration::from_secs(60)).build().expect("an HTTP client");
        S3 { http, bucket, credentials: Credentials::new(access_key, secret_key) }
    }

    pub(crate) async fn create_bucket(&self) -> Result<(), String> {
        let url = self.bucket.create_bucket(&self.credentials).sign(SIGNED_FOR);
        self.send(self.http.put(url)).await.map(drop)
    }

    pub(crate) async fn put(&self, key: &str, body: Vec<u8>) -> Result<(), String> {
        let url = self.bucket.put_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        // Of a body without bytes the client would not say the length, and S3 wants to hear it.
        self.send(self.http.put(url).header("content-length", body.len()).body(body)).await.map(drop)
    }

    /// Where anybody can put this key, for a test that speaks HTTP itself.
    pub(crate) fn put_url(&self, key: &str) -> reqwest::Url {
        self.bucket.put_object(Some(&self.credentials), key).sign(SIGNED_FOR)
    }

    /// Where anybody can read this key, or one part of it.
    pub(crate) fn get_url(&self, key: &str, part: Option<u32>) -> reqwest::Url {
        let mut get = self.bucket.get_object(Some(&self.credentials), key);
        if let Some(part) = part {
            get.query_mut().insert("partNumber", part.to_string());
        }
        get.sign(SIGNED_FOR)
    }

    /// A list of the bucket's first thousand keys, as they are: not encoded.
    pub(crate) fn list_url(&self) -> reqwest::Url {
        let mut list = self.bucket.list_objects_v2(Some(&self.credentials));
        list.query_mut().remove("encoding-type");
        list.sign(SIGNED_FOR)
    }

    pub(crate) fn head_url(&self, key: &str) -> reqwest::Url {
        self.bucket.head_object(Some(&self.credentials), key).sign(SIGNED_FOR)
    }

    /// `None` when the server says that the key does not exist.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        let url = self.bucket.get_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        match self.send(self.http.get(url)).await {
            Ok(body) => Ok(Some(body)),
            Err(error) if error.starts_with("404") => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<(), String> {
        let url = self.bucket.delete_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        self.send(self.http.delete(url)).await.map(drop)
    }

    /// The upload's id.
    pub(crate) async fn begin_upload(&self, key: &str) -> Result<String, String> {
        let url = self.bucket.create_multipart_upload(Some(&self.credentials), key).sign(SIGNED_FOR);
        let answer = self.send(self.http.post(url)).await?;
        let answer = String::from_utf8_lossy(&answer);
        let begun = CreateMultipartUpload::parse_response(&answer).map_err(|why| format!("{why:?}"))?;
        Ok(begun.upload_id().to_owned())
    }

    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &str,
        part: u16,
        body: Vec<u8>,
    ) -> Result<(), String> {
        let url = self.bucket.upload_part(Some(&self.credentials), key, part, upload).sign(SIGNED_FOR);
        self.send(self.http.put(url).body(body)).await.map(drop)
    }

    /// `false` when the server says that there is something in it.
    pub(crate) async fn delete_bucket(&self) -> Result<bool, String> {
        let url = self.bucket.delete_bucket(&self.credentials).sign(SIGNED_FOR);
        match self.send(self.http.delete(url)).await {
            Ok(_) => Ok(true),
            Err(error) if error.contains("BucketNotEmpty") => Ok(false),
            Err(error) => Err(format!("delete the bucket: {error}")),
        }
    }

    /// The body of a successful answer; otherwise status and body, or what broke.
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, String> {
        let response = request.send().await.map_err(|error| format!("no answer: {error:?}"))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| format!("answer broke off: {error:?}"))?;
        if status.is_success() {
            Ok(body.to_vec())
        } else {
            Err(format!("{} {}", status.as_u16(), String::from_utf8_lossy(&body)))
        }
    }
}
