"""The rungs against the attention of other libraries, measured in turn in one run.

    python bench_peers.py            # everything; about an hour, on a machine with nothing else to do
    python bench_peers.py --quick    # 512 tokens, short turns, to see that it works
    python bench_peers.py --n 2048 --d 128 --dtypes BF16 --threads 2 --output one.json
    python bench_peers.py --device cuda         # on a GPU; with --help, what there is to choose there

On the CPU each contestant is a process of its own, since thread pools are fixed when a process starts; they share the
memory of q, k and v, and where one wants another layout or type of tensor, it makes it before the clock runs. They
take turns, and one that waits is stopped (SIGSTOP), so that its pool cannot spin. Before the clock runs, rows of every
result are judged by the project's error rule. The output is a file of results, for `cargo run --release -- compare`.
Needs Linux. How it is done on a GPU stands in bench_peers_cuda.py.
"""

import argparse
import math
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch
from bench_results import DTYPES, ROOT, Case, head, row, write
from reference import truth, weights_of

TURNS = 5
PAUSE = 0.02
METHOD = (
    "Seeded normal inputs, rows of each result checked against float64, then the rungs and the peers ({peers}) in turn "
    "on the same numbers, each in a process of its own with the others stopped: ms is the median of {turns} turns of "
    "runs back to back for at least {budget:g} ms, ms_burst the best of {turns} single runs after a pause of {pause:g} "
    "ms each; rungs are called from Python on PyTorch tensors; 2(d + d_v) FLOPs for each visible query-key pair; GB/s "
    "of a decoding step counts q, k, v, o and lse once"
)


def cases(args):
    for dtype in args.dtypes:
        for d in args.d:
            for n in args.n:
                for mask in args.masks:
                    yield Case(dtype, d, mask, heads=16, kv_heads=16, q_len=n, kv_len=n)
        if not args.no_decode:
            yield Case(dtype, 128, "full", heads=32, kv_heads=8, q_len=1, kv_len=args.decode_keys)


# The contestants: each takes a case and its tensors, and returns what to time, and what turns its result into a tensor
# [1, heads, q_len, d]. None says that a peer has nothing for the case.


def grouped(case, q):
    """A decoding step's queries as the rows of their kv heads. No mask applies, so that is the same attention."""
    return q.view(1, case.kv_heads, -1, case.head_dim) if case.decode else q


def rung(name):
    def prepare(case, q, k, v, threads):
        import flash_ladder

        return lambda: flash_ladder.attention(q, k, v, causal=case.causal, rung=name), lambda o: o

    return prepare


def torch_sdpa(case, q, k, v, threads):
    torch.set_num_threads(threads)
    q = grouped(case, q)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal), lambda o: o


def openvino(case, q, k, v, threads):
    import openvino as ov
    from openvino import opset13

    kind = {"F32": ov.Type.f32, "BF16": ov.Type.bf16}[case.dtype]
    inputs = [grouped(case, q), k, v]
    parameters = [opset13.parameter(list(x.shape), kind) for x in inputs]
    attention = opset13.scaled_dot_product_attention(*parameters, causal=case.causal)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": kind,
    }
    request = ov.Core().compile_model(ov.Model([attention], parameters), "CPU", settings).create_infer_request()
    for place, x in enumerate(inputs):
        tensor = ov.Tensor(kind, ov.Shape(list(x.shape)))
        tensor.data.view(f"u{x.itemsize}")[:] = x.view(INTEGERS[x.itemsize]).numpy().view(f"u{x.itemsize}")
        request.set_input_tensor(place, tensor)

    def result(_):
        data = request.get_output_tensor(0).data
        return torch.from_numpy(data.view(f"i{data.itemsize}")).view(DTYPES[case.dtype])

    return request.infer, result


INTEGERS = {2: torch.int16, 4: torch.int32}


def ort_mha(case, q, k, v, threads):
    if case.dtype != "F32" or case.mask != "full" or case.decode:
        return None  # its masks are whole matrices; GroupQueryAttention is faster
    inputs = {name: flat(x) for name, x in [("q", q), ("k", k), ("v", v)]}
    return ort("MultiHeadAttention", case, inputs, {}, {"num_heads": case.heads}, threads)


