//! The layer on a GPU and on a simulated one. Without a GPU its tests are ignored, with the reason. The kernels are the PTX
//! beside this file, so that a driver is enough; `nvrtc.rs` holds it against its sources.

// A launch is unsafe.
#![allow(unsafe_code)]

use device::{
    Arg, Buffer, Device, DeviceError, Element, Event, Image, Kernel, LaunchShape, OutOfBoundsFill, Stream, Swizzle,
    Tiling, cuda_devices, occupancy,
};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::thread;

type Test = fn(&Device) -> Result<(), DeviceError>;

/// Tests of every device.
const TESTS: &[(&str, Test)] = &[
    ("memory_keeps_what_was_written_and_refuses_what_is_out_of_bounds", memory),
    ("memory_that_is_not_there_is_an_error_and_the_device_works_on", too_much_memory),
    ("a_launch_reaches_every_block_with_every_kind_of_argument", every_argument),
    ("large_and_small_dynamic_shared_memory_take_turns", shared_memory),
    ("a_shape_beyond_the_limits_is_refused_before_the_launch", refused_shapes),
    ("a_graph_does_what_was_recorded_whenever_it_is_launched", graphs),
    ("a_capture_that_fails_leaves_the_stream_as_it_was", failed_captures),
    ("threads_share_a_device_and_a_kernel", threads),
    ("a_stream_of_another_library_is_used_and_left_to_it", foreign_streams),
    ("a_tensor_map_moves_a_tile_and_fills_what_is_beyond_with_zeros", tensor_maps),
];

/// Tests of what a GPU alone has.
const ON_GPU: &[(&str, Test)] = &[
    ("events_tell_time_and_streams_wait_for_them", events),
    ("broken_images_and_unknown_kernels_are_refused", broken_images),
    ("resources_and_occupancy_are_those_of_the_published_rules", resources),
    ("clusters_are_launched_where_the_device_has_them", clusters),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They measure what one device has left.
    arguments.test_threads = Some(1);
    let found = cuda_devices();
    let on_gpu = TESTS.iter().chain(ON_GPU).map(|&(name, test)| {
        let kind = found.as_ref().err().map_or("cuda".into(), |why| format!("not run: {why}"));
        let trial = Trial::test(name, move || test(device()?).map_err(Failed::from));
        trial.with_kind(kind).with_ignored_flag(found.is_err())
    });
    let simulated = TESTS.iter().map(|&(name, test)| {
        Trial::test(name, move || test(&Device::simulated()).map_err(Failed::from)).with_kind("simulated")
    });
    libtest_mimic::run(&arguments, on_gpu.chain(simulated).collect()).exit_code()
}

fn device() -> Result<&'static Device, DeviceError> {
    static DEVICE: OnceLock<Result<Device, DeviceError>> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cuda(0)).as_ref().map_err(Clone::clone)
}

fn probe(device: &Device, kernel: &str) -> Result<Kernel, DeviceError> {
    device.load(&Image::Ptx(include_str!("probe.sm_80.ptx").into()))?.kernel(kernel)
}

fn shape(blocks: u32, threads: u32, shared_bytes: u32) -> LaunchShape {
    LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], cluster: [1; 3], shared_bytes }
}

