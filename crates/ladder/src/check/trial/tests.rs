//! Verdicts read off output as libtest and proptest print it.

use super::*;
use std::process::ExitStatus;

fn status(success: bool) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    // This program lists its tests, or refuses an option that it does not know.
    let argument = if success { "--list" } else { "--no-such-option" };
    Command::new(program).arg(argument).output().unwrap().status
}

fn judged(output: &str, status: Option<ExitStatus>) -> Trial {
    let mut trial = Trial {
        name: "step_2_update_by_hand".into(),
        step: 2,
        state: State::NotRun,
        said: String::new(),
        input: None,
        at: None,
    };
    judge(&mut trial, &Ended { status, output: output.into() }, Duration::from_secs(15), 2 << 30);
    trial
}

fn told(trial: &Trial) -> (State, &str, Option<&str>, Option<&str>) {
    (trial.state, &trial.said, trial.input.as_deref(), trial.at.as_deref())
}

const FAILED: &str = "\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out\n";

#[test]
fn a_step_is_read_off_the_name() {
    assert_eq!(step("step_12_update_by_hand"), 12);
    assert_eq!(step("something_else"), u32::MAX);
}

#[test]
fn passing_takes_a_test_that_ran_to_its_end() {
    let ok = "running 1 test\ntest checks::step_2_update_by_hand ... ok\n\ntest result: ok. 1 passed; 0 failed;";
    assert_eq!(judged(ok, Some(status(true))).state, State::Passed);
    let left = judged("running 1 test\n", Some(status(true)));
    assert_eq!(left.state, State::Ended);
    assert!(left.said.contains("exit"), "{}", left.said);
}

#[test]
fn a_todo_is_recognised_alone_and_under_proptest() {
    let alone = "\nthread 'checks::step_2_update_by_hand' (7) panicked at chapters/03-fa1/src/lib.rs:93:5:\n\
                 not yet implemented: step 2, update\nnote: run with `RUST_BACKTRACE=1` environment variable\n";
    assert_eq!(
        told(&judged(&format!("{alone}{FAILED}"), Some(status(false)))),
        (State::Todo, "step 2, update", None, Some("chapters/03-fa1/src/lib.rs:93"))
    );
    let proptest = format!(
        "{alone}\nthread 'checks::step_2_update_of_any_rows' (7) panicked at chapters/03-fa1/tests/checks/mod.rs:90:1:\n\
         Test failed: not yet implemented: step 2, update.\nminimal failing input: rows = []\n\tsuccesses: 0\n\
         \tlocal rejects: 0\n\tglobal rejects: 0\n{FAILED}"
    );
    let trial = judged(&proptest, Some(status(false)));
    assert_eq!((trial.state, trial.said.as_str()), (State::Todo, "step 2, update"));
}

#[test]
fn a_wrong_result_is_told_with_its_input_and_its_check() {
    let output = format!(
        "\nthread 'checks::step_2_update_of_any_rows' (7) panicked at chapters/03-fa1/tests/checks/mod.rs:90:1:\n\
         Test failed: row 0 of 1: m is 1, wanted 2 at chapters/03-fa1/tests/laws/mod.rs:120.\n\
         minimal failing input: rows = [\n    Row {{ before: [], tile: [2.0] }},\n]\n\tsuccesses: 3\n\tlocal rejects: 0\n\
         note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n{FAILED}"
    );
    assert_eq!(
        told(&judged(&output, Some(status(false)))),
        (
            State::Wrong,
            "row 0 of 1: m is 1, wanted 2",
            Some("rows = [ Row { before: [], tile: [2.0] }, ]"),
            Some("chapters/03-fa1/tests/laws/mod.rs:120")
        )
    );
}

#[test]
fn a_panic_of_the_code_is_told_with_its_own_place() {
    let output = format!(
        "\nthread 'checks::step_2_update_of_any_rows' (7) panicked at chapters/03-fa1/src/lib.rs:70:9:\n\
         attempt to subtract with overflow\nnote: run with `RUST_BACKTRACE=1` environment variable\n\
         \nthread 'checks::step_2_update_of_any_rows' (7) panicked at chapters/03-fa1/tests/checks/mod.rs:90:1:\n\
         Test failed: attempt to subtract with overflow.\nminimal failing input: rows = []\n\tsuccesses: 0\n{FAILED}"
    );
    assert_eq!(
        told(&judged(&output, Some(status(false)))),
        (
            State::Panicked,
            "attempt to subtract with overflow",
            Some("rows = []"),
            Some("chapters/03-fa1/src/lib.rs:70")
        )
    );
}

#[test]
fn a_kernel_that_is_wrong_does_not_compile_or_has_no_compiler_is_told_with_its_line() {
    let place = "chapters/05-cuda-fa2/src/mine.cu:37";
    for (words, state, said, at) in [
        ("fa2: race: a byte\n  with the write at mine.cu:46", State::Wrong, None, place),
        ("not yet implemented: step 2, load", State::Todo, Some("step 2, load"), place),
        ("your kernel: not yet implemented: step 2, load", State::Todo, Some("step 2, load"), place),
        (
            "your kernel: does not compile: mine.cu(37): error: x\n  y",
            State::Refused,
            Some("mine.cu(37): error: x\n  y"),
            place,
        ),
        (
            "not run: NVRTC: found no library of it",
            State::NotRun,
            Some("NVRTC: found no library of it"),
            "tests/checks/mod.rs:90",
        ),
    ] {
        let end = if at == place { format!(" at {place}") } else { String::new() };
        let output = format!(
            "\nthread 'main' (7) panicked at tests/checks/mod.rs:90:1:\nTest failed: {words}{end}.\nminimal failing input: \
             seed = 0\n\tsuccesses: 0\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n{FAILED}"
        );
        let trial = judged(&output, Some(status(false)));
        let input = if state == State::Wrong { Some("seed = 0") } else { None };
        assert_eq!(told(&trial), (state, said.unwrap_or(words), input, Some(at)));
    }
}

