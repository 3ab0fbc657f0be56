//! Replies: from the bytes of a question to the bytes of its answer.

use super::zone::{Found, Zone};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};

/// The most bytes of a message over UDP without EDNS.
const UDP_BYTES_PLAIN: usize = 512;
/// The most bytes of a message over UDP: so many cross the internet in one piece (the DNS flag day of 2020).
const UDP_BYTES_MAX: u16 = 1232;
const TCP_BYTES_MAX: usize = u16::MAX as usize;
const HEADER_BYTES: usize = 12;

/// The transport by which a message came, and its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Udp,
    Tcp,
}

/// The reply to a message.
#[derive(Debug)]
pub(super) enum Reply {
    Answer(Vec<u8>),
    /// The message is malformed; there is an answer that says so where it is a question at all.
    Malformed(Option<Vec<u8>>),
}

pub(super) fn reply(zone: &Zone, question: &[u8], over: Over) -> Reply {
    let request = match Message::from_vec(question) {
        Ok(request) => request,
        Err(_) => return Reply::Malformed(malformed(question)),
    };
    // Two servers that answer each other's answers would never end.
    if request.metadata.message_type != MessageType::Query {
        return Reply::Malformed(None);
    }
    let response = respond(zone, &request);
    let size_max = match (over, &request.edns) {
        (Over::Tcp, _) => TCP_BYTES_MAX,
        (Over::Udp, None) => UDP_BYTES_PLAIN,
        (Over::Udp, Some(edns)) => usize::from(edns.max_payload().min(UDP_BYTES_MAX)).max(UDP_BYTES_PLAIN),
    };
    match encode_within(response, size_max) {
        Some(bytes) => Reply::Answer(bytes),
        None => Reply::Malformed(malformed(question)),
    }
}

fn respond(zone: &Zone, request: &Message) -> Message {
    let asked = &request.metadata;
    let mut response = Message::response(asked.id, asked.op_code);
    response.metadata.recursion_desired = asked.recursion_desired;
    response.queries = request.queries.clone();
    if let Some(edns) = &request.edns {
        let mut ours = Edns::new();
        ours.set_max_payload(UDP_BYTES_MAX);
        response.set_edns(ours);
        if edns.version() != 0 {
            respond_with(&mut response, ResponseCode::BADVERS);
            return response;
        }
    }
    match (asked.op_code, request.queries.as_slice()) {
        (OpCode::Query, [query]) => answer(zone, query, &mut response),
        (OpCode::Query, _) => respond_with(&mut response, ResponseCode::FormErr),
        _ => respond_with(&mut response, ResponseCode::NotImp),
    }
    response
}

fn answer(zone: &Zone, query: &Query, response: &mut Message) {
    let is_transfer = matches!(query.query_type, RecordType::AXFR | RecordType::IXFR);
    if query.query_class != DNSClass::IN || is_transfer {
        return respond_with(response, ResponseCode::Refused);
    }
    match zone.find(&query.name, query.query_type) {
        Found::Foreign => respond_with(response, ResponseCode::Refused),
        Found::Unknown => respond_with(response, ResponseCode::ServFail),
        Found::NoSuchName => {
            response.metadata.authoritative = true;
            response.authorities.push(zone.soa());
            respond_with(response, ResponseCode::NXDomain);
        }
        Found::Records { answers, additionals } => {
            response.metadata.authoritative = true;
            if answers.is_empty() {
                response.authorities.push(zone.soa());
            }
            response.answers = answers;
            response.additionals = additionals;
        }
    }
}

/// Sets the response's code. The part of it that no header has room for goes into the EDNS record when the
/// message is encoded.
fn respond_with(response: &mut Message, code: ResponseCode) {
    response.metadata.response_code = code;
    if let Some(edns) = &mut response.edns {
        edns.set_rcode_high(code.high());
    }
}

/// Encodes a message in `size_max` bytes at most: first leaves out additional records, which need not be
/// there. An answer of which some is missing says so (TC), and is asked for again over TCP.
fn encode_within(mut message: Message, size_max: usize) -> Option<Vec<u8>> {
    loop {
        let bytes = message.to_vec().ok()?;
        if bytes.len() <= size_max {
            return Some(bytes);
        }
        if !message.additionals.is_empty() {
            message.additionals.truncate(message.additionals.len() / 2);
        } else if !message.answers.is_empty() {
            message.metadata.truncation = true;
            message.answers.truncate(message.answers.len() / 2);
        } else if !message.authorities.is_empty() {
            message.authorities.clear();
        } else {
            return None;
        }
    }
}

