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
    let commands = commands();
    assert!(commands.len() >= 5, "{commands:?}");
    for arguments in commands {
        // Run elsewhere, so that what a command writes does not land in the repository.
        let arguments = arguments.iter().map(|argument| match argument.strip_prefix("tests/") {
            Some(data) => root().join("tests").join(data).into_os_string(),
            None => argument.into(),
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_ladder"));
        let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(folder.path().join("out.safetensors").exists() && folder.path().join("climb.html").exists());
}

/// Traffic is the same on every machine, and errors nearly so (the last bit of an `exp` may differ): the README's table
/// must show today's.
#[test]
fn the_table_is_what_the_climb_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_ladder")).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let (readme, mut compared) = (readme(), 0);
    for line in printed.lines().filter(|line| line.contains('│') && !line.contains("/tol") && !line.contains("rung"))
    {
        let cells = |line: &str| line.split('│').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
        let printed = cells(line);
        let shown = readme.lines().map(cells).find(|shown| shown[0] == printed[0]).unwrap();
        assert_eq!(shown[8..], printed[8..], "the traffic of {} in the README", printed[0]);
        let error = |cells: &[String]| cells[1].parse::<f64>().unwrap();
        assert!((error(&shown) - error(&printed)).abs() < 0.05, "the error of {} in the README", printed[0]);
        compared += 1;
    }
    assert!(compared >= 4, "{printed}");
}

#[test]
fn every_link_leads_somewhere() {
    let readme = readme();
    let links: Vec<&str> = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 5, "{links:?}");
    for link in links.into_iter().filter(|link| !link.starts_with("https://")) {
        assert!(root().join(link.split('#').next().unwrap()).exists(), "{link}");
    }
}