fn memory(device: &Device) -> Result<(), DeviceError> {
    let numbers: Vec<u32> = (0..1000).collect();
    let buffer = device.upload(&numbers)?;
    assert_eq!((buffer.len(), buffer.is_empty()), (4000, false));
    assert!(buffer.address() > 0 && buffer.address().is_multiple_of(256));
    assert_eq!(buffer.to_vec::<u32>()?, numbers);
    buffer.write(8, &[7u32, 9])?;
    let mut few = [0u32; 4];
    buffer.read(4, &mut few)?;
    assert_eq!(few, [1, 7, 9, 4]);
    buffer.write(4000, &[0u32; 0])?;
    for (offset, count) in [(3997, 1), (0, 1001), (usize::MAX - 1, 1)] {
        let wanted =
            |what| format!("{what}: found {} bytes from byte {offset} on, wanted an end within 4000", 4 * count);
        assert_eq!(buffer.write(offset, &vec![0u32; count]).unwrap_err().to_string(), wanted("write"));
        assert_eq!(buffer.read(offset, &mut vec![0u32; count]).unwrap_err().to_string(), wanted("read"));
    }
    buffer.fill(0xab)?;
    assert_eq!(buffer.to_vec::<u8>()?, vec![0xab; 4000]);
    let odd = device.upload(&[1u8; 6])?;
    assert_eq!(
        odd.to_vec::<u32>().unwrap_err().to_string(),
        "buffer: found 6 bytes, wanted a multiple of 4, the size of an element"
    );
    let nothing = device.alloc(0)?;
    nothing.fill(1)?;
    assert_eq!((nothing.len(), nothing.to_vec::<u32>()?), (0, vec![]));
    Ok(())
}

fn too_much_memory(device: &Device) -> Result<(), DeviceError> {
    let bytes = device.attributes().memory_bytes + 1;
    match device.alloc(bytes) {
        Err(DeviceError::Memory { bytes: asked, free }) => assert!(asked == bytes && (1..bytes).contains(&free)),
        other => panic!("{other:?}"),
    }
    let before = device.memory_free()?;
    let held = device.alloc(256 << 20)?;
    assert!(device.memory_free()? < before);
    drop(held);
    assert_eq!(device.upload(&[1u8])?.to_vec::<u8>()?, [1]);
    Ok(())
}

/// The struct `Pair` of `probe.cuh`, with its padding.
fn pair(first: f64, second: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_ne_bytes());
    bytes[8..12].copy_from_slice(&second.to_ne_bytes());
    bytes
}

fn every_argument(device: &Device) -> Result<(), DeviceError> {
    let (kernel, stream) = (probe(device, "affine")?, device.stream()?);
    let count = 100_003u32;
    let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let buffer = device.upload(&numbers)?;
    let pair = pair(0.25, -3);
    let args = [Arg::U64(buffer.address()), Arg::U32(count), Arg::F32(2.0), Arg::I32(-7), Arg::Bytes(&pair)];
    // SAFETY: the arguments are those of `affine`, and the buffer has `count` numbers.
    unsafe { kernel.launch(&stream, shape(count.div_ceil(128), 128, 0), &args)? };
    // No order of streams is needed: reading waits for all.
    let found = buffer.to_vec::<f32>()?;
    assert!(found.iter().zip(&numbers).all(|(found, x)| *found == x * 2.0 - 7.0 + 0.25 + 3.0), "{:?}", &found[..8]);
    Ok(())
}

/// What each block of `fill_shared` counted with so much dynamic shared memory.
fn filled(kernel: &Kernel, stream: &Stream, sums: &Buffer, bytes: u32) -> Result<Vec<u32>, DeviceError> {
    sums.fill(0xff)?;
    // SAFETY: the arguments are those of `fill_shared`, and the buffer has a number for each block.
    unsafe { kernel.launch(stream, shape(2, 256, bytes), &[Arg::U64(sums.address()), Arg::U32(bytes)])? };
    sums.to_vec()
}

fn shared_memory(device: &Device) -> Result<(), DeviceError> {
    let (kernel, stream, sums) = (probe(device, "fill_shared")?, device.stream()?, device.alloc(8)?);
    let most = device.attributes().shared_per_block - kernel.resources().shared_bytes;
    // 48 KiB is the limit for static and dynamic together.
    for bytes in [most, 16, 48 << 10, (48 << 10) - kernel.resources().shared_bytes, most, 0] {
        assert_eq!(filled(&kernel, &stream, &sums, bytes)?, [bytes; 2]);
    }
    let error = filled(&kernel, &stream, &sums, most + 1).unwrap_err().to_string();
    assert!(error.starts_with("fill_shared: shared memory of a block: found"), "{error}");
    Ok(())
}

