//! Numbers and names as people read them.

use attention::Mask;

/// Bytes in the largest binary unit that leaves at least one.
pub(crate) fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{} {}", three_digits(value), units[unit]) }
}

/// A time in the largest unit that leaves at least one.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{} s", three_digits(s)),
        s if s >= 1e-3 => format!("{} ms", three_digits(s * 1e3)),
        s => format!("{} us", three_digits(s * 1e6)),
    }
}

/// A number with about three digits that count.
pub(crate) fn three_digits(x: f64) -> String {
    match x.abs() {
        a if a >= 1e15 => format!("{x:.2e}"),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// A mask as `--mask` takes it.
pub(crate) fn mask(mask: Mask) -> String {
    let limit = |limit: Option<usize>| limit.map_or("-1".into(), |keys| keys.to_string());
    match mask {
        Mask::Full => "full".into(),
        Mask::Causal => "causal".into(),
        Mask::Window { left, right } => format!("window:{},{}", limit(left), limit(right)),
    }
}
