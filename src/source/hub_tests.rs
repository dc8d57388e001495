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
pub(super) type Seen = (String, Option<String>);

pub(super) struct Request {
    pub(super) path: String,
    headers: HashMap<String, String>,
}

impl Request {
    /// First byte of a `bytes=N-` or `bytes=N-M` range, and whether it ends.
    pub(super) fn range(&self) -> Option<(usize, bool)> {
        let (from, to) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, !to.is_empty()))
    }
}

/// A server whose thread ends with the test process.
pub(super) struct Server {
    pub(super) endpoint: String,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
}

pub(super) fn serve(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Server {
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

pub(super) fn response(status: &str, headers: &[(&str, String)], body: &[u8]) -> Vec<u8> {
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
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("candlewick-hub-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(super) fn hub(&self, server: &Server) -> Hub {
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

pub(super) fn kind_of(error: Error) -> HubErrorKind {
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
fn more_bytes_than_announced_are_an_error_and_leave_no_file() {
    // A server that sends the rest of what it announced and then goes on.
    let server = serve(|request| match request.range() {
        Some((_, true)) => file_response(request, &body()),
        _ => response("200 OK", &[], &[body(), vec![0; 7]].concat()),
    });
    let folder = Folder::new();
    let kind = fetch_error(&server, &folder);
    assert!(matches!(kind, HubErrorKind::Incomplete { expected: 100_000, found: 100_007 }), "{kind:?}");
    assert_eq!(folder.blobs(), Vec::<String>::new());
}

#[test]
fn a_server_that_cannot_resume_spoils_no_file() {
    // It answers every range with the whole: appended to what was there, the size is wrong.
    let server = serve(|request| match request.range() {
        Some((_, true)) => file_response(request, &body()),
        _ => response("200 OK", &[("Content-Length", "100000".to_string())], &body()),
    });
    let folder = Folder::new();
    let blobs = folder.0.join("models--o--r/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("abc123.part"), &body()[..40_000]).unwrap();
    let kind = fetch_error(&server, &folder);
    assert!(matches!(kind, HubErrorKind::Incomplete { expected: 100_000, found: 140_000 }), "{kind:?}");
    let path = folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).unwrap();
    assert_eq!(fs::read(path).unwrap(), body());
}

#[test]
fn a_filled_cache_needs_no_hub_at_all() {
    let server = serve(|request| file_response(request, &body()));
    let folder = Folder::new();
    let path = folder.hub(&server).fetch("o/r", "m.gguf", |_, _| ()).unwrap();
    // A listener that counts: not even a connection is opened.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let offline = Hub::new(&folder.0).endpoint(format!("http://{}", listener.local_addr().unwrap())).token("secret");
    assert_eq!(offline.fetch("o/r", "m.gguf", |_, _| panic!("there is nothing to report")).unwrap(), path);
    assert!(matches!(listener.accept(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
    // Opened, the file is all that is needed: the library has no other way to the network.
    assert_eq!(fs::read(path).unwrap(), body());
}

#[test]
fn a_revision_is_asked_for_and_kept_apart() {
    let server = serve(|request| {
        let (etag, commit) = match request.path.as_str() {
            "/o/r/resolve/main/m.gguf" => ("new", "c2"),
            "/o/r/resolve/v1.0/m.gguf" | "/o/r/resolve/c1/m.gguf" => ("old", "c1"),
            _ => return response("404 Not Found", &[("Content-Length", "0".to_string())], b""),
        };
        let body = etag.as_bytes();
        let (from, ends) = request.range().unwrap_or((0, false));
        let part = &body[from..if ends { from + 1 } else { body.len() }];
        let range = format!("bytes {from}-{}/{}", from + part.len() - 1, body.len());
        let headers = [
            ("ETag", etag.to_string()),
            ("X-Repo-Commit", commit.to_string()),
            ("Content-Range", range),
            ("Content-Length", part.len().to_string()),
        ];
        response("206 Partial Content", &headers, part)
    });
    let folder = Folder::new();
    let fetch = |revision: &str| folder.hub(&server).revision(revision).fetch("o/r", "m.gguf", |_, _| ());
    let read = |revision: &str| fs::read_to_string(fetch(revision).unwrap()).unwrap();
    assert_eq!(
        (read("main"), read("v1.0"), read("c1"), read("main")),
        ("new".into(), "old".into(), "old".into(), "new".into())
    );
    // Of one commit there is one file, by whatever name it was asked for.
    assert_eq!(fetch("v1.0").unwrap(), fetch("c1").unwrap());
    match kind_of(fetch("v9").unwrap_err()) {
        HubErrorKind::NotFound { revision } => assert_eq!(revision, "v9"),
        kind => panic!("{kind:?}"),
    }
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
