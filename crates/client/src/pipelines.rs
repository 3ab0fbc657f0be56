use crate::ClientOptions;
use crate::channels::Channels;
use crate::stream::PipelineStream;
use crate::view::{PipelineView, View};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use types::PipelineId;
use types::random::random;

/// The pipelines this process may write to, each with its stream once it has been used.
pub(crate) struct Pipelines {
    streams: Mutex<BTreeMap<PipelineId, Arc<PipelineStream>>>,
    view: watch::Receiver<Arc<View>>,
    channels: Channels,
    options: ClientOptions,
    /// A random number by which this process chooses the pipeline that it fills with small objects first, so
    /// that gateways differ.
    start: usize,
}

/// The load that a block will hold, as far as its writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// One chunk of this many bytes.
    Small(usize),
    Large,
}

/// The most bytes of a chunk that counts as small: many of these in one fsync are what makes them cheap.
const SMALL_BYTES_MAX: usize = 128 * 1024;
/// A pipeline with this much under way is busy, and the next small object goes to the next pipeline.
const SMALL_BUSY_BYTES: usize = 512 * 1024;

impl Pipelines {
    pub(crate) fn new(
        options: ClientOptions,
        channels: Channels,
        view: watch::Receiver<Arc<View>>,
    ) -> Pipelines {
        Pipelines {
            streams: Mutex::default(),
            view,
            channels,
            options,
            start: random().random_range(0..1 << 16),
        }
    }

    /// A pipeline for a new block; `None` while SCM has told of none.
    pub(crate) fn choose(&self, load: Load) -> Option<Arc<PipelineStream>> {
        let view = self.view.borrow().clone();
        let streams = self.streams_of(&view);
        let healthy: Vec<&Arc<PipelineStream>> =
            streams.iter().filter(|stream| !stream.is_avoided()).collect();
        // When all are in trouble, one of them is still a better try than none.
        let candidates = if healthy.is_empty() { streams.iter().collect() } else { healthy };
        choose_among(&candidates, load, self.start, |stream| stream.in_flight_bytes()).cloned()
    }

    /// Whether every open pipeline is on disks that are full, by SCM or because it is among those that
    /// `refused`.
    pub(crate) fn are_full(&self, refused: &BTreeSet<PipelineId>) -> bool {
        are_full(&self.view.borrow(), refused)
    }

    /// The streams of all pipelines that are open, and led with room for more (of all open ones, while none
    /// is; of the decided ones, while none is open), in the order of their ids.
    fn streams_of(&self, view: &View) -> Vec<Arc<PipelineStream>> {
        let worth =
            |pipeline: &PipelineView| (pipeline.open, pipeline.leader.is_some() && !pipeline.may_lack_room);
        let most = view.pipelines.iter().map(worth).max();
        let mut streams = self.streams.lock().expect("no holder panics");
        streams.retain(|id, _| view.pipeline(*id).is_some());
        let usable = view.pipelines.iter().filter(|pipeline| Some(worth(pipeline)) == most);
        usable
            .map(|pipeline| streams.entry(pipeline.id).or_insert_with(|| self.start(pipeline.id)).clone())
            .collect()
    }

    fn start(&self, id: PipelineId) -> Arc<PipelineStream> {
        Arc::new(PipelineStream::start(
            id,
            self.options.stream_buffer_bytes_max,
            self.options.stall,
            self.channels.clone(),
            self.view.clone(),
        ))
    }
}

fn are_full(view: &View, refused: &BTreeSet<PipelineId>) -> bool {
    let mut open = view.pipelines.iter().filter(|pipeline| pipeline.open).peekable();
    open.peek().is_some() && open.all(|pipeline| pipeline.may_lack_room || refused.contains(&pipeline.id))
}

/// Small loads fill one candidate after the other; the rest take the less busy of two drawn at random.
fn choose_among<'a, T>(
    candidates: &[&'a T],
    load: Load,
    start: usize,
    in_flight_bytes: impl Fn(&T) -> usize,
) -> Option<&'a T> {
    if candidates.is_empty() {
        return None;
    }
    if let Load::Small(bytes) = load
        && bytes <= SMALL_BYTES_MAX
    {
        let in_turn = (0..candidates.len()).map(|n| candidates[(start + n) % candidates.len()]);
        let quiet =
            in_turn.into_iter().find(|candidate| in_flight_bytes(candidate) + bytes <= SMALL_BUSY_BYTES);
        if quiet.is_some() {
            return quiet;
        }
    }
    let first = random().random_range(0..candidates.len());
    let mut second = random().random_range(0..candidates.len());
    if second == first {
        second = (first + 1) % candidates.len();
    }
    let (first, second) = (candidates[first], candidates[second]);
    Some(if in_flight_bytes(second) < in_flight_bytes(first) { second } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ContainerId;

    #[test]
    fn pipelines_are_full_when_none_is_left_that_may_take_more() {
        let pipeline = |id, open, may_lack_room| PipelineView {
            id: PipelineId(id),
            open,
            leader: None,
            members: Vec::new(),
            container: ContainerId(id),
            may_lack_room,
        };
        let view = |pipelines: &[PipelineView]| View { pipelines: pipelines.to_vec(), ..View::default() };
        let refused = BTreeSet::from([PipelineId(2)]);
        assert!(are_full(&view(&[pipeline(1, true, true), pipeline(2, true, false)]), &refused));
        assert!(!are_full(&view(&[pipeline(1, true, true), pipeline(3, true, false)]), &refused));
        assert!(are_full(&view(&[pipeline(2, true, false), pipeline(3, false, false)]), &refused));
        assert!(!are_full(&view(&[]), &refused), "one may come");
    }

    #[test]
    fn small_objects_stay_on_one_pipeline_until_it_is_busy() {
        let busy = |bytes: &[usize]| {
            let numbered: Vec<(usize, usize)> = bytes.iter().copied().enumerate().collect();
            let refs: Vec<&(usize, usize)> = numbered.iter().collect();
            choose_among(&refs, Load::Small(4096), 1, |candidate| candidate.1).map(|candidate| candidate.0)
        };
        assert_eq!(busy(&[0, 0, 0]), Some(1));
        assert_eq!(busy(&[0, SMALL_BUSY_BYTES - 4096, 0]), Some(1));
        assert_eq!(busy(&[0, SMALL_BUSY_BYTES, 0]), Some(2));
        assert_eq!(busy(&[0, SMALL_BUSY_BYTES, SMALL_BUSY_BYTES]), Some(0));
        assert_eq!(busy(&[]), None);
    }

    #[test]
    fn large_blocks_avoid_the_busiest_pipeline() {
        let in_flight = [0usize, 100, 1 << 24];
        let refs: Vec<&usize> = in_flight.iter().collect();
        for _ in 0..200 {
            let chosen = *choose_among(&refs, Load::Large, 0, |bytes| *bytes).unwrap();
            assert_ne!(chosen, 1 << 24, "two different ones are compared, and the busiest never wins");
        }
    }
}
