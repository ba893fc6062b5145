"""The truth in float64, written out with PyTorch, and how far a float32 computation may be from it.

The tolerance is the project's error rule (crates/testkit/src/judge.rs): a model of rounding, per element.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

# Half an ulp of a value of each type, relative and among its subnormals. float32's is in the rule's other terms.
ROUNDING = {
    torch.float32: (0.0, 0.0),
    torch.float16: (2.0**-11, 2.0**-25),
    torch.bfloat16: (2.0**-8, 2.0**-134),
}
# What rounding P to a type costs: for bfloat16 half the worst case, as errors do not all line up.
WEIGHTS = {torch.float32: (0.0, 0.0), torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-9, 0.0)}
# Rungs that round P to the type of the tensors: on tensor cores, which take float16 and bfloat16; and on a CPU that multiplies
# bfloat16 in pairs, that type alone.
ON_TENSOR_CORES = {"cuda-fa2", "triton-fa2", "fa3"}
IN_PAIRS = {"fa2-simd", "paged-simd"}


def multiplies_pairs():
    """Whether this CPU does, and fast: as `Simd::best` in crates/fa2/src/simd/level.rs finds it."""
    cpu = Path("/proc/cpuinfo")
    flags = cpu.read_text() if cpu.exists() else ""
    return "avx512_bf16" in flags and "GenuineIntel" not in flags


def weights_of(rung, dtype):
    """The type to which a rung rounds P, of tensors of that type; float32 if to none."""
    pairs = rung in IN_PAIRS and dtype == torch.bfloat16 and multiplies_pairs()
    return dtype if rung in ON_TENSOR_CORES or pairs else torch.float32


@dataclass
class Truth:
    o: torch.Tensor
    lse: torch.Tensor
    o_tolerance: torch.Tensor
    lse_tolerance: torch.Tensor

    def error(self, o, lse=None):
        """The largest error in units of its tolerance. Up to 1 is right."""
        ratio = _ratio(o, self.o, self.o_tolerance)
        return ratio if lse is None else max(ratio, _ratio(lse, self.lse, self.lse_tolerance))


def _ratio(found, wanted, tolerance):
    found = torch.as_tensor(found).double()
    assert found.shape == wanted.shape, f"found shape {tuple(found.shape)}, wanted {tuple(wanted.shape)}"
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    ratio = torch.where(same, 0.0, ((found - wanted).abs() / tolerance).nan_to_num(nan=torch.inf))
    return ratio.max().item() if ratio.numel() else 0.0


def truth(
    q,
    k,
    v,
    *,
    causal=False,
    scale=None,
    window=None,
    softcap=0.0,
    sinks=None,
    alibi_slopes=None,
    bias=None,
    rows=None,
    weights=torch.float32,
):
    """Attention of PyTorch tensors, as flash_ladder.attention defines it; of `rows` alone if they are given.

    `weights` is the type to which P may have been rounded.
    """
    dtype, (q_len, d), kv_len = q.dtype, q.shape[2:], k.shape[2]
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    device = q.device
    rows = torch.arange(q_len, device=device) if rows is None else torch.as_tensor(rows, device=device)
    scale = d**-0.5 if scale is None else scale
    q = q.double()[:, :, rows]

    s = scale * (q @ k.mT)
    reach = abs(scale) * (q.abs() @ k.abs().mT)
    if softcap:
        s = softcap * (s / softcap).tanh()
    distance = rows[:, None] + kv_len - q_len - torch.arange(kv_len, device=device)
    if alibi_slopes is not None:
        slopes = alibi_slopes.double()[..., None, None]
        s = s - slopes * distance.abs()
        reach = reach + slopes.abs() * distance.abs()
    if bias is not None:
        s = s + bias.double()[:, :, rows]
        reach = reach + bias.double().nan_to_num(neginf=0)[:, :, rows].abs()
    left, right = window or (-1, -1)
    right = 0 if causal else right
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance <= left
    if right >= 0:
        seen &= distance >= -right
    s = s.masked_fill(~seen, -torch.inf)

    lse = s.logsumexp(-1)
    p = torch.where(lse[..., None] == -torch.inf, 0.0, (s - lse[..., None]).exp())
    if sinks is not None:
        p = p * (lse - sinks.double()[:, None]).sigmoid()[..., None]
    o = p @ v

    visible = s > -torch.inf
    largest = lambda x: (
        x.masked_fill(~visible, 0).amax(-1, keepdim=True) if kv_len else torch.zeros_like(lse)[..., None]
    )
    reach, s_max, keys = largest(reach), largest(s.abs()), visible.sum(-1, keepdim=True)
    v_max = v.abs().amax(2, keepdim=True) if kv_len else torch.zeros_like(o)
    (u, u_subnormal), (half_ulp, half_subnormal) = WEIGHTS[weights], ROUNDING[dtype]
    p_spread = (p.square() @ v.square()).sqrt() * u + (visible.double() @ v.square()).sqrt() * u_subnormal
    arithmetic = (2.0**-20 * (1 + s_max) + 2.0**-23 * reach + 2.0**-24 * keys.sqrt()) * v_max
    o_tolerance = 6 * p_spread + (half_ulp * o.abs()).clamp(min=half_subnormal) + arithmetic + 2.0**-149 * (1 + keys)
    return Truth(o, lse, o_tolerance, 1e-5 * (1 + lse.abs()) + 2.0**-23 * reach[..., 0])
