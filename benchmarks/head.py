"""Memory and time of the language-model head: `token_statistics` in chunks, whole logits, and TRL's fused head.

    python -m benchmarks.head [--tokens 4096 --vocabulary 151936 --hidden 2048 --repeats 3]

Forward and backward of log-probability and entropy in float32. Each measurement is a process of its own and
the forms take turns; TRL's takes part where `.venv-trl` is (`make .venv-trl/.ready`). Memory is the peak resident set
beyond the inputs and their gradients; time is given on the clock and as processor time, which other work on the
machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

FORMS = ("chunked", "whole", "trl")
PEER = Path(".venv-trl/bin/python")
GIB = 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.tokens, args.vocabulary, args.hidden)))
        return 0
    print(
        f"{args.tokens} tokens, vocabulary {args.vocabulary}, hidden size {args.hidden}, forward and backward"
    )
    forms = [form for form in FORMS if form != "trl" or PEER.exists()]
    runs: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
    for repeat in range(args.repeats):
        for form in forms:
            run = in_subprocess(form, args.tokens, args.vocabulary, args.hidden)
            runs[form].append(run)
            seconds = f"{run['seconds']:7.1f} s, {run['cpu_seconds']:7.1f} s of processor time"
            print(f"  {repeat + 1}  {form:8} {run['gib']:6.2f} GiB  {seconds}", flush=True)
    print("peak: " + ", ".join(f"{form} {max(run['gib'] for run in runs[form]):.2f} GiB" for form in forms))
    for clock in ("seconds", "cpu_seconds"):
        middle = {form: statistics.median(run[clock] for run in runs[form]) for form in forms}
        words = ", ".join(f"{form} {seconds:.1f}" for form, seconds in middle.items())
        ratios = ", ".join(f"{middle['chunked'] / middle[form]:.2f} of {form}" for form in forms[1:])
        print(f"median {clock}: {words}; chunked takes {ratios}")
    return 0


def in_subprocess(form: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, float]:
    """Measure in a fresh process, so that no earlier peak is counted."""
    sizes = ["--tokens", str(tokens), "--vocabulary", str(vocabulary), "--hidden", str(hidden)]
    python = str(PEER) if form == "trl" else sys.executable
    command = [python, "-m", "benchmarks.head", "--measure", form, *sizes]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(form: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, float]:
    """Peak GiB beyond the inputs and their gradients, and seconds, of one forward and backward."""
    import torch  # here, so that the parent process stays small

    torch.manual_seed(0)
    statistics_of = {"chunked": _chunked, "whole": _whole, "trl": _trl}[form]
    warm_up = (torch.randn(8, hidden), torch.randn(64, hidden), torch.randint(64, (8,)))
    _forward_backward(statistics_of, *warm_up)
    hidden_ND, weight_VD = torch.randn(tokens, hidden), torch.randn(vocabulary, hidden).mul_(hidden**-0.5)
    targets_N = torch.randint(vocabulary, (tokens,))
    gradient_bytes = 4 * (hidden_ND.numel() + weight_VD.numel())
    before = _peak_bytes()
    start, cpu_start = time.perf_counter(), time.process_time()
    _forward_backward(statistics_of, hidden_ND, weight_VD, targets_N)
    return {
        "gib": (_peak_bytes() - before - gradient_bytes) / GIB,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
    }


def _forward_backward(statistics_of, hidden_ND, weight_VD, targets_N) -> None:
    hidden_ND.requires_grad_(), weight_VD.requires_grad_()
    logprobs_N, entropy_N = statistics_of(hidden_ND, weight_VD, targets_N)
    (logprobs_N.mean() + 0.1 * entropy_N.mean()).backward()


def _chunked(hidden_ND, weight_VD, targets_N):
    from pivot.method import token_statistics

    return token_statistics(hidden_ND, weight_VD, targets_N)[:2]


def _whole(hidden_ND, weight_VD, targets_N):
    logprobs_NV = (hidden_ND @ weight_VD.T).log_softmax(dim=-1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
    return logprobs_NV.gather(1, targets_N[:, None])[:, 0], entropy_N


def _trl(hidden_ND, weight_VD, targets_N):
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    found = ChunkedLogProbFunction.apply(
        hidden_ND, weight_VD, None, targets_N, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("entropy",)
    )
    return found[:2]


def _peak_bytes() -> int:
    """Highest resident memory of this process so far (Linux counts in KiB, macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