def ort_gqa(case, q, k, v, threads):
    if case.dtype != "F32" or not (case.causal or case.decode):
        return None  # it is causal, and has no BF16 on a CPU
    # The cache is past and present at once. A decoding step finds all keys but its own in it.
    cache = {"past_k": k, "past_v": v} if case.decode else {"past_k": k * 0, "past_v": v * 0}
    new = [(name, flat(x[:, :, -case.q_len :])) for name, x in [("q", q), ("k", k), ("v", v)]]
    lengths = {"last": torch.tensor([case.kv_len - 1]).int(), "total": torch.tensor([case.kv_len]).int()}
    attributes = {"num_heads": case.heads, "kv_num_heads": case.kv_heads}
    inputs = dict(new) | {name: x.numpy().copy() for name, x in (cache | lengths).items()}
    return ort("GroupQueryAttention", case, inputs, {"present_k": "past_k", "present_v": "past_v"}, attributes, threads)


def flat(x):
    """[1, length, heads d], as ONNX Runtime's own operators want it."""
    return x.transpose(1, 2).flatten(2).contiguous().numpy()


def ort(operator, case, inputs, in_place, attributes, threads):
    """A model of one operator; `in_place` names the outputs that share the memory of an input."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    names = [*inputs]
    outputs = {"o": np.zeros_like(inputs["q"])} | {name: inputs[source] for name, source in in_place.items()}
    kinds = {np.dtype("f4"): TensorProto.FLOAT, np.dtype("i4"): TensorProto.INT32}
    value = lambda name, x: helper.make_tensor_value_info(name, kinds[x.dtype], x.shape)
    node = helper.make_node(operator, names, [*outputs], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node], "attention", [value(*item) for item in inputs.items()], [value(*item) for item in outputs.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    memory = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in inputs.items()}
    memory["o"] = onnxruntime.OrtValue.ortvalue_from_numpy(outputs["o"])
    for name in inputs:
        binding.bind_ortvalue_input(name, memory[name])
    for name in outputs:
        binding.bind_ortvalue_output(name, memory[in_place.get(name, name)])

    def result(_):
        o = torch.from_numpy(memory["o"].numpy())
        return o.view(1, case.q_len, case.heads, case.head_dim).transpose(1, 2)

    return lambda: session.run_with_iobinding(binding), result


PEERS = {"torch-sdpa": torch_sdpa, "ort-mha": ort_mha, "ort-gqa": ort_gqa, "openvino": openvino}
PACKAGES = ["torch", "onnxruntime", "openvino"]


def shared(path):
    """The bytes of a file, as all processes see them."""
    return torch.from_file(path, shared=True, size=os.path.getsize(path), dtype=torch.uint8)


def work(name, threads, path, connection):
    """The life of a contestant's process."""
    memory = shared(path)
    torch.set_grad_enabled(False)
    prepare = PEERS.get(name) or rung(name)
    run = result = None
    while True:
        order, argument = connection.recv()
        try:
            if order == "prepare":
                run = result = None
                prepared = prepare(argument, *argument.tensors(memory), threads)
                run, result = prepared or (None, None)
                answer = prepared is not None
            elif order == "rows":
                case, rows = argument
                o = result(run()).reshape(1, case.heads, case.q_len, case.head_dim)
                answer = o[:, :, rows].float().numpy()
            else:
                answer = turn(run, argument)
        except Exception as error:  # whatever a library throws, the others go on
            answer = error if isinstance(error, ValueError) else ValueError(f"{type(error).__name__}: {error}")
        connection.send(answer)


def turn(run, budget):
    """Seconds of one run after a pause, and seconds a run of runs back to back for `budget` seconds."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    run()
    burst = time.perf_counter() - start
    if burst >= budget:
        return burst, burst
    runs, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < budget:
        run()
        runs += 1
    return burst, passed / runs


class Contestant:
    def __init__(self, name, threads, path):
        for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"]:
            os.environ[variable] = str(threads)
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(name, threads, path, theirs), daemon=True)
        self.process.start()
        # Now it alone holds its end, and its death is noticed.
        theirs.close()

    def ask(self, order, argument):
        """Wakes the process, has it do one thing, and stops it again."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.connection.send((order, argument))
        answer = self.connection.recv()
        os.kill(self.process.pid, signal.SIGSTOP)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    def end(self):
        self.process.kill()
        self.process.join()


