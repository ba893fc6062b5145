"""Attention, one rung at a time: the rungs of flash-ladder on arrays of any library that speaks DLPack."""

from typing import Any, Literal, Protocol, TypeVar, overload

class SupportsDLPack(Protocol):
    """An array that hands its memory out over DLPack, as those of NumPy, PyTorch and JAX do."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

_Array = TypeVar("_Array", bound=SupportsDLPack)

def rungs(device: Literal["cpu", "cuda"] = "cpu") -> list[str]:
    """The names of the rungs for arrays on that device, from the lowest up."""

# Offsets of packed sequences: integers in main memory.
_Offsets = list[int] | tuple[int, ...] | SupportsDLPack

# Results are arrays of q's library. Where it has no from_dlpack, they are a SupportsDLPack for one that has.
@overload
def attention(
    q: _Array,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: SupportsDLPack | None = None,
    alibi_slopes: SupportsDLPack | None = None,
    bias: SupportsDLPack | None = None,
    cu_seqlens_q: _Offsets | None = None,
    cu_seqlens_k: _Offsets | None = None,
    rung: str | None = None,
    return_lse: Literal[False] = False,
    out: _Array | None = None,
    stream: int | None = None,
) -> _Array: ...
@overload
def attention(
    q: _Array,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: SupportsDLPack | None = None,
    alibi_slopes: SupportsDLPack | None = None,
    bias: SupportsDLPack | None = None,
    cu_seqlens_q: _Offsets | None = None,
    cu_seqlens_k: _Offsets | None = None,
    rung: str | None = None,
    return_lse: Literal[True],
    out: _Array | None = None,
    stream: int | None = None,
) -> tuple[_Array, _Array]: ...
