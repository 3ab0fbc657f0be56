use tonic::transport::{Channel, Endpoint};

/// The gRPC ports of a cluster, by what answers there.
#[derive(Default)]
pub(crate) struct Reach {
    scms: Vec<Channel>,
    oms: Vec<Channel>,
    datanodes: Vec<Channel>,
    all: Vec<Channel>,
    /// Of all, in their order.
    addresses: Vec<String>,
}

impl Reach {
    pub(crate) fn of(scms: &[String], oms: &[String], datanodes: &[String]) -> Reach {
        let mut all = [scms, oms, datanodes].concat();
        all.sort();
        all.dedup();
        let channels = |addresses: &[String]| addresses.iter().map(|address| channel(address)).collect();
        Reach {
            scms: channels(scms),
            oms: channels(oms),
            datanodes: channels(datanodes),
            all: channels(&all),
            addresses: all,
        }
    }

    /// The ports where this method is served.
    pub(crate) fn serving(&self, path: &str) -> &[Channel] {
        match path.split('.').nth(1) {
            Some("scm" | "registry") => &self.scms,
            Some("om") => &self.oms,
            Some("datanode") => &self.datanodes,
            _ => &self.all,
        }
    }

    pub(crate) fn all(&self) -> &[Channel] {
        &self.all
    }

    /// The port at this address, if it is one of them: strangers may have SCM tell others.
    pub(crate) fn at(&self, address: &str) -> Option<Channel> {
        let at = self.addresses.iter().position(|known| known == address)?;
        Some(self.all[at].clone())
    }
}

/// A connection that is made anew when somebody has ended it.
pub(crate) fn channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}
