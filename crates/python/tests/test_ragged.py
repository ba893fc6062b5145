"""Packed batches of sequences of several lengths, on the CPU."""

import flash_ladder
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flash_ladder import attention
from producer import Producer
from reference import weights_of
from sequences import alone, error, starts

LENGTHS_Q, LENGTHS_K = [7, 0, 1, 30, 5, 0], [9, 4, 0, 30, 70, 0]
STARTS = starts(LENGTHS_Q), starts(LENGTHS_K)
OFFSETS = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), STARTS))
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tensors(total_q=43, total_k=113, heads=6, kv_heads=2, d=24, d_v=40, dtype=torch.float32):
    """6 query heads on 2, so that a group is no power of two."""
    shapes = [(heads, total_q, d), (kv_heads, total_k, d), (kv_heads, total_k, d_v)]
    return [normal(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]


def integers(**description):
    """A producer of two zeros, of int32."""
    return Producer(np.zeros(2, np.float32), **dict(code=0, bits=32) | description)


OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window=(5, 2)),
    "softcap and sinks": dict(softcap=0.7, sinks=normal(6)),
    "alibi": dict(alibi_slopes=normal(6).abs()),
    "alibi of each sequence": dict(alibi_slopes=normal(6, 6).abs(), causal=True),
    "bias": dict(bias=normal(1, 6, 30, 70)),
    "bias of each sequence": dict(bias=normal(6, 1, 30, 70), causal=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_each_sequence_is_as_alone_and_right(options, dtype):
    packed = tensors(dtype=dtype)
    o, lse = attention(*packed, **OFFSETS, return_lse=True, **options)
    assert (o.dtype, o.shape, lse.dtype, lse.shape) == (dtype, (6, 43, 40), torch.float32, (6, 43))
    weights = weights_of("fa2-simd", dtype)
    assert error(o, lse, *packed, *STARTS, weights=weights, **options) <= 1
    one, of_one = alone(attention, *packed, *STARTS, **options)
    assert torch.equal(o, one) and torch.equal(lse, of_one)


@pytest.mark.parametrize("rung", [*(rung for rung in flash_ladder.rungs() if rung != "mla-absorbed"), "oracle"])
def test_rungs(rung):
    packed = tensors()
    o, lse = attention(*packed, **OFFSETS, causal=True, rung=rung, return_lse=True)
    assert error(o, lse, *packed, *STARTS, causal=True) <= 1
    one, of_one = alone(attention, *packed, *STARTS, causal=True, rung=rung)
    assert torch.equal(o, one) and torch.equal(lse, of_one)


def test_latents():
    q, k, _ = tensors(kv_heads=1, d=40)
    o, lse = attention(q, k, k[..., :24], **OFFSETS, rung="mla-absorbed", return_lse=True)
    assert error(o, lse, q, k, k[..., :24], *STARTS) <= 1


def test_lengths_change_the_result():
    packed = tensors()
    o, lse = attention(*packed, cu_seqlens_q=[0, 43], cu_seqlens_k=[0, 113], return_lse=True)
    assert error(o, lse, *packed, *STARTS) > 100


def test_offsets_come_in_several_forms():
    packed = tensors()
    wanted = attention(*packed, **OFFSETS)
    every_second = lambda x: torch.tensor(x).repeat_interleave(2)[::2]
    forms = [tuple, np.array, np.int32, torch.tensor, torch.IntTensor, every_second, jnp.array]
    for form in [*forms, lambda x: [np.int64(i) for i in x]]:
        lists = {name: form(x) for name, x in OFFSETS.items()}
        assert torch.equal(attention(*packed, **lists), wanted)


def test_libraries_get_their_own_arrays():
    packed = [x.numpy() for x in tensors()]
    o, lse = attention(*packed, **OFFSETS, return_lse=True)
    assert isinstance(o, np.ndarray) and isinstance(lse, np.ndarray)
    assert torch.equal(torch.tensor(o), attention(*tensors(), **OFFSETS))


def test_rows_behind_the_last_sequence_are_empty_and_unread():
    packed = tensors()
    longer = [torch.nn.functional.pad(x, (0, 0, 0, 10), value=torch.nan) for x in packed]
    o, lse = attention(*longer, **OFFSETS, return_lse=True)
    wanted, wanted_lse = attention(*packed, **OFFSETS, return_lse=True)
    assert torch.equal(o[:, :43], wanted) and torch.equal(lse[:, :43], wanted_lse)
    assert (o[:, 43:] == 0).all() and (lse[:, 43:] == -torch.inf).all()


@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0, 0]], ids=len)
def test_nothing_to_do(offsets):
    for total_q, total_k in [(0, 0), (5, 0), (0, 7), (5, 7)]:
        lengths = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets)
        o, lse = attention(*tensors(total_q, total_k), **lengths, return_lse=True)
        assert o.shape == (6, total_q, 40) and lse.shape == (6, total_q)
        assert (o == 0).all() and (lse == -torch.inf).all()


def test_strides():
    # As FlashAttention has it: rows before heads.
    packed = tensors()
    rows_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in packed]
    assert torch.equal(attention(*rows_first, **OFFSETS), attention(*packed, **OFFSETS))


def test_a_list_that_shrinks_while_it_is_read():
    class Meddler:
        def __index__(self):
            offsets.clear()
            return 0

    offsets = [0, Meddler(), 43]
    assert (attention(*tensors(), cu_seqlens_q=offsets, cu_seqlens_k=[0, 113]) == 0).all() and offsets == []


