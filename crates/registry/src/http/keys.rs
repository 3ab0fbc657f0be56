use super::answer::{Answered, INDEX, answer, ok};
use super::question::Question;
use super::services::asked;
use super::{Slot, client, in_turn};
use crate::json::key_to_json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::Failure;
use proto::registry::{
    DeleteKeysRequest, KeyValue, PutKeyRequest, ReadKeysRequest, Reading, RenewKeyRequest,
};
use serde_json::json;

type Asked = Result<Query<Question>, QueryRejection>;

/// Lists all keys: without a key in the path, `?prefix` goes without saying.
pub(super) async fn get_all(State(slot): State<Slot>, question: Asked) -> Answered {
    list(&slot, String::new(), &asked(question)?).await
}

pub(super) async fn get(State(slot): State<Slot>, Path(key): Path<String>, question: Asked) -> Answered {
    let question = asked(question)?;
    if question.is_prefix()? {
        return list(&slot, key, &question).await;
    }
    let reading = Some(question.reading()?);
    let request = ReadKeysRequest { reading, key: key.clone(), ..ReadKeysRequest::default() };
    let read = client(&slot)?.read(request).await?;
    match read.entries.into_iter().next() {
        Some(entry) if question.is_raw()? => Ok(raw(read.revision, entry)),
        Some(entry) => Ok(ok(read.revision, &key_to_json(&entry))),
        // The answer has the index too: one may wait for a key that is to come.
        None => {
            let body = json!({ "error": format!("there is no key `{key}`"), "code": "NOT_FOUND" });
            Ok(answer(StatusCode::NOT_FOUND, read.revision, &body))
        }
    }
}

fn raw(revision: u64, entry: KeyValue) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(INDEX, HeaderValue::from(revision));
    (headers, entry.value).into_response()
}

async fn list(slot: &Slot, key: String, question: &Question) -> Answered {
    let reading = question.reading()?;
    let page = ReadKeysRequest {
        reading: Some(Reading { stale: reading.stale, ..Reading::default() }),
        key,
        prefix: true,
        from: question.from.clone().unwrap_or_default(),
        limit: question.limit.unwrap_or(0),
        keys_only: question.is_keys_only()?,
    };
    let client = client(slot)?;
    if question.waits() {
        let news = ReadKeysRequest { reading: Some(reading), limit: 1, keys_only: true, ..page.clone() };
        client.read(news).await?;
    }
    let listed = async {
        let read = client.read(page).await?;
        let mut body = json!({
            "revision": read.revision,
            "entries": read.entries.iter().map(key_to_json).collect::<Vec<_>>(),
        });
        if !read.next.is_empty() {
            body["next"] = json!(read.next);
        }
        Ok(ok(read.revision, &body))
    };
    in_turn(reading.stale, listed).await
}

pub(super) async fn put(
    State(slot): State<Slot>,
    Path(key): Path<String>,
    question: Asked,
    value: Bytes,
) -> Answered {
    let question = asked(question)?;
    let ttl_ms = question.ttl_ms()?;
    let request = PutKeyRequest { key, value, if_mod_revision: question.cas, ttl_ms };
    let done = client(&slot)?.put(request).await?;
    Ok(ok(done.revision, &json!({ "revision": done.revision })))
}

pub(super) async fn renew(State(slot): State<Slot>, Path(key): Path<String>, question: Asked) -> Answered {
    let mod_revision = asked(question)?.renew.ok_or_else(|| Failure::invalid("?renew=N is missing"))?;
    client(&slot)?.renew_key(RenewKeyRequest { key, mod_revision }).await?;
    Ok(ok(mod_revision, &json!({ "mod_revision": mod_revision })))
}

pub(super) async fn delete(State(slot): State<Slot>, Path(key): Path<String>, question: Asked) -> Answered {
    let question = asked(question)?;
    let prefix = question.is_prefix()?;
    remove(&slot, DeleteKeysRequest { key, prefix, if_mod_revision: question.cas }).await
}

/// Deletes all keys, but only for those who say `?prefix`.
pub(super) async fn delete_all(State(slot): State<Slot>, question: Asked) -> Answered {
    if !asked(question)?.is_prefix()? {
        return Err(Failure::invalid("to delete all keys, say ?prefix").into());
    }
    let request = DeleteKeysRequest { key: String::new(), prefix: true, if_mod_revision: None };
    remove(&slot, request).await
}

async fn remove(slot: &Slot, request: DeleteKeysRequest) -> Answered {
    let deleted = client(slot)?.delete(request).await?;
    let mut response = ok(0, &json!({ "deleted": deleted }));
    response.headers_mut().remove(INDEX);
    Ok(response)
}
