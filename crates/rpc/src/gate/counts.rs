use crate::frames::FrameCounts;
use metrics::{Counter, Exposition, Metric};
use std::sync::Arc;

const REFUSED: Metric = Metric {
    name: "flotilla_rpc_connections_refused_total",
    help: "Connections to the gRPC port that were closed, by reason.",
};
const CALLS: Metric =
    Metric { name: "flotilla_rpc_calls_total", help: "Calls to the gRPC port that were let in." };
const MESSAGES: Metric = Metric {
    name: "flotilla_rpc_messages_total",
    help: "Messages in these calls: a stream is one call of many messages.",
};
const CALLS_REFUSED: Metric = Metric {
    name: "flotilla_rpc_calls_refused_total",
    help: "Calls for which the limit of an address, or of all, had no room.",
};
const TOO_LARGE: Metric = Metric {
    name: "flotilla_rpc_messages_too_large_total",
    help: "Messages above the limit of their method, not read further.",
};
const ANSWERS_REFUSED: Metric = Metric {
    name: "flotilla_rpc_answers_refused_total",
    help: "Answers that ended early, as those that nobody takes left no room for them.",
};
const GIVEN_UP: Metric = Metric {
    name: "flotilla_rpc_messages_given_up_total",
    help: "Messages that came in part, or waited to be read, and were given up with their calls, by reason.",
};
const NOT_TAKEN: Metric = Metric {
    name: "flotilla_rpc_answers_not_taken_total",
    help: "Answers that were given up, as their callers took nothing of them.",
};

/// Counters of what was let in and what was turned away.
#[derive(Debug, Default)]
pub struct GateCounts {
    pub calls: Counter,
    /// Messages in the calls that were let in, each when it is whole.
    pub messages: Counter,
    pub connections_refused: Counter,
    pub connections_silent: Counter,
    pub calls_refused: Counter,
    pub messages_too_large: Counter,
    pub messages_without_room: Counter,
    pub messages_late: Counter,
    pub answers_without_room: Counter,
    pub frames: Arc<FrameCounts>,
}

impl GateCounts {
    /// Shows the counts of the gRPC port.
    pub fn expose(&self, exposition: &mut Exposition) {
        exposition.counter(CALLS, &[], self.calls.get());
        exposition.counter(MESSAGES, &[], self.messages.get());
        exposition.counter(REFUSED, &[("reason", "address_full")], self.connections_refused.get());
        exposition.counter(REFUSED, &[("reason", "silent")], self.connections_silent.get());
        exposition.counter(CALLS_REFUSED, &[], self.calls_refused.get());
        exposition.counter(TOO_LARGE, &[], self.messages_too_large.get());
        exposition.counter(GIVEN_UP, &[("reason", "no_room")], self.messages_without_room.get());
        exposition.counter(GIVEN_UP, &[("reason", "late")], self.messages_late.get());
        exposition.counter(GIVEN_UP, &[("reason", "unread")], self.frames.calls_unread.get());
        exposition.counter(ANSWERS_REFUSED, &[], self.answers_without_room.get());
        exposition.counter(NOT_TAKEN, &[], self.frames.answers_not_taken.get());
        self.frames.expose(exposition, "server");
        FrameCounts::of_clients().expose(exposition, "client");
    }
}
