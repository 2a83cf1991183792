"""A few threads over one stream of work: the first error stops them all, and so does whoever asks to cancel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
_END = object()


def default_workers(most: int = 4) -> int:
    """As many threads as this process may use cores, and no more than reading keeps busy."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return max(1, min(most, cores))


def spread(work: Iterable[T], do: Callable[[T], None], workers: int, check: Callable[[], None] = lambda: None) -> None:
    """Call `do` for each item, in order of start, from several threads; `check` (which may raise) before each."""
    items = iter(work)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            while not errors:
                with lock:
                    check()
                    item = next(items, _END)
                if item is _END:
                    return
                do(item)  # type: ignore[arg-type]  # it is no mark, so it is an item
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, name=f"worker-{i}", daemon=True) for i in range(workers - 1)]
    for thread in threads:
        thread.start()
    loop()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
