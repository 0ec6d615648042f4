//! Tests of refusals: responses that are denied or malformed, unsafe names, and who receives the token.

use std::fs;

use super::site::{COMMIT, CannedResponse, RecordedRequest, Server, Site};
use super::*;

#[test]
fn errors_explain_a_response_that_is_no_listing() {
    let code = |status, code: &str| CannedResponse::new(status, "").with("x-error-code", code);
    let sha = |sha: &str| CannedResponse::new(200, format!(r#"{{"sha": "{sha}", "siblings": []}}"#));
    for (answer, parts) in [
        (CannedResponse::new(401, ""), ["no such repository, or it is private", "HF_TOKEN"]),
        (code(404, "RepoNotFound"), ["no such repository, or it is private", "HF_TOKEN"]),
        (code(404, "RevisionNotFound"), ["no revision 'main'", "branches"]),
        (CannedResponse::new(403, ""), ["accept the terms at http", "/owner/name"]),
        (code(401, "GatedRepo"), ["accept the terms at http", "HF_TOKEN"]),
        (CannedResponse::new(400, ""), ["400", "/api/models/owner/name"]),
        (
            CannedResponse::new(200, "<html>Log in to this network</html>"),
            ["does not describe a", "HF_ENDPOINT"],
        ),
        (CannedResponse::new(200, "{}"), ["does not describe a", "HF_ENDPOINT"]),
        (CannedResponse::new(200, vec![b' '; (32 << 20) + 1]), ["/api/models", "limit"]),
        (sha("../../../../etc"), ["does not describe a", "commit"]),
        (sha(COMMIT), ["model.safetensors", "contains nothing"]),
    ] {
        let setup = Setup::new(plain_site());
        setup.server.site.lock().unwrap().instead.insert("/api/".to_owned(), answer);
        let message = setup.refusal();
        assert_all(&message, &parts);
        assert_all(&message, &["hf:owner/name"]);
        assert!(names(setup.cache.path()).is_empty());
    }
}

#[test]
fn errors_explain_a_restricted_file() {
    let setup = Setup::new(plain_site());
    let gated = CannedResponse::new(403, "").with("x-error-code", "GatedRepo");
    setup.server.site.lock().unwrap().instead.insert("/owner/".to_owned(), gated);
    assert_all(&setup.refusal(), &["hf:owner/name", "accept the terms", "HF_TOKEN"]);
}

#[test]
fn errors_list_the_files_of_a_repository_without_weights() {
    let mut site = Site::new(&[("config.json", CONFIG), ("model.onnx", b"")]);
    site.extra_names = (0..20).map(|number| format!("weights\u{1b}{number}")).collect();
    let message = Setup::new(site).refusal();
    assert_all(&message, &["hf:owner/name", "pytorch_model.bin", "config.json, model.onnx", "and 12 more"]);
    assert!(!message.contains('\u{1b}'));
}

#[test]
fn the_token_is_sent_only_to_the_site() {
    let storage = Server::start(plain_site());
    for host in ["127.0.0.1", "localhost"] {
        let mut site = plain_site();
        site.token = Some("secret".to_owned());
        site.storage = Some(format!("http://{host}:{}", storage.port));
        let setup = Setup::new(site);
        assert_all(&setup.refusal(), &["private", "HF_TOKEN"]);
        let wrong = hub_with(&setup.server.url(), setup.cache.path(), false, Some("wrong"));
        let message = wrong.fetch(&repository("owner/name")).unwrap_err().to_string();
        assert_all(&message, &["private", "whether the token"]);

        setup.server.take_requests();
        let hub = hub_with(&setup.server.url(), setup.cache.path(), false, Some("secret"));
        hub.fetch(&repository("owner/name")).unwrap();
        let has_token = |request: &RecordedRequest| request.headers.contains_key("authorization");
        assert!(setup.server.take_requests().iter().all(has_token));
        let requests = storage.take_requests();
        assert_eq!(requests.len(), 1);
        assert!(!has_token(&requests[0]), "{requests:?}");
    }
}

#[test]
fn file_names_that_leave_the_folder_are_refused() {
    for name in ["../model.safetensors", "/etc/model.safetensors", "a/../../b", "..\\b", "C:\\b"] {
        let mut site = plain_site();
        site.extra_names = vec![name.to_owned()];
        let setup = Setup::new(site);
        assert_all(&setup.refusal(), &["hf:owner/name", "is refused"]);
        assert!(names(setup.cache.path()).is_empty());

        let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
        let setup = Setup::new(sharded_site(&index));
        assert_all(&setup.refusal(), &["index.json", "is refused"]);
        assert_eq!(setup.blobs().len(), 2);
    }
    let missing = r#"{"weight_map": {"a": "model-3-of-3.safetensors"}}"#;
    assert_all(&Setup::new(sharded_site(missing)).refusal(), &["model-3-of-3.safetensors", "incomplete"]);
    assert_all(&Setup::new(sharded_site(r#"{"weight_map": {}}"#)).refusal(), &["names none"]);
    assert_all(&Setup::new(sharded_site("[]")).refusal(), &["cannot be read"]);
}

#[test]
fn etags_that_are_unsafe_as_file_names_are_refused() {
    let described = |tag: &str| CannedResponse::new(200, CONFIG).with("x-linked-etag", tag);
    for (answer, part) in [
        (described("\"../../../x\""), "which content"),
        (described("\"\""), "which content"),
        (CannedResponse::new(200, CONFIG), "which content"),
        (described("\"a\"").with("x-repo-commit", "fedc"), "answers for the commit fedc"),
        (CannedResponse::new(302, "").with("location", "/owner/again"), "redirect"),
    ] {
        let setup = Setup::new(plain_site());
        setup.server.site.lock().unwrap().instead.insert("/owner/".to_owned(), answer);
        assert_all(&setup.refusal(), &["config.json of hf:owner/name", part]);
        assert!(!setup.root().exists());
    }

    // If the ETag is no hash, only the length is checked.
    let setup = Setup::new(Site::new(&[("model.safetensors", WEIGHTS)]));
    let answer = CannedResponse::new(200, WEIGHTS).with("etag", "\"abc-5\"");
    setup.server.site.lock().unwrap().instead.insert("/owner/".to_owned(), answer);
    assert_eq!(fs::read(setup.fetch().unwrap().join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(setup.blobs(), ["abc-5"]);
}
