//! Directories from a server on this machine.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::super::tests::{kind_of, response, serve, Folder, Request, Server};
use super::*;

type Files = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// A repository `o/r` with these files; its `main` is at the commit `c1`.
fn repository(files: &[(&str, &str)]) -> (Server, Files) {
    let files: HashMap<String, Vec<u8>> =
        files.iter().map(|(name, text)| (name.to_string(), text.as_bytes().to_vec())).collect();
    let files = Arc::new(Mutex::new(files));
    let shared = Arc::clone(&files);
    (serve(move |request| answer(request, &shared.lock().unwrap(), "c1")), files)
}

fn answer(request: &Request, files: &HashMap<String, Vec<u8>>, commit: &str) -> Vec<u8> {
    if request.path == "/api/models/o/r/revision/main" {
        let names: Vec<String> = files.keys().map(|name| format!("{{\"rfilename\":{name:?}}}")).collect();
        let json = format!("{{\"siblings\":[{}],\"sha\":{commit:?}}}", names.join(","));
        return response("200 OK", &[("Content-Length", json.len().to_string())], json.as_bytes());
    }
    let name = request.path.strip_prefix(&format!("/o/r/resolve/{commit}/")).unwrap_or("");
    let Some(body) = files.get(name) else {
        return response("404 Not Found", &[("Content-Length", "0".to_string())], b"");
    };
    let (from, ends) = request.range().unwrap_or((0, false));
    let part = &body[from..if ends { from + 1 } else { body.len() }];
    let headers = [
        ("ETag", format!("\"{}\"", name.replace('/', "-"))),
        ("X-Repo-Commit", commit.to_string()),
        ("Content-Range", format!("bytes {from}-{}/{}", from + part.len() - 1, body.len())),
        ("Content-Length", part.len().to_string()),
    ];
    response("206 Partial Content", &headers, part)
}

