//! The hub client against a server on this machine that speaks as much HTTP as the client needs.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::Error;

type Answer = Arc<dyn Fn(&Request) -> Vec<u8> + Send + Sync>;

/// A request's target and its authorization.
type Seen = (String, Option<String>);

struct Request {
    path: String,
    headers: HashMap<String, String>,
}

impl Request {
    /// First byte of a `bytes=N-` or `bytes=N-M` range, and whether it ends.
    fn range(&self) -> Option<(usize, bool)> {
        let (from, to) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, !to.is_empty()))
    }
}

/// A server whose thread ends with the test process.
struct Server {
    endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

fn serve(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let answer: Answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
            std::thread::spawn(move || one_request(stream, &answer, &log));
        }
    });
    Server { endpoint, seen }
}

fn one_request(mut stream: TcpStream, answer: &Answer, log: &Mutex<Vec<(String, Option<String>)>>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_string();
    let mut headers = HashMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_string());
    }
    log.lock().unwrap().push((path.clone(), headers.get("authorization").cloned()));
    stream.write_all(&answer(&Request { path, headers })).ok()
}

fn response(status: &str, headers: &[(&str, String)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    [text.as_bytes(), body].concat()
}

/// What a hub answers for a file: the range asked for, with size, etag and commit in the headers.
fn file_response(request: &Request, body: &[u8]) -> Vec<u8> {
    let (from, ends) = request.range().unwrap_or((0, false));
    let to = if ends { from + 1 } else { body.len() };
    let part = &body[from..to];
    response(
        "206 Partial Content",
        &[
            ("ETag", "\"abc123\"".to_string()),
            ("X-Repo-Commit", "c0ffee".to_string()),
            ("Content-Range", format!("bytes {from}-{}/{}", to - 1, body.len())),
            ("Content-Length", part.len().to_string()),
        ],
        part,
    )
}

/// An empty folder of this test process, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("candlewick-hub-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn hub(&self, server: &Server) -> Hub {
        Hub::new(&self.0).endpoint(&server.endpoint)
    }

    fn blobs(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join("models--o--r/blobs")) else { return Vec::new() };
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn body() -> Vec<u8> {
    (0..100_000u32).map(|i| (i * 7 % 251) as u8).collect()
}

fn kind_of(error: Error) -> HubErrorKind {
    match error {
        Error::Hub(error) => error.kind,
        other => panic!("not a hub error: {other}"),
    }
}

fn fetch_error(server: &Server, folder: &Folder) -> HubErrorKind {
    kind_of(folder.hub(server).fetch("o/r", "m.gguf", |_, _| ()).unwrap_err())
}

#[test]
fn a_file_arrives_whole_and_is_then_served_from_the_cache() {
    let server = serve(|request| file_response(request, &body()));
    let folder = Folder::new();
    let mut seen = Vec::new();
    let path = folder.hub(&server).fetch("o/r", "m.gguf", |done, total| seen.push((done, total))).unwrap();
    assert_eq!(fs::read(&path).unwrap(), body());
    assert_eq!(seen.last(), Some(&(100_000, 100_000)));
    assert!(seen.windows(2).all(|pair| pair[0].0 <= pair[1].0), "progress went back");

    let asked = server.seen.lock().unwrap().len();
    assert_eq!(folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).unwrap(), path);
    assert_eq!(server.seen.lock().unwrap().len(), asked, "the cache was not used");
}

#[test]
fn an_interrupted_download_is_resumed() {
    let server = serve(|request| file_response(request, &body()));
    let folder = Folder::new();
    let blobs = folder.0.join("models--o--r/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("abc123.part"), &body()[..40_000]).unwrap();
    let mut first = None;
    let path = folder
        .hub(&server)
        .fetch("o/r", "m.gguf", |done, _| {
            if done > 0 && first.is_none() {
                first = Some(done);
            }
        })
        .unwrap();
    assert_eq!(fs::read(path).unwrap(), body());
    assert_eq!(first, Some(40_000), "the first progress is what was there");
}

#[test]
fn a_part_file_that_is_too_long_is_replaced() {
    let server = serve(|request| file_response(request, &body()));
    let folder = Folder::new();
    let blobs = folder.0.join("models--o--r/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("abc123.part"), vec![0; 200_000]).unwrap();
    let path = folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).unwrap();
    assert_eq!(fs::read(path).unwrap(), body());
}

#[test]
fn a_redirect_to_another_host_is_followed_without_the_token() {
    let storage = serve(|request| file_response(request, &body()));
    let target = format!("{}/blob", storage.endpoint.replace("127.0.0.1", "localhost"));
    let server = serve(move |_| {
        let headers = [
            ("Location", target.clone()),
            ("X-Linked-ETag", "\"feed\"".to_string()),
            ("X-Repo-Commit", "c0ffee".to_string()),
            ("Content-Length", "0".to_string()),
        ];
        response("302 Found", &headers, b"")
    });
    let folder = Folder::new();
    let hub = folder.hub(&server).token("secret").revision("refs/pr/1");
    let path = hub.fetch("o/r", "sub/m.gguf", |_, _| ()).unwrap();
    assert_eq!(fs::read(path).unwrap(), body());
    let asked = server.seen.lock().unwrap();
    assert!(asked.iter().all(|(path, token)| {
        path == "/o/r/resolve/refs%2Fpr%2F1/sub/m.gguf" && token.as_deref() == Some("Bearer secret")
    }));
    // The download follows the redirect with the token kept back; the size probe is a request of its own.
    let stored = storage.seen.lock().unwrap();
    assert!(stored.iter().any(|(path, token)| path == "/blob" && token.is_none()), "{stored:?}");
    assert!(!format!("{hub:?}").contains("secret"));
}

#[test]
fn statuses_are_told_apart() {
    for (status, words) in [("404 Not Found", "404"), ("401 Unauthorized", "token"), ("403 Forbidden", "token")] {
        let server = serve(move |_| response(status, &[("Content-Length", "0".to_string())], b""));
        let folder = Folder::new();
        let error = folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).unwrap_err();
        let text = error.to_string();
        for part in ["o/r", "m.gguf", &server.endpoint, words] {
            assert!(text.contains(part), "{text}: lacks {part}");
        }
        match (status, kind_of(error)) {
            ("404 Not Found", HubErrorKind::NotFound { revision }) => assert_eq!(revision, "main"),
            ("401 Unauthorized", HubErrorKind::Refused { status: 401 }) => {}
            ("403 Forbidden", HubErrorKind::Refused { status: 403 }) => {}
            (status, kind) => panic!("{status}: {kind:?}"),
        }
    }
    let server = serve(|_| response("503 Busy", &[("Content-Length", "0".to_string())], b""));
    assert!(matches!(fetch_error(&server, &Folder::new()), HubErrorKind::Status { status: 503 }));
}

