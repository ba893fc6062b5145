//! What only a simulated device does. What every device does is in `on_gpu.rs`.

// A launch is unsafe.
#![allow(unsafe_code)]

use device::{
    Arg, Buffer, Counters, Device, DeviceError, Element, Image, Kernel, LaunchShape, OutOfBoundsFill, Simulator,
    Stream, Swizzle, Tiling,
};

const PROBE: &str = include_str!("probe.sm_80.ptx");

/// Lane 0 of each warp takes a ticket and writes it to its warp's place; with `forever` set, a kernel that never ends.
const TICKETS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry tickets(.param .u64 counter, .param .u64 taken, .param .u32 forever)
{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [counter];
    ld.param.u64 %rd2, [taken];
    ld.param.u32 %r1, [forever];
LOOP:
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra LOOP;
    mov.u32 %r2, %tid.x;
    and.b32 %r3, %r2, 31;
    setp.ne.u32 %p2, %r3, 0;
    @%p2 bra DONE;
    atom.global.add.u32 %r4, [%rd1], 1;
    shr.u32 %r5, %r2, 5;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r4;
DONE:
    ret;
}
";

fn simulated() -> (Device, Simulator) {
    let device = Device::simulated();
    let Device::Simulated(simulator) = &device else { panic!("{device:?}") };
    (device.clone(), simulator.clone())
}

fn kernel(device: &Device, ptx: &str, name: &str) -> Result<Kernel, DeviceError> {
    device.load(&Image::Ptx(ptx.into()))?.kernel(name)
}

fn shape(threads: u32) -> LaunchShape {
    LaunchShape { grid: [1; 3], block: [threads, 1, 1], cluster: [1; 3], shared_bytes: 0 }
}

/// x = 2 x + 1 for `count` numbers.
fn affine(kernel: &Kernel, stream: &Stream, x: &Buffer, count: u32) -> Result<(), DeviceError> {
    let args = [Arg::U64(x.address()), Arg::U32(count), Arg::F32(2.0), Arg::I32(1), Arg::Bytes(&[0; 16])];
    // SAFETY: the arguments are those of `affine`. That `count` is the buffer's is checked there.
    unsafe { kernel.launch(stream, shape(64), &args) }
}

#[test]
fn what_a_kernel_does_wrong_is_reported_with_its_line_and_the_device_works_on() -> Result<(), DeviceError> {
    let (device, _) = simulated();
    let (kernel, stream, x) = (kernel(&device, PROBE, "affine")?, device.stream()?, device.upload(&[1f32; 40])?);
    let Err(DeviceError::Simulated { report }) = affine(&kernel, &stream, &x, 64) else { panic!("it must fail") };
    assert!(report.starts_with("affine: out of bounds: ") && report.contains("probe.cu:9"), "{report}");
    let unset = device.alloc(160)?;
    let Err(DeviceError::Simulated { report }) = affine(&kernel, &stream, &unset, 40) else { panic!("it must fail") };
    assert!(report.starts_with("affine: uninitialised memory: ") && report.contains("probe.cu:9"), "{report}");
    x.fill(0)?;
    affine(&kernel, &stream, &x, 40)?;
    assert_eq!(x.to_vec::<f32>()?, [1.0; 40]);
    Ok(())
}

#[test]
fn arguments_that_the_kernel_has_not_are_refused() -> Result<(), DeviceError> {
    let (device, _) = simulated();
    let (kernel, stream) = (kernel(&device, PROBE, "affine")?, device.stream()?);
    // SAFETY: nothing is run with arguments of other sizes.
    let launch = |args: &[Arg]| unsafe { kernel.launch(&stream, shape(1), args) }.unwrap_err().to_string();
    assert_eq!(launch(&[Arg::U64(0)]), "affine: arguments: found 1, wanted 5");
    let args = [Arg::U64(0), Arg::U32(0), Arg::U64(0), Arg::I32(0), Arg::Bytes(&[0; 16])];
    assert_eq!(launch(&args), "affine: bytes of argument 2: found 8, wanted 4");
    Ok(())
}

#[test]
fn each_device_is_another() -> Result<(), DeviceError> {
    let (one, other) = (Device::simulated(), Device::simulated());
    let (kernel, stream, x) = (kernel(&one, PROBE, "affine")?, other.stream()?, one.upload(&[1f32])?);
    let launched = affine(&kernel, &stream, &x, 1).unwrap_err().to_string();
    assert_eq!(launched, "stream: found one of another device, wanted one of the kernel's");
    let graph = one.stream()?.capture(|own| affine(&kernel, own, &x, 1))?;
    let launched = graph.launch(&stream).unwrap_err().to_string();
    assert_eq!(launched, "stream: found one of another device, wanted one of the graph's");
    let free = one.attributes().memory_bytes;
    assert_eq!((one.memory_free()? < free, other.memory_free()?), (true, free));
    Ok(())
}

