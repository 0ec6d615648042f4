//! Who may ask: the token, and the pages whose requests are answered.

use std::net::IpAddr;

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};

use super::refusal::Refusal;
use crate::token::Token;

/// The rules about requests.
#[derive(Clone)]
pub(super) struct Access {
    /// What `Authorization: Bearer` must hold.
    pub(super) token: Option<Token>,
    /// Origins of pages, besides the server's own, that may ask.
    pub(super) origins: Vec<String>,
}

impl Access {
    /// Whether the headers have the token, if there is one.
    ///
    /// # Errors
    /// 401 if they have not.
    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let (scheme, given) = given.split_at_checked(7).unwrap_or((given, &[]));
        if token.is(given) && scheme.eq_ignore_ascii_case(b"bearer ") {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "send the token in the header: Authorization: Bearer TOKEN",
        ))
    }

    /// Refuses requests of pages that other servers have sent. A browser names the origin of such a page, and the name under
    /// which it has found this server: if another name leads to this machine, a page may have made it so (DNS rebinding). A request
    /// without a name, as HTTP/1.0 allows, is of no browser.
    ///
    /// # Errors
    /// 403 for such a request.
    pub(super) fn check_page(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes())).unwrap_or_default();
        let host: &str = &host;
        let is_allowed = |host: &str| {
            self.origins.iter().any(|origin| origin == "*" || origin.split("://").last() == Some(host))
        };
        if self.token.is_none() && !host.is_empty() && !cannot_be_rebound(host) && !is_allowed(host) {
            let message = format!(
                "this server answers requests to `localhost` or to an address in numbers, not to `{host}`; start it with \
                 --allow-origin https://{host} or with a token"
            );
            return Err(Refusal::new(StatusCode::FORBIDDEN, message));
        }
        let Some(origin) = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()) else { return Ok(()) };
        let is_own = origin.split("://").last() == Some(host);
        let is_listed = self.origins.iter().any(|allowed| allowed == "*" || allowed == origin);
        if is_own || is_listed {
            return Ok(());
        }
        let message =
            format!("a page of {origin} may not ask this server; --allow-origin {origin} would allow it");
        Err(Refusal::new(StatusCode::FORBIDDEN, message))
    }
}

/// Whether a host, with or without a port, is the same machine whatever a name server says.
fn cannot_be_rebound(host: &str) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = without_port.trim_start_matches('[').trim_end_matches(']');
    without_port.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_token_counts_in_its_header_alone_and_whole() {
        let access = Access { token: Token::new("secret").ok(), origins: Vec::new() };
        let is_let_in = |value| access.check_token(&headers(&[(AUTHORIZATION, value)])).is_ok();
        assert!(is_let_in("Bearer secret") && is_let_in("bearer secret"));
        for wrong in ["", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret"] {
            assert!(!is_let_in(wrong), "{wrong}");
        }
        assert!(access.check_token(&HeaderMap::new()).is_err());
    }

    #[test]
    fn pages_of_other_origins_and_names_that_lead_here_are_refused() {
        let closed = Access { token: None, origins: Vec::new() };
        let open = Access { origins: vec!["https://a.example".to_owned()], ..closed.clone() };
        let secret = Access { token: Token::new("secret").ok(), ..open.clone() };
        for (access, host, origin, is_let_in) in [
            (&closed, "localhost:8080", None, true),
            (&closed, "127.0.0.1:8080", Some("http://127.0.0.1:8080"), true),
            (&closed, "[::1]:8080", Some("http://[::1]:8080"), true),
            (&closed, "127.0.0.1:8080", Some("https://b.example"), false),
            (&closed, "127.0.0.1:8080", Some("http://127.0.0.1:9000"), false),
            (&closed, "127.0.0.1:8080", Some("null"), false),
            (&closed, "b.example:8080", None, false),
            (&closed, "192.168.0.7:8080", None, true),
            (&open, "a.example", Some("https://a.example"), true),
            (&open, "b.example", None, false),
            (&secret, "b.example", None, true),
            (&secret, "b.example", Some("https://b.example"), true),
            (&secret, "b.example", Some("https://a.example"), true),
            (&secret, "b.example", Some("https://c.example"), false),
            (&closed, "", None, true),
            (&closed, "", Some("https://b.example"), false),
        ] {
            let mut given = vec![(HOST, host)];
            given.extend(origin.map(|origin| (ORIGIN, origin)));
            assert_eq!(access.check_page(&headers(&given)).is_ok(), is_let_in, "{host} {origin:?}");
        }
        assert!(closed.check_page(&HeaderMap::new()).is_ok(), "HTTP/1.0 without a host");
        let mut unreadable = HeaderMap::new();
        unreadable.insert(HOST, axum::http::HeaderValue::from_bytes(b"\xe4.example").unwrap());
        assert!(closed.check_page(&unreadable).is_err());
    }
}
