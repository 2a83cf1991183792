"""`python -m shardyard.jobs.worker FOLDER`: the process that does a job, headless, alone or as one of several Slurm tasks.

It says all it has to say in the job folder.  A hang-up is ignored, SIGTERM stops at the next unit, and whatever goes wrong ends
as one `error` event and an outcome; the traceback goes to log.txt.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardyard.errors import Cancelled, JobError, NoRoomError, ShardyardError
from shardyard.jobs.context import PULSE_S, EventContext
from shardyard.jobs.events import MOST_PLAN_BYTES, EventLog, error_event, error_of
from shardyard.jobs.folder import JobFolder, State, task_name, write_json
from shardyard.jobs.owner import HEARTBEAT_EVERY_S, Owner
from shardyard.jobs.verbs import VERBS, Verb
from shardyard.limits import manners
from shardyard.limits.system import refusal


class JobContext(EventContext):
    """The context of a job: events into its file, the plan into plan.json, a heartbeat, and stopping when asked."""

    def __init__(self, job: JobFolder, log: EventLog, *, task: int = 0, tasks: int = 1) -> None:
        super().__init__(log.append, out=job.spec.out, stop=self._asked_to_stop, task=task, tasks=tasks)
        self.job = job
        self.folder = job.folder
        self.signalled = False
        self._cancel_seen = False
        self._beat_at = float("-inf")

    def plan(self, plan: Mapping[str, object]) -> None:
        if self.task == 0:
            write_json(self.job.folder / "plan.json", plan)
            small = (self.job.folder / "plan.json").stat().st_size <= MOST_PLAN_BYTES
            super().plan(plan if small else {k: v for k, v in plan.items() if not isinstance(v, list | dict)})

    def __enter__(self) -> JobContext:
        super().__enter__()
        if self._pulse is None:
            # No thread can be started (`ulimit -u`): the kernel's timer interrupts the main one instead.
            signal.signal(signal.SIGALRM, lambda *_: self.pulse())
            signal.setitimer(signal.ITIMER_REAL, PULSE_S, PULSE_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().__exit__()

    def pulse(self) -> None:
        now = time.monotonic()
        if now - self._beat_at >= HEARTBEAT_EVERY_S:
            self._beat_at = now
            self.beat()
        self._cancel_seen = self._cancel_seen or self.job.cancel_asked
        super().pulse()

    @property
    def interrupted(self) -> bool:
        """Stopped by Slurm, not by a person: Slurm may start it again, so this is no end."""
        return self.signalled and self.job.spec.slurm is not None and not self.job.cancel_asked

    def beat(self) -> None:
        """Say that this process lives. Closing the file makes a network file system send it."""
        with suppress(OSError):
            (self.job.folder / task_name("heartbeat", self.task)).write_text(f"{time.time():.1f}")

    def _asked_to_stop(self) -> bool:
        return self.signalled or self._cancel_seen


def main(argv: Sequence[str] | None = None, verbs: Mapping[str, Verb] = VERBS) -> int:
    """Do the job; returns 0 when it is done. The words for everything else are in the job folder."""
    parser = argparse.ArgumentParser(prog="python -m shardyard.jobs.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--publish", action="store_true", help="finish what several tasks wrote")
    args = parser.parse_args(argv)
    faulthandler.enable()
    job = JobFolder(args.folder.absolute())
    task, tasks = _place(job, args.publish)
    (job.folder / f"ended.{task}.json").unlink(missing_ok=True)
    if job.spec.slurm is not None and os.environ.get("SLURM_RESTART_COUNT"):
        # Slurm started it again by itself: how the last try ended is no longer how it is.
        (job.folder / "outcome.json").unlink(missing_ok=True)
    manners.quiet_libraries()
    manners.be_nice()
    owner = Owner.of(os.getpid())
    if owner is not None:
        job.own(owner, task)
    log = EventLog(job.folder, task, tasks)
    context = JobContext(job, log, task=task, tasks=tasks)
    _mind_signals(context)
    context.beat()
    with context:
        state, payload = _do(context, verbs, log, publish=args.publish)
    log.close()
    if state is State.QUEUED:
        return 1
    if tasks > 1:
        job.end_task(task, state, payload)
    else:
        job.end(state, payload)
    return 0 if state is State.DONE else 1


def _place(job: JobFolder, publish: bool) -> tuple[int, int]:
    """Which task of how many this process is."""
    tasks = job.spec.tasks
    return (0 if publish or tasks == 1 else int(os.environ.get("SLURM_PROCID", "0"))), (1 if publish else tasks)


def _mind_signals(context: JobContext) -> None:
    def stop(*_: object) -> None:
        context.signalled = True

    def out_of_time(*_: object) -> None:
        context.out_of_time = True

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGXCPU, out_of_time)
    manners.leave_time_to_stop()


def _do(context: JobContext, verbs: Mapping[str, Verb], log: EventLog, *, publish: bool) -> tuple[State, dict[str, Any]]:
    spec = context.job.spec
    name = f"{spec.verb}-publish" if publish else spec.verb
    try:
        if name not in verbs:
            raise JobError(f"There is no verb {name} that a job could do.")
        if publish:
            _raise_what_tasks_raised(context.job)
        result = verbs[name](context.job, context)
    except Exception as error:
        # The outermost edge of this process: every fault must end as one sentence that a reader finds.
        failure = _as_ours(error, context)
        if not isinstance(error, ShardyardError):
            traceback.print_exc()
        if log.dropped:
            print(f"{log.dropped} events could not be written: no room at the job folder.", file=sys.stderr)
        payload = error_event(failure)
        context.flush()
        if isinstance(failure, Cancelled) and context.interrupted:
            context.message("Slurm stopped it (preempted, or its time is up); finished units are kept.")
            return State.QUEUED, {}
        context.send("error", payload)
        return (State.CANCELLED if isinstance(failure, Cancelled) else State.FAILED), payload
    context.flush()
    context.send("result", result)
    return State.DONE, {}


def _raise_what_tasks_raised(job: JobFolder) -> None:
    """Nothing is published once a task refused: the job ends with its words. A cancelled task says less than a failed one."""
    for state in (State.FAILED, State.CANCELLED):
        for ended in job.ended_tasks():
            if ended["state"] == state.value:
                raise error_of(ended)


def _as_ours(error: Exception, context: JobContext) -> ShardyardError:
    """The error as one of ours, with its sentence."""
    if isinstance(error, Cancelled):
        return context.why_stopped()
    if isinstance(error, ShardyardError):
        return error
    if isinstance(error, MemoryError):
        return NoRoomError("The process got no more memory; use fewer --workers, or a node (or --slurm mem=…) with more of it.")
    if isinstance(error, OSError):
        return refusal(error, context.job.spec.out or context.job.folder)
    return JobError(
        f"Shardyard met a fault of its own ({type(error).__name__}); a report needs what is in {context.job.folder / 'log.txt'}."
    )


if __name__ == "__main__":
    sys.exit(main())
