//! Expected values from outside: the conformance pack, and layers of real models.

use crate::data;
use crate::problems::all_forms;
use attention::oracle::{self, Truth};
use attention::{Attention, Batch, DType, Kv, Mask, Options, Problem};
use cuda_fa2::CudaRung;
use device::Device;
use ladder::registry::{DeviceRung, rungs_of};
use libtest_mimic::Failed;
use rayon::prelude::*;
use testkit::files::read_safetensors;
use testkit::pack::{Pack, Status, run_on_canaries};
use testkit::worst;

/// How many cases of the pack each rung takes.
const TAKEN: [(&str, usize); 6] =
    [("cuda-naive", 32), ("cuda-fa1", 32), ("cuda-fa2-simt", 32), ("cuda-fa2", 39), ("triton-fa2", 27), ("fa3", 39)];

/// Of the pack, every case that the rung takes passes, and no other is taken. A simulated device does one launch after another:
/// there each rung has one of its own, and is met as it is.
pub(crate) fn every_rung_conforms(device: &Device) -> Result<(), Failed> {
    let pack = Pack::open(&data("conformance"))?;
    rungs_of(device).collect::<Vec<_>>().into_par_iter().try_for_each(|rung| {
        let own = matches!(device, Device::Simulated(_)).then(Device::simulated);
        let mut forms = rung.forms(own.as_ref().unwrap_or(device))?;
        forms.truncate(if own.is_some() { 1 } else { forms.len() });
        forms.iter().try_for_each(|attention| conforms(rung, attention, &pack))
    })
}

fn conforms(rung: &DeviceRung, attention: &CudaRung, pack: &Pack) -> Result<(), Failed> {
    let mut passed = 0;
    for case in pack.cases() {
        let report = pack.run(case, &|problem| run_on_canaries(attention, problem))?;
        let families = ["dense", "kvlen", "varlen"];
        let takes = families.contains(&case.family.as_str())
            && case.unsupported().is_none()
            && rung.takes.problem(&pack.load(case)?.problem()?);
        match report.status {
            Status::Pass if takes => passed += 1,
            Status::Unsupported(_) if !takes => {}
            status => return Err(format!("{} on {}: {status:?}", rung.name, case.name).into()),
        }
    }
    if !TAKEN.contains(&(rung.name, passed)) {
        return Err(format!("{}: {passed} cases, wanted {TAKEN:?}", rung.name).into());
    }
    Ok(())
}

/// 9 heads of 487 tokens.
pub(crate) fn a_layer_of_smollm2(device: &Device) -> Result<(), Failed> {
    layer(device, "smollm2-layer14.safetensors", Mask::Causal, None, 21.6)
}

/// 12 heads of 8 packed sentences, 124 tokens together.
pub(crate) fn a_layer_of_minilm(device: &Device) -> Result<(), Failed> {
    layer(device, "minilm-layer03.safetensors", Mask::Full, Some("cu_seqlens"), 7.2)
}

/// q, k and v of a layer, against the o and lse stored beside them; tolerances as on the CPU.
fn layer(device: &Device, name: &str, mask: Mask, cu_seqlens: Option<&str>, s_max: f64) -> Result<(), Failed> {
    let file = read_safetensors(&data("real").join(name))?;
    let tensor = |name| Ok::<_, Failed>(file.tensor(name)?.view());
    let (q, k, v) = (tensor("q")?, tensor("k")?, tensor("v")?);
    let cu_seqlens = cu_seqlens.map_or_else(|| Ok(vec![0, q.shape()[1] as i32]), |name| file.lengths(name))?;
    let batch = Batch::Packed { cu_seqlens_q: &cu_seqlens, cu_seqlens_k: &cu_seqlens };
    let v_max = v.to_f64().fold(0f64, |max, v| max.max(v.abs()));
    let problem = Problem::new(q, Kv::Contiguous { k, v }, batch, Options { mask, ..Options::default() })?;
    let (o, lse) = (tensor("o")?.to_f64(), tensor("lse")?.to_f64());
    let o_tol = |o: f64| 2f64.powi(-11) * o.abs() + 2f64.powi(-25) + 2f64.powi(-20) * (1.0 + s_max) * v_max;
    let truth = oracle::truth(&problem);
    for (rung, attention) in all_forms(device)? {
        let found = run_on_canaries(&attention, &problem)?;
        // A kernel that rounds P to F16 may err by that too, as the error rule has it.
        let rounds = attention.weights(&problem) == DType::F16;
        let rounded_weights = |truth: &Truth, at: &[usize]| {
            let step = 6.0 * (2f64.powi(-11) * truth.spread[at] + 2f64.powi(-25) * truth.v_norm[at]);
            if rounds { step } else { 0.0 }
        };
        for worst in [
            worst(&problem, &found.o, &o, |at| o_tol(o[at]) + rounded_weights(&truth, at)),
            worst(&problem, &found.lse, &lse, |at| 1e-5 * (1.0 + lse[at].abs())),
        ] {
            if worst.ratio > 1.0 {
                return Err(format!("{} on {name}: {}", rung.name, worst.told("a result")).into());
            }
        }
    }
    Ok(())
}
