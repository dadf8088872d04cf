"""Reward functions that go wrong in every way; also the ones that work."""

import itertools
import os
import signal
import sys
import time

import numpy as np

_calls = itertools.count(1)


def by_length(completions, answer, **columns):
    assert len(answer) == len(completions)
    return [float(len(text) % 2) for text in completions]


def as_array(completions, **columns):
    return np.array([0.25] * len(completions), dtype=np.float32)


def talkative(completions, **columns):
    print("hello from the reward function")
    os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x05junk!")
    assert sys.stdin.read() == ""
    return [1.0] * len(completions)


def raises(completions, **columns):
    return columns["no such column"]


def exits(completions, **columns):
    sys.exit("that was it")


def vanishes(completions, **columns):
    os._exit(7)


def killed(completions, **columns):
    os.kill(os.getpid(), signal.SIGKILL)


def too_few(completions, **columns):
    return [1.0]


def too_many(completions, **columns):
    return [1.0] * (len(completions) + 1)


def nothing(completions, **columns):
    return None


def words(completions, **columns):
    return ["good"] * len(completions)


def not_a_number(completions, **columns):
    return [float("nan")] * len(completions)


def infinite_once(completions, **columns):
    """In its second call, for the first response alone."""
    values = by_length(completions, **columns)
    return [float("inf"), *values[1:]] if next(_calls) == 2 else values


def sleeps(completions, **columns):
    time.sleep(3600)


def computes_forever(completions, **columns):
    """Holds the interpreter in one long computation that no thread could interrupt."""
    return [pow(3, 10**9) % 7]


def ignores_signals(completions, **columns):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)


def starts_others(completions, **columns):
    """Leaves a process of its own behind and never returns."""
    if os.fork() == 0:
        time.sleep(3600)
    time.sleep(3600)


def as_ordered(completions, **columns):
    """Raises or sleeps if the environment says so; otherwise it works."""
    ordered = os.environ.get("FAULT_REWARD", "")
    if ordered == "raises":
        raise RuntimeError("as ordered")
    return sleeps(completions) if ordered == "sleeps" else by_length(completions, **columns)
