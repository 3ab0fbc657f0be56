use super::scan::Scan;
use super::{Query, Reach};
use crate::rules::{VOLUME, page_limit};
use crate::tables::{InGroup, Refusal, VOLUMES_PREFIX, decode, volume_key};
use proto::om::{ListVolumesRequest, ListVolumesResponse, Volume};
use statedb::Db;

/// A page of all volumes, by name.
pub(crate) struct ListVolumes;

impl Query for ListVolumes {
    type Request = ListVolumesRequest;
    type Response = ListVolumesResponse;
    const REACH: Reach = Reach::Page;

    fn read(
        db: &Db,
        _: Option<InGroup>,
        request: ListVolumesRequest,
    ) -> Result<ListVolumesResponse, Refusal> {
        let limit = page_limit(request.limit);
        let from = [&volume_key(&request.after)[..], b"\0"].concat();
        let mut scan = Scan::new(db, VOLUMES_PREFIX, &from);
        let mut volumes = Vec::new();
        // One volume more than fits is read, so that it is known whether there is more.
        while volumes.len() <= limit
            && let Some((key, value)) = scan.record()?
        {
            volumes.push(decode::<Volume>(key, value)?);
            scan.step();
        }
        if request.after.as_str() < VOLUME {
            volumes.push(Volume { name: VOLUME.to_owned(), created_ms: 0 });
            volumes.sort_by(|one, other| one.name.cmp(&other.name));
        }
        let truncated = volumes.len() > limit;
        volumes.truncate(limit);
        Ok(ListVolumesResponse { volumes, truncated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CreateVolume;
    use crate::ops::testing::Namespace;
    use proto::om::CreateVolumeRequest;

    #[test]
    fn volumes_come_by_name_and_page_and_s3v_among_them() {
        let mut root = Namespace::new();
        for volume in ["zoo", "abc", "s3w"] {
            root.run::<CreateVolume>(CreateVolumeRequest { volume: volume.to_owned() }).unwrap();
        }
        let check = |after: &str, limit: u32, expect: &[&str], truncated: bool| {
            let request = ListVolumesRequest { after: after.to_owned(), limit };
            let page = ListVolumes::read(&root.db, None, request).unwrap();
            let names: Vec<&str> = page.volumes.iter().map(|volume| volume.name.as_str()).collect();
            assert_eq!((names.as_slice(), page.truncated), (expect, truncated), "after `{after}`");
        };
        check("", 0, &["abc", "s3v", "s3w", "zoo"], false);
        check("", 1, &["abc"], true);
        check("abc", 1, &["s3v"], true);
        check("abc", 2, &["s3v", "s3w"], true);
        check("s3v", 2, &["s3w", "zoo"], false);
        check("s3w", 1, &["zoo"], false);
        check("zoo", 1, &[], false);
    }
}
