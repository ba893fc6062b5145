//! A server of static files for one's own machine.

use crate::BookError;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A request line and headers that are longer are refused.
const LONGEST_REQUEST: usize = 16 << 10;

/// How long a client may take to say or to read something.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the files of one folder, to this machine alone.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on localhost; port 0 means one that is free.
    pub fn bind(folder: &Path, port: u16) -> Result<Self, BookError> {
        let folder = folder.canonicalize().map_err(BookError::io(folder))?;
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(BookError::io(Path::new(&format!("port {port}"))))?;
        Ok(Server { folder, listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends.
    pub fn run(self) {
        for stream in self.listener.incoming().flatten() {
            let folder = self.folder.clone();
            // A client that hangs up is no concern of the others.
            thread::spawn(move || answer(stream, &folder));
        }
    }
}

fn answer(mut stream: TcpStream, folder: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let mut words = request.lines().next().unwrap_or("").split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    if !matches!(method, "GET" | "HEAD") {
        return respond(&mut stream, "405 Method Not Allowed", "text/plain", b"GET or HEAD\n", true);
    }
    let found = find(folder, target).and_then(|path| Some((read(&path)?, media_type(&path))));
    match found {
        Some((body, kind)) => respond(&mut stream, "200 OK", kind, &body, method == "GET"),
        None => respond(&mut stream, "404 Not Found", "text/plain", b"no such page\n", method == "GET"),
    }
}

/// The request up to the empty line that ends its headers; a body is of no interest.
fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut chunk)?;
        if count == 0 || request.len() + count > LONGEST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&chunk[..count]);
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// The file that a request names; none unless it lies in the folder, links resolved.
fn find(folder: &Path, target: &str) -> Option<PathBuf> {
    let path = decode(target.split(['?', '#']).next()?)?;
    let mut file = folder.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part == ".." || part.contains(['\\', ':', '\0']) {
            return None;
        }
        file.push(part);
    }
    if file.is_dir() {
        file.push("index.html");
    }
    file.canonicalize().ok().filter(|file| file.starts_with(folder))
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    File::open(path).ok()?.read_to_end(&mut body).ok()?;
    Some(body)
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8], with_body: bool) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )?;
    if with_body { stream.write_all(body) } else { Ok(()) }
}

fn media_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

/// Resolves `%41` to `A`; none if that is not UTF-8 or not well formed.
pub(crate) fn decode(text: &str) -> Option<String> {
    let (mut decoded, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        decoded.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(decoded).ok()
}
