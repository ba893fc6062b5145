//! Every page in a real browser: light and dark, phone and desktop.
mod devtools;

use self::devtools::Browser;
use crate::common::{RESULTS, copy, here, repository, write};
use book::{Book, Server};
use serde_json::{Value, json};
use std::fs;
use std::thread;

const PROBE: &str = include_str!("browser/probe.js");
const SPECIMEN: &str = include_str!("browser/specimen.md");
const CODE: &str = "\
// ANCHOR: long
/// Says nothing.
#[derive(Clone, Debug)]
pub struct Long<M = NoMeter> { a_field: usize, another_field: M, yet_another_field_of_a_long_name: Vec<Option<usize>> }
fn f() -> &'static str { \"a string\" } // and a comment
// ANCHOR_END: long
";

/// This book, with the specimen added to it and served.
struct Site {
    base: String,
    pages: Vec<String>,
    _repository: tempfile::TempDir,
}

fn site() -> Site {
    let repository = repository(&[("src/lib.rs", CODE)]);
    let root = repository.path();
    for part in ["crates", "chapters", "kernels", "tests/gpu", "tests/sim", "tests/corpus"] {
        copy(&here().join(part), &root.join(part));
    }
    for part in ["src", "theme", "results"] {
        let part = format!("book/{part}");
        if here().join(&part).exists() {
            copy(&here().join(&part), &root.join(&part));
        }
    }
    fs::copy(here().join("book/book.toml"), root.join("book/book.toml")).unwrap();
    let summary = fs::read_to_string(here().join("book/src/SUMMARY.md")).unwrap();
    write(root, "book/src/SUMMARY.md", &format!("{summary}\n[Specimen](specimen.md)\n"));
    write(root, "book/src/specimen.md", SPECIMEN);
    write(root, "book/results/cpu.json", RESULTS);
    let (book, output) = (Book::at(root), root.join("out"));
    book.build(&output).unwrap();
    assert_eq!(book.check(&output).unwrap(), []);

    let names = fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> = names.filter(|name| name.ends_with(".html")).collect();
    pages.sort();
    let server = Server::bind(&output, 0).unwrap();
    let base = format!("http://{}/", server.address());
    thread::spawn(move || server.run());
    Site { base, pages, _repository: repository }
}

#[test]
#[ignore = "needs chromium: run with --include-ignored"]
fn every_page_shows_as_it_should() {
    let site = site();
    let mut browser = Browser::start();
    let mut wrong = Vec::new();
    for (scheme, theme) in [("light", "light"), ("dark", "coal")] {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        browser.call("Emulation.setEmulatedMedia", json!({"features": features}));
        for (width, mobile) in [(390, true), (1280, false)] {
            let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile});
            browser.call("Emulation.setDeviceMetricsOverride", size);
            for page in &site.pages {
                let found = look(&mut browser, &site.base, page, width, theme);
                wrong.extend(found.into_iter().map(|found| format!("{page}, {scheme}, {width} px: {found}")));
            }
        }
    }
    assert!(site.pages.len() > 5, "{:?}", site.pages);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The probe of the test above finds what it is there for.
#[test]
#[ignore = "needs chromium: run with --include-ignored"]
fn what_is_wrong_is_seen() {
    let page = "<!doctype html><html class=light><body><main><link rel=stylesheet href=missing.css>\
        <script src='http://127.0.0.1:9/x.js'></script><script>console.error('told'); undefined_name</script>\
        <div style='width: 3000px'>wide</div><p style='color: #bbb; background: #fff'>pale</p>\
        <span class=katex style='display: none'>x</span><img src=missing.png></main></body></html>";
    let repository = repository(&[("index.html", page)]);
    let server = Server::bind(repository.path(), 0).unwrap();
    let base = format!("http://{}/", server.address());
    thread::spawn(move || server.run());
    let found = look(&mut Browser::start(), &base, "index.html", 1280, "light").join("\n");
    for wanted in [
        "404: ",
        "missing.css",
        "asked the network for http://127.0.0.1:9/x.js",
        "console: told",
        "undefined_name is not defined",
        "scrolls sideways: html",
        "sticks out by",
        "contrast 1.9",
        "invisible formula x",
        "missing.png did not load",
    ] {
        assert!(found.contains(wanted), "{wanted} is not in\n{found}");
    }
}

fn look(browser: &mut Browser, base: &str, page: &str, width: u32, theme: &str) -> Vec<String> {
    browser.open(&format!("{base}{page}"));
    let probe = PROBE.replace("WIDTH", &width.to_string()).replace("THEME", theme);
    let found = browser.evaluate(&probe);
    let found = found.as_array().unwrap_or_else(|| panic!("{page}: {found}"));
    let mut found: Vec<String> = found.iter().map(|what| what.as_str().unwrap_or("").to_owned()).collect();
    found.extend(browser.take_events().iter().filter_map(|event| complaint(event, base)));
    found
}

/// What is wrong about an event, if anything.
fn complaint(event: &Value, base: &str) -> Option<String> {
    let parameters = &event["params"];
    // The browser asks for it by itself where a page names no icon, as the table of contents for a frame does not.
    if event.to_string().contains("/favicon.ico") {
        return None;
    }
    match event["method"].as_str()? {
        "Runtime.consoleAPICalled" if matches!(parameters["type"].as_str(), Some("error" | "warning")) => {
            Some(format!("console: {}", parameters["args"][0]["value"].as_str().unwrap_or("")))
        }
        "Runtime.exceptionThrown" => Some(format!("exception: {}", parameters["exceptionDetails"])),
        "Log.entryAdded" => Some(format!("log: {}", parameters["entry"]["text"])),
        "Network.requestWillBeSent" => {
            let url = parameters["request"]["url"].as_str()?;
            (!url.starts_with(base) && !url.starts_with("data:")).then(|| format!("asked the network for {url}"))
        }
        "Network.responseReceived" => {
            let (status, url) = (parameters["response"]["status"].as_u64()?, &parameters["response"]["url"]);
            (status >= 400).then(|| format!("{status}: {url}"))
        }
        "Network.loadingFailed" => Some(format!("did not load: {parameters}")),
        _ => None,
    }
}