#[test]
fn loops_aborts_and_stack_overflows_are_told_apart() {
    let stopped = judged("dots......", None);
    assert!(stopped.state == State::Stopped && stopped.said.contains("15 s"), "{}", stopped.said);
    let overflow = judged("\nthread 'x' has overflowed its stack\nfatal runtime error\n", Some(status(false)));
    assert!(overflow.state == State::Ended && overflow.said.contains("stack overflowed"), "{}", overflow.said);
    let filled = judged("memory allocation of 4294967296 bytes failed\n", Some(status(false)));
    assert!(filled.state == State::Ended && filled.said.contains("more than 2 GiB"), "{}", filled.said);
}

#[test]
fn a_panic_in_a_library_is_placed_where_the_learner_called_it() {
    let frames = |place: &str| {
        format!(
            "\nthread 'checks::step_2_update_by_hand' (7) panicked at /home/me/.cargo/registry/src/x/ndarray-0.17.2/src/\
             impl_linalg.rs:353:9:\nndarray: inputs 2 x 1 and 2 x 1 are not compatible\nstack backtrace:\n   0: __rustc::\
             rust_begin_unwind\n             at /rustc/abc/library/std/src/panicking.rs:689:5\n   3: ndarray::dot\n        \
             \u{20}    at /home/me/.cargo/registry/src/x/ndarray-0.17.2/src/impl_linalg.rs:353:9\n   4: \
             chapter_03_fa1::update\n             at {place}:120:9\n   5: chapter_03_fa1::head\n             at \
             {place}:140:9\n   6: mine::checks::step_2_update_by_hand\n             at ./tests/checks/mod.rs:80:5\n"
        )
    };
    // proptest's own panic follows, in the test.
    let proptest = "\nthread 'checks::step_2' (7) panicked at chapters/03-fa1/tests/checks/mod.rs:90:1:\nTest failed: it \
                    panicked.\nstack backtrace:\n   0: rust_begin_unwind\n             at /rustc/abc/library/std/src/x.rs:6:5\n";
    let source = "chapters/03-fa1/src/lib.rs";
    for place in ["./src/lib.rs", "/home/me/flash-ladder/chapters/03-fa1/src/lib.rs"] {
        for after in ["", proptest] {
            let found = called_at(&(frames(place) + after), source);
            assert_eq!(found.as_deref(), Some("chapters/03-fa1/src/lib.rs:120"), "{place}");
        }
    }
    assert_eq!(called_at(&frames("/elsewhere/src/main.rs"), source), None);
    let trial = judged(&(frames("./src/lib.rs") + FAILED), Some(status(false)));
    let said = "ndarray: inputs 2 x 1 and 2 x 1 are not compatible";
    assert_eq!((trial.state, trial.said.as_str()), (State::Panicked, said));
}

/// In the place of a test stands a shell.
#[cfg(target_os = "linux")]
#[test]
fn a_limited_program_has_the_memory_that_it_was_given() {
    let limit = |memory| {
        let output = limited(Path::new("/bin/sh"), memory).args(["-c", "ulimit -v"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    assert_eq!(limit(3 << 30), (3 << 20).to_string());
}

#[test]
fn a_law_that_was_unwrapped_is_told_in_its_own_words() {
    let output = format!(
        "\nrunning 1 test\n{FAILED}\n\
         \nthread 'checks::step_4_output' (7) panicked at chapters/01-naive/tests/checks/mod.rs:51:5:\n\
         called `Result::unwrap()` on an `Err` value: Fail(Reason(\"row 0 sees \\\"all\\\": o is NaN, wanted 4 at \
         chapters/01-naive/tests/laws/mod.rs:148\"))\nnote: run with `RUST_BACKTRACE=1` environment variable\n"
    );
    assert_eq!(
        told(&judged(&output, Some(status(false)))),
        (State::Wrong, "row 0 sees \"all\": o is NaN, wanted 4", None, Some("chapters/01-naive/tests/laws/mod.rs:148"))
    );
}

#[test]
fn an_unwrap_in_the_code_under_test_is_a_panic_of_its_own() {
    let output = format!(
        "\nthread 'checks::step_4_output' (7) panicked at chapters/01-naive/src/lib.rs:70:9:\n\
         called `Result::unwrap()` on an `Err` value: TooSmall\nnote: run with `RUST_BACKTRACE=1`\n{FAILED}"
    );
    let trial = judged(&output, Some(status(false)));
    assert_eq!(
        (trial.state, trial.said.as_str()),
        (State::Panicked, "called `Result::unwrap()` on an `Err` value: TooSmall")
    );
}
