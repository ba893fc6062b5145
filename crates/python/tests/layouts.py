"""Tensors that lie oddly and problems with nothing to do, of the tests on the CPU and on a GPU."""

import torch

LAYOUTS = {
    "transposed lengths and heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "channels outermost": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "every second channel": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "slice at an odd address": lambda x: torch.nn.functional.pad(x, (3, 5, 1, 1))[:, :, 1:-1, 3:-5],
    "expanded heads": lambda x: x[:, :1].expand(-1, x.shape[1], -1, -1),
}

# batch, q_len and kv_len.
EMPTY = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)]
