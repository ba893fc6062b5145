//! The rules of tensor maps.

use ptx_sim::{Element, Interleave, OutOfBoundsFill, Swizzle, TensorMap, TensorMapError};

const RIGHT: TensorMap<'static> = TensorMap {
    element: Element::F16,
    address: 0x7000_0000_0000,
    sizes: &[64, 10, 3],
    strides: &[128, 1280],
    box_sizes: &[64, 8, 1],
    element_strides: &[1, 1, 1],
    interleave: Interleave::None,
    swizzle: Swizzle::B128,
    fill: OutOfBoundsFill::Nan,
};

#[test]
fn arguments_at_the_edge_are_taken() {
    let largest = TensorMap {
        element: Element::U8,
        sizes: &[1 << 32; 5],
        strides: &[(1 << 40) - 16, 0, 16, 48],
        box_sizes: &[256; 5],
        element_strides: &[1; 5],
        swizzle: Swizzle::None,
        fill: OutOfBoundsFill::Zeros,
        ..RIGHT
    };
    let smallest = TensorMap {
        sizes: &[1],
        strides: &[],
        box_sizes: &[8],
        element_strides: &[1],
        swizzle: Swizzle::None,
        ..RIGHT
    };
    let maps = [RIGHT, largest, smallest].map(|map| map.encode().unwrap());
    assert!(maps[0] != maps[1] && maps[1] != maps[2]);
}

#[test]
fn what_is_against_a_rule_is_named() {
    let elements = "floating-point elements";
    for (map, argument, found, wanted) in [
        (TensorMap { sizes: &[], ..RIGHT }, "sizes", "0 dimensions", "1 to 5"),
        (TensorMap { sizes: &[1; 6], ..RIGHT }, "sizes", "6 dimensions", "1 to 5"),
        (TensorMap { strides: &[128], ..RIGHT }, "strides", "1 dimensions", "2"),
        (TensorMap { box_sizes: &[64, 8], ..RIGHT }, "box_sizes", "2 dimensions", "3"),
        (TensorMap { element_strides: &[1; 4], ..RIGHT }, "element_strides", "4 dimensions", "3"),
        (TensorMap { address: 0x7000_0000_0008, ..RIGHT }, "address", "0x700000000008", "a multiple of 16"),
        (TensorMap { sizes: &[64, 0, 3], ..RIGHT }, "sizes[1]", "0", "1 to 4294967296"),
        (TensorMap { sizes: &[64, 10, (1 << 32) + 1], ..RIGHT }, "sizes[2]", "4294967297", "1 to 4294967296"),
        (
            TensorMap { strides: &[136, 1280], ..RIGHT },
            "strides[0]",
            "136 bytes",
            "a multiple of 16 below 1099511627776",
        ),
        (
            TensorMap { strides: &[128, 1 << 40], ..RIGHT },
            "strides[1]",
            "1099511627776 bytes",
            "a multiple of 16 below 1099511627776",
        ),
        (TensorMap { box_sizes: &[64, 0, 1], ..RIGHT }, "box_sizes[1]", "0", "1 to 256"),
        (TensorMap { box_sizes: &[64, 257, 1], ..RIGHT }, "box_sizes[1]", "257", "1 to 256"),
        (TensorMap { box_sizes: &[12, 8, 1], ..RIGHT }, "box_sizes[0]", "24 bytes", "a multiple of 16"),
        (TensorMap { box_sizes: &[72, 8, 1], ..RIGHT }, "box_sizes[0]", "144 bytes", "at most the 128 of the swizzle"),
        (TensorMap { swizzle: Swizzle::B64, ..RIGHT }, "box_sizes[0]", "128 bytes", "at most the 64 of the swizzle"),
        (TensorMap { swizzle: Swizzle::B32, ..RIGHT }, "box_sizes[0]", "128 bytes", "at most the 32 of the swizzle"),
        (TensorMap { element_strides: &[1, 0, 1], ..RIGHT }, "element_strides[1]", "0", "1 to 8"),
        (TensorMap { element_strides: &[1, 1, 9], ..RIGHT }, "element_strides[2]", "9", "1 to 8"),
        (TensorMap { element: Element::U16, ..RIGHT }, "fill", "NaN of U16", elements),
    ] {
        let (argument, found, wanted) = (argument.to_string(), found.to_string(), wanted.to_string());
        assert_eq!(map.encode(), Err(TensorMapError::Rule { argument, found, wanted }), "{map:?}");
    }
    let flat = TensorMap {
        sizes: &[64, 10],
        strides: &[128],
        box_sizes: &[64, 8],
        element_strides: &[1, 1],
        interleave: Interleave::B16,
        ..RIGHT
    };
    let told = flat.encode().unwrap_err().to_string();
    assert_eq!(told, "tensor map: interleave: found B16 of 2 dimensions, wanted 3 or more");
}

#[test]
fn what_is_not_simulated_is_named() {
    for (map, told) in [
        (TensorMap { interleave: Interleave::B32, ..RIGHT }, "interleave: found B32"),
        (TensorMap { element_strides: &[1, 2, 1], ..RIGHT }, "element_strides[1]: found 2"),
        (
            TensorMap { box_sizes: &[32, 8, 1], ..RIGHT },
            "box_sizes[0]: found 64 bytes, less than the 128 of the swizzle",
        ),
    ] {
        let found = map.encode().unwrap_err().to_string();
        assert_eq!(found, format!("tensor map: {told}, which is not simulated"));
    }
}
