//! The README keeps its word: every command in it runs, every file it links to exists.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The arguments of each `cargo run --release` line, without its comment.
fn commands() -> Vec<Vec<String>> {
    let line = |line: &str| {
        let command = line.strip_prefix("    cargo run --release")?;
        let command = command.split('#').next().unwrap_or_default();
        Some(command.trim().trim_start_matches("--").split_whitespace().map(String::from).collect())
    };
    readme().lines().filter_map(line).collect()
}

#[test]
fn the_two_commands_come_first() {
    let commands: Vec<String> =
        readme().lines().filter(|line| line.starts_with("    cargo")).map(|line| line.trim().to_string()).collect();
    assert_eq!(commands[..2], ["cargo run --release", "cargo test"]);
}

#[test]
fn every_command_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(root().join("tests/data/real/smollm2-layer14.safetensors"), folder.path().join("qkv.safetensors"))
        .unwrap();
    let commands = commands();
    assert!(commands.len() >= 5, "{commands:?}");
    for arguments in commands {
        let at_root = arguments.iter().any(|argument| argument.starts_with("tests/"));
        let output = Command::new(env!("CARGO_BIN_EXE_ladder"))
            .args(&arguments)
            .current_dir(if at_root { root() } else { folder.path().to_path_buf() })
            .output()
            .unwrap();
        assert!(output.status.success(), "ladder {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(folder.path().join("out.safetensors").exists() && folder.path().join("climb.html").exists());
}

#[test]
fn every_link_leads_somewhere() {
    let readme = readme();
    let links: Vec<&str> = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 5, "{links:?}");
    for link in links.into_iter().filter(|link| !link.starts_with("https://")) {
        assert!(root().join(link).exists(), "{link}");
    }
}
