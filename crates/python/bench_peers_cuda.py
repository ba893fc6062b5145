"""The rungs against the attention of other libraries on a GPU, measured in turn in one process.

    python bench_peers.py --device cuda                      # everything, in about eight minutes
    python bench_peers.py --device cuda --quick              # one length, short turns, to see that it works
    python bench_peers.py --device cuda --only decode --peers torch-flash torch-cudnn --output decode.json
    python bench_peers.py --device cuda --only hopper hopper-single             # fa3 and its peers, on Hopper
    python bench_peers.py --device cuda --only hopper-ragged
    python bench_peers.py --device cuda --only hopper --d 256 --masks causal --merge    # beside the rows of a file

prefill: 16384 tokens of 2048 channels; single: one sequence with 16 heads of 128 channels; decode: one query, 32 query
heads on 8; host: microseconds of the host for a call, of a problem that takes a GPU no time. hopper and hopper-single
are prefill and single for the rung `fa3` and more peers, with more lengths and 256 channels; hopper-ragged is one
packed batch of sequences of 64 to 4096 tokens, 32 query heads on 8. They are run if --only names them; to spread them
over several commands, choose with --d, --masks, --n and --dtypes, and add to one file with --merge and --commit.

All contestants work on the same q, k and v; where one wants another layout, it makes it before the clock runs. In the
groups of Hopper nobody does: memory is [batch, length, heads, d], of which the rungs and PyTorch have a transposed
view. Inputs are normal numbers that are new in every run. Calls are launched as a CUDA graph, short ones several at
once, in turn on as many sets of inputs as the level-2 cache cannot hold (decode). Before the clock runs, what a graph
leaves in memory that was NaN is checked: rows of the first and last sequence, or of all that have different lengths,
are held against float64, a rung's by the project's error rule, and all of it against the first result that was right.
Without --output, each group goes to a file of the book, hopper and hopper-single to one. It ends with 1 if a rung was
wrong.
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
from bench_results import DTYPES, ROOT, Case, earlier, head, identity, row, write
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
    "GB/s of a decoding step counts q, k, v, o and lse once{notes}"
)
# What is so in the groups of Hopper alone.
SIDE_BY_SIDE = "; the heads of a row lie side by side in memory"
RAGGED = (
    "; sequences of 64 to 4096 tokens lie one behind the other and are given as one of their sum; 8 rows of each are "
    "checked; all have one call for them"
)
# What a peer's result may be off, as a whole. It rounds P to the type of v, and sums in its own order.
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 8e-3}
HOPPER = ["hopper", "hopper-single", "hopper-ragged"]


@dataclass
class Group:
    """Cases, whose fastest a rung is compared with, the file that they go to, whether memory is
    [batch, length, heads, d], and what the file's method says besides."""

    name: str
    cases: list
    against: list
    output: Path | None
    rows_first: bool = False
    notes: tuple = ()
    ratios: dict = field(default_factory=dict)


