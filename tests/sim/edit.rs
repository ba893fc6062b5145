//! Faults put into PTX, at the instructions that a line of CUDA became.

use device::{Variant, file, prebuilt};

/// The line of a kernel file where these words end, which stand there once.
pub(crate) fn line(name: &str, words: &str) -> u32 {
    let text = file(name).unwrap_or_else(|| panic!("{name}: no such file"));
    let places: Vec<usize> = text.match_indices(words).map(|(place, _)| place + words.len()).collect();
    let [end] = places[..] else { panic!("{name} has {} times, and not once: {words}", places.len()) };
    1 + text[..end].matches('\n').count() as u32
}

/// The prebuilt PTX of a variant in which the instructions that begin with `opcode`, and come from that line of that file or from
/// what it calls, are edited.
pub(crate) fn edited(variant: &Variant, (name, words): (&str, &str), opcode: &str, edit: fn(&str) -> String) -> String {
    let ptx = prebuilt::ptx(variant).unwrap();
    let number = file_number(&ptx, name);
    let wanted = [number.to_string(), line(name, words).to_string()];
    let (mut here, mut before, mut found) = (false, false, 0);
    let mut result = String::new();
    for text in ptx.lines() {
        // One line after the other: that of a call, what it calls, and so on.
        let is_place = text.trim_start().starts_with(".loc");
        if is_place {
            here = before && here || places(text).any(|place| place == wanted);
        }
        before = is_place;
        let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
        if !here || !words.next().is_some_and(|first| first.starts_with(opcode)) {
            result += &format!("{text}\n");
            continue;
        }
        found += 1;
        result += &format!("{}\n", edit(text.trim()));
    }
    assert!(found > 0, "{name}: no instruction {opcode} at the line with {wanted:?}");
    result
}

/// The line of an instruction, and the one that calls it, each after the number of its file.
fn places(loc: &str) -> impl Iterator<Item = [&str; 2]> {
    let of = |text: &'static str| loc.split_once(text).map(|(_, place)| place);
    [of(".loc"), of("inlined_at")].into_iter().flatten().filter_map(|place| {
        let mut fields = place.split_whitespace();
        Some([fields.next()?, fields.next()?])
    })
}

/// The number that the PTX gives a file.
fn file_number(ptx: &str, name: &str) -> u32 {
    let ends = format!("\"{name}\"");
    let found = ptx.lines().find_map(|line| line.trim().strip_prefix(".file")?.trim().strip_suffix(&*ends));
    found.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("the PTX does not name {name}"))
}

/// The instruction left out.
pub(crate) fn dropped(_: &str) -> String {
    String::new()
}

/// A comparison that never holds.
pub(crate) fn never(text: &str) -> String {
    format!("setp.ne.s32 {}, 0, 0;", operands(text)[0])
}

/// A comparison that always holds.
pub(crate) fn always(text: &str) -> String {
    format!("setp.eq.s32 {}, 0, 0;", operands(text)[0])
}

/// The first operand in the place of the result.
pub(crate) fn first_operand(text: &str) -> String {
    format!("mov.b32 {}, {};", operands(text)[0], operands(text)[1])
}

/// The second operand in the place of the result.
pub(crate) fn second_operand(text: &str) -> String {
    format!("mov.b32 {}, {};", operands(text)[0], operands(text)[2])
}

/// A barrier that only half of the warp comes to.
pub(crate) fn for_half_a_warp(text: &str) -> String {
    format!(
        "{{ .reg .pred %half; .reg .b32 %lane; mov.u32 %lane, %laneid; setp.lt.u32 %half, %lane, 16; @%half {text} }}"
    )
}

/// What an instruction reads and writes.
pub(crate) fn operands(text: &str) -> Vec<&str> {
    let (_, operands) = text.trim_end_matches(';').split_once(char::is_whitespace).unwrap();
    operands.split(',').map(|operand| operand.trim().trim_end_matches(';').trim()).collect()
}