/// The reply to bytes that begin like a question: FORMERR with the question's number, and nothing else.
fn malformed(question: &[u8]) -> Option<Vec<u8>> {
    let header = question.get(..HEADER_BYTES)?;
    let is_response = header[2] & 0x80 != 0;
    if is_response {
        return None;
    }
    let id = u16::from_be_bytes([header[0], header[1]]);
    let op_code = OpCode::from_u8((header[2] >> 3) & 0x0f);
    Message::error_msg(id, op_code, ResponseCode::FormErr).to_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::super::zone::testing::{instance, zone, zone_of};
    use super::*;
    use hickory_proto::rr::Name;
    use proptest::prelude::*;
    use proto::registry::Health;

    fn question(name: &str, wanted: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), wanted));
        message
    }

    fn ask(zone: &Zone, message: &Message, over: Over) -> (Message, usize) {
        match reply(zone, &message.to_vec().unwrap(), over) {
            Reply::Answer(bytes) => (Message::from_vec(&bytes).unwrap(), bytes.len()),
            Reply::Malformed(_) => panic!("{message:?} is well formed"),
        }
    }

    fn code(message: &Message) -> ResponseCode {
        ask(&zone(), message, Over::Udp).0.metadata.response_code
    }

    #[tokio::test]
    async fn answers_are_the_zones_own() {
        let asked = question("wEb.service.flotilla.", RecordType::A);
        let (answer, _) = ask(&zone(), &asked, Over::Udp);
        assert_eq!(answer.metadata.id, asked.metadata.id);
        assert!(answer.metadata.authoritative && answer.metadata.recursion_desired);
        assert!(!answer.metadata.recursion_available && !answer.metadata.truncation);
        assert!(answer.queries[0].name.eq_case(&asked.queries[0].name), "as it was asked, in its letters");
        assert_eq!((answer.answers.len(), answer.authorities.len()), (1, 0));
        let (nothing, _) = ask(&zone(), &question("down.service.flotilla.", RecordType::A), Over::Udp);
        assert_eq!(nothing.metadata.response_code, ResponseCode::NoError);
        assert_eq!((nothing.answers.len(), nothing.authorities[0].record_type()), (0, RecordType::SOA));
    }

    #[tokio::test]
    async fn what_is_not_ours_is_refused() {
        assert_eq!(code(&question("example.com.", RecordType::A)), ResponseCode::Refused);
        assert_eq!(code(&question("nobody.service.flotilla.", RecordType::A)), ResponseCode::NXDomain);
        assert_eq!(code(&question("flotilla.", RecordType::AXFR)), ResponseCode::Refused);
        let mut chaos = question("web.service.flotilla.", RecordType::A);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(code(&chaos), ResponseCode::Refused);
        let mut update = question("web.service.flotilla.", RecordType::A);
        update.metadata.op_code = OpCode::Status;
        assert_eq!(code(&update), ResponseCode::NotImp);
        let mut two = question("web.service.flotilla.", RecordType::A);
        two.add_query(two.queries[0].clone());
        assert_eq!(code(&two), ResponseCode::FormErr);
        let mut newer = question("web.service.flotilla.", RecordType::A);
        let mut edns = Edns::new();
        edns.set_version(1);
        newer.set_edns(edns);
        let (answer, _) = ask(&zone(), &newer, Over::Udp);
        // Code 16 has two names, and is decoded as the other one.
        assert_eq!(u16::from(answer.metadata.response_code), u16::from(ResponseCode::BADVERS));
    }

    #[tokio::test]
    async fn large_answers_are_cut_over_udp_and_whole_over_tcp() {
        let many = (0..200).map(|n| {
            instance(
                "web",
                &format!("i{n}"),
                &[("http", &format!("10.0.{}.{}:80", n / 100, n % 100))],
                Health::Passing,
            )
        });
        let zone = zone_of(many.collect());
        let mut asked = question("web.service.flotilla.", RecordType::A);
        let (answer, bytes) = ask(&zone, &asked, Over::Udp);
        assert!(answer.metadata.truncation && bytes <= 512 && !answer.answers.is_empty(), "{bytes}");
        let mut edns = Edns::new();
        edns.set_max_payload(4096);
        asked.set_edns(edns);
        let (answer, bytes) = ask(&zone, &asked, Over::Udp);
        assert!(answer.metadata.truncation && bytes <= 1232 && answer.edns.is_some(), "{bytes}");
        let (answer, _) = ask(&zone, &asked, Over::Tcp);
        assert_eq!((answer.metadata.truncation, answer.answers.len()), (false, 200));
        let srv = question("web.service.flotilla.", RecordType::SRV);
        let (answer, bytes) = ask(&zone, &srv, Over::Tcp);
        assert_eq!((answer.metadata.truncation, answer.answers.len()), (false, 200), "{bytes} bytes");
    }

    #[tokio::test]
    async fn the_order_is_one_of_chance() {
        let many = (0..8).map(|n| {
            instance("web", &format!("i{n}"), &[("http", &format!("10.0.0.{n}:80"))], Health::Passing)
        });
        let zone = zone_of(many.collect());
        let asked = question("web.service.flotilla.", RecordType::A);
        let firsts: std::collections::HashSet<String> =
            (0..200).map(|_| ask(&zone, &asked, Over::Udp).0.answers[0].data.to_string()).collect();
        assert_eq!(firsts.len(), 8, "each of eight stands first now and then");
    }

    #[tokio::test]
    async fn answers_are_not_answered() {
        let mut answer = question("web.service.flotilla.", RecordType::A);
        answer.metadata.message_type = MessageType::Response;
        assert!(matches!(reply(&zone(), &answer.to_vec().unwrap(), Over::Udp), Reply::Malformed(None)));
        let mut broken = question("web.service.flotilla.", RecordType::A).to_vec().unwrap();
        broken.truncate(20);
        let Reply::Malformed(Some(said)) = reply(&zone(), &broken, Over::Udp) else {
            panic!("it has a header")
        };
        assert_eq!(Message::from_vec(&said).unwrap().metadata.response_code, ResponseCode::FormErr);
        assert!(matches!(reply(&zone(), &broken[..11], Over::Udp), Reply::Malformed(None)));
    }

    proptest! {
        #[test]
        fn hostile_packets_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..60, flip in any::<u8>()) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _inside = runtime.enter();
            let zone = zone();
            let _ = reply(&zone, &bytes, Over::Udp);
            // A question with one byte changed, and one with bytes after it.
            let mut asked = question("_http._tcp.web.service.flotilla.", RecordType::SRV).to_vec().unwrap();
            let place = at % asked.len();
            asked[place] ^= flip;
            asked.extend(&bytes);
            for over in [Over::Udp, Over::Tcp] {
                if let Reply::Answer(answer) = reply(&zone, &asked, over) {
                    prop_assert!(over == Over::Tcp || answer.len() <= 1232);
                }
            }
        }
    }
}
