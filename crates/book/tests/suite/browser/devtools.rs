//! Drives a headless Chromium by its DevTools protocol, over a pair of pipes.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// How long the browser may take to say anything.
const PATIENCE: Duration = Duration::from_secs(60);

const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
];

/// A running browser with one open tab.
pub(crate) struct Browser {
    process: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    /// Events since they were last taken.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts `chromium`, or the program that the environment variable CHROMIUM names, with a fresh profile.
    pub(crate) fn start() -> Self {
        let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into());
        let profile = tempfile::tempdir().unwrap();
        // The browser reads requests from descriptor 3 and writes messages to descriptor 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 >/dev/null", &program])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (requests, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Browser { process, requests, messages, last_id: 0, session: None, events: Vec::new(), _profile: profile };
        let tab = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call("Target.attachToTarget", json!({"targetId": tab["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        write!(self.requests, "{request}\0").unwrap_or_else(|error| panic!("is there a chromium? {method}: {error}"));
        loop {
            let mut message = self.next(method);
            if message["id"] == json!(self.last_id) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Opens a page and waits until it and all it refers to are loaded.
    pub(crate) fn open(&mut self, url: &str) {
        self.events.clear();
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let message = self.next(url);
            self.events.push(message);
        }
    }

    /// What `script`, an expression that may be a promise, is in the page.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let parameters = json!({"expression": script, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{result}");
        result["result"]["value"].take()
    }

    /// The events since the page was opened.
    pub(crate) fn take_events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    fn next(&mut self, awaiting: &str) -> Value {
        self.messages.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("is there a chromium? {awaiting}: {error}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked to close, it takes its helper processes with it.
        let _ = write!(self.requests, "{}\0", json!({"id": 0, "method": "Browser.close"}));
        while self.messages.recv_timeout(Duration::from_secs(5)).is_ok() {}
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
