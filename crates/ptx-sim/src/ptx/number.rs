//! Constants (section 4.5).

/// A constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Two's complement.
    Integer(u64),
    /// The bits of an f32.
    F32(u32),
    /// The bits of an f64.
    F64(u64),
}

impl Number {
    /// The constant of a word that begins with a digit.
    pub(super) fn of(text: &str) -> Option<Number> {
        let (prefix, digits) = text.split_at_checked(2).unwrap_or((text, ""));
        match prefix {
            "0f" | "0F" if digits.len() == 8 => Some(Number::F32(u32::from_str_radix(digits, 16).ok()?)),
            "0d" | "0D" if digits.len() == 16 => Some(Number::F64(u64::from_str_radix(digits, 16).ok()?)),
            "0x" | "0X" => integer(digits, 16),
            "0b" | "0B" => integer(digits, 2),
            _ if text.contains(['.', 'e', 'E']) => {
                let value: f64 = text.parse().ok()?;
                value.is_finite().then_some(Number::F64(value.to_bits()))
            }
            _ if text.starts_with('0') => integer(text, 8),
            _ => integer(text, 10),
        }
    }

    /// The constant with a minus before it.
    pub(super) fn negative(self) -> Number {
        match self {
            Number::Integer(value) => Number::Integer(value.wrapping_neg()),
            Number::F32(bits) => Number::F32(bits ^ 1 << 31),
            Number::F64(bits) => Number::F64(bits ^ 1 << 63),
        }
    }
}

fn integer(digits: &str, radix: u32) -> Option<Number> {
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    Some(Number::Integer(u64::from_str_radix(digits, radix).ok()?))
}
