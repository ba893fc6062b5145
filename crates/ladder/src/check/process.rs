//! Running a program to its end or to a deadline, with what it printed last.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use sysinfo::{Pid, ProcessesToUpdate, System};

/// How much of each stream of a program's output is kept: its end, where the failure is told. One that loops may print without end.
const KEPT: usize = 1 << 18;

/// How often a running program is looked at.
const TICK: Duration = Duration::from_millis(5);

/// How a program ended, `None` for stopped at the deadline, and the end of what it printed: first what went to stdout,
/// then what went to stderr, so that no line of the one stands within a message of the other.
pub(crate) struct Ended {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) output: String,
}

/// Runs a program until it ends, or until `deadline`, when it is killed with its children.
pub(crate) fn run(command: &mut Command, deadline: Instant) -> io::Result<Ended> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let kept = [(); 2].map(|()| Arc::new(Mutex::new(VecDeque::new())));
    let stdout = child.stdout.take().map(|pipe| keep(pipe, &kept[0]));
    let stderr = child.stderr.take().map(|pipe| keep(pipe, &kept[1]));
    let mut status = child.try_wait()?;
    while status.is_none() && Instant::now() < deadline {
        thread::sleep(TICK);
        status = child.try_wait()?;
    }
    if status.is_none() {
        kill(&mut child)?;
    }
    // A child of the program that outlives it may hold the pipes open, so nothing waits for them without end.
    let patience = Instant::now() + Duration::from_secs(1);
    let readers: Vec<JoinHandle<()>> = [stdout, stderr].into_iter().flatten().collect();
    while readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < patience {
        thread::sleep(TICK);
    }
    let text = |kept: Arc<Mutex<VecDeque<u8>>>| {
        let bytes: Vec<u8> = kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Ended { status, output: kept.map(text).join("\n") })
}

fn keep(mut pipe: impl Read + Send + 'static, kept: &Arc<Mutex<VecDeque<u8>>>) -> JoinHandle<()> {
    let kept = Arc::clone(kept);
    thread::spawn(move || {
        let mut buffer = [0; 1 << 13];
        while let Ok(read @ 1..) = pipe.read(&mut buffer) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(&buffer[..read]);
            let excess = kept.len().saturating_sub(KEPT);
            kept.drain(..excess);
        }
    })
}

/// Kills a program and all that it started. The family is noted first: an orphan no longer says whose it is.
fn kill(child: &mut Child) -> io::Result<()> {
    let mut system = System::new();
    system.refresh_processes(ProcessesToUpdate::All, true);
    let mut family = vec![Pid::from_u32(child.id())];
    let mut looked = 0;
    while looked < family.len() {
        let parent = family[looked];
        family.extend(system.processes().values().filter(|process| process.parent() == Some(parent)).map(|p| p.pid()));
        looked += 1;
    }
    child.kill()?;
    for pid in &family[1..] {
        system.process(*pid).map(|process| process.kill());
    }
    child.wait().map(drop)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_not_torn_by_what_goes_to_the_other_stream() {
        let script = "printf 'row 0 ' >&2; sleep 0.1; echo running 1 test; sleep 0.1; echo is wrong >&2";
        let ended = run(Command::new("sh").args(["-c", script]), Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(ended.output, "running 1 test\n\nrow 0 is wrong\n");
    }
}
