"""The pool: several processes at a time, failures, signals, locks, GPUs, and children that end with their parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pivot.errors import UserError
from pivot.sweep.pool import Command, Pool, job_slots, last_line, spell


@dataclass
class Script:
    """A task: a module of Python that must leave a file."""

    label: str
    log: Path
    source: str

    @property
    def made(self) -> Path:
        return self.log.with_suffix(".made")

    def next_command(self) -> Command | None:
        if self.made.exists():
            return None
        module = self.log.with_suffix(".py")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(
            f"import os, pathlib, sys, time\nmade = pathlib.Path({str(self.made)!r})\n{self.source}\n"
        )
        return Command([self.log.stem], "running")


def pool(folder: Path, *slots) -> Pool:
    """Runs modules of a folder by name."""
    return Pool([{**slot, "PYTHONPATH": str(folder)} for slot in slots or ({},)], "runpy")


def script(tmp_path, label, source="made.touch()") -> Script:
    return Script(label, tmp_path / f"{label}.log", source)


def test_a_failing_task_does_not_end_the_others(tmp_path):
    tasks = [
        script(tmp_path, "broken", "sys.exit('no luck')"),
        script(tmp_path, "idle", "pass"),
        script(tmp_path, "good"),
    ]
    said = []
    outcome = pool(tmp_path).run(tasks, said.append)
    assert [label for label, _ in outcome.failed] == ["broken", "idle"], (
        "one that does nothing has failed too"
    )
    assert "no luck" in tasks[0].log.read_text()
    assert not outcome.stopped
    assert any("[3/3] good: finished in" in line for line in said)


def test_slots_run_side_by_side_with_their_own_environment(tmp_path):
    """Each waits for the other to have begun, which one after the other never ends."""
    source = textwrap.dedent("""
        me = os.environ["CUDA_VISIBLE_DEVICES"]
        (made.parent / f"began-{me}").touch()
        other = made.parent / f"began-{'1' if me == '0' else '0'}"
        while not other.exists(): time.sleep(0.01)
        made.touch()
    """)
    tasks = [script(tmp_path, name, source) for name in ("a", "b")]
    outcome = pool(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}).run(
        tasks, lambda text: None
    )
    assert not outcome.failed


def test_a_task_that_another_process_works_on_is_waited_for(tmp_path):
    """As after kill -9, when a run is still saving its step."""
    task = script(tmp_path, "slow")
    holder = subprocess.Popen(
        [sys.executable, "-c", f"""
import fcntl, pathlib, time
file = open({str(task.log.with_suffix(".lock"))!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(1.0)
pathlib.Path({str(task.made)!r}).touch()
"""], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    said = []
    outcome = pool(tmp_path).run([task], said.append)
    holder.wait()
    assert not outcome.failed
    assert said[0] == "[1/1] slow: another process is working on it; waiting"
    assert not task.log.exists(), "it was finished by then"


DRIVER = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, {tests!r})
from test_pool import pool, script
folder = Path({folder!r})
wait = "import signal\\nsignal.signal(signal.SIGTERM, lambda *_: ((made.parent / 'asked').touch(), sys.exit(3)))\\n"
wait += "(made.parent / 'ready').write_text(str(os.getpid()))\\ntime.sleep(300)"
outcome = pool(folder).run([script(folder, "one", wait), script(folder, "two")], lambda text: None)
sys.exit(40 + outcome.stopped + 2 * len(outcome.failed))
"""


def started(tmp_path) -> tuple[subprocess.Popen, int]:
    """A process whose pool runs a task that waits, and the task's process."""
    source = DRIVER.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    driver = subprocess.Popen([sys.executable, "-c", source])
    wait_until(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text())
    return driver, int((tmp_path / "ready").read_text())


def wait_until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_nothing_new_begins(tmp_path, number):
    driver, _ = started(tmp_path)
    driver.send_signal(number)
    try:
        assert driver.wait(timeout=60) == 41
    finally:
        driver.kill()
    assert (tmp_path / "asked").exists()
    assert not (tmp_path / "two.made").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_end_with_a_killed_parent(tmp_path):
    """Nobody is left to pass a signal on; the task still gets SIGTERM, by which a training run saves its step."""
    driver, child = started(tmp_path)
    driver.kill()
    driver.wait()
    wait_until(lambda: not alive(child))
    assert (tmp_path / "asked").exists()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_every_job_has_gpus_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert job_slots(1, 1) == [{}]
    assert job_slots(3, 1) == [{"CUDA_VISIBLE_DEVICES": n} for n in "456"]
    assert job_slots(2, 2) == [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    with pytest.raises(UserError, match=r"--jobs 2 needs 8 GPUs \(4 per run\), but 4 are visible"):
        job_slots(2, 4)
    with pytest.raises(UserError, match="--jobs is 0"):
        job_slots(0, 1)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_without_gpus_jobs_share_the_cores(monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert job_slots(3, 4) == [{"OMP_NUM_THREADS": "2"}] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert job_slots(2, 1) == [{"OMP_NUM_THREADS": "1"}] * 2


def test_the_last_line_of_a_log(tmp_path):
    assert last_line(tmp_path / "none.log") == "it wrote nothing"
    (tmp_path / "a.log").write_text("first\nlast\n\n")
    assert last_line(tmp_path / "a.log") == "last"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (40, "40 s"), (600, "10 min"), (11100, "3 h 05 min")]
)
def test_spelling(seconds, text):
    assert spell(seconds) == text