#[test]
fn a_truncated_body_is_an_error_and_leaves_no_file() {
    // Announced whole, cut off without a length: only the size check can see it.
    let server = serve(|request| match request.range() {
        Some((_, true)) => file_response(request, &body()),
        _ => response("200 OK", &[], &body()[..50_000]),
    });
    let folder = Folder::new();
    let kind = fetch_error(&server, &folder);
    assert!(matches!(kind, HubErrorKind::Incomplete { expected: 100_000, found: 50_000 }), "{kind:?}");
    assert_eq!(folder.blobs(), Vec::<String>::new());
    assert!(folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).is_err(), "a second try must not find it");
}

#[test]
fn a_connection_that_breaks_is_unreachable_and_resumable() {
    let server = serve(|request| match request.range() {
        Some((0, false)) => response("200 OK", &[("Content-Length", "100000".to_string())], &body()[..50_000]),
        _ => file_response(request, &body()),
    });
    let folder = Folder::new();
    let kind = fetch_error(&server, &folder);
    assert!(matches!(kind, HubErrorKind::Unreachable { .. }), "{kind:?}");
    let path = folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).unwrap();
    assert_eq!(fs::read(path).unwrap(), body());
}

#[test]
fn hostile_answers_are_errors() {
    let hostile: [Vec<(&str, String)>; 4] = [
        // Names that leave the cache.
        vec![
            ("ETag", "../../../../evil".into()),
            ("X-Repo-Commit", "c".into()),
            ("Content-Range", "bytes 0-0/9".into()),
        ],
        vec![("ETag", "e".into()), ("X-Repo-Commit", "../up".into()), ("Content-Range", "bytes 0-0/9".into())],
        vec![("ETag", "e".into()), ("X-Repo-Commit", "c".into()), ("Content-Range", "bytes 0-0/many".into())],
        vec![],
    ];
    for headers in hostile {
        let server = serve(move |_| response("200 OK", &headers, b""));
        let kind = fetch_error(&server, &Folder::new());
        assert!(matches!(kind, HubErrorKind::Protocol { .. }), "{kind:?}");
    }
    // A redirect to nowhere makes the client panic.
    let headers = [("ETag", "e".to_string()), ("X-Repo-Commit", "c".to_string()), ("Content-Length", "0".to_string())];
    let server = serve(move |_| response("302 Found", &headers, b""));
    let kind = fetch_error(&server, &Folder::new());
    assert!(matches!(kind, HubErrorKind::Protocol { .. }), "{kind:?}");
}

#[test]
fn no_server_is_unreachable() {
    // Bound and dropped: nobody listens there now.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = Folder::new();
    let hub = Hub::new(&folder.0).endpoint(format!("http://{address}/"));
    let kind = kind_of(hub.fetch("o/r", "m.gguf", |_, _| ()).unwrap_err());
    assert!(matches!(kind, HubErrorKind::Unreachable { .. }), "{kind:?}");
}

#[test]
fn names_that_do_not_belong_in_a_path_are_refused_before_anything_is_sent() {
    let server = serve(|request| file_response(request, &body()));
    let folder = Folder::new();
    let hub = folder.hub(&server);
    for (repo, file) in [
        ("o", "m"),
        ("o/r/s", "m"),
        ("../r", "m"),
        ("o/r", "../m"),
        ("o/r", "/m"),
        ("o/r", ""),
        ("o/r", "a?b"),
        ("o r/x", "m"),
    ] {
        let kind = kind_of(hub.fetch(repo, file, |_, _| ()).unwrap_err());
        assert!(matches!(kind, HubErrorKind::Invalid { .. }), "{repo} {file}: {kind:?}");
    }
    for hub in [hub.clone().endpoint("ftp://x"), hub.clone().revision("../x"), hub.clone().token("a\r\nb")] {
        let kind = kind_of(hub.fetch("o/r", "m", |_, _| ()).unwrap_err());
        assert!(matches!(kind, HubErrorKind::Invalid { .. }), "{kind:?}");
    }
    assert!(server.seen.lock().unwrap().is_empty());
}

#[test]
fn a_repository_is_listed() {
    let server = serve(|request| {
        assert_eq!(request.path, "/api/models/o/r/revision/main");
        let json = br#"{"siblings":[{"rfilename":"README.md"},{"rfilename":"m.gguf"}],"sha":"c0ffee"}"#;
        response("200 OK", &[("Content-Length", json.len().to_string())], json)
    });
    assert_eq!(Folder::new().hub(&server).list("o/r").unwrap(), ["README.md", "m.gguf"]);
}