def groups(args):
    """Those with cases, which are in the order in which they run, each once."""
    lengths = lambda quick, *usual: args.n or ([quick] if args.quick else usual)
    dtypes = lambda *usual: args.dtypes or usual

    def prefill(channels, dtypes, lengths):
        each = itertools.product(args.d or channels, dtypes, args.masks, lengths)
        shape = lambda d, n: dict(heads=2048 // d, kv_heads=2048 // d, q_len=n, kv_len=n, batch=16384 // n)
        return [Case(dtype, d, mask, **shape(d, n)) for d, dtype, mask, n in each if n <= 16384]

    def single(dtypes, lengths):
        return [Case(dtype, 128, "full", 16, 16, n, n) for dtype, n in itertools.product(dtypes, lengths)]

    def decode(dtypes, contexts):
        each = itertools.product(dtypes, contexts, [1, 64])
        return [Case(dtype, 128, "full", 32, 8, 1, n, batch) for dtype, n, batch in each]

    def ragged(dtypes, tokens):
        each = itertools.product(dtypes, args.masks, tokens)
        return [Case(dtype, 128, mask, 32, 8, n, n, lengths=sequences(n)) for dtype, mask, n in each]

    from_1k = [1024, 2048, 4096, 8192, 16384]
    cases = {
        "prefill": prefill([64, 128], dtypes("F16", "BF16"), lengths(1024, *from_1k)),
        "single": single(dtypes("F16", "BF16"), lengths(1024, *from_1k, 32768)),
        "decode": decode(dtypes("F16", "BF16"), lengths(4096, 4096, 16384)),
        "hopper": prefill([64, 128, 256], dtypes("BF16"), lengths(1024, 512, *from_1k)),
        "hopper-single": single(dtypes("F16"), lengths(1024, *from_1k, 32768)),
        "hopper-ragged": ragged(dtypes("BF16"), lengths(16384, 16384, 65536)),
    }
    of = lambda *parts: [*dict.fromkeys(case for part in parts if part in args.only for case in cases[part])]
    output = lambda name: args.output or (None if args.quick else ROOT / "book/results" / name)
    ragged_notes = (SIDE_BY_SIDE, RAGGED)
    chosen = [
        Group("prefill and single", of("prefill", "single"), ["torch-flash"], output("gpu-peers.json")),
        Group("decode", of("decode"), ["torch-flash", "torch-cudnn"], output("gpu-peers-decode.json")),
        Group("hopper", of("hopper", "hopper-single"), args.peers, output("gpu-fa3-peers.json"), True, (SIDE_BY_SIDE,)),
        Group("hopper-ragged", of("hopper-ragged"), args.peers, output("gpu-fa3-ragged.json"), True, ragged_notes),
    ]
    return [group for group in chosen if group.cases]


def sequences(tokens):
    """Lengths of 64 to 4096 that are the same in every run, the last of them what is left."""
    generator, lengths = torch.Generator().manual_seed(7), []
    while left := tokens - sum(lengths):
        lengths.append(min(left, torch.randint(64, 4097, (), generator=generator).item()))
    return tuple(lengths)


def inputs(case, rows_first=False):
    """Sets of q, k and v: those of a decoding step are together more than twice what the level-2 cache holds."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(64, math.ceil(2 * l2 / case.bytes())) if case.decode else 1

    def make(heads, length):
        axes = (length, heads) if rows_first else (heads, length)
        x = torch.randn(case.batch, *axes, case.head_dim, device="cuda", dtype=DTYPES[case.dtype])
        return x.transpose(1, 2) if rows_first else x

    shapes = [(case.heads, case.q_len), (case.kv_heads, case.kv_len), (case.kv_heads, case.kv_len)]
    return [[make(*shape) for shape in shapes] for _ in range(sets)]


class Judge:
    """Whether a result of the first set of inputs is right."""

    def __init__(self, case, q, k, v):
        self.case, self.tensors = case, (q, k, v)
        # Where the sequences that are looked at lie in a tensor, and which of their rows are.
        first_and_last = [slice(i, i + 1) for i in sorted({0, case.batch - 1})]
        self.places = [(..., rows, slice(None)) for rows in case.places()] or first_and_last
        lengths = [q[place].shape[2] for place in self.places]
        self.rows = [sorted({round(i * (length - 1) / 7) for i in range(8)}) for length in lengths]
        self.truths, self.right = {}, None

    def truth(self, weights):
        if weights not in self.truths:
            self.truths[weights] = [
                truth(*(x[place] for x in self.tensors), causal=self.case.causal, rows=rows, weights=weights)
                for place, rows in zip(self.places, self.rows)
            ]
        return self.truths[weights]

    def fault(self, o, weights=None):
        """What is wrong with it, if something is. A rung that rounds P to `weights` is held to the error rule."""
        shape = (self.case.batch, self.case.heads, self.case.q_len, self.case.head_dim)
        if o.shape != shape or o.dtype != DTYPES[self.case.dtype]:
            return f"found {o.dtype} {tuple(o.shape)}, wanted {self.case.dtype} {shape}"
        limit = LIMITS[o.dtype]
        for place, rows, wanted in zip(self.places, self.rows, self.truth(weights or o.dtype)):
            some = o[place][:, :, rows]
            if weights:
                error = wanted.error(some)
                if not error <= 1:
                    return f"error of {error:.3g} times its tolerance"
            else:
                error = ((some.double() - wanted.o).norm() / wanted.o.norm()).item()
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
                self.o = calls[0]()
                for i in range(1, self.count):
                    calls[i % len(calls)]()
            # What a replay leaves is judged: a contestant may be right outside a graph, and do nothing in one.
            self.o.fill_(torch.nan)
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
            torch.cuda.synchronize()
            unit = Unit(calls, stream)
            fault = judge.fault(unit.o, contestant.weights(DTYPES[case.dtype]))
            if fault and contestant.is_rung:
                wrong.append(f"{name} on {case}: {fault}")
            if fault:
                raise ValueError(fault)
            units[name] = unit
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
    files, notes = {}, {}
    for output in filter(None, dict.fromkeys(group.output for group in chosen)):
        said = dict.fromkeys(note for group in chosen if group.output == output for note in group.notes)
        first = head(machine(), method(contestants, said), args.commit)
        files[output] = first, {identity(row): row for row in (earlier(output, first) if args.merge else [])}
    clock = Clock(args.budget, sum(len(group.cases) for group in chosen))
    for group in chosen:
        for case in group.cases:
            start = time.monotonic()
            sets = inputs(case, group.rows_first)
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
            if group.output and times:
                first, rows = files[group.output]
                rows |= {identity(new): new for new in (row(name, case, *ms) for name, ms in times.items())}
                write(group.output, first, rows.values())
            del sets, units
            torch.cuda.empty_cache()
    return notes, [*files]


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


def method(contestants, notes):
    cudnn = torch.backends.cudnn.version()
    versions = [f"torch {torch.__version__}", f"cuDNN {cudnn // 10000}.{cudnn % 10000 // 100}.{cudnn % 100}"]
    others = [contestant.version for contestant in contestants.values() if contestant.version]
    peers = ", ".join([*versions, *dict.fromkeys(others)])
    numbers = dict(rounds=ROUNDS, ms=SUSTAINED, burst=BURST, rest=1e3 * REST, unit=UNIT)
    return METHOD.format(peers=peers, notes="".join(notes), **numbers)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["prefill", "single", "decode", "host"]
    peers = list(bench_peers_gpu.PEERS)
    parser.add_argument("--device", choices=["cuda"], required=True)
    parser.add_argument("--quick", action="store_true", help="one length, 60 seconds; writes nothing without --output")
    parser.add_argument("--rungs", nargs="+", help="default: cuda-fa2, or fa3 for Hopper's groups")
    parser.add_argument("--peers", nargs="+", choices=peers, help="default: all, Hopper's for its groups alone")
    parser.add_argument("--only", nargs="+", default=parts, choices=[*parts, *HOPPER], help="default: the first four")
    parser.add_argument("--dtypes", nargs="+", choices=["F16", "BF16"], help="default: both, one in Hopper's groups")
    parser.add_argument("--d", nargs="+", type=int, help="of prefill and hopper")
    parser.add_argument("--masks", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--n", nargs="+", type=int, help="lengths, contexts of decode, and tokens of hopper-ragged")
    parser.add_argument("--budget", type=float, help="seconds for everything; default: 450")
    parser.add_argument("--commit", help="of the sources, where git does not tell")
    parser.add_argument("--output", type=Path, help="default: a file for each group in book/results")
    parser.add_argument("--merge", action="store_true", help="keep a file's other rows, of the same machine and commit")
    args = parser.parse_args()
    of_hopper = not {*args.only}.isdisjoint(HOPPER)
    args.rungs = args.rungs or ["fa3" if of_hopper else "cuda-fa2"]
    args.peers = args.peers or [peer for peer in peers if of_hopper or peer not in bench_peers_gpu.OF_HOPPER]
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
                against = " and ".join(peer for peer in group.against if peer in contestants)
                print(f"{group.name}, {name} over {against}, {mode}: {mean}")
    for note, where in notes.items():
        print(f"left out: {note} ({len(where)} cells, {where[0]} first)")
    for fault in wrong:
        print(f"WRONG: {fault}")
    for output in written:
        print(f"wrote {output}")
    return 1 if wrong else 0
