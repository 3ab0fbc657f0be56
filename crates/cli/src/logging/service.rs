use super::{LOGGING, Logging};
use proto::process::process_server::{Process, ProcessServer};
use proto::process::{LogRequest, LogResponse};
use proto::{Code, Failure};
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};

/// Adds the service by which whoever reaches the gRPC port changes what is logged. A call names no cluster: a
/// process is asked, whatever it belongs to.
pub(crate) fn add_to(routes: &mut RoutesBuilder) {
    routes.add_service(ProcessServer::new(Service));
}

#[derive(Clone, Copy)]
struct Service;

#[tonic::async_trait]
impl Process for Service {
    async fn log(&self, request: Request<LogRequest>) -> Result<Response<LogResponse>, Status> {
        let LogRequest { directives, reset } = request.into_inner();
        let logging =
            LOGGING.get().ok_or_else(|| Failure::new(Code::Unavailable, "nothing is logged yet"))?;
        Ok(Response::new(changed(logging, &directives, reset)?))
    }
}

fn changed(logging: &Logging, directives: &[String], reset: bool) -> Result<LogResponse, Failure> {
    let change = logging.change(directives, reset);
    let change = change.map_err(|error| Failure::invalid(format!("{error:#}")))?;
    Ok(LogResponse { before: change.before, now: change.now })
}
