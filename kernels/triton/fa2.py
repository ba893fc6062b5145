"""FlashAttention-2 in Triton: Algorithm 1 of Dao (arXiv 2307.08691), a program for each tile of rows.

Q, O, l and m of the tile stay on chip while the keys stream past, as in 05_fa2_simt.cu; comments name the lines of
the listing. How tiles get there, which thread holds what, and when to wait is Triton's affair. One text has two forms:

- compiled beforehand (compile.py), for the rung `triton-fa2`: tiles through pointers, lengths from the table of
  sequences;
- compiled where it runs, for Python: `attention(q, k, v)` on tensors of PyTorch. Sequences have one length, tiles come
  through tensor descriptors where the layout allows it, for which Hopper has a copy engine, and their sizes are tuned.

Scores are `scale * (q . k)`; causal masks are aligned to the bottom right. P is rounded to the input's type before
`P V`, all sums are f32. Keys behind a sequence's end may hold anything; a NaN that one row sees may spread to rows of
its tile that do not. Not here: windows, soft caps, biases, sinks, pages, more than 128 channels.

    python kernels/triton/fa2.py        needs PyTorch, Triton and a GPU: checks itself against float64, and prints times
"""
import itertools
import math

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def load(x, batch, head, first, row_stride, rows, channels, COUNT: tl.constexpr, D: tl.constexpr,
         WHOLE: tl.constexpr, DESCRIBED: tl.constexpr):
    """`COUNT` rows of a head from `first` on, zeros behind its last row and channel; `WHOLE` if no row is behind."""
    if DESCRIBED:
        tile = x.load([batch, head, first, 0]).reshape(COUNT, D)
    else:
        i, c = tl.arange(0, COUNT), tl.arange(0, D)
        at = x + first.to(tl.int64) * row_stride + i.to(tl.int64)[:, None] * row_stride + c[None, :]
        inside = (c < channels)[None, :]
        if not WHOLE:
            inside = inside & (first + i < rows)[:, None]
        tile = tl.load(at, mask=inside, other=0.0)
    return tile


@triton.jit
def attend(o, l, m, q, k, v, batch, head, k_row, v_row, k_len, d, d_v, start, end, ends, scale,
           KEYS: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, DESCRIBED: tl.constexpr):
    """Lines 6 to 11 for the keys from `start` to `end`: if `MASKED`, row r sees those before `ends[r]`, else all."""
    for j in tl.range(start, end, KEYS):  # line 6
        j = tl.multiple_of(j, KEYS)
        # Lines 7 and 8: load K_j, S = Q_i K_j^T. Scores are in powers of 2.
        k_j = load(k, batch, head, j, k_row, k_len, d, KEYS, D, not MASKED, DESCRIBED)
        s = tl.dot(q, k_j.T)
        # Line 9: m_new = max(m, rowmax(S)), P~ = exp(S - m_new).
        if MASKED:
            s = tl.where((j + tl.arange(0, KEYS))[None, :] < ends[:, None], s * scale, MINUS_INFINITY)
            m_new = tl.maximum(m, tl.max(s, 1))
            seen = tl.where(m_new == MINUS_INFINITY, 0.0, m_new)  # for a row that has seen no key, -inf - -inf is NaN
            p = tl.exp2(s - seen[:, None])
            rescale = tl.exp2(m - seen)
        else:  # a scale below 0 has no such tiles
            m_new = tl.maximum(m, tl.max(s, 1) * scale)
            p = tl.exp2(s * scale - m_new[:, None])
            rescale = tl.exp2(m - m_new)
        # l = e^(m - m_new) l + rowsum(P~), of P~ before it is rounded.
        l = l * rescale + tl.sum(p, 1)
        # Line 10: O = diag(e^(m - m_new)) O + P~ V_j.
        v_j = load(v, batch, head, j, v_row, k_len, d_v, KEYS, D, not MASKED, DESCRIBED)
        o = tl.dot(p.to(v_j.dtype), v_j, o * rescale[:, None])
        m = m_new
    return o, l, m


