//! Registers that change hands.

use super::program::{Program, is_found, is_right};
use ptx_sim::FaultKind::{Deadlock, Divergence, Registers};

/// Two warpgroups, of which the first does one thing and the second another.
fn groups(first: &str, second: &str) -> Program {
    Program::new(
        256,
        &format!(
            "setp.ge.u32 %p2, %r0, 128;\n@%p2 bra $L_second;\n{first}\nret;\n$L_second:\n{second}\nst.global.u32 [%d1], 1;"
        ),
    )
}

#[test]
fn one_warpgroup_gives_what_another_takes() {
    // 256 threads can have 256 each, so there may be 232 at once.
    let right = groups("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg.inc.sync.aligned.u32 232;");
    is_right(&right, |thread| u32::from(thread >= 128));
    let three = Program::new(
        384,
        "setp.ge.u32 %p2, %r0, 128;\n@%p2 bra $L_second;\nsetmaxnreg.dec.sync.aligned.u32 24;\nret;\n$L_second:\n\
         setmaxnreg.inc.sync.aligned.u32 240;\nst.global.u32 [%d1], 1;",
    );
    is_right(&three, |thread| u32::from(thread >= 128));
}

#[test]
fn registers_against_their_rules() {
    let three = |dec: u32, inc: u32| {
        Program::new(
            384,
            &format!(
                "setp.ge.u32 %p2, %r0, 128;\n@%p2 bra $L_second;\nsetmaxnreg.dec.sync.aligned.u32 {dec};\nret;\n$L_second:\n\
                 setmaxnreg.inc.sync.aligned.u32 {inc}; // <- at"
            ),
        )
    };
    // 168 each: 144 times 128 are given, and twice 80 wanted.
    is_found(&three(24, 248), &[Deadlock]);
    let back = "setmaxnreg.dec.sync.aligned.u32 40;\nsetmaxnreg.dec.sync.aligned.u32 64; // <- at";
    is_found(&groups(back, ""), &[Registers]);
    is_found(
        &groups("", "setmaxnreg.dec.sync.aligned.u32 40;\nsetmaxnreg.inc.sync.aligned.u32 24; // <- at"),
        &[Registers],
    );
    // A warp of four does not come, comes to another one, or comes in part.
    let warps = |body: &str| Program::new(128, &format!("setp.ge.u32 %p2, %r0, 32;\n{body}"));
    is_found(&warps("@%p2 bra $L_end;\nsetmaxnreg.dec.sync.aligned.u32 40; // <- at\n$L_end:"), &[Divergence]);
    let other = "@%p2 bra $L_end;\nsetmaxnreg.dec.sync.aligned.u32 40; // <- at\nret;\n$L_end:\n\
                 setmaxnreg.dec.sync.aligned.u32 40; // <- at";
    is_found(&warps(other), &[Divergence]);
    let lanes = "@!%p1 ret;\nsetmaxnreg.dec.sync.aligned.u32 40; // <- at";
    is_found(&Program::new(128, lanes), &[Divergence]);
    is_found(&Program::new(32, "setmaxnreg.dec.sync.aligned.u32 40; // <- at"), &[Registers]);
}