const SHARDED: [(&str, &str); 8] = [
    ("config.json", "{}"),
    ("tokenizer.json", "{\"t\":1}"),
    ("tokenizer_config.json", "{\"c\":1}"),
    ("README.md", "not needed"),
    ("pytorch_model.bin", "not needed"),
    (INDEX, r#"{"weight_map":{"a":"part-1.safetensors","b":"sub/part-2.safetensors","c":"part-1.safetensors"}}"#),
    ("part-1.safetensors", "first"),
    ("sub/part-2.safetensors", "second"),
];

fn asked(server: &Server) -> Vec<String> {
    server.seen.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
}

fn error(server: &Server, folder: &Folder) -> HubErrorKind {
    kind_of(folder.hub(server).fetch_directory("o/r", |_, _, _| ()).unwrap_err())
}

#[test]
fn a_sharded_model_arrives_whole_and_then_needs_no_network() {
    let (server, _) = repository(&SHARDED);
    let folder = Folder::new();
    let mut reported = BTreeSet::new();
    let hub = folder.hub(&server);
    let directory = hub.fetch_directory("o/r", |file, done, total| {
        assert!(done <= total);
        reported.insert(file.to_string());
    });
    let directory = directory.unwrap();
    for (name, text) in SHARDED {
        let wanted = !text.starts_with("not needed");
        assert_eq!(fs::read_to_string(directory.join(name)).ok().as_deref(), wanted.then_some(text), "{name}");
        assert_eq!(reported.contains(name), wanted, "{name}");
    }
    // Not even a connection, whatever the endpoint.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let offline = Hub::new(&folder.0).endpoint(format!("http://{}", listener.local_addr().unwrap()));
    assert_eq!(offline.fetch_directory("o/r", |_, _, _| panic!("nothing to fetch")).unwrap(), directory);
    assert!(listener.accept().is_err());
    // Single files of it are known too.
    assert_eq!(offline.fetch("o/r", "config.json", |_, _| ()).unwrap(), directory.join("config.json"));
}

#[test]
fn what_is_missing_is_fetched_and_nothing_twice() {
    let (server, files) = repository(&SHARDED);
    let shard = files.lock().unwrap().remove("sub/part-2.safetensors").unwrap();
    let folder = Folder::new();
    assert!(matches!(error(&server, &folder), HubErrorKind::NotFound { .. }));
    files.lock().unwrap().insert("sub/part-2.safetensors".to_string(), shard);
    let before = asked(&server).len();
    folder.hub(&server).fetch_directory("o/r", |_, _, _| ()).unwrap();
    let later = asked(&server).split_off(before);
    let others = later.iter().filter(|path| !path.contains("part-2") && !path.starts_with("/api/"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn a_single_file_and_either_tokenizer_are_enough() {
    for tokenizer in TOKENIZERS {
        let (server, _) = repository(&[("config.json", "{}"), (tokenizer, "t"), (WEIGHTS, "w")]);
        let folder = Folder::new();
        let directory = folder.hub(&server).fetch_directory("o/r", |_, _, _| ()).unwrap();
        assert!([CONFIG, tokenizer, WEIGHTS].iter().all(|name| directory.join(name).exists()));
    }
}

#[test]
fn a_repository_without_a_part_is_no_model() {
    for missing in [CONFIG, "tokenizer.json", INDEX] {
        let files: Vec<(&str, &str)> = SHARDED.into_iter().filter(|(name, _)| *name != missing).collect();
        let (server, _) = repository(&files);
        let kind = error(&server, &Folder::new());
        assert!(matches!(&kind, HubErrorKind::NoModel { reason } if reason.contains(missing)), "{kind:?}");
        assert_eq!(asked(&server).len(), 1, "nothing is fetched of what cannot be used");
    }
}

#[test]
fn an_index_that_leads_out_of_the_directory_is_refused() {
    for index in [
        r#"{"weight_map":{"a":"../../../evil.safetensors"}}"#,
        r#"{"weight_map":{"a":"/etc/evil.safetensors"}}"#,
        r#"{"weight_map":{"a":"..\\evil.safetensors"}}"#,
        r#"{"weight_map":{"a":".hidden/x.safetensors"}}"#,
        r#"{"weight_map":{"a":"config.json"}}"#,
        r#"{"weight_map":{"a":7}}"#,
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":[]}"#,
        r#"{}"#,
        r#"{"weight_map""#,
    ] {
        let mut files = SHARDED;
        files[5].1 = index;
        let (server, _) = repository(&files);
        let kind = error(&server, &Folder::new());
        assert!(matches!(kind, HubErrorKind::NoModel { .. }), "{index}: {kind:?}");
        assert!(!asked(&server).iter().any(|path| path.contains("evil")), "{index}");
    }
}

#[test]
fn all_files_come_from_one_commit() {
    let (first, _) = repository(&SHARDED);
    let folder = Folder::new();
    // An older commit is in the cache, but not whole.
    folder.hub(&first).revision("c1").fetch("o/r", "config.json", |_, _| ()).unwrap();
    fs::write(folder.0.join("models--o--r/refs/main"), "c1").unwrap();
    let files: HashMap<String, Vec<u8>> =
        SHARDED.iter().map(|(name, text)| (name.to_string(), format!("{text} ").into_bytes())).collect();
    let second = serve(move |request| answer(request, &files, "c2"));
    let directory = folder.hub(&second).fetch_directory("o/r", |_, _, _| ()).unwrap();
    assert!(directory.ends_with("snapshots/c2"));
    assert_eq!(fs::read_to_string(directory.join("config.json")).unwrap(), "{} ");
    // A commit that would leave the cache.
    let files: HashMap<String, Vec<u8>> = HashMap::new();
    let hostile = serve(move |request| answer(request, &files, "../../x"));
    assert!(matches!(error(&hostile, &Folder::new()), HubErrorKind::Protocol { .. }));
}
