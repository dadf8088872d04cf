"""`pivot grade` as a process in a pipe."""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "pivot", "grade"]


def grade(data: bytes, *options: str) -> list[dict[str, object]]:
    done = subprocess.run([*COMMAND, *options], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def line(response: object, answer: object) -> bytes:
    return json.dumps({"response": response, "answer": answer}).encode() + b"\n"


def test_one_line_each_in_order() -> None:
    data = line("<think>a</think> \\boxed{5\\sqrt{3}}", "5*√3") + line("5", "5") + line("\\boxed{6}", "5")
    assert grade(data) == [
        {"correct": True, "format": True, "extracted": "5\\sqrt{3}", "reason": "correct"},
        {"correct": False, "format": False, "extracted": None, "reason": "no box"},
        {"correct": False, "format": False, "extracted": "6", "reason": "wrong"},
    ]


def test_lines_that_cannot_be_read_keep_their_place() -> None:
    good = line("\\boxed{5}", 5)
    bad = [
        b"\n",
        b"nonsense\n",
        b"[1]\n",
        b'{"response": "\\\\boxed{5}"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ]
    bad += [line(None, "5"), line("\\boxed{5}", True), line("\\boxed{5}", ["5"])]
    rows = grade(b"".join(one + good for one in bad))
    assert [row["reason"] for row in rows] == ["unparsable", "correct"] * len(bad)


def test_the_last_line_needs_no_line_end_and_nothing_gives_nothing() -> None:
    assert [row["correct"] for row in grade(line("\\boxed{5}", "5").rstrip())] == [True]
    assert grade(b"") == []


def test_odd_characters_pass_through() -> None:
    (row,) = grade(line("\\boxed{\ud800\x00é}", "\ud800\x00é"))
    assert row["extracted"] == "\ud800\x00é"


def test_mathruler_is_a_switch() -> None:
    data = line("\\boxed{70°}", "70") + line("\\boxed{70}", "70")
    assert [row["correct"] for row in grade(data)] == [True, True]
    assert [row["correct"] for row in grade(data, "--grader", "mathruler", "--workers", "1")] == [False, True]


def test_an_interactive_pipe_is_answered_line_by_line() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write(line(f"\\boxed{{{number}}}", "1"))
            assert json.loads(process.stdout.readline())["correct"] is (number == 1)
        process.stdin.close()
        assert process.wait() == 0


def test_many_lines_stream_through_bounded_memory() -> None:
    code = (
        "import sys; from pivot.cli import main; main(['grade'])\n"
        "(peak,) = [line for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
        "print(peak.split()[1], file=sys.stderr)"
    )
    data = line("<think>" + "a " * 500 + "</think> \\boxed{5}", "5") * 20_000
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.count(b'"correct": true') == 20_000
    assert int(done.stderr) < 60_000, "kilobytes; torch alone would take 200,000"


def test_a_line_beyond_the_limit_is_too_long() -> None:
    rows = grade(line("a" * (1 << 24), "5") + line("\\boxed{5}", "5"))
    assert [row["reason"] for row in rows] == ["too long", "correct"]


def test_no_worker_is_a_mistake_in_one_sentence() -> None:
    done = subprocess.run([*COMMAND, "--workers", "0"], input=b"", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            COMMAND, input=line("\\boxed{5}", "5"), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.decode() == "pivot grade: cannot write the output: no space left on device\n"


def test_lines_with_huge_integers_keep_their_place() -> None:
    huge = b'{"response": "\\\\boxed{5}", "answer": ' + b"7" * 5000 + b"}\n"
    assert [row["reason"] for row in grade(huge + line("\\boxed{5}", 5))] == ["unparsable", "correct"]


def test_other_forms_of_answers() -> None:
    data = line("<think>a</think> <answer>5</answer>", "5") + line("\\boxed{5}", "5")
    assert [row["reason"] for row in grade(data, "--answer", "tag")] == ["correct", "no answer"]
    assert grade(line("so x = 5.", "5"), "--answer", r"= (\d+)")[0]["extracted"] == "5"
