"""The rungs against the attention of other libraries on a GPU, measured in turn in one process.

    python bench_peers.py --device cuda                      # everything, in about eight minutes
    python bench_peers.py --device cuda --quick              # one length, short turns, to see that it works
    python bench_peers.py --device cuda --only decode --peers torch-flash torch-cudnn --output decode.json

prefill: 16384 tokens of 2048 channels; single: one sequence with 16 heads of 128 channels; decode: one query, 32 query
heads on 8; host: microseconds of the host for a call, of a problem that takes a GPU no time. All contestants work on
the same q, k and v; where one wants another layout, it makes it before the clock runs. Inputs are normal numbers that
are new in every run. Before the clock runs, every result is checked: memory for it is NaN, rows of the first and last
sequence are held against float64, a rung's by the project's error rule, and all of it against the first result that was
right. Short calls are launched as a CUDA graph of several, in turn on as many sets of inputs as the level-2 cache
cannot hold (decode). Without --output, prefill and single go to one file of the book, decode to another. It ends with 1
if a rung was wrong.
"""

import argparse
import ctypes
import itertools
import math
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import bench_peers_gpu
import torch
from bench_results import DTYPES, ROOT, Case, row, write
from reference import truth

ROUNDS = 5
REST = 0.12
BURST = 10.0
SUSTAINED = 90.0
UNIT = 3.0
LEAST, MOST, MOST_CALLS = 3, 60, 200
METHOD = (
    "New normal inputs in every run, each result checked against float64 (8 rows of the first and last sequence, "
    "and all against each other), then the rungs, called from Python on PyTorch tensors, and the peers ({peers}) "
    "in turn in one process on the same numbers, timed by events: ms is the median of {rounds} rounds of launches"
    " back to back for up to {ms:.0f} ms or at least 3 launches, ms_burst the best of {rounds} bursts of "
    "{burst:.0f} ms or at least 3 launches after a rest of {rest:.0f} ms; a round or burst counts with the median"
    " of its launches; calls shorter than {unit:.0f} ms are launched several at once, as a CUDA graph, decoding "
    "steps in turn on inputs beyond twice the level-2 cache; 2(d + d_v) FLOPs for each visible query-key pair; "
    "GB/s of a decoding step counts q, k, v, o and lse once"
)
# What a peer's result may be off, as a whole. It rounds P to the type of v, and sums in its own order.
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 8e-3}


@dataclass
class Group:
    """Cases, whose fastest a rung is compared with, and the file of the book that they go to."""

    name: str
    cases: list
    against: list
    output: str
    ratios: dict = field(default_factory=dict)


