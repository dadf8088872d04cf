"""`python -m benchmarks.verifier [--agreement | --libraries]`: speed, time limits and agreement of the verifier.

Without an option it measures answers per second on the fast path, with an empty and with a filled cache, and the
slowest of the hostile answers. `--agreement` compares with mathruler on the 3,002 answers of Geometry3K;
`--libraries` compares the two libraries on pairs that the fast path cannot decide.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

from pivot.rewards.verifier import Verifier
from pivot.rewards.verifier.pool import Job, WorkerPool
from pivot.rewards.verifier.reading import _cached_read
from pivot.rewards.verifier.verifier import judge

ANSWERS = Path(__file__).parents[2] / "shared" / "data" / "geometry3k" / "answers.jsonl"

LEFT_OVER = [
    (r"\sin(30^\circ)", "0.5", True),
    (r"\frac{x+1}{x-1}", "(x+1)/(x-1)", True),
    (r"\frac{x^2-1}{x-1}", "x+1", True),
    (r"\frac{x}{x+1}", r"\frac{x}{x+2}", False),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)", True),
    (r"(1,2)\cup(3,4)", "(1,2)", False),
    (r"\sqrt{2+\sqrt{3}}", r"\frac{\sqrt{6}+\sqrt{2}}{2}", True),
    (r"\sqrt{2+\sqrt{3}}", "1.93", False),
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", True),
    (r"\sqrt[3]{2}", "2^{1/3}", True),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}", True),
    (r"\sqrt[3]{2}", "1.26", False),
    (r"\log_2 8", "3", True),
    (r"\log_{10} 100", "2", True),
    (r"\ln 4", r"2\ln 2", True),
    (r"\ln 4", r"2\ln 3", False),
    (r"\frac{\ln 3}{2}", r"\frac{1}{2}\ln 3", True),
    (r"\tan^{-1}(1)", r"\frac{\pi}{4}", True),
    (r"\arctan 1", r"\pi/4", True),
    (r"2\sin 60^\circ", r"\sqrt{3}", True),
    (r"2\cos 40^\circ", r"2\cos 50^\circ", False),
    (r"\sqrt{x^2+1}", r"\sqrt{1+x^2}", True),
    (r"\sqrt{x^2+1}", "x+1", False),
    (r"e^{2x}", r"(e^x)^2", True),
    (r"\frac{2}{x+1}", "2/(x+1)", True),
    (r"\frac{1}{\sqrt{3}+\sqrt{2}+1}", r"1/(1+\sqrt2+\sqrt3)", True),
    (r"\sqrt{5}\sin x", r"\sin x \sqrt 5", True),
    ("ab+c", "c+ab", True),
    ("xy+3", "yx+2", False),
    ("|x|", "x", False),
    ("0<x<1", "0<x<2", False),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}", False),
]
"""(given, answer, whether they are equal), judged by hand."""

HOSTILE = [
    "9**9**9**9",
    "9^{9^{9^{9}}}",
    "99999999!",
    "(" * 900 + "5" + ")" * 900,
    "{" * 900 + "5" + "}" * 900,
    r"\frac" * 300,
    r"\sqrt" * 300 + "2",
    r"\sqrt{" * 300 + "2" + "}" * 300,
    r"\text{" * 300 + "2" + "}" * 300,
    "(a+b+c+d)^{128}",
    "*".join(["(a+b+c+d+e+f)"] * 10),
    "*".join(["(1+√2+√3+√5)"] * 12),
    "/".join(["(1+√2)"] * 20),
    "√999999999999989" * 10,
    "√" + "9" * 60,
    "1" * 1900,
    "1," * 900,
    " " * 1900 + "5",
    "ﷺ" * 1900,
    "x=" * 900,
    "-" * 1900 + "5",
    r"\sin{9^{9^9}}",
    r"\sqrt{2+\sqrt{10^{99999999}}}",
    r"\int_0^{10^9} x^{x^x} dx",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agreement", action="store_true", help="compare with mathruler on Geometry3K")
    parser.add_argument(
        "--libraries", action="store_true", help="compare the libraries on pairs that need one"
    )
    args = parser.parse_args()
    if args.agreement:
        agreement()
    elif args.libraries:
        libraries()
    else:
        speed()
        worst_case()


def pairs() -> list[tuple[str, str]]:
    """Each answer with itself, and with a different one drawn at random."""
    answers = [json.loads(line)["answer"] for line in ANSWERS.read_text().splitlines()]
    draw = random.Random(0)
    others = [draw.choice([other for other in answers if other != answer]) for answer in answers]
    return [(answer, answer) for answer in answers] + list(zip(others, answers, strict=True))


def speed() -> None:
    """Measured in processor time of this process, so that other processes don't count."""
    given = pairs()
    responses = [
        "<think>" + "Angle A is 70 degrees. " * 40 + f"</think> \\boxed{{{one}}}" for one, _ in given
    ]
    answers = [answer for _, answer in given]
    with Verifier() as verifier:
        begin = time.process_time()
        for response, answer in zip(responses, answers, strict=True):
            _cached_read.cache_clear()
            verifier.grade(response, answer)
        cold = len(given) / (time.process_time() - begin)
        verifier.grade_many(responses, answers)
        begin = time.process_time()
        verifier.grade_many(responses, answers)
        warm = len(given) / (time.process_time() - begin)
    print(f"cold, nothing cached:    {cold:8.0f} answers/s ({len(given)} responses of 1 kB)")
    print(f"warm, answers cached:    {warm:8.0f} answers/s")


def worst_case() -> None:
    for grader in ("pivot", "mathruler"):
        with Verifier(grader) as verifier:
            verifier.grade(r"\boxed{\sin 30^\circ}", "y")  # Starts the library.
            seconds, reasons = [], Counter()
            for text in HOSTILE:
                begin = time.perf_counter()
                reasons[str(verifier.grade(f"\\boxed{{{text}}}", "5").reason)] += 1
                seconds.append(time.perf_counter() - begin)
        slowest = HOSTILE[seconds.index(max(seconds))][:40]
        print(f"hostile, {grader}: slowest {max(seconds):.2f} s ({slowest}), {dict(reasons)}")


def agreement() -> None:
    given = pairs()
    with Verifier("pivot") as ours, Verifier("mathruler") as theirs:
        boxed, truths = [f"\\boxed{{{one}}}" for one, _ in given], [answer for _, answer in given]
        rewards = zip(ours.grade_many(boxed, truths), theirs.grade_many(boxed, truths), strict=True)
        different = [
            (pair, a, b) for pair, (a, b) in zip(given, rewards, strict=True) if a.correct != b.correct
        ]
    for (one, answer), a, b in different:
        print(f"given {one!r}, answer {answer!r}: pivot {a.reason}, mathruler {b.reason}")
    share = 1 - len(different) / len(given)
    print(f"{len(given)} pairs, {len(different)} disagreements, {share:.3%} agreement")


def libraries() -> None:
    asked = [(row, judge(row[0], row[1]).question) for row in LEFT_OVER]
    left = [(row, question) for row, question in asked if question is not None]
    print(f"{len(left)} of {len(LEFT_OVER)} pairs need a library")
    for library in ("mathruler", "math-verify"):
        pool = WorkerPool(library, seconds=5.0)
        jobs = [Job(*question) for _, question in left]
        pool.run(jobs)
        pool.close()
        wrong = [
            row for (row, _), job in zip(left, jobs, strict=True) if (job.outcome == "correct") != row[2]
        ]
        print(f"{library}: {len(left) - len(wrong)} of {len(left)} right; not: {[row[:2] for row in wrong]}")


if __name__ == "__main__":
    main()
