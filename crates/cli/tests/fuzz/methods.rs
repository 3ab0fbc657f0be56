use protox::prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor};

/// A method of a service, as its descriptor has it.
#[derive(Clone)]
pub(crate) struct Method {
    pub(crate) path: String,
    pub(crate) asked: MessageDescriptor,
    pub(crate) answered: MessageDescriptor,
    pub(crate) takes_stream: bool,
    /// Whether it may be a while until it says anything, or ends.
    pub(crate) may_wait: bool,
    /// What a stranger may end with it, who may do everything: it is only asked where nobody is to be served.
    pub(crate) may_end: Option<&'static str>,
}

/// Methods that wait for something to change, for as long as they are asked to.
const MAY_WAIT: &[&str] = &[
    "/flotilla.scm.v1.Scm/Watch",
    "/flotilla.registry.v1.Registry/ListServices",
    "/flotilla.registry.v1.Registry/ListInstances",
    "/flotilla.registry.v1.Registry/ReadKeys",
    "/flotilla.registry.v1.Registry/Watch",
];

/// Methods with which a stranger may end service, lose names or data (docs/security.md), and how. A path
/// stands for all that begin with it.
const MAY_END: &[(&str, &str)] = &[
    ("/flotilla.raft.v1.RaftTransport/Append", "a leader of a later term is believed"),
    ("/flotilla.raft.v1.RaftTransport/Heartbeats", "a leader of a later term is believed"),
    ("/flotilla.raft.v1.RaftTransport/Snapshot", "a leader of a later term is believed"),
    ("/flotilla.raft.v1.RaftTransport/Vote", "elections without an end are what it is asked for"),
    ("/flotilla.raft.v1.RaftTransport/TransferLeader", "elections without an end are what it is asked for"),
    ("/flotilla.raft.v1.RaftTransport/Dismiss", "a member that is told so leaves its group"),
    ("/flotilla.scm.v1.Scm/Register", "in the name of a datanode or OM, at another address"),
    ("/flotilla.scm.v1.Scm/Heartbeat", "in the name of a datanode: its replicas are gone, its disks full"),
    ("/flotilla.scm.v1.Scm/OmHeartbeat", "in the name of an OM, at another address"),
    ("/flotilla.scm.v1.Scm/DiscardBlocks", "blocks that somebody names"),
    ("/flotilla.scm.v1.Scm/NoteFences", "a root that knows less sweeps no more"),
    ("/flotilla.scm.v1.Scm/ClosePipeline", "one after the other, until none takes data"),
    ("/flotilla.scm.v1.Scm/Accept", "what has no good replica is deleted"),
    ("/flotilla.scm.v1.Scm/DropReplica", "one of three"),
    ("/flotilla.scm.v1.Scm/SetNodeDuty", "who is decommissioned takes no data"),
    ("/flotilla.scm.v1.Scm/SetOmDuty", "who is decommissioned has no names"),
    ("/flotilla.scm.v1.Scm/GiveUpOmGroup", "names are lost"),
    ("/flotilla.scm.v1.Scm/BeginOmRestore", "names are lost"),
    ("/flotilla.scm.v1.Scm/EndOmRestore", "names are lost"),
    ("/flotilla.scm.v1.Scm/CreateOmGroup", "groups without an end, each of which is founded"),
    ("/flotilla.scm.v1.Scm/CreatePipeline", "pipelines without an end, each of which elects a leader"),
    ("/flotilla.scm.v1.Scm/SetSwitches", "safe mode"),
    ("/flotilla.scm.v1.Scm/JoinScm", "a member that is nowhere"),
    ("/flotilla.scm.v1.Scm/RemoveScmMember", "the only member"),
    ("/flotilla.om.v1.Om/FenceContainers", "no block of a fenced container is taken any more"),
    ("/flotilla.om.v1.Om/BringFences", "no block of a fenced container is taken any more"),
    ("/flotilla.om.v1.Om/KeepBuckets", "a bucket that has left is served"),
    ("/flotilla.om.v1.Om/RestoreRows", "rows are what they are said to be"),
    ("/flotilla.om.v1.Om/ReceiveRows", "rows are what they are said to be"),
    ("/flotilla.om.v1.Om/MoveBucket", "a bucket that moves takes no changes for a while"),
    ("/flotilla.om.v1.Om/SettleMove", "a bucket that has left without having come"),
    ("/flotilla.om.v1.Om/SendBucket", "a bucket that has left without having come"),
    ("/flotilla.om.v1.Om/EndSending", "a bucket that has left without having come"),
    ("/flotilla.om.v1.Om/EndReceiving", "a bucket that has left without having come"),
    ("/flotilla.om.v1.Om/HoldBucket", "a bucket of which the root knows nothing"),
    ("/flotilla.om.v1.Om/ReleaseBucket", "a bucket that the root takes for there"),
];

/// All that is on the wire.
pub(crate) struct Protocol {
    pool: DescriptorPool,
    /// Of all services, in the order of their paths.
    pub(crate) methods: Vec<Method>,
}

impl Protocol {
    /// What crates/proto/build.rs compiles.
    pub(crate) fn load() -> Protocol {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/proto");
        let files = std::fs::read_dir(dir).expect("the directory of the protocol");
        let mut files: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        let mut compiler = protox::Compiler::new([dir]).expect("a compiler");
        compiler.include_imports(true).open_files(files).expect("what the product is made from");
        let pool = compiler.descriptor_pool();
        let mut methods: Vec<Method> = pool
            .services()
            .flat_map(|service| service.methods().map(Method::of).collect::<Vec<_>>())
            .collect();
        methods.sort_by(|a, b| a.path.cmp(&b.path));
        Protocol { pool, methods }
    }

    pub(crate) fn method(&self, path: &str) -> &Method {
        self.methods.iter().find(|method| method.path == path).expect("a method of that path")
    }

    pub(crate) fn message(&self, name: &str) -> MessageDescriptor {
        self.pool.get_message_by_name(name).expect("a message of that name")
    }
}

impl Method {
    fn of(method: MethodDescriptor) -> Method {
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let may_end = MAY_END.iter().find(|(beginning, _)| path.starts_with(beginning));
        Method {
            asked: method.input(),
            answered: method.output(),
            takes_stream: method.is_client_streaming(),
            may_wait: MAY_WAIT.contains(&path.as_str()),
            may_end: may_end.map(|(_, how)| *how),
            path,
        }
    }
}

#[test]
fn each_method_is_one_that_the_server_knows() {
    let methods = Protocol::load().methods;
    let paths: Vec<&str> = methods.iter().map(|method| method.path.as_str()).collect();
    let served: Vec<&str> = proto::MessageLimit::of_all().map(|(path, _)| path).collect();
    assert_eq!(paths, served);
    for path in MAY_WAIT.iter().chain(MAY_END.iter().map(|(path, _)| path)) {
        assert!(paths.iter().any(|known| known.starts_with(path)), "{path}");
    }
    assert!(methods.iter().all(|method| method.takes_stream == proto::takes_stream(&method.path)));
}
