use super::scan::Scan;
use super::{Query, Reach, named};
use crate::rules::page_limit;
use crate::tables::{InGroup, Refusal, bucket_number, decode, part_key, parts_prefix, upload_existing};
use proto::om::{ListPartsRequest, ListPartsResponse, Part};
use statedb::Db;

/// A page of an upload's parts by number, without their pieces.
pub(crate) struct ListParts;

impl Query for ListParts {
    type Request = ListPartsRequest;
    type Response = ListPartsResponse;
    const REACH: Reach = Reach::Page;

    fn read(
        db: &Db,
        place: Option<InGroup>,
        request: ListPartsRequest,
    ) -> Result<ListPartsResponse, Refusal> {
        let bucket = bucket_number(db, named(place, &request.volume, &request.bucket))?;
        let upload = upload_existing(db, bucket, &request.key, &request.upload)?;
        let limit = page_limit(request.limit);
        let mut response = ListPartsResponse {
            attributes: upload.attributes,
            created_ms: upload.created_ms,
            ..ListPartsResponse::default()
        };
        let from = part_key(bucket, &request.upload, request.after.saturating_add(1));
        let mut scan = Scan::new(db, &parts_prefix(bucket, &request.upload), &from);
        while let Some((key, value)) = scan.record()? {
            if response.parts.len() == limit {
                response.truncated = true;
                break;
            }
            response.parts.push(Part { pieces: Vec::new(), ..decode(key, value)? });
            scan.step();
        }
        Ok(response)
    }
}
