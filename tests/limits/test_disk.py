"""Room at a destination: links, file systems of a fixed size, quotas."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shardyard.errors import NoRoomError
from shardyard.limits import disk, preflight, quota
from shardyard.limits.disk import Disk
from shardyard.limits.preflight import Need
from shardyard.limits.quota import Quota
from shardyard.limits.readings import Memory, Readings
from support import services

MB = 1 << 20


@pytest.fixture(scope="module")
def small() -> Iterator[Path]:
    with services.tmpfs("size=8m") as folder:
        yield folder


def place(**given: object) -> Disk:
    known: dict[str, object] = {
        "folder": Path("/data"), "mount": "/data", "kind": "ext4", "device": "/dev/sda", "free": 100 * MB, "total": 1000 * MB,
        "files_free": 1000, "quota": None,
    }  # fmt: skip
    return Disk(**{**known, **given})  # type: ignore[arg-type]


def reading(available: int | None = None, limit: int | None = None, cpu_limit: int | None = None, cpu_s: float = 0.0) -> Readings:
    return Readings(Memory(0, 0, limit, available), (), None, {"cpu time": cpu_limit}, 0, cpu_s, None)


def test_a_missing_output_below_a_link_is_judged_where_the_bytes_will_go(tmp_path: Path, small: Path) -> None:
    (tmp_path / "link").symlink_to(small)
    found = disk.of(tmp_path / "link" / "not" / "there" / "yet")
    assert found.folder == small and found.mount == str(small) and found.kind == "tmpfs" and found.in_memory
    assert found.total == 8 * MB and 0 < found.free <= 8 * MB
    elsewhere = disk.of(tmp_path / "new")
    assert elsewhere.folder == tmp_path.resolve() and elsewhere.total > 8 * MB


def test_what_does_not_fit_is_refused_with_the_bytes_short(tmp_path: Path, small: Path) -> None:
    (tmp_path / "link").symlink_to(small)
    out = tmp_path / "link" / "merged"
    assert preflight.check(Need(out, 1 * MB)) == []
    with pytest.raises(NoRoomError, match=r"needs 21\.0 MiB in .*, where [78]\.. MiB are free \(1[34]\.. MiB short\)"):
        preflight.check(Need(out, 20 * MB, verb="The merge"))
    # What an earlier try left there needs no room again.
    preflight.check(Need(out, 20 * MB, there_bytes=15 * MB))


def test_a_quota_smaller_than_the_free_space_counts() -> None:
    tight = place(quota=Quota(50 * MB, 40 * MB, "user quota"))
    assert tight.room == 10 * MB
    with pytest.raises(NoRoomError, match=r"user quota leaves 10\.0 MiB \(11\.0 MiB short\)"):
        preflight.check(Need("/data/out", 20 * MB), place=tight, reading=reading())
    over = place(quota=Quota(50 * MB, 60 * MB, "user quota"))
    assert over.room == 0


def test_running_out_of_files_is_refused_as_that() -> None:
    with pytest.raises(NoRoomError, match="room for 3 more"):
        preflight.check(Need("/data/out", MB, files=2), place=place(files_free=3), reading=reading())


def test_memory_that_does_not_fit_is_refused_with_the_limit() -> None:
    need = Need("/data/out", MB, memory_bytes=300 * MB, verb="The merge")
    assert preflight.check(need, place=place(), reading=reading(available=300 * MB)) == []
    with pytest.raises(
        NoRoomError, match=r"needs 300\.0 MiB of memory and 200\.0 MiB are available here, of a limit of 512\.0 MiB"
    ):
        preflight.check(need, place=place(), reading=reading(available=200 * MB, limit=512 * MB))


def test_files_on_a_memory_file_system_count_as_memory() -> None:
    need = Need("/data/out", 50 * MB, memory_bytes=10 * MB)
    preflight.check(need, place=place(), reading=reading(available=40 * MB))
    with pytest.raises(NoRoomError, match="memory"):
        preflight.check(need, place=place(kind="tmpfs"), reading=reading(available=40 * MB))


def test_a_cpu_time_limit_that_would_end_it_is_refused_and_slurm_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    big = place(free=10**13)
    need = Need("/data/out", 600 << 30, read_bytes=600 << 30)
    preflight.check(need, place=big, reading=reading(cpu_limit=3600))
    with pytest.raises(NoRoomError, match=r"20 minutes of CPU time.*after 10 minutes more \(ulimit -t\).*--slurm"):
        preflight.check(need, place=big, reading=reading(cpu_limit=700, cpu_s=100.0))


def test_hardly_any_room_left_is_a_warning() -> None:
    (finding,) = preflight.check(Need("/data/out", 95 * MB), place=place(), reading=reading())
    assert finding.code == "disk-tight" and finding.nbytes == 4 * MB


USER = """\
Disk quotas for user anna (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1   20480   51200   61440       0       5       0       0       0
nfs:/export/home 100*      50      60 1700000000  5       0       0       0
"""
GROUP = "     /dev/sda1 30720  0  35840 0 5 0 0 0\n"


def site(answers: dict[str, str]) -> quota.Run:
    def run(command: Sequence[str]) -> str:
        return next((text for key, text in answers.items() if key == " ".join(command)), "")

    return run


def test_the_sites_quota_command_is_read() -> None:
    run = site({"quota -w -p -u": USER, "quota -w -p -g": GROUP})
    assert quota.of(Path("/x"), "ext4", "/dev/sda1", "/", run) == Quota(35840 << 10, 30720 << 10, "group quota")
    nfs = quota.of(Path("/x"), "nfs4", "nfs:/export/home", "/home", run)
    assert nfs is not None and (nfs.source, nfs.left) == ("user quota", 0)
    assert quota.of(Path("/x"), "xfs", "/dev/sdb", "/data", run) is None
    assert quota.of(Path("/x"), "tmpfs", "/dev/sda1", "/", run) is None


def test_lustre_quotas_of_user_group_and_project_are_read() -> None:
    uid, gid = os.getuid(), os.getgid()
    run = site(
        {
            f"lfs quota -q -u {uid} /lustre": "      /lustre  1048576  0  4194304  -  10 0 0 -\n",
            f"lfs quota -q -g {gid} /lustre": "      /lustre  1048576  0  0  -  10 0 0 -\n",
            "lfs project -d /lustre/p": "  1001 P /lustre/p\n",
            "lfs quota -q -p 1001 /lustre": "      /lustre  2097152*  2097152  3145728  -  10 0 0 -\n",
        }
    )
    assert quota.of(Path("/lustre/p"), "lustre", "mds@tcp:/l", "/lustre", run) == Quota(2 << 30, 2 << 30, "project quota")


def test_a_command_that_is_not_there_or_fails_says_nothing() -> None:
    assert quota.run(("no-such-command-anywhere",)) == ""
    assert quota.run(("false",)) == ""


@pytest.mark.services
def test_a_real_btrfs_group_limits_below_the_free_space() -> None:
    with services.btrfs_with_quota(limit="20M") as folder:
        found = disk.of(folder / "new")
        assert found.kind == "btrfs" and found.free > 50 * MB
        assert found.quota is not None and found.quota.limit == 20 * MB and found.quota.source == "btrfs quota group"
        assert found.room <= 20 * MB
        with pytest.raises(NoRoomError, match="btrfs quota group leaves"):
            preflight.check(Need(folder / "new", 30 * MB))
        with pytest.raises(OSError) as caught, open(folder / "file", "wb") as file:
            for _ in range(40):
                file.write(os.urandom(MB))
                file.flush()
                os.fsync(file.fileno())
        assert caught.value.errno == errno.EDQUOT
        error = disk.no_room(caught.value, folder / "file", short=20 * MB)
        assert error is not None and "quota" in error.message and "21.0 MB still to be written" in error.message


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "The disk at /x is full"), (errno.EDQUOT, "The quota at /x"), (errno.EFBIG, "ulimit -f")]
)
def test_full_disks_become_one_sentence(number: int, words: str) -> None:
    error = disk.no_room(OSError(number, "x"), "/x")
    assert error is not None and words in error.message
    assert disk.no_room(OSError(errno.EIO, "x"), "/x") is None


def test_the_meter_asks_seldom_and_tells_free_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def of(path: object, *, with_quota: bool = True) -> Disk:
        asked.append(with_quota)
        return place(quota=Quota(50 * MB, 40 * MB, "user quota") if with_quota else None)

    monkeypatch.setattr(disk, "of", of)
    meter = disk.Meter(tmp_path)
    assert [meter.read() for _ in range(3)] == [{"free": 100 * MB, "quota": 10 * MB}] * 3
    assert asked == [True]
    monkeypatch.setattr(disk.Meter, "DISK_EVERY_S", -1.0)
    assert meter.read() == {"free": 100 * MB, "quota": 10 * MB}
    assert asked == [True, False]
