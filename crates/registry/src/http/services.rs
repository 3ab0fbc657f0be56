use super::answer::{Answered, answer, ok};
use super::question::{Question, duration};
use super::{Slot, client, in_turn};
use crate::json::{health, instance_to_json};
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use proto::Failure;
use proto::registry::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::BTreeMap;

type Asked = Result<Query<Question>, QueryRejection>;

pub(super) fn asked(question: Asked) -> Result<Question, Failure> {
    match question {
        Ok(Query(question)) => Ok(question),
        Err(rejection) => Err(Failure::invalid(rejection.body_text())),
    }
}

pub(super) async fn list(State(slot): State<Slot>, question: Asked) -> Answered {
    let question = asked(question)?;
    let (reading, client) = (question.reading()?, client(&slot)?);
    let now = Reading { stale: reading.stale, ..Reading::default() };
    if question.waits() {
        let news =
            ListInstancesRequest { reading: Some(reading), limit: 1, ..ListInstancesRequest::default() };
        client.list_instances(news).await?;
    }
    let listed = async {
        let listed = client.services(now).await?;
        let services = listed.services.iter().map(|summary| {
            json!({
                "service": summary.service,
                "passing": summary.passing,
                "warning": summary.warning,
                "critical": summary.critical,
            })
        });
        let body = json!({ "revision": listed.revision, "services": services.collect::<Vec<_>>() });
        Ok(ok(listed.revision, &body))
    };
    in_turn(reading.stale, listed).await
}

pub(super) async fn instances(
    State(slot): State<Slot>,
    Path(service): Path<String>,
    question: Asked,
) -> Answered {
    let question = asked(question)?;
    let (reading, passing) = (question.reading()?, question.is_passing()?);
    let page = ListInstancesRequest {
        reading: Some(Reading { stale: reading.stale, ..Reading::default() }),
        service: service.clone(),
        from: question.from.clone().map(|id| InstanceName { service, id }),
        limit: question.limit.unwrap_or(0),
    };
    let client = client(&slot)?;
    if question.waits() {
        let news = ListInstancesRequest { reading: Some(reading), limit: 1, ..page.clone() };
        client.list_instances(news).await?;
    }
    let listed = async {
        let listed = client.list_instances(page).await?;
        let is_wanted = |instance: &&Instance| !passing || health(instance) == Health::Passing;
        let wanted = listed.instances.iter().filter(is_wanted);
        let mut body = json!({
            "revision": listed.revision,
            "instances": wanted.map(instance_to_json).collect::<Vec<_>>(),
        });
        if let Some(next) = listed.next {
            body["next"] = json!(next.id);
        }
        Ok(ok(listed.revision, &body))
    };
    in_turn(reading.stale, listed).await
}

pub(super) async fn instance(
    State(slot): State<Slot>,
    Path((service, id)): Path<(String, String)>,
    question: Asked,
) -> Answered {
    let reading = Some(asked(question)?.reading()?);
    let from = Some(InstanceName { service: service.clone(), id: id.clone() });
    let request = ListInstancesRequest { reading, service: service.clone(), from, limit: 1 };
    let listed = client(&slot)?.list_instances(request).await?;
    match listed.instances.iter().find(|instance| instance.id == id) {
        Some(instance) => Ok(ok(listed.revision, &instance_to_json(instance))),
        None => {
            let body =
                json!({ "error": format!("there is no instance {id} of {service}"), "code": "NOT_FOUND" });
            Ok(answer(StatusCode::NOT_FOUND, listed.revision, &body))
        }
    }
}

/// An instance as it describes itself when it registers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewInstance {
    #[serde(default)]
    addresses: BTreeMap<String, String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    ttl: String,
    #[serde(default)]
    checks: Vec<NewCheck>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Renewal {
    checks: Vec<NewCheck>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewCheck {
    name: String,
    health: NewHealth,
    #[serde(default)]
    output: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum NewHealth {
    Passing,
    Warning,
    Critical,
}

impl From<NewCheck> for Check {
    fn from(check: NewCheck) -> Check {
        let health = match check.health {
            NewHealth::Passing => Health::Passing,
            NewHealth::Warning => Health::Warning,
            NewHealth::Critical => Health::Critical,
        };
        Check { name: check.name, health: health as i32, output: check.output }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::invalid(format!("the body: {error}")))
}

pub(super) async fn register(
    State(slot): State<Slot>,
    Path((service, id)): Path<(String, String)>,
    body: Bytes,
) -> Answered {
    let NewInstance { addresses, metadata, ttl, checks } = parse(&body)?;
    let ttl_ms = duration(&ttl)?.as_millis() as u64;
    let checks = checks.into_iter().map(Check::from).collect();
    let instance = Instance { service, id, addresses, metadata, ttl_ms, checks, ..Instance::default() };
    let registered = client(&slot)?.register(instance, None).await?;
    Ok(ok(registered.revision, &json!({ "revision": registered.revision, "lease": registered.lease })))
}

pub(super) async fn renew(
    State(slot): State<Slot>,
    Path((service, id)): Path<(String, String)>,
    question: Asked,
    body: Bytes,
) -> Answered {
    let lease = asked(question)?.lease.ok_or_else(|| Failure::invalid("?lease=N is missing"))?;
    let renewal: Renewal = match body.is_empty() {
        true => Renewal::default(),
        false => parse(&body)?,
    };
    let checks = renewal.checks.into_iter().map(Check::from).collect();
    let name = Some(InstanceName { service, id });
    let renewal = RenewInstanceRequest { name, lease, checks, clock_ms: 0 };
    client(&slot)?.renew(renewal, None).await?;
    Ok(ok(lease, &json!({ "lease": lease })))
}

pub(super) async fn deregister(
    State(slot): State<Slot>,
    Path((service, id)): Path<(String, String)>,
) -> Answered {
    let gone = client(&slot)?.deregister(InstanceName { service, id }).await?;
    Ok(ok(gone.revision, &json!({ "revision": gone.revision })))
}