#[test]
fn what_is_not_simulated_is_refused_with_the_reason() -> Result<(), DeviceError> {
    let (device, _) = simulated();
    let (kernel, stream) = (kernel(&device, PROBE, "slow_add")?, device.stream()?);
    let elapsed = stream.record()?.elapsed_ms(&stream.record()?).unwrap_err().to_string();
    assert_eq!(elapsed, "event: found one of a simulated device, which has no clock, wanted one of a GPU");
    let cubin = device.load(&Image::Cubin(vec![])).unwrap_err().to_string();
    assert_eq!(cubin, "image: found machine code, wanted PTX, which is what a simulated device reads");
    let broken = device.load(&Image::Ptx(PROBE.replace("ld.param", "ld.parameter"))).unwrap_err();
    assert!(matches!(&broken, DeviceError::Simulated { report } if report.starts_with("PTX line ")), "{broken}");
    let clusters = LaunchShape { grid: [4, 1, 1], cluster: [4, 1, 1], ..shape(1) };
    // SAFETY: nothing is run.
    let launched = unsafe { kernel.launch(&stream, clusters, &[]) }.unwrap_err().to_string();
    assert_eq!(launched, "slow_add: cluster: found [4, 1, 1], wanted [1, 1, 1]: clusters are not simulated");
    let (element, swizzle, fill) = (Element::F32, Swizzle::B64, OutOfBoundsFill::Zeros);
    let narrow = Tiling { element, address: 256, lengths: &[8], strides: &[], tile: &[8], swizzle, fill };
    let map = device.tensor_map(&narrow).unwrap_err().to_string();
    let told = "tensor map: tile[0]: found 32 bytes, wanted the 64 of the swizzle: narrower rows are not simulated";
    assert_eq!(map, told);
    Ok(())
}

#[test]
fn a_seed_draws_an_order_of_warps_which_is_the_same_each_time() -> Result<(), DeviceError> {
    let (device, simulator) = simulated();
    let (kernel, stream) = (kernel(&device, TICKETS, "tickets")?, device.stream()?);
    let order = |seed| {
        simulator.set_schedule(seed);
        let (counter, taken) = (device.upload(&[0u32])?, device.alloc(32)?);
        let args = [Arg::U64(counter.address()), Arg::U64(taken.address()), Arg::U32(0)];
        // SAFETY: the arguments are those of `tickets`, and there is a place for each of 8 warps.
        unsafe { kernel.launch(&stream, shape(256), &args)? };
        taken.to_vec::<u32>()
    };
    assert_eq!(order(0)?, (0..8).collect::<Vec<_>>());
    let orders = (1..20).map(order).collect::<Result<Vec<_>, _>>()?;
    assert!(orders.iter().any(|order| *order != orders[0]), "{orders:?}");
    assert_eq!(order(7)?, orders[6]);
    Ok(())
}

#[test]
fn a_kernel_that_never_ends_meets_the_step_limit() -> Result<(), DeviceError> {
    let (device, simulator) = simulated();
    let (kernel, stream) = (kernel(&device, TICKETS, "tickets")?, device.stream()?);
    simulator.set_step_limit(1000);
    // SAFETY: the arguments are those of `tickets`, which with the last one uses no other.
    let launched = unsafe { kernel.launch(&stream, shape(32), &[Arg::U64(0), Arg::U64(0), Arg::U32(1)]) };
    assert!(launched.unwrap_err().to_string().starts_with("tickets: step limit: "));
    Ok(())
}

#[test]
fn what_the_launches_of_each_kernel_did_is_counted_until_it_is_taken() -> Result<(), DeviceError> {
    let (device, simulator) = simulated();
    let (affine_kernel, stream) = (kernel(&device, PROBE, "affine")?, device.stream()?);
    let (tickets, x) = (kernel(&device, TICKETS, "tickets")?, device.upload(&[1f32; 40])?);
    let (next, taken) = (device.upload(&[0u32])?, device.upload(&[0u32; 8])?);
    for _ in 0..3 {
        affine(&affine_kernel, &stream, &x, 40)?;
        // SAFETY: as in the test of orders.
        unsafe {
            tickets.launch(&stream, shape(32), &[Arg::U64(next.address()), Arg::U64(taken.address()), Arg::U32(0)])?
        };
    }
    let counters = simulator.take_counters();
    let names: Vec<&str> = counters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["affine", "tickets"]);
    let Counters { global_reads, global_writes, .. } = counters[0].1;
    // A warp of 32 numbers and one of 8, 4 and 1 sectors of 32 bytes.
    for global in [global_reads, global_writes] {
        assert_eq!((global.bytes, global.sectors, global.requests), (3 * 160, 3 * 5, 3 * 2));
    }
    assert_eq!(simulator.take_counters(), []);
    Ok(())
}

#[test]
fn a_graph_keeps_its_kernel_and_a_spoiled_capture_gives_none() -> Result<(), DeviceError> {
    let (device, _) = simulated();
    let (stream, x) = (device.stream()?, device.upload(&[1f32])?);
    let graph = stream.capture(|stream| affine(&load(&device)?, stream, &x, 1));
    let refused = graph.unwrap_err().to_string();
    assert!(refused.starts_with("thread: found one that captures a stream, wanted "), "{refused}");
    let graph = {
        let kernel = load(&device)?;
        stream.capture(|stream| affine(&kernel, stream, &x, 1))?
    };
    graph.launch(&stream)?;
    graph.launch(&stream)?;
    assert_eq!(x.to_vec::<f32>()?, [7.0]);
    // What `work` makes of the errors does not matter.
    let swallowed = stream.capture(|_| {
        assert!(x.fill(0).is_err() && device.alloc(1).is_err());
        Ok::<(), DeviceError>(())
    });
    assert_eq!(swallowed.unwrap_err().to_string(), refused);
    let captured = "stream: found one that is captured, wanted one that does its work";
    let within = |call: &dyn Fn(&Stream) -> Result<(), DeviceError>| stream.capture(call).unwrap_err().to_string();
    let event = stream.record()?;
    assert_eq!(within(&|stream| stream.record().map(drop)), captured);
    assert_eq!(within(&|stream| stream.wait(&event)), captured);
    assert_eq!(within(&|stream| stream.capture(|_| Ok::<(), DeviceError>(())).map(drop)), captured);
    assert_eq!(within(&|stream| stream.synchronize()), refused);
    assert_eq!(x.to_vec::<f32>()?, [7.0]);
    Ok(())
}

fn load(device: &Device) -> Result<Kernel, DeviceError> {
    kernel(device, PROBE, "affine")
}
