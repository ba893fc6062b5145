//! Offsets that no 32-bit number holds.

use attention::{DType, Mask, Options, Sequence};
use cuda_fa2::{DeviceTensor, Shape, Tensors};
use device::{Buffer, Device};
use half::f16;
use ladder::registry::rungs_of;
use libtest_mimic::Failed;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const HEADS: usize = 8;
const LENGTH: usize = 64;
const D: usize = 64;
const ONE: usize = HEADS * LENGTH * D;

/// 70,000 sequences, 2.29e9 elements a tensor. The last one, whose numbers begin beyond element 2^31, gives the bits that it
/// gives as a batch of one.
#[allow(unsafe_code)]
pub(crate) fn elements_beyond_2_to_the_31(device: &Device) -> Result<(), Failed> {
    const BATCH: usize = 70_000;
    let mut random = StdRng::seed_from_u64(31);
    let mut tensor = || (0..ONE).map(|_| f16::from_f32(random.random_range(-2.0..2.0))).collect::<Vec<f16>>();
    let last = [tensor(), tensor(), tensor()];
    let options = Options { mask: Mask::Causal, ..Options::default() };
    let strides = [ONE, LENGTH * D, D, 1].map(|stride| stride as i64);
    let at = |buffer: &Buffer, strides: [i64; 4]| DeviceTensor { address: buffer.address(), strides };
    for rung in rungs_of(device) {
        let attention = rung.build(device)?;
        let mut results = Vec::new();
        for batch in [1, BATCH] {
            let sequences = vec![Sequence { q: 0..LENGTH, k: 0..LENGTH }; batch];
            let shape =
                Shape { dtype: DType::F16, heads: HEADS, kv_heads: HEADS, d: D, d_v: D, packed: false, sequences };
            let plan = attention.plan(&shape, &options)?;
            let inputs = last.each_ref().map(|numbers| {
                let buffer = device.alloc(batch * ONE * size_of::<f16>())?;
                buffer.fill(0)?;
                buffer.write((batch - 1) * ONE * size_of::<f16>(), numbers)?;
                Ok::<_, Failed>(buffer)
            });
            let [q, k, v] = inputs;
            let (q, k, v) = (q?, k?, v?);
            let o = device.alloc(batch * ONE * size_of::<f16>())?;
            let lse = device.alloc(batch * HEADS * LENGTH * size_of::<f32>())?;
            let (sequences, workspace) = (device.upload(plan.sequences())?, device.alloc(plan.workspace_bytes())?);
            let tensors = Tensors {
                q: at(&q, strides),
                k: at(&k, strides),
                v: at(&v, strides),
                o: at(&o, strides),
                lse: at(&lse, [HEADS * LENGTH, LENGTH, 1, 0].map(|stride| stride as i64)),
                alibi_slopes: None,
                bias: None,
                sinks: None,
                workspace: workspace.address(),
                sequences: sequences.address(),
            };
            // SAFETY: the tensors have the shape that was planned, in live buffers of their own; reading them back waits.
            unsafe { attention.launch(&plan, &tensors, attention.stream())? };
            let (mut o_last, mut lse_last) = (vec![0u16; ONE], vec![0u32; HEADS * LENGTH]);
            o.read((batch - 1) * ONE * size_of::<f16>(), &mut o_last)?;
            lse.read((batch - 1) * HEADS * LENGTH * size_of::<f32>(), &mut lse_last)?;
            results.push((o_last, lse_last));
        }
        if results[0] != results[1] || results[0].0.iter().all(|&bits| bits == 0) {
            return Err(format!("{}: the last of {BATCH} sequences differs from itself alone", rung.name).into());
        }
    }
    Ok(())
}
