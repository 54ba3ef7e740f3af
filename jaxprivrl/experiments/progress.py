"""Progress on stderr: a bar on a terminal; anywhere else at most one line per minute, of all bars together."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LINE_SECONDS = 60.0
clock = time.monotonic
_last_line: list[float] = []  # when a line was last written; at first, when the first bar started


def progress_bar(label: str) -> Callable[[int, int, float], None]:
    """A callback for `sweep`: episodes per second over all runs, live, with the compile time beside it."""
    if not sys.stderr.isatty():
        return _lines(label, "episodes")
    from tqdm import tqdm

    bar: list[Any] = []

    def update(done: int, total: int, compile_seconds: float) -> None:
        if not bar:
            bar.append(tqdm(total=total, desc=label, unit="ep", unit_scale=True, file=sys.stderr, mininterval=0.2))
            bar[0].set_postfix_str(f"compiled in {compile_seconds:.1f} s")
        bar[0].update(done - bar[0].n)
        if done >= total:
            bar[0].close()

    return update


def each(items: Sequence[T], label: str) -> Iterator[T]:
    """The items, with a bar that counts them."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=label, file=sys.stderr)
        return
    update = _lines(label, "steps")
    for i, item in enumerate(items):
        yield item
        update(i + 1, len(items), 0.0)


def _lines(label: str, unit: str) -> Callable[[int, int, float], None]:
    """Lines for a log. The minute runs on from one bar to the next, so that many short sweeps write little too."""
    start = clock()
    if not _last_line:
        _last_line.append(start)

    def update(done: int, total: int, compile_seconds: float) -> None:
        now = clock()
        if now - _last_line[0] >= LINE_SECONDS:
            _last_line[0] = now
            rate = f"{done / (now - start):,.0f} per second" if now > start else "started"
            print(f"{label}: {done:,} of {total:,} {unit} ({done / total:.0%}), {rate}", file=sys.stderr, flush=True)

    return update
