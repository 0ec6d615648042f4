//! Tests of repository names and of settings from the environment.

use std::ffi::OsString;

use super::*;
use crate::events::Quiet;

#[test]
fn repository_names_are_parsed_and_printed() {
    for (text, written) in [
        ("hf:google/vit-base-patch16-224", "hf:google/vit-base-patch16-224"),
        ("google/vit_base.v1", "hf:google/vit_base.v1"),
        ("hf:a/b@main", "hf:a/b"),
        ("hf:a/b@refs/pr/1", "hf:a/b@refs/pr/1"),
    ] {
        assert_eq!(repository(text).to_string(), written);
    }
    for text in [
        "",
        "hf:",
        "hf:vit",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/..",
        "hf:a/b@",
        "hf:a/b@../c",
        "hf:a/b@a//b",
        "hf:/a/b",
        "hf:a/b@/c",
        "hf:a\\b/c",
        "hf:a/b c",
        "hf:a/b@c?d",
        "hf:a/.b",
        "hf:a--b/c",
        "https://huggingface.co/a/b",
        "hf:a/b@c@d",
        "hf:ä/b",
    ] {
        let message = text.parse::<Repository>().unwrap_err().to_string();
        assert_all(&message, &[&text.escape_debug().to_string(), "hf:OWNER/NAME@revision"]);
    }
}

fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| OsString::from(value))
    };
    Settings::read(variable, Some(PathBuf::from("/home/me")))
}

#[test]
fn environment_variables_mean_the_same_as_to_pythons_huggingface_hub() {
    let plain = settings(&[("HF_ENDPOINT", ""), ("HF_HUB_OFFLINE", "0")]).unwrap();
    assert_eq!(plain.endpoint, "https://huggingface.co");
    assert!(plain.token.is_none() && !plain.offline);
    for (variables, cache) in [
        (&[][..], "/home/me/.cache/huggingface/hub"),
        (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
        (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")], "/home/me/hf/hub"),
        (&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/cache")], "/cache"),
        (&[("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
    ] {
        assert_eq!(settings(variables).unwrap().cache, Path::new(cache));
    }
    for word in ["1", "true", "YES", "On"] {
        assert!(settings(&[("HF_HUB_OFFLINE", word)]).unwrap().offline);
    }
    assert!(settings(&[("TRANSFORMERS_OFFLINE", "1")]).unwrap().offline);
    assert_eq!(settings(&[("HF_ENDPOINT", "http://mirror/")]).unwrap().endpoint, "http://mirror");
    assert!(Settings::read(|_| None, None).is_err());
}

#[test]
fn the_token_comes_from_the_environment_or_a_file() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().to_str().unwrap();
    let file = folder.path().join("elsewhere");
    fs::write(folder.path().join("token"), "with spaces\n").unwrap();
    assert!(settings(&[("HF_HOME", home)]).is_err(), "a token has no spaces");
    fs::write(folder.path().join("token"), "hf_home\n").unwrap();
    fs::write(&file, "hf_file").unwrap();
    let token = |variables: &[(&str, &str)]| settings(variables).unwrap().token;
    let (in_home, in_file) = (("HF_HOME", home), ("HF_TOKEN_PATH", file.to_str().unwrap()));
    assert_eq!(token(&[in_home]).as_deref(), Some("hf_home"));
    assert_eq!(token(&[in_home, in_file]).as_deref(), Some("hf_file"));
    assert_eq!(token(&[in_home, in_file, ("HF_TOKEN", " hf_text ")]).as_deref(), Some("hf_text"));
    assert_eq!(token(&[in_home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    let error = settings(&[("HF_TOKEN", "schlüssel")]).err().unwrap();
    assert_all(&format!("{error:#}"), &["HF_TOKEN", "not a token"]);
    assert!(!format!("{error:#}").contains("schlüssel"));
}

#[test]
fn an_endpoint_must_be_a_url() {
    for endpoint in ["huggingface.co", "ftp://huggingface.co", "", "http://"] {
        let settings = Settings {
            endpoint: endpoint.to_owned(),
            token: None,
            cache: PathBuf::new(),
            offline: false,
            pause: Duration::ZERO,
        };
        let error = Hub::new(settings, ureq::Agent::config_builder(), &Quiet).err().unwrap();
        assert_all(&error.to_string(), &["HF_ENDPOINT", endpoint]);
    }
}
