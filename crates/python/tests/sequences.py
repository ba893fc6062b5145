"""Packed batches, and what they should be of: each sequence alone. For the tests on the CPU and on a GPU."""

import itertools

import torch
from reference import truth


def starts(lengths):
    """Where sequences of these lengths begin, one behind the other, and where the last ends."""
    return [0, *itertools.accumulate(lengths)]


def cut(q, k, v, starts_q, starts_k, **options):
    """For each sequence its rows of the result, its own q, k and v with a batch axis, and its own options."""
    places = [[slice(*ends) for ends in zip(bounds, bounds[1:])] for bounds in (starts_q, starts_k)]
    for b, (rows, keys) in enumerate(zip(*places)):
        own = dict(options)
        if "alibi_slopes" in own and own["alibi_slopes"].dim() == 2:
            own["alibi_slopes"] = own["alibi_slopes"][b]
        if "bias" in own:
            bias = own["bias"][b : b + 1] if len(own["bias"]) > 1 else own["bias"]
            own["bias"] = bias[:, :, : rows.stop - rows.start, : keys.stop - keys.start]
        yield rows, [q[None, :, rows], k[None, :, keys], v[None, :, keys]], own


def alone(attention, q, k, v, starts_q, starts_k, **options):
    """o and lse of calls for one sequence each, one behind the other."""
    calls = cut(q, k, v, starts_q, starts_k, **options)
    parts = [attention(*own, return_lse=True, **of_own) for _, own, of_own in calls]
    return [torch.cat(results, -2 + place)[0] for place, results in enumerate(zip(*parts))]


def error(o, lse, q, k, v, starts_q, starts_k, weights=torch.float32, **options):
    """The largest error of a packed result, in units of its tolerance."""
    errors = [
        truth(*own, weights=weights, **of_own).error(o[None, :, rows], lse[None, :, rows])
        for rows, own, of_own in cut(q, k, v, starts_q, starts_k, **options)
    ]
    return max(errors, default=0.0)
