"""Progress bars on stderr."""

import sys
from collections.abc import Callable
from typing import Any


def progress_bar(label: str) -> Callable[[int, int, float], None]:
    """A callback for `sweep`: episodes per second over all runs, live, with the compile time beside it."""
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
