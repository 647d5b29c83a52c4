//! `docs/management-protocol.md` is held to what the daemon reads.

use std::path::Path;

use softdpu_control::api::{ErrorCode, METHODS, decode_request};

fn reference() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/management-protocol.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_method_is_documented_with_an_example_of_its_own() {
    let text = reference();
    let sections: Vec<(&str, &str)> = text
        .split("\n### `")
        .skip(1)
        .map(|section| {
            let (method, rest) = section.split_once('`').unwrap();
            (method, rest.split("```json\n").nth(1).unwrap().split('\n').next().unwrap())
        })
        .collect();
    assert_eq!(sections.iter().map(|(method, _)| *method).collect::<Vec<_>>(), METHODS);
    for (method, example) in sections {
        let (_, request) = decode_request(example.as_bytes(), Path::new("/run/softdpu")).unwrap();
        assert_eq!(request.method(), method);
    }
}

#[test]
fn every_documented_error_code_exists() {
    let text = reference();
    let codes = text.split("| code | meaning |").nth(1).unwrap().split("\n## ").next().unwrap();
    let codes: Vec<&str> =
        codes.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(code, _)| code).collect();
    assert_eq!(codes.len(), 10);
    for code in codes {
        serde_json::from_value::<ErrorCode>(code.into()).unwrap_or_else(|error| panic!("{code}: {error}"));
    }
}
