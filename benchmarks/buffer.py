"""Time and memory of the experience buffer: recording, drawing, saving and loading at three sizes.

    python -m benchmarks.buffer [--repeats 20]

Each size is measured in its own process, in processor time, so that other processes don't count; waiting for the disk
while saving is not included. Memory is the growth of the resident set while recording, relative to the bytes of the
int32 token ids, without log-probs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from pivot.experience import ExperienceBuffer, StoredResponse

SIZES = {"geometry3k": (2_000, 8, 300), "virl39k": (39_000, 8, 300), "million": (1_000_000, 1, 30)}
"""Name -> prompts, responses per prompt, mean tokens per response."""
NUM_DRAWS = 192
GROUP = 16
MB = 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=20, help="number of timed draws")
    parser.add_argument("--measure", choices=SIZES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*SIZES[args.measure], args.repeats)))
        return 0
    headings = (
        "prompts",
        "responses x tokens",
        "record, µs",
        "draw 192, ms",
        "save, s",
        "load, s",
        "file, MB",
    )
    print("|", " | ".join((*headings, "memory, MB", "memory / ids")), "|")
    print("|---" * 9 + "|")
    for name, (prompts, responses, tokens) in SIZES.items():
        command = [
            sys.executable,
            "-m",
            "benchmarks.buffer",
            "--measure",
            name,
            "--repeats",
            str(args.repeats),
        ]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"| {prompts:,} | {responses} x {tokens} "
            f"| {found['record'] * 1e6:.0f} | {found['draw'] * 1e3:.1f} "
            f"| {found['save']:.2f} | {found['load']:.2f} | {found['file']:.1f} | {found['memory']:.1f} "
            f"| {found['memory'] / found['ids']:.3f} |",
            flush=True,
        )
    return 0


def measure(num_prompts: int, num_responses: int, num_tokens: int, repeats: int) -> dict[str, float]:
    """Seconds per call (median for draws) and MB at one size."""
    generator = np.random.default_rng(0)
    buffer = ExperienceBuffer(responses_per_prompt=num_responses)
    before, seconds = resident_mb(), 0.0
    for index, k, responses in visits(num_prompts, num_responses, num_tokens, generator):
        start = time.process_time()
        buffer.record(f"prompt/{index}", num_correct=k, num_responses=GROUP, responses=responses, step=1)
        seconds += time.process_time() - start
    memory = resident_mb() - before
    draws = []
    for step in range(repeats):
        start = time.process_time()
        assert len(buffer.draw(NUM_DRAWS, exclude=("prompt/0",), step=step)) == NUM_DRAWS
        draws.append(time.process_time() - start)
    with tempfile.TemporaryDirectory() as name:
        start = time.process_time()
        buffer.save(Path(name))
        saved = time.process_time()
        loaded = ExperienceBuffer.load(Path(name))
        load = time.process_time() - saved
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / MB
    assert loaded.draw(NUM_DRAWS) == buffer.draw(NUM_DRAWS)
    ids = buffer.state_dict()["arrays"]["token_ids"].nbytes / MB
    return {
        "record": seconds / num_prompts,
        "draw": median(draws),
        "save": saved - start,
        "load": load,
        "file": size,
        "memory": memory,
        "ids": ids,
    }


def visits(
    num_prompts: int, num_responses: int, num_tokens: int, generator: np.random.Generator
) -> Iterator[tuple[int, int, list[StoredResponse]]]:
    """One group per prompt: its number, how many of the group are correct, and the responses to store."""
    for index in range(num_prompts):
        lengths = generator.integers(num_tokens // 2, num_tokens * 3 // 2 + 1, num_responses)
        responses = [
            StoredResponse(generator.integers(0, 150_000, length, dtype=np.int32)) for length in lengths
        ]
        yield index, int(generator.integers(num_responses, GROUP)), responses


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


if __name__ == "__main__":
    sys.exit(main())
