"""`pivot grade < pairs.jsonl`: one verdict per line, in order, until the input ends."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pivot.errors import UserError
from pivot.rewards.verifier import GRADERS, Reason, Verifier
from pivot.types import Reward

CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 24
"""A longer line is skipped without keeping it; its verdict is `too long`."""

_UNREADABLE = Reward(0.0, 0.0, Reason.UNPARSABLE)
_TOO_LONG = Reward(0.0, 0.0, Reason.TOO_LONG)


@dataclass(frozen=True)
class Pair:
    """One line of the input."""

    response: str
    answer: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        'Each input line is {"response": ..., "answer": ...}; each output line is {"correct", "format", "extracted", '
        '"reason"}, in order. A line that is blank or not such an object has the reason "unparsable".'
    )
    parser.add_argument(
        "--grader",
        choices=list(GRADERS),
        default="pivot",
        help="mathruler: grade as PAPO does (default: pivot)",
    )
    parser.add_argument(
        "--answer",
        metavar="FORM",
        default="boxed",
        help="where responses answer: boxed, tag (<answer>...</answer>) or a regular expression with one group "
        "(default: boxed)",
    )
    parser.add_argument("--workers", type=int, default=2, help="library processes (default: 2)")


def run(args: argparse.Namespace) -> int:
    """Grade the lines that have arrived, print the verdicts, wait for more; memory use is bounded."""
    if args.workers < 1:
        raise UserError(f"--workers is {args.workers}; it must be at least 1.")
    unread = total = 0
    with Verifier(args.grader, workers=args.workers, answer=args.answer) as verifier:
        for lines in _chunks(sys.stdin.buffer):
            pairs = [line if isinstance(line, Reward) else _pair(line) for line in lines]
            sys.stdout.write("".join(_verdict(reward) for reward in _grade(verifier, pairs)))
            sys.stdout.flush()
            total += len(pairs)
            unread += sum(isinstance(pair, Reward) for pair in pairs)
    if unread:
        print(f"pivot grade: {unread} of {total} lines could not be read", file=sys.stderr)
    return 0


def _chunks(stream: BinaryIO) -> Iterator[list[bytes | Reward]]:
    """The complete lines that the pipe holds now; an overlong line is replaced by its verdict."""
    partial: list[bytes] = []
    size = 0
    while data := stream.read1(CHUNK_BYTES):  # pyright: ignore[reportAttributeAccessIssue]
        *whole, rest = data.split(b"\n")
        lines: list[bytes | Reward] = []
        for line in whole:
            lines.append(_TOO_LONG if size + len(line) > MAX_LINE_BYTES else b"".join([*partial, line]))
            partial, size = [], 0
        size += len(rest)
        partial = [*partial, rest] if size <= MAX_LINE_BYTES else []
        if lines:
            yield lines
    if size:
        yield [_TOO_LONG if size > MAX_LINE_BYTES else b"".join(partial)]


def _pair(line: bytes) -> Pair | Reward:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return _UNREADABLE
    if not isinstance(row, dict):
        return _UNREADABLE
    response, answer = row.get("response"), row.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(response, str) or not isinstance(answer, str):
        return _UNREADABLE
    return Pair(response, answer)


def _grade(verifier: Verifier, pairs: list[Pair | Reward]) -> Iterator[Reward]:
    asked = [pair for pair in pairs if isinstance(pair, Pair)]
    graded = iter(verifier.grade_many([pair.response for pair in asked], [pair.answer for pair in asked]))
    for pair in pairs:
        yield pair if isinstance(pair, Reward) else next(graded)


def _verdict(reward: Reward) -> str:
    row = {
        "correct": reward.correct,
        "format": reward.format > 0.5,
        "extracted": reward.extracted,
        "reason": str(reward.reason),
    }
    return json.dumps(row) + "\n"