fn refused_shapes(device: &Device) -> Result<(), DeviceError> {
    let (kernel, stream, x) = (probe(device, "slow_add")?, device.stream()?, device.upload(&[5u32])?);
    for (shape, name) in [(shape(0, 1, 0), "grid.x"), (shape(1, 0, 0), "block.x"), (shape(1, 1025, 0), "block.x")] {
        // SAFETY: the arguments are those of `slow_add`.
        let refused = unsafe { kernel.launch(&stream, shape, &[Arg::U64(x.address()), Arg::U32(1)]) };
        let error = refused.unwrap_err().to_string();
        assert!(error.starts_with(&format!("slow_add: {name}: found")), "{error}");
    }
    assert_eq!(x.to_vec::<u32>()?, [5]);
    Ok(())
}

/// Puts a kernel that takes about half a millisecond into a stream; it adds 1.
fn add(kernel: &Kernel, stream: &Stream, x: &Buffer) -> Result<(), DeviceError> {
    // SAFETY: the arguments are those of `slow_add`, one thread of which uses `x`.
    unsafe { kernel.launch(stream, shape(1, 1, 0), &[Arg::U64(x.address()), Arg::U32(1_000_000)]) }
}

fn events(device: &Device) -> Result<(), DeviceError> {
    let (kernel, x) = (probe(device, "slow_add")?, device.upload(&[0u32])?);
    let (one, other) = (device.stream()?, device.stream()?);
    let before: Event = one.record()?;
    add(&kernel, &one, &x)?;
    let after = one.record()?;
    // Without the wait both kernels would read the same number.
    other.wait(&after)?;
    add(&kernel, &other, &x)?;
    assert!(after.elapsed_ms(&before)? > 0.1);
    other.synchronize()?;
    assert_eq!(x.to_vec::<u32>()?, [2]);
    Ok(())
}

fn graphs(device: &Device) -> Result<(), DeviceError> {
    let (kernel, x, stream) = (probe(device, "slow_add")?, device.upload(&[0u32])?, device.stream()?);
    let graph = stream.capture(|stream| {
        assert!(stream.is_captured()?);
        add(&kernel, stream, &x)?;
        add(&kernel, stream, &x)
    })?;
    assert!(!stream.is_captured()?);
    assert_eq!(x.to_vec::<u32>()?, [0], "a capture does nothing");
    for _ in 0..3 {
        graph.launch(&stream)?;
    }
    assert_eq!(x.to_vec::<u32>()?, [6]);
    // What was recorded would outlive the graph.
    let within = stream.capture(|stream| graph.launch(stream)).unwrap_err().to_string();
    assert_eq!(within, "stream: found one that is captured, wanted one that does its work");
    graph.launch(&stream)?;
    assert_eq!(x.to_vec::<u32>()?, [8]);
    Ok(())
}

fn foreign_streams(device: &Device) -> Result<(), DeviceError> {
    // The default stream is nobody's to destroy.
    // SAFETY: it is there as long as the device is.
    let foreign = || unsafe { device.foreign_stream(0) };
    if let Device::Simulated(_) = device {
        let refused = foreign().unwrap_err().to_string();
        assert_eq!(refused, "stream: found one of another library, wanted one of the device's own");
        return Ok(());
    }
    let (kernel, x) = (probe(device, "slow_add")?, device.upload(&[0u32])?);
    for _ in 0..2 {
        let stream = foreign()?;
        assert!(!stream.is_captured()?);
        add(&kernel, &stream, &x)?;
    }
    assert_eq!(x.to_vec::<u32>()?, [2]);
    Ok(())
}