@triton.jit
def fa2(q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row,
        o, o_batch, o_head, o_row, lse, lse_batch, lse_head, lse_row,
        sequences, q_len, k_len, batches, heads, group, d, d_v, scale, causal: tl.constexpr, size,
        D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr, DESCRIBED: tl.constexpr):
    """One tile of rows. Lengths stand in `sequences`, or are `q_len` and `k_len`; `size` is for the tuner alone.

    If `SPLIT`, tiles of keys that every row sees have a loop of their own, without a mask.
    """
    # Lines 1 to 3: one program a tile of rows. The last come first: under a causal mask they have the most keys.
    row_tiles = tl.num_programs(0) // (batches * heads)
    tile = row_tiles - 1 - tl.program_id(0) % row_tiles
    sequence = tl.program_id(0) // row_tiles // heads
    head = tl.program_id(0) // row_tiles % heads
    batch = sequence
    q_start = 0
    k_start = 0
    if sequences is not None:  # as `Sequence` of tile/problem.cuh has it
        at = sequences + sequence.to(tl.int64) * 5
        batch = tl.load(at)
        q_start = tl.load(at + 1)
        q_len = tl.load(at + 2)
        k_start = tl.load(at + 3)
        k_len = tl.load(at + 4)
    first = tile * ROWS
    if first >= q_len:
        return
    wide = batch.to(tl.int64)
    kv_head = head // group
    if not DESCRIBED:
        q += wide * q_batch + head.to(tl.int64) * q_head + q_start * q_row
        k += wide * k_batch + kv_head.to(tl.int64) * k_head + k_start * k_row
        v += wide * v_batch + kv_head.to(tl.int64) * v_head + k_start * v_row
    i = first + tl.arange(0, ROWS)

    # Line 4: load Q_i. Line 5: O = 0, l = 0, m = -inf.
    q_i = load(q, batch, head, first, q_row, q_len, d, ROWS, D, False, DESCRIBED)
    o_i = tl.zeros([ROWS, D], tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    m = tl.full([ROWS], MINUS_INFINITY, tl.float32)

    # Row r sees the keys before ends[r]: all rows see those before `all_see`, none those from `none_sees` on.
    offset = k_len - q_len
    ends = tl.where(causal != 0, tl.minimum(k_len, i + offset + 1), k_len)
    all_see = tl.where(causal != 0, tl.maximum(0, tl.minimum(k_len, first + offset + 1)), k_len)
    none_sees = tl.where(causal != 0, tl.maximum(0, tl.minimum(k_len, first + ROWS + offset)), k_len)
    base_2 = scale * LOG2_E
    whole = 0
    if SPLIT:
        whole = tl.where(base_2 >= 0.0, all_see // KEYS * KEYS, 0)
        o_i, l, m = attend(o_i, l, m, q_i, k, v, batch, kv_head, k_row, v_row, k_len, d, d_v, 0, whole, ends, base_2,
                           KEYS, D, False, DESCRIBED)
    o_i, l, m = attend(o_i, l, m, q_i, k, v, batch, kv_head, k_row, v_row, k_len, d, d_v, whole, none_sees, ends,
                       base_2, KEYS, D, True, DESCRIBED)

    # Lines 12 to 15: O = diag(l)^-1 O and L = m + ln l go to device memory; 0 and -inf for a row that saw no key.
    o_i = o_i * tl.where(l == 0.0, 0.0, 1.0 / l)[:, None]
    if DESCRIBED:
        o.store([batch, head, first, 0], o_i.to(o.dtype).reshape(1, 1, ROWS, D))
    else:
        c = tl.arange(0, D)
        o += wide * o_batch + head.to(tl.int64) * o_head
        at = o + (q_start + i).to(tl.int64)[:, None] * o_row + c[None, :]
        tl.store(at, o_i.to(o.dtype.element_ty), mask=(i < q_len)[:, None] & (c < d_v)[None, :])
    lse += wide * lse_batch + head.to(tl.int64) * lse_head
    tl.store(lse + (q_start + i).to(tl.int64) * lse_row, (m + tl.log2(l)) * LN_2, mask=i < q_len)


def fit_descriptors(arguments):
    """What a descriptor brings at once follows the tile sizes that the tuner tries."""
    for name, count in ("q", "ROWS"), ("k", "KEYS"), ("v", "KEYS"), ("o", "ROWS"):
        if arguments["DESCRIBED"]:
            arguments[name].block_shape = [1, 1, arguments[count], arguments["D"]]


# Rows and keys of a tile, warps, and tiles of keys on their way: each may be the best at some size.
TRIED = [(128, 128, 8, 2), (128, 128, 8, 3), (128, 128, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4),
         (128, 64, 4, 2), (128, 64, 4, 3), (128, 32, 8, 4), (64, 128, 4, 2), (64, 128, 4, 3), (64, 64, 4, 3)]
tuned = triton.autotune(
    [triton.Config({"ROWS": rows, "KEYS": keys}, num_warps=warps, num_stages=stages, pre_hook=fit_descriptors)
     for rows, keys, warps, stages in TRIED],
    key=["size", "causal", "D", "DESCRIBED"])(fa2)


def attention(q, k, v, causal=False, scale=None, return_lse=False):
    """softmax(scale q k^T) v of float16 or bfloat16 tensors on one GPU.

    q is `[batch, heads, q_len, d]`, k `[batch, kv_heads, k_len, d]`, v `[batch, kv_heads, k_len, d_v]`, each with any
    strides; query head h reads kv head `h // (heads // kv_heads)`. `scale` is 1 / sqrt(d) if it is None. With
    `return_lse` also the natural log of each row's sum of e^score, float32 `[batch, heads, q_len]`. A row that sees no
    key gives 0 and -inf. The first call of a size tunes, for some seconds.
    """
    import torch

    if any(x.dim() != 4 or x.dtype != q.dtype for x in (q, k, v)) or q.dtype not in (torch.float16, torch.bfloat16):
        found = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in (q, k, v))
        raise ValueError(f"q, k, v: found {found}, wanted tensors of four axes, all float16 or all bfloat16")
    (batches, heads, q_len, d), (_, kv_heads, k_len, d_v) = q.shape, v.shape
    if k.shape != (batches, kv_heads, k_len, d) or v.shape[0] != batches:
        raise ValueError(f"k, v: found {tuple(k.shape)} and {tuple(v.shape)}, which do not fit q, {tuple(q.shape)}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"q: found {heads} heads, wanted a multiple of the {kv_heads} of k and v")
    if not 0 < max(d, d_v) <= 128 or min(d, d_v) == 0:
        raise ValueError(f"d and d_v: found {d} and {d_v}, wanted 1 to 128")
    o = q.new_empty(batches, heads, q_len, d_v)
    lse = q.new_empty(batches, heads, q_len, dtype=torch.float32)
    if lse.numel() > 0:
        tensors = [x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v, o)]
        strides = [x.stride()[:3] for x in tensors]
        in_16s = all(x.data_ptr() % 16 == 0 and all(s > 0 and s % 8 == 0 for s in x.stride()[:3]) for x in tensors)
        described = in_16s and k_len > 0 and torch.cuda.get_device_capability(q.device) >= (9, 0)
        if described:
            tensors = [TensorDescriptor.from_tensor(x, [1, 1, 1, 1]) for x in tensors]
        places = [piece for tensor, stride in zip(tensors, strides) for piece in (tensor, *stride)]
        scale = 1.0 / math.sqrt(d) if scale is None else float(scale)
        size = triton.next_power_of_2(max(q_len, k_len, 16))
        with torch.cuda.device(q.device):
            tuned[lambda chosen: (triton.cdiv(q_len, chosen["ROWS"]) * batches * heads,)](
                *places, lse, *lse.stride(), None, q_len, k_len, batches, heads, heads // kv_heads, d, d_v, scale,
                bool(causal), size, D=64 if max(d, d_v) <= 64 else 128, SPLIT=True,
                DESCRIBED=described)
    return (o, lse) if return_lse else o


def check(torch, dtype, heads, kv_heads, q_len, k_len, d, d_v, causal, scale, further):
    """Two sequences against the definition in float64, on views of tensors with `further` rows of NaN behind them."""
    def tensor(heads, length, channels):
        whole = torch.full((2, heads, length + further, channels), math.nan, dtype=dtype, device="cuda")
        whole[:, :, :length] = torch.randn(2, heads, length, channels, device="cuda")
        return whole[:, :, :length]

    q, k, v = tensor(heads, q_len, d), tensor(kv_heads, k_len, d), tensor(kv_heads, k_len, d_v)
    wide_k, wide_v = (x.double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    s = q.double() @ wide_k.transpose(2, 3) * (d**-0.5 if scale is None else scale)
    if causal:
        s.masked_fill_(torch.ones(q_len, k_len, device="cuda").triu(k_len - q_len + 1).bool(), -math.inf)
    o, lse = attention(q, k, v, causal, scale, return_lse=True)
    unit = torch.finfo(dtype).eps
    wanted = torch.softmax(s, 3).nan_to_num(0.0) @ wide_v
    torch.testing.assert_close(o.double(), wanted, rtol=unit, atol=2 * unit)
    torch.testing.assert_close(lse.double(), s.logsumexp(3), rtol=1e-5, atol=1e-5)


def time(torch, length, d, causal):
    """16K tokens of 2048 channels, as FlashAttention's own measurements have them."""
    shape = 16384 // length, 2048 // d, length, d
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ms = triton.testing.do_bench(lambda: attention(q, k, v, causal), warmup=100, rep=200, return_mode="median")
    teraflops = 4 * 2048 * 16384 * length / (2 if causal else 1) / ms * 1e-9
    return f"{shape} {'causal' if causal else 'full'}: {1e3 * ms:.1f} us, {teraflops:.0f} TFLOP/s, {tuned.best_config}"


def main():
    import torch

    for case in [(4, 2, 200, 333, 64, 64, True, None, 0), (2, 2, 333, 200, 128, 128, True, None, 70),
                 (6, 2, 129, 1, 40, 72, False, None, 0), (3, 1, 1, 700, 59, 111, True, 0.3, 70),
                 (2, 2, 130, 257, 96, 128, False, -0.2, 70), (1, 1, 70, 0, 64, 64, False, None, 0)]:
        for dtype in torch.float16, torch.bfloat16:
            check(torch, dtype, *case)
            print(dtype, *case, "agrees with float64")
    for d, causal, length in itertools.product((64, 128), (False, True), (1024, 4096, 16384)):
        print(time(torch, length, d, causal))


if __name__ == "__main__":
    main()
