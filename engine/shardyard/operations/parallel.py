"""A few threads over one stream of work: the first error stops them all, and so does whoever asks to cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
_END = object()


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

    threads = []
    for number in range(workers - 1):
        thread = threading.Thread(target=loop, name=f"worker-{number}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            # A limit on processes: those that there are do the work.
            break
        threads.append(thread)
    loop()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
