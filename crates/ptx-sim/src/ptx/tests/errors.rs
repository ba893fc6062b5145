//! What is refused, and in which words.

use super::*;

/// Texts, the line and the words of their errors.
#[track_caller]
fn refused(cases: &[(&str, u32, &str)]) {
    for &(text, line, what) in cases {
        let error = read(text).expect_err(text);
        assert_eq!((error.line, error.what.as_str()), (line, what), "{text}");
    }
}

/// The same for what follows the head; lines are counted from behind it.
#[track_caller]
fn module_refused(cases: &[(&str, u32, &str)]) {
    for &(text, line, what) in cases {
        refused(&[(&format!("{HEAD}{text}"), line + 3, what)]);
    }
}

/// The same for a body that is not closed.
#[track_caller]
fn body_refused(cases: &[(&str, u32, &str)]) {
    for &(text, line, what) in cases {
        module_refused(&[(&format!(".entry k() {{ {text}"), line, what)]);
    }
}

#[test]
fn heads() {
    refused(&[
        ("", 1, "found the end of the text, wanted `.version`"),
        ("\n.target sm_80", 2, "found `.target`, wanted `.version`"),
        (".version 8.0\n\n", 1, "found the end of the text, wanted `.target`"),
        (".version 8.0 .target 80", 1, "found `80`, wanted a target"),
        (".version 8.0 .target sm_80\n.address_size 32", 2, "found `32`, wanted `64`, as addresses are here"),
    ]);
}

#[test]
fn words() {
    module_refused(&[
        ("\n§", 2, "found '§', wanted a word of PTX"),
        ("/*\n*\n", 1, "found a comment without an end, wanted `*/`"),
        (".file 1 \"a\n\"", 1, "found a string without an end, wanted `\"`"),
    ]);
    let long = "x".repeat(1000);
    let shown = format!("found `{}`, wanted `(`", &long[..40]);
    let found = read(&format!("{HEAD}{long}")).unwrap_err().what;
    assert_eq!(found, shown.replace("`(`", "a function or a variable"));
}

#[test]
fn definitions() {
    module_refused(&[
        ("ret;", 1, "found `ret`, wanted a function or a variable"),
        (".alias f, g;", 1, "found `.alias`, wanted a function or a variable"),
        (".local .b32 x;", 1, "found `.local`, wanted a function or a variable"),
        (".section .text { }", 1, "found `.text`, wanted a section of debug information"),
        (".section .debug_str {\n.b8 1", 2, "found the end of the text, wanted `}`"),
        (".file 4294967296 \"x\"", 1, "found `4294967296`, wanted an integer of 32 bits"),
        (".file 1 x", 1, "found `x`, wanted a string"),
        (".entry ()", 1, "found `(`, wanted the name of a function"),
        (".func f(.reg .b32 x)", 1, "found `.reg`, wanted `.param`"),
        (".func f(.param .b32 x;", 1, "found `;`, wanted `,` or `)`"),
        (".entry k()\n.reqnctapercluster 2", 2, "found clusters of 2 blocks, wanted one block a cluster"),
        (".entry k() .maxntid 0", 1, "found no block of threads, wanted 1 to 3 sizes of at least 1"),
        (".entry k() .maxntid 1, 1, 1, 1", 1, "found no block of threads, wanted 1 to 3 sizes of at least 1"),
        (".entry k() .reqntid 65536, 65536", 1, "found no block of threads, wanted 1 to 3 sizes of at least 1"),
    ]);
}

#[test]
fn variables() {
    let other = "wanted `.shared`, as the variables of other modules are not here";
    let length = "wanted a length of at least 1, and at most 1099511627776 bytes in all";
    module_refused(&[
        (".extern .global .b32 x;", 1, &format!("found `.global`, {other}")),
        (".global .pred x;", 1, "found `.pred`, wanted the type of a variable"),
        (".global .texref x;", 1, "found `.texref`, wanted the type of a variable"),
        (".global .align 3 .b32 x;", 1, "found `3`, wanted a power of two"),
        (".global .b32 5;", 1, "found `5`, wanted the name of a variable"),
        (".global .b32 x y", 1, "found `y`, wanted `,` or `;`"),
        (".shared .b8 x[];", 1, "found `;`, wanted the length of `x`"),
        (".shared .b8 x = 1;", 1, "found `=`, wanted `,` or `;`"),
        (".shared .b8 x[2][];", 1, "found `]`, wanted an integer"),
        (".shared .b8 x[0];", 1, &format!("found `0`, {length}")),
        (".shared .b16 x[1048576][1048576];", 1, &format!("found `1048576`, {length}")),
        (".shared .b8 x[0xFFFFFFFFFFFFFFFF];", 1, &format!("found `0xFFFFFFFFFFFFFFFF`, {length}")),
    ]);
}