def measure(case, contestants, rungs, memory, budget, notes):
    """The median of sustained turns and the best burst of each contestant that does the case rightly, in ms."""
    q, k, v = case.tensors(memory)
    generator = torch.Generator().manual_seed(14)
    for x in (q, k, v):
        x.copy_(torch.randn(x.shape, generator=generator))
    rows = sorted({round(i * (case.q_len - 1) / 7) for i in range(8)})
    runners = []
    for contestant in contestants:
        ours = contestant.name in rungs
        try:
            if not contestant.ask("prepare", case):
                continue
            # A peer may round P to the type of v, and a little more than the rule has it; a rung may not.
            weights, limit = (weights_of(contestant.name, q.dtype), 1) if ours else (q.dtype, 4)
            wanted = truth(q, k, v, causal=case.causal, rows=rows, weights=weights)
            error = wanted.error(contestant.ask("rows", (case, rows)))
            if error > limit:
                raise ValueError(f"error of {error:.3g} times its tolerance")
            runners.append(contestant)
        except ValueError as error:
            if ours:
                raise SystemExit(f"{contestant.name} on {case}: {error}") from error
            notes.setdefault(f"{contestant.name}: {error}", []).append(str(case))
    turns = {contestant.name: [] for contestant in runners}
    for _ in range(TURNS):
        for contestant in runners:
            turns[contestant.name].append(contestant.ask("turn", budget))
    times = lambda turns: (1e3 * statistics.median(t for _, t in turns), 1e3 * min(t for t, _ in turns))
    return {name: times(turns) for name, turns in turns.items()}


def machine():
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "cpu": next(models, ": unknown").split(":")[1].strip(),
        "threads": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def method(budget):
    peers = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return METHOD.format(peers=peers, budget=1e3 * budget, turns=TURNS, pause=1e3 * PAUSE)


def main():
    if any(word.startswith("--device") for word in sys.argv):
        import bench_peers_cuda

        return bench_peers_cuda.main()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one length, short turns; writes nothing without --output")
    parser.add_argument("--rungs", nargs="+", default=["fa2-simd"])
    parser.add_argument("--peers", nargs="+", default=[*PEERS], choices=[*PEERS])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["F32", "BF16"], choices=["F32", "BF16"])
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--n", nargs="+", type=int, help="default: 512 to 8192")
    parser.add_argument("--masks", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--decode-keys", type=int, default=16384)
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument("--output", type=Path, help="default: book/results/cpu-peers.json")
    args = parser.parse_args()
    args.n = args.n or ([512] if args.quick else [512, 1024, 2048, 4096, 8192])
    budget = 0.02 if args.quick else 0.2
    output = args.output or (None if args.quick else ROOT / "book/results/cpu-peers.json")

    chosen = list(cases(args))
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(max(case.bytes() for case in chosen))
        compete(args, chosen, file.name, budget, output)


def compete(args, chosen, path, budget, output):
    memory = shared(path)
    rows, notes, ratios = [], {}, {}
    for threads in args.threads:
        contestants = [Contestant(name, threads, path) for name in [*args.rungs, *args.peers]]
        try:
            for case in chosen:
                times = measure(case, contestants, args.rungs, memory, budget, notes)
                rows += [row(name, case, *ms, threads=threads) for name, ms in times.items()]
                fastest = min((ms for name, (ms, _) in times.items() if name in args.peers), default=math.nan)
                line = f"{case} {threads} threads:" + "".join(
                    f"  {name} {ms:.4g}/{best:.4g}" for name, (ms, best) in times.items()
                )
                for name in args.rungs:
                    ratio = fastest / times[name][0]
                    ratios.setdefault((name, case.dtype, threads), []).append((ratio, f"{case} {threads} threads"))
                    line += f"  {name} {ratio:.3f}x"
                print(line, flush=True)
                if output:
                    write(output, head(machine(), method(budget)), rows)
        finally:
            for contestant in contestants:
                contestant.end()
    print("ms: median/best. x: speed of a rung over that of the fastest peer.\n")
    for name in args.rungs:
        groups = {key: cells for key, cells in ratios.items() if key[0] == name}
        for key, cells in [*groups.items(), ((name, "all", ""), sum(groups.values(), []))]:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in cells))
            worst, where = min(cells)
            mean = f"geometric mean {mean:.3f}x of {len(cells)} cells"
            print(f"{' '.join(map(str, key)).strip()}: {mean}, worst {worst:.3f}x ({where})")
    for note, where in notes.items():
        print(f"left out: {note} ({len(where)} cells, {where[0]} first)")
    if output:
        print(f"wrote {output}")


if __name__ == "__main__":
    sys.exit(main())
