//! The rules of tensor maps.

use ptx_sim::{Element, OutOfBoundsFill, Swizzle, Tiling, TilingError};

const RIGHT: Tiling<'static> = Tiling {
    element: Element::F16,
    address: 0x7000_0000_0000,
    lengths: &[64, 10, 3],
    strides: &[128, 1280],
    tile: &[64, 8, 1],
    swizzle: Swizzle::B128,
    fill: OutOfBoundsFill::Nan,
};

#[test]
fn arguments_at_the_edge_are_taken() {
    let largest = Tiling {
        element: Element::U8,
        lengths: &[1 << 32; 5],
        strides: &[(1 << 40) - 16, 16, 32, 48],
        tile: &[256; 5],
        swizzle: Swizzle::None,
        fill: OutOfBoundsFill::Zeros,
        ..RIGHT
    };
    let smallest = Tiling { lengths: &[1], strides: &[], tile: &[8], swizzle: Swizzle::None, ..RIGHT };
    let maps = [RIGHT, largest, smallest].map(|map| map.encode().unwrap());
    assert!(maps[0] != maps[1] && maps[1] != maps[2]);
}

#[test]
fn what_is_against_a_rule_is_named() {
    let elements = "floating-point elements";
    for (map, argument, found, wanted) in [
        (Tiling { lengths: &[], ..RIGHT }, "lengths", "0 axes", "1 to 5"),
        (Tiling { lengths: &[1; 6], ..RIGHT }, "lengths", "6 axes", "1 to 5"),
        (Tiling { strides: &[128], ..RIGHT }, "strides", "1 axes", "2"),
        (Tiling { tile: &[64, 8], ..RIGHT }, "tile", "2 axes", "3"),
        (Tiling { address: 0x7000_0000_0008, ..RIGHT }, "address", "0x700000000008", "a multiple of 16 above 0"),
        (Tiling { address: 0, ..RIGHT }, "address", "0x0", "a multiple of 16 above 0"),
        (Tiling { lengths: &[64, 0, 3], ..RIGHT }, "lengths[1]", "0", "1 to 4294967296"),
        (Tiling { lengths: &[64, 10, (1 << 32) + 1], ..RIGHT }, "lengths[2]", "4294967297", "1 to 4294967296"),
        (
            Tiling { strides: &[136, 1280], ..RIGHT },
            "strides[0]",
            "136 bytes",
            "a multiple of 16 above 0 and below 1099511627776",
        ),
        (
            Tiling { strides: &[128, 1 << 40], ..RIGHT },
            "strides[1]",
            "1099511627776 bytes",
            "a multiple of 16 above 0 and below 1099511627776",
        ),
        (Tiling { tile: &[64, 0, 1], ..RIGHT }, "tile[1]", "0", "1 to 256"),
        (Tiling { tile: &[64, 257, 1], ..RIGHT }, "tile[1]", "257", "1 to 256"),
        (Tiling { tile: &[12, 8, 1], ..RIGHT }, "tile[0]", "24 bytes", "a multiple of 16"),
        (Tiling { tile: &[72, 8, 1], ..RIGHT }, "tile[0]", "144 bytes", "at most the 128 of the swizzle"),
        (Tiling { swizzle: Swizzle::B64, ..RIGHT }, "tile[0]", "128 bytes", "at most the 64 of the swizzle"),
        (Tiling { swizzle: Swizzle::B32, ..RIGHT }, "tile[0]", "128 bytes", "at most the 32 of the swizzle"),
        (Tiling { element: Element::U16, ..RIGHT }, "fill", "NaN of U16", elements),
    ] {
        let (argument, found, wanted) = (argument.to_string(), found.to_string(), wanted.to_string());
        assert_eq!(map.encode(), Err(TilingError { argument, found, wanted }), "{map:?}");
    }
}

#[test]
fn what_is_not_simulated_is_named() {
    let narrow = Tiling { tile: &[32, 8, 1], ..RIGHT };
    assert_eq!(narrow.check(), Ok(()));
    let told = "tensor map: tile[0]: found 64 bytes, wanted the 128 of the swizzle: narrower rows are not simulated";
    assert_eq!(narrow.encode().unwrap_err().to_string(), told);
}