fn failed_captures(device: &Device) -> Result<(), DeviceError> {
    let (kernel, x, stream) = (probe(device, "slow_add")?, device.upload(&[0u32])?, device.stream()?);
    let own = DeviceError::Missing { what: "test", why: "wanted".into() };
    let failed = stream.capture(|stream| add(&kernel, stream, &x).and(Err(own.clone())));
    assert_eq!(failed.unwrap_err(), own);
    // Waiting for the device is not allowed while a stream of the thread is captured.
    let waited = stream.capture(|stream| add(&kernel, stream, &x).and_then(|()| x.fill(0)));
    match device {
        Device::Simulated(_) => assert!(waited.unwrap_err().to_string().starts_with("thread: found one that captures")),
        _ => assert!(matches!(waited, Err(DeviceError::Driver { .. })), "{waited:?}"),
    }
    add(&kernel, &stream, &x)?;
    assert_eq!(x.to_vec::<u32>()?, [1]);
    Ok(())
}

fn broken_images(device: &Device) -> Result<(), DeviceError> {
    for cubin in [&b""[..], b"\x7fELF", b"no machine code"] {
        let error = device.load(&Image::Cubin(cubin.into())).unwrap_err().to_string();
        assert!(error.starts_with("image: found") && error.ends_with("wanted a whole ELF file"), "{error}");
    }
    let zero = device.load(&Image::Ptx("\0".into())).unwrap_err().to_string();
    assert_eq!(zero, "image: found PTX with a zero byte, wanted text");
    let machine_code = device.load(&Image::Ptx("\x7fELF".into())).unwrap_err().to_string();
    assert_eq!(machine_code, "image: found an ELF file as PTX, wanted text");
    let ptx = include_str!("probe.sm_80.ptx");
    for broken in [ptx.replace("ld.param", "ld.parameter"), ptx.replace(".version 8.0", ".version 99.0"), String::new()]
    {
        assert!(matches!(device.load(&Image::Ptx(broken)), Err(DeviceError::Driver { .. })));
    }
    assert_eq!(
        probe(device, "no_such").unwrap_err().to_string(),
        "kernel: found no_such, wanted one that the module has"
    );
    Ok(())
}

