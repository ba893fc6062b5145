"""Attention, one rung at a time: the rungs of flash-ladder on arrays of any library that speaks DLPack."""

from typing import Any, Literal, Protocol, TypeVar, overload

class SupportsDLPack(Protocol):
    """An array that hands its memory out over DLPack: a NumPy, PyTorch or JAX array, or a result that no one has taken."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

_Array = TypeVar("_Array", bound=SupportsDLPack)

def rungs() -> list[str]:
    """The names of the rungs, from the lowest up."""

# Results are of q's library: of q's type for NumPy, PyTorch and JAX, and a SupportsDLPack for a library without from_dlpack.
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
    rung: str = "fa2-simd",
    return_lse: Literal[False] = False,
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
    rung: str = "fa2-simd",
    return_lse: Literal[True],
) -> tuple[_Array, _Array]: ...
