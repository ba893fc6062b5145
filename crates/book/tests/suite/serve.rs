//! The server gives out the files of its folder and nothing else.

use crate::common::repository;
use book::Server;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{request}\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn files_are_served_and_the_rest_is_not() {
    let repository = repository(&[
        ("secret.txt", "secret"),
        ("out/index.html", "<p>first"),
        ("out/css/a b.css", "p {}"),
        ("out-of-it/secret.txt", "secret"),
    ]);
    #[cfg(unix)]
    std::os::unix::fs::symlink("../secret.txt", repository.path().join("out/link.txt")).unwrap();
    let server = Server::bind(&repository.path().join("out"), 0).unwrap();
    let address = server.address();
    assert!(address.ip().is_loopback());
    thread::spawn(move || server.run());

    for target in ["/", "/index.html", "/?a=b", "//index.html"] {
        let answer = ask(address, &format!("GET {target} HTTP/1.1"));
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"),
            "{target}: {answer}"
        );
        assert!(answer.ends_with("\r\n\r\n<p>first"), "{target}: {answer}");
    }
    assert!(ask(address, "GET /css/a%20b.css HTTP/1.1").ends_with("p {}"));
    let head = ask(address, "HEAD / HTTP/1.1");
    assert!(head.contains("Content-Length: 8\r\n") && head.ends_with("\r\n\r\n"), "{head}");

    for target in [
        "/nowhere.html",
        "/css",
        "/../secret.txt",
        "/css/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/..\\secret.txt",
        "/../out-of-it/secret.txt",
        "/link.txt",
        "/%00",
        "/%zz",
        "/%",
        "",
    ] {
        let answer = ask(address, &format!("GET {target} HTTP/1.1"));
        let found = answer.starts_with("HTTP/1.1 404") || (target.is_empty() && answer.starts_with("HTTP/1.1"));
        assert!(found && !answer.contains("secret"), "{target}: {answer}");
    }
    assert!(ask(address, "POST / HTTP/1.1").starts_with("HTTP/1.1 405"));
}