fn threads(device: &Device) -> Result<(), DeviceError> {
    let kernel = probe(device, "fill_shared")?;
    thread::scope(|scope| {
        let most = device.attributes().shared_per_block - kernel.resources().shared_bytes;
        let turns = |sizes: [u32; 2]| {
            let (stream, sums) = (device.stream()?, device.alloc(8)?);
            sizes.iter().cycle().take(20).try_for_each(|&bytes| {
                assert_eq!(filled(&kernel, &stream, &sums, bytes)?, [bytes; 2]);
                Ok(())
            })
        };
        let threads = [[most, 100], [100, most]].map(|sizes| scope.spawn(move || turns(sizes)));
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

fn resources(device: &Device) -> Result<(), DeviceError> {
    let kernel = probe(device, "fill_shared")?;
    let resources = kernel.resources();
    assert!((1..=255).contains(&resources.registers) && resources.max_threads == 1024, "{resources:?}");
    // One number, and what the alignment of dynamic memory adds.
    assert!((4..=16).contains(&resources.shared_bytes) && resources.local_bytes == 0, "{resources:?}");
    let (major, minor) = device.attributes().compute_capability;
    for threads in [32, 128, 160, 1024] {
        for shared in [0, 20_000, 60_000, 100_000] {
            let wanted = occupancy::blocks_per_multiprocessor(
                &format!("sm_{major}{minor}"),
                threads,
                resources.registers,
                resources.shared_bytes + shared,
            );
            let found = kernel.blocks_per_multiprocessor(threads, shared)?;
            assert!(
                wanted.is_none_or(|wanted| wanted == found),
                "{threads} threads, {shared} bytes: {found}, {wanted:?}"
            );
        }
    }
    for (threads, shared, name) in [(0, 0, "block.x"), (1025, 0, "block.x"), (32, u32::MAX, "shared memory of a block")]
    {
        let error = kernel.blocks_per_multiprocessor(threads, shared).unwrap_err().to_string();
        assert!(error.starts_with(&format!("fill_shared: {name}: found")), "{error}");
    }
    Ok(())
}

/// Whether the device has clusters and tensor maps.
fn is_hopper(device: &Device) -> bool {
    device.attributes().compute_capability >= (9, 0)
}

fn hopper(device: &Device, kernel: &str) -> Result<Kernel, DeviceError> {
    device.load(&Image::Ptx(include_str!("hopper.sm_90.ptx").into()))?.kernel(kernel)
}

fn clusters(device: &Device) -> Result<(), DeviceError> {
    let shape = LaunchShape { cluster: [4, 1, 1], ..shape(12, 32, 0) };
    let (stream, ranks) = (device.stream()?, device.alloc(48)?);
    let kernel = if is_hopper(device) { hopper(device, "cluster_rank")? } else { probe(device, "slow_add")? };
    // SAFETY: the arguments are those of `cluster_rank`, with a number for each block; the other kernel is not launched.
    let launched = unsafe { kernel.launch(&stream, shape, &[Arg::U64(ranks.address())]) };
    if !is_hopper(device) {
        assert_eq!(launched.unwrap_err().to_string(), "slow_add: blocks of a cluster: found 4, wanted at most 1");
        return Ok(());
    }
    launched?;
    assert_eq!(ranks.to_vec::<u32>()?, [0, 1, 2, 3].repeat(3));
    Ok(())
}

fn tensor_maps(device: &Device) -> Result<(), DeviceError> {
    // Rows of 20 numbers, of which 18 are the tensor's.
    let numbers: Vec<f32> = (0..200).map(|i| i as f32).collect();
    let tensor = device.upload(&numbers)?;
    let tiling = Tiling {
        element: Element::F32,
        address: tensor.address(),
        lengths: &[18, 10],
        strides: &[80],
        tile: &[8, 4],
        swizzle: Swizzle::None,
        fill: OutOfBoundsFill::Zeros,
    };
    let simulated = matches!(device, Device::Simulated(_));
    if !is_hopper(device) && !simulated {
        assert!(device.tensor_map(&tiling).unwrap_err().to_string().starts_with("device: found compute capability"));
        return Ok(());
    }
    let (map, kernel) = (device.tensor_map(&tiling)?, hopper(device, "tile")?);
    let (stream, out) = (device.stream()?, device.alloc(4 * 32)?);
    for (row, column) in [(0, 0), (3, 4), (8, 12), (-1, -4)] {
        let args = [Arg::TensorMap(&map), Arg::U64(out.address()), Arg::I32(row), Arg::I32(column)];
        // SAFETY: the arguments are those of `tile`, which writes 32 numbers.
        unsafe { kernel.launch(&stream, shape(1, 32, 0), &args)? };
        let wanted = |place: i32| {
            let (i, j) = (row + place / 8, column + place % 8);
            if (0..10).contains(&i) && (0..18).contains(&j) { (20 * i + j) as f32 } else { 0.0 }
        };
        assert_eq!(out.to_vec::<f32>()?, (0..32).map(wanted).collect::<Vec<_>>(), "row {row}, column {column}");
    }
    let wide = device.tensor_map(&Tiling { tile: &[32, 4], swizzle: Swizzle::B64, ..tiling }).unwrap_err();
    assert_eq!(wide.to_string(), "tensor map: tile[0]: found 128 bytes, wanted at most the 64 of the swizzle");
    if simulated {
        // A card ends with an illegal instruction where a row begins at no multiple of 16 bytes, and is of no use then.
        let args = [Arg::TensorMap(&map), Arg::U64(out.address()), Arg::I32(0), Arg::I32(1)];
        // SAFETY: as above.
        let refused = unsafe { kernel.launch(&stream, shape(1, 32, 0), &args) }.unwrap_err().to_string();
        assert!(refused.contains("misaligned address"), "{refused}");
    }
    Ok(())
}