#[test]
fn initial_values() {
    let most = "wanted at most 67108864 initial bytes in a module";
    module_refused(&[
        (".global .u8 x = 256;", 1, "found `256`, wanted a constant of type .u8"),
        (".global .s8 x = -129;", 1, "found `129`, wanted a constant of type .s8"),
        (".global .u32 x = 1.0;", 1, "found `1.0`, wanted a constant of type .u32"),
        (".global .f32 x = 1;", 1, "found `1`, wanted a constant of type .f32"),
        (".global .f32 x = 1e300;", 1, "found `1e300`, wanted a constant of type .f32"),
        (".global .f64 x = 0f3F800000;", 1, "found `0f3F800000`, wanted a constant of type .f64"),
        (".global .b8 x[2] = \"a\";", 1, "found `\"a\"`, wanted `{`"),
        (".global .b8 x[2] = {};", 1, "found `}`, wanted a number"),
        (".global .b8 x[2] = {1, 2,\n3};", 2, "found `3`, wanted no more than 2 values"),
        (".global .v2 .b8 x = {1, 2, 3};", 1, "found `3`, wanted no more than 2 values"),
        (".global .b8 x[2][2] = {1, 2};", 1, "found `1`, wanted `{`"),
        (".global .b8 x[67108865] = {1};", 1, &format!("found `{{`, {most}")),
        (".global .b8 x[67108864] = {1};\n.global .b8 y = 1;", 2, &format!("found `1`, {most}")),
        (".global .b8 x[][33554432] = {{1},\n{2},\n{3}};", 3, &format!("found `{{`, {most}")),
    ]);
}

#[test]
fn statements() {
    body_refused(&[
        ("", 1, "found the end of the text, wanted an instruction"),
        ("ret", 1, "found the end of the text, wanted an operand"),
        ("add a b;", 1, "found `b`, wanted `,` or `;`"),
        ("@ 1 bra L;", 1, "found `1`, wanted a predicate"),
        ("@p { }", 1, "found `{`, wanted an instruction"),
        ("%r1 = 5;", 1, "found `%r1`, wanted an instruction"),
        ("\nL: .branchtargets A, B;", 2, "found `.branchtargets`, wanted an instruction"),
        (".reg .v2 .b32 x;", 1, "found `.v2`, wanted the type of a register"),
        (".reg .b32 %r<4294967296>;", 1, "found `4294967296`, wanted an integer of 32 bits"),
        (".reg .b32 %r<5;", 1, "found `;`, wanted `>`"),
        (".loc 1 2, 3", 1, "found `,`, wanted an integer"),
        (".loc 1 2 3, elsewhere 4", 1, "found `elsewhere`, wanted `function_name` or `inlined_at`"),
        (".pragma nounroll;", 1, "found `nounroll`, wanted a string"),
    ]);
}

#[test]
fn operands() {
    body_refused(&[
        ("op ;", 1, "found the end of the text, wanted an instruction"),
        ("op a,;", 1, "found `;`, wanted an operand"),
        ("op !1;", 1, "found `1`, wanted a name"),
        ("op p|1;", 1, "found `1`, wanted a name"),
        ("op {};", 1, "found `}`, wanted an operand"),
        ("op {a, {b}};", 1, "found `{`, wanted an operand"),
        ("op [{a}];", 1, "found `{`, wanted an address"),
        ("op [-1];", 1, "found `-`, wanted an address"),
        ("op [a+%r1];", 1, "found `%r1`, wanted an integer"),
        ("op [a+1.0];", 1, "found `1.0`, wanted an integer"),
        ("op [a+4+4];", 1, "found `+`, wanted `]`"),
        ("op [a+9223372036854775808];", 1, "found `9223372036854775808`, wanted an offset of 64 bits"),
        ("op [a, b];", 1, "found `b`, wanted `{`"),
        ("op [a, {b}, c];", 1, "found `,`, wanted `]`"),
        ("op 1+2;", 1, "found `+`, wanted `,` or `;`"),
        ("op -a;", 1, "found `a`, wanted a number"),
    ]);
    for number in
        ["08", "0b2", "0x", "0xg", "12a", "0f3F8", "0f3F8000000", "0d3F800000", "1e999", "18446744073709551616"]
    {
        body_refused(&[(&format!("op {number};"), 1, &format!("found `{number}`, wanted a number"))]);
    }
}
