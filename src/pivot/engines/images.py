"""Images that a driver sends to rollout servers: decoded by threads, once per prompt, at their final size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from PIL import Image

from pivot.data.images import open_rgb
from pivot.models.encoding import usable_cores
from pivot.types import Prompt

MOST_THREADS = 16


class ImageReader:
    """Decodes ahead of time; nothing is kept beyond the prompts that were announced last."""

    def __init__(self, resized: Callable[[Image.Image], Image.Image]) -> None:
        self._resized = resized
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, usable_cores()))
        self._started: dict[str, Future[list[Image.Image]]] = {}

    def announce(self, prompts: Sequence[Prompt]) -> None:
        """Start to decode; what was announced before and never taken is dropped."""
        self._started = {p.id: self._pool.submit(self._decode, p) for p in prompts if p.images}

    def check(self, prompt: Prompt) -> None:
        """Raise an ImageError if an image cannot be decoded."""
        if prompt.images:
            self._start(prompt).result()

    def take(self, prompt: Prompt) -> list[Image.Image]:
        """The images of a prompt, which are then forgotten."""
        if not prompt.images:
            return []
        found = self._start(prompt).result()
        self._started.pop(prompt.id, None)
        return found

    def _start(self, prompt: Prompt) -> Future[list[Image.Image]]:
        if prompt.id not in self._started:
            self._started[prompt.id] = self._pool.submit(self._decode, prompt)
        return self._started[prompt.id]

    def _decode(self, prompt: Prompt) -> list[Image.Image]:
        return [self._resized(open_rgb(source)) for source in prompt.images]
