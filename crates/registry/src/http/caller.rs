//! Callers whose requests are answered. Whoever reaches the port may read and write the registry, and a
//! browser reaches ports that the pages in it must not: of the machine it runs on, and of others in its
//! network. A page may give its own name an address of ours (DNS rebinding), and then it asks as itself; so a
//! request is answered under names that no page can have. A page may also send to another's name a request of
//! which it cannot read the answer; browsers say so.

use super::answer::refused;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use proto::{Code, Failure};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Names under which a process's HTTP is asked, beside those that are nobody else's: addresses, names of a
/// single word, `localhost`.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    /// Takes the names, of which one that begins with a dot stands for all below it.
    pub fn new(names: impl IntoIterator<Item = String>) -> Hosts {
        Hosts(names.into_iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Whether a page of somebody else cannot have come under this name. `host` as in the header, with or
    /// without a port.
    fn are_ours(&self, host: &str) -> bool {
        let host = host.trim().to_ascii_lowercase();
        if let Some(address) = host.strip_prefix('[') {
            return address.split_once(']').is_some_and(|(address, port)| {
                let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
                address.parse::<Ipv6Addr>().is_ok() && port.is_some_and(is_port)
            });
        }
        let (name, port) = host.split_once(':').unwrap_or((&host, ""));
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() || name.contains(['@', '/']) || !is_port(port) {
            return false;
        }
        // A name without a dot is found in the machine's own network only.
        let is_local = !name.contains('.') || name.ends_with(".localhost");
        let is_named = |named: &String| match named.strip_prefix('.') {
            Some(zone) => name.strip_suffix(zone).is_some_and(|below| below.ends_with('.')),
            None => name == named,
        };
        is_local || name.parse::<IpAddr>().is_ok() || self.0.iter().any(is_named)
    }

    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        let refuse = |why: String| Err(Failure::new(Code::Invalid, why));
        let mut hosts = headers.get_all(header::HOST).iter();
        let named = match (hosts.next(), hosts.next()) {
            (_, Some(_)) => return refuse("more than one Host".to_owned()),
            (Some(host), None) => host.to_str().unwrap_or_default(),
            (None, None) => "",
        };
        // A browser's request has a Host; HTTP/1.0 need not have one, and HTTP/2 says it in the URI's
        // authority.
        let authority = uri.authority().map(|authority| authority.as_str());
        for host in
            [Some(named).filter(|host| !host.is_empty() || headers.contains_key(header::HOST)), authority]
        {
            if let Some(host) = host
                && !self.are_ours(host)
            {
                return refuse(format!(
                    "this process is not asked as `{}`: use its address, or name it with --http-host",
                    host.escape_debug()
                ));
            }
        }
        let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
        let is_read = method == Method::GET || method == Method::HEAD;
        let is_of_page = headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != b"none");
        let is_of_browser = is_of_page || site.is_some();
        if is_of_page || (is_of_browser && !is_read) {
            return refuse("the registry is not asked by pages of a browser".to_owned());
        }
        Ok(())
    }
}

/// Whether this may follow the colon of a Host: digits, or nothing.
fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Refuses what a page may have sent, before anything else looks at it.
pub(super) async fn of_ours(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    match hosts.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(failure) => refused(&failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    #[test]
    fn names_that_a_page_can_have_are_not_ours() {
        let hosts = Hosts::new([
            "registry.example.com".to_owned(),
            ".flotilla".to_owned(),
            ".svc.cluster.local.".to_owned(),
        ]);
        for ours in [
            "127.0.0.1",
            "127.0.0.1:7480",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:7480",
            "[fe80::1]:1",
            "localhost",
            "LOCALHOST:7480",
            "node1",
            "node1:7480",
            "a.localhost",
            "registry.example.com:7480",
            "Registry.Example.Com.",
            "scm.flotilla",
            "a.b.flotilla:7480",
            "scm.default.svc.cluster.local",
        ] {
            assert!(hosts.are_ours(ours), "{ours}");
        }
        for other in [
            "",
            ":80",
            "example.com",
            "evil.example.com:7480",
            "evil-registry.example.com",
            "127.0.0.1.evil.com",
            "x.flotilla.evil.com",
            "evilflotilla.com",
            "localhost.evil.com",
            "a@127.0.0.1",
            "127.0.0.1:80@evil.com",
            "127.0.0.1:x",
            "[::1]:80@evil.com",
            "[::1].evil.com",
            "[evil.com]",
            "1.2.3.4.5",
            "x.evilflotilla",
        ] {
            assert!(!hosts.are_ours(other), "{other}");
        }
        assert!(!Hosts::default().are_ours("scm.flotilla"));
    }

    fn check(method: Method, headers: &[(&'static str, &str)]) -> bool {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().expect("a value"))
        };
        let mut map = HeaderMap::new();
        headers.iter().map(pair).for_each(|(name, value): (HeaderName, _)| {
            map.append(name, value);
        });
        Hosts::default().check(&method, &Uri::from_static("/v1/kv/a"), &map).is_ok()
    }

    #[test]
    fn what_a_page_sends_is_refused_and_what_a_person_or_a_program_does_is_not() {
        let host = ("host", "127.0.0.1:7480");
        for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE] {
            assert!(check(method.clone(), &[host]) && check(method.clone(), &[]));
            assert!(!check(method.clone(), &[("host", "evil.com")]), "rebound");
            assert!(!check(method.clone(), &[host, ("origin", "http://evil.com")]));
            assert!(!check(method.clone(), &[host, ("origin", "null")]));
            assert!(!check(method.clone(), &[host, ("sec-fetch-site", "cross-site")]));
            assert!(!check(method.clone(), &[host, ("sec-fetch-site", "same-site")]));
            assert!(!check(method, &[host, ("host", "evil.com")]));
        }
        assert!(check(Method::GET, &[host, ("sec-fetch-site", "none")]), "typed into the browser");
        assert!(!check(Method::POST, &[host, ("sec-fetch-site", "none")]));
    }
}