def groups(args):
    """The cases in the order in which they run, each once."""
    lengths = args.n or ([1024] if args.quick else [1024, 2048, 4096, 8192, 16384])
    longer = args.n or ([1024] if args.quick else [1024, 2048, 4096, 8192, 16384, 32768])
    contexts = args.n or ([4096] if args.quick else [4096, 16384])
    prefill = [
        Case(dtype, d, mask, 2048 // d, 2048 // d, n, n, 16384 // n)
        for d, dtype, mask, n in itertools.product(args.d, args.dtypes, ["full", "causal"], lengths)
        if n <= 16384
    ]
    single = [Case(dtype, 128, "full", 16, 16, n, n) for dtype, n in itertools.product(args.dtypes, longer)]
    single = [case for case in single if "prefill" not in args.only or case not in prefill]
    decode = [
        Case(dtype, 128, "full", 32, 8, 1, n, batch)
        for dtype, n, batch in itertools.product(args.dtypes, contexts, [1, 64])
        if "decode" in args.only
    ]
    dense = [case for part, cases in [("prefill", prefill), ("single", single)] if part in args.only for case in cases]
    return [
        Group("prefill and single", dense, ["torch-flash"], "gpu-peers.json"),
        Group("decode", decode, ["torch-flash", "torch-cudnn"], "gpu-peers-decode.json"),
    ]


def inputs(case):
    """Sets of q, k and v: those of a decoding step are together more than twice what the level-2 cache holds."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(64, math.ceil(2 * l2 / case.bytes())) if case.decode else 1
    shapes = [(case.heads, case.q_len), (case.kv_heads, case.kv_len), (case.kv_heads, case.kv_len)]
    make = lambda shape: torch.randn(case.batch, *shape, case.head_dim, device="cuda", dtype=DTYPES[case.dtype])
    return [[make(shape) for shape in shapes] for _ in range(sets)]


class Judge:
    """Whether a result of the first set of inputs is right."""

    def __init__(self, case, q, k, v):
        self.case, self.tensors = case, (q, k, v)
        self.batches = sorted({0, case.batch - 1})
        self.rows = sorted({round(i * (case.q_len - 1) / 7) for i in range(8)})
        self.truths, self.right = {}, None

    def truth(self, weights):
        if weights not in self.truths:
            some = [x[self.batches] for x in self.tensors]
            self.truths[weights] = truth(*some, causal=self.case.causal, rows=self.rows, weights=weights)
        return self.truths[weights]

    def fault(self, call, weights=None):
        """What is wrong with it, if something is. A rung that rounds P to `weights` is held to the error rule."""
        shape = (self.case.batch, self.case.heads, self.case.q_len, self.case.head_dim)
        # Freed again, the memory is what the next result of that size gets.
        torch.full(shape, torch.nan, device="cuda", dtype=DTYPES[self.case.dtype])
        o = call()
        if o.shape != shape or o.dtype != DTYPES[self.case.dtype]:
            return f"found {o.dtype} {tuple(o.shape)}, wanted {self.case.dtype} {shape}"
        some, limit = o[self.batches][:, :, self.rows], LIMITS[o.dtype]
        if weights:
            error = self.truth(weights).error(some)
            if not error <= 1:
                return f"error of {error:.3g} times its tolerance"
        else:
            wanted = self.truth(o.dtype).o
            error = ((some.double() - wanted).norm() / wanted.norm()).item()
            if not error <= limit:
                return f"relative error of {error:.3g}"
        if self.right is None:
            self.right = o
        # In f32, a piece at a time.
        pieces = [((a.float() - b.float()).square().sum(), b.float().square().sum()) for a, b in zip(o, self.right)]
        off, size = (torch.stack(part).double().sum() for part in zip(*pieces))
        distance = (off / size).sqrt().item()
        return None if distance <= 2 * limit else f"relative distance of {distance:.3g} from the first that was right"


class Unit:
    """Calls of one contestant that are launched as one."""

    def __init__(self, calls, stream):
        self.stream = stream
        with torch.cuda.stream(stream):
            for call in calls:
                call()
            ms = max(1e-3, self.time(lambda: [calls[i % len(calls)]() for i in range(4)]) / 4)
            count = max(1, min(MOST_CALLS, math.ceil(UNIT / ms)))
            self.count = math.ceil(count / len(calls)) * len(calls)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                for i in range(self.count):
                    calls[i % len(calls)]()
            self.graph.replay()
            self.ms = self.time(self.graph.replay)

    def time(self, work):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self.stream)
        work()
        end.record(self.stream)
        end.synchronize()
        return start.elapsed_time(end)

    def window(self, budget, untimed):
        """The median of the launches that take `budget` milliseconds: milliseconds a call."""
        with torch.cuda.stream(self.stream):
            for _ in range(untimed):
                self.graph.replay()
            pairs = []
            for _ in range(max(LEAST, min(MOST, math.ceil(budget / self.ms)))):
                pairs.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
                pairs[-1][0].record()
                self.graph.replay()
                pairs[-1][1].record()
            self.stream.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs) / self.count


class Clock:
    """Shares out the seconds that there are."""

    def __init__(self, seconds, cases):
        self.end, self.left, self.overhead = time.monotonic() + seconds, cases, 3.0

    def sustained(self, contestants, overhead):
        """Milliseconds of a sustained turn in the next case, whose preparation has taken `overhead` seconds."""
        self.overhead += (overhead - self.overhead) / 3
        seconds = (self.end - time.monotonic()) / self.left - self.overhead
        self.left -= 1
        turn = 1e3 * (seconds / (ROUNDS * max(1, contestants)) - REST)
        return min(SUSTAINED, max(UNIT, turn - 2 * BURST))


def prepare(case, contestants, sets, notes, wrong):
    """The contestants that do the case rightly, ready to be timed."""
    judge, units, stream = Judge(case, *sets[0]), {}, torch.cuda.Stream()
    for name, contestant in contestants.items():
        try:
            calls = contestant.calls(case, sets)
            fault = judge.fault(calls[0], contestant.weights(DTYPES[case.dtype]))
            if fault and contestant.is_rung:
                wrong.append(f"{name} on {case}: {fault}")
            if fault:
                raise ValueError(fault)
            torch.cuda.synchronize()
            units[name] = Unit(calls, stream)
        except Exception as error:  # whatever a library throws, the others go on
            why = f"{name}: {type(error).__name__}: {str(error)[:200]}".splitlines()[0]
            notes.setdefault(why, []).append(str(case))
            torch.cuda.synchronize()
    return units


def measure(units, sustained):
    """The median of sustained turns and the best burst of each, in ms."""
    turns, bursts = ({name: [] for name in units} for _ in range(2))
    for _ in range(ROUNDS):
        for name, unit in units.items():
            turns[name].append(unit.window(sustained, 2))
    for _ in range(ROUNDS):
        for name, unit in units.items():
            time.sleep(REST)
            bursts[name].append(unit.window(BURST, 1))
    return {name: (statistics.median(turns[name]), min(bursts[name])) for name in units}


def compete(args, contestants, chosen, wrong):
    rows, notes = {}, {}
    clock = Clock(args.budget, sum(len(group.cases) for group in chosen))
    for group in chosen:
        output = args.output or (None if args.quick else ROOT / "book/results" / group.output)
        for case in group.cases:
            start = time.monotonic()
            sets = inputs(case)
            units = prepare(case, contestants, sets, notes, wrong)
            times = measure(units, clock.sustained(len(units), time.monotonic() - start))
            line = f"{case}:" + "".join(f"  {name} {ms:.4g}/{burst:.4g}" for name, (ms, burst) in times.items())
            for name in args.rungs:
                peers = [times[peer] for peer in group.against if peer in times]
                if name in times and peers:
                    ratio = tuple(min(ms) / own for ms, own in zip(zip(*peers), times[name]))
                    group.ratios.setdefault(name, []).append((ratio, str(case)))
                    line += f"  {name} {ratio[0]:.3f}x/{ratio[1]:.3f}x"
            print(line, flush=True)
            if output and times:
                rows.setdefault(output, []).extend(row(name, case, *ms) for name, ms in times.items())
                write(output, machine(), method(contestants), rows[output], args.commit)
            del sets, units
            torch.cuda.empty_cache()
    return notes, [*rows]


def host(contestants):
    """Microseconds of the host for a call: of a problem so small that the GPU keeps up."""
    case = Case("F16", 64, "full", 1, 1, 64, 64)
    for name, contestant in contestants.items():
        try:
            (call,) = contestant.calls(case, inputs(case))
            best = math.inf
            for _ in range(5):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(200):
                    call()
                best = min(best, (time.perf_counter() - start) / 200)
            print(f"host: {name} {1e6 * best:.2f} us a call", flush=True)
        except Exception as error:
            print(f"host: {name}: {error}", flush=True)


def machine():
    found = {"gpu": torch.cuda.get_device_name(0)}
    version = Path("/proc/driver/nvidia/version")
    driver = re.search(r"\d+\.[\d.]+", version.read_text()) if version.exists() else None
    number = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
        found |= {"cuda": f"{number.value // 1000}.{number.value % 1000 // 10}"}
    ask = ["nvidia-smi", "--id=0", "--query-gpu=clocks.max.sm,clocks.max.mem,power.limit", "--format=csv,noheader"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True).stdout.strip().split(", ")
    except FileNotFoundError:
        told = []
    clocks = "up to {}, memory up to {}, power up to {}".format(*told) if len(told) == 3 else None
    return found | ({"driver": driver[0]} if driver else {}) | ({"clocks": clocks} if clocks else {})


def method(contestants):
    cudnn = torch.backends.cudnn.version()
    versions = [f"torch {torch.__version__}", f"cuDNN {cudnn // 10000}.{cudnn % 10000 // 100}.{cudnn % 100}"]
    others = [contestant.version for contestant in contestants.values() if contestant.version]
    peers = ", ".join([*versions, *dict.fromkeys(others)])
    return METHOD.format(peers=peers, rounds=ROUNDS, ms=SUSTAINED, burst=BURST, rest=1e3 * REST, unit=UNIT)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["prefill", "single", "decode", "host"]
    peers = list(bench_peers_gpu.PEERS)
    parser.add_argument("--device", choices=["cuda"], required=True)
    parser.add_argument("--quick", action="store_true", help="one length, 60 seconds; writes nothing without --output")
    parser.add_argument("--rungs", nargs="+", default=["cuda-fa2"])
    parser.add_argument("--peers", nargs="+", choices=peers, help="default: all that are there")
    parser.add_argument("--only", nargs="+", default=parts, choices=parts)
    parser.add_argument("--dtypes", nargs="+", default=["F16", "BF16"], choices=["F16", "BF16"])
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128], help="of prefill")
    parser.add_argument("--n", nargs="+", type=int, help="lengths, and contexts of decode")
    parser.add_argument("--budget", type=float, help="seconds for everything; default: 450")
    parser.add_argument("--commit", help="of the sources, where git does not tell")
    parser.add_argument("--output", type=Path, help="default: gpu-peers.json and gpu-peers-decode.json in book/results")
    args = parser.parse_args()
    args.budget = args.budget or (60 if args.quick else 450)
    return args


def main():
    args = arguments()
    if not torch.cuda.is_available():
        sys.exit("not run: PyTorch finds no GPU")
    torch.set_grad_enabled(False)
    torch.manual_seed(time.time_ns())
    contestants, absent = bench_peers_gpu.contestants(args.rungs, args.peers)
    for why in absent:
        print(f"left out: {why}")
    chosen, wrong = groups(args), []
    notes, written = compete(args, contestants, chosen, wrong)
    if "host" in args.only:
        host(contestants)
    print("ms: sustained/burst. x: speed of a rung over that of the fastest peer named, sustained/burst.\n")
    for group in chosen:
        for name, cells in group.ratios.items():
            for mode, place in [("sustained", 0), ("burst", 1)]:
                mean = math.exp(statistics.fmean(math.log(ratio[place]) for ratio, _ in cells))
                worst, where = min((ratio[place], where) for ratio, where in cells)
                mean = f"geometric mean {mean:.3f}x of {len(cells)} cells, worst {worst:.3f}x ({where})"
                print(f"{group.name}, {name} over {' and '.join(group.against)}, {mode}: {mean}")
    for note, where in notes.items():
        print(f"left out: {note} ({len(where)} cells, {where[0]} first)")
    for fault in wrong:
        print(f"WRONG: {fault}")
    for output in written:
        print(f"wrote {output}")
    return 1 if wrong else 0