@pytest.mark.parametrize(
    "offsets, error, words",
    [
        ([], ValueError, "found no entry, wanted 0 first"),
        (np.zeros(0, np.int32), ValueError, "found no entry, wanted 0 first"),
        ([1, 43], ValueError, "found 1 first, wanted 0 first"),
        ([-1, 43], ValueError, "found -1 first, wanted 0 first"),
        ([0, 9, 8, 43], ValueError, "found 9 then 8, wanted offsets that do not fall, up to 43"),
        ([0, -9, 43], ValueError, "found 0 then -9, wanted offsets that do not fall, up to 43"),
        ([0, 44], ValueError, "found 0 then 44, wanted offsets that do not fall, up to 43"),
        ([0, 1 << 31], ValueError, r"found 2147483648, wanted offsets below 2\^31"),
        ([0, -(1 << 40)], ValueError, r"found -1099511627776, wanted offsets below 2\^31"),
        ([0, 1 << 80], ValueError, r"found 1208925819614629174706176, wanted offsets below 2\^31"),
        (np.array([0, (1 << 32) + 43]), ValueError, r"found 4294967339, wanted offsets below 2\^31"),
        ([0, 43.0], TypeError, "found <class 'float'> among its items, wanted integers"),
        ([0, "43"], TypeError, "found <class 'str'> among its items, wanted integers"),
        ([[0, 43]], TypeError, "found <class 'list'> among its items, wanted integers"),
        ([0, None], TypeError, "found <class 'NoneType'> among its items, wanted integers"),
        (43, TypeError, "found <class 'int'>, wanted a list, a tuple or an array of integers"),
        ("043", TypeError, "found <class 'str'>, wanted a list, a tuple or an array of integers"),
        (range(44), TypeError, "found <class 'range'>, wanted a list"),
        ({0: 43}, TypeError, "found <class 'dict'>, wanted a list"),
        (torch.tensor([0.0, 43.0]), ValueError, "found float32, wanted int32 or int64"),
        (torch.tensor([0, 43], dtype=torch.int16), ValueError, "found int16, wanted int32 or int64"),
        (np.array([0, 43], np.uint64), ValueError, "found uint64, wanted int32 or int64"),
        (torch.tensor([[0, 43]]), ValueError, "found 2 dimensions, wanted 1 dimension"),
        (torch.tensor(0), ValueError, "found 0 dimensions, wanted 1 dimension"),
        (torch.tensor([0, 43]).to("meta"), ValueError, "found <class 'torch.Tensor'> that refuses"),
        (np.broadcast_to(np.int32(0), 1 << 50), ValueError, "wanted elements that memory can hold"),
        (integers(device_type=4), ValueError, "found a tensor on device type 4, wanted one on the CPU"),
        (integers(byte_offset=2), ValueError, "found elements at address"),
        (integers(data=None), ValueError, "found elements at address 0x0"),
        (integers(strides=(-1 << 63,)), ValueError, "wanted elements that memory can hold"),
    ],
    ids=lambda x: str(x) if isinstance(x, (list, str, int)) else "",
)
def test_wrong_offsets(offsets, error, words):
    for name, packed in [("cu_seqlens_q", tensors()), ("cu_seqlens_k", tensors(total_q=113, total_k=43))]:
        other = dict(cu_seqlens_q=[0, 113], cu_seqlens_k=[0, 113])
        with pytest.raises(error, match=f"^{name}: .*({words})"):
            attention(*packed, **other | {name: offsets})


def test_wrong_arguments():
    q, k, v = tensors()
    for words, args, offsets in [
        ("cu_seqlens_k: found None, wanted the offsets of k's", (q, k, v), dict(cu_seqlens_q=STARTS[0])),
        ("cu_seqlens_q: found None, wanted the offsets of q's", (q, k, v), dict(cu_seqlens_k=STARTS[1])),
        (r"cu_seqlens_k: found shape \[3\], wanted \[7\] as", (q, k, v), OFFSETS | dict(cu_seqlens_k=[0, 1, 2])),
        (r"q: found shape \[1, 6, 43, 24\], wanted \[heads, q_len, d\] \(packed\)", (q[None], k, v), OFFSETS),
        (r"q: found shape \[6, 43, 24\], wanted \[batch, heads, q_len, d\]", (q, k, v), {}),
        (r"v: found shape \[2, 112, 40\]", (q, k, v[:, 1:]), OFFSETS),
        (r"bias: found shape .* \[1 or 6, 1 or 6, 30, 70\]", (q, k, v), OFFSETS | dict(bias=normal(1, 1, 43, 113))),
        (r"alibi_slopes: found shape .* \[6, 6\]", (q, k, v), OFFSETS | dict(alibi_slopes=normal(5, 6))),
    ]:
        with pytest.raises(ValueError, match=f"^{words}"):
            attention(*args, **offsets)


def test_a_tensor_on_a_gpu_is_refused_with_the_reason():
    on_gpu = integers(device_type=2)
    wanted = "wanted integers in main memory: the call is planned there, and to read them would wait for the GPU"
    for offsets in (on_gpu, [0, on_gpu]):
        with pytest.raises(ValueError, match=f"^cu_seqlens_q: found a tensor on CUDA device 0, {wanted}"):
            attention(*tensors(), **OFFSETS | dict(cu_seqlens_q=offsets))
    assert on_gpu.deleted == 0
