from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.errors import GateError
from eyas.extract import budget
from eyas.extract.budget import Cache, Need, Sizes, can_link, check_disk, dvc_cache, needs, shares_bytes
from eyas.extract.memory import is_out_of_memory, told_when_out_of_memory, told_when_too_large

GB = 10**9
SIZES = Sizes(all=10 * GB, missing=4 * GB)
Link = Callable[[Path, Path], bool]


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say which pairs of folders can share bytes."""

    def set_links(*, link: Link, reflink: Link) -> None:
        monkeypatch.setattr(budget, "can_link", link)
        monkeypatch.setattr(budget, "can_reflink", reflink)

    return set_links


def always(source: Path, destination: Path) -> bool:
    return True


def never(source: Path, destination: Path) -> bool:
    return False


def not_to_the_cache(source: Path, destination: Path) -> bool:
    return destination.name != "cache"


JOURNAL, OUTPUT = Path("journal"), Path("hidden")


@pytest.mark.parametrize(
    ("link", "reflink", "types", "expected"),
    [
        pytest.param(always, never, ["hardlink", "symlink", "copy"], [4], id="all is linked"),
        pytest.param(not_to_the_cache, never, ["hardlink", "copy"], [4, 10], id="cache elsewhere"),
        pytest.param(
            always, never, ["reflink", "hardlink", "copy"], [4, 10], id="only the first type counts"
        ),
        pytest.param(always, always, ["reflink", "copy"], [4], id="reflinks"),
        pytest.param(always, always, ["copy"], [4], id="copies are reflinks where there are any"),
        pytest.param(always, never, ["copy"], [4, 10], id="copies"),
        pytest.param(always, always, ["symlink"], [4, 10], id="symlinks are made after a copy"),
        pytest.param(never, never, ["hardlink"], [4, 10, 10], id="no links at all"),
        pytest.param(always, never, None, [4], id="no cache"),
    ],
)
def test_what_is_written(
    links: Callable[..., None], link: Link, reflink: Link, types: list[str] | None, expected: list[int]
) -> None:
    links(link=link, reflink=reflink)
    cache = None if types is None else Cache(Path("cache"), types)
    assert [need.bytes / GB for need in needs(SIZES, JOURNAL, OUTPUT, cache)] == expected


def test_enough_and_too_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that lies on the same file system is one sum; half a gigabyte must stay free."""
    monkeypatch.setattr(budget, "free_bytes", lambda path: 10 * GB)
    fits = [Need("shards", tmp_path / "a", 4 * GB), Need("the cache", tmp_path / "b", 5 * GB)]
    check_disk(fits)
    check_disk([])
    with pytest.raises(GateError) as caught:
        check_disk([*fits, Need("a copy (cache.type is copy)", tmp_path / "c", GB)])
    assert caught.value.what == (
        "the hidden states need 10.00 GB, and 10.00 GB are free: 4.00 GB for shards; 5.00 GB for the cache; "
        "1.00 GB for a copy (cache.type is copy)"
    )
    assert "cache.type hardlink,symlink,copy" in str(caught.value.hint)
    with pytest.raises(GateError) as caught:
        check_disk([Need("shards", tmp_path, 10 * GB)])
    assert "cache.type" not in str(caught.value.hint)


def test_nothing_missing_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "free_bytes", lambda path: 0)
    check_disk([Need("shards", tmp_path, 0)])


def test_another_file_system_is_another_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    monkeypatch.setattr(budget, "free_bytes", lambda path: 5 * GB)
    check_disk([Need("a", tmp_path, 4 * GB), Need("b", shared / "not" / "there", 4 * GB)])
    assert not can_link(tmp_path, shared)
    assert list(tmp_path.iterdir()) == []


def test_links_are_tried_and_leave_nothing(tmp_path: Path) -> None:
    assert can_link(tmp_path / "a" / "b", tmp_path)
    assert list(tmp_path.iterdir()) == []


def repository(path: Path, config: str, local: str = "") -> Path:
    (path / ".dvc").mkdir(parents=True)
    (path / ".dvc" / "config").write_text(config)
    (path / ".dvc" / "config.local").write_text(local)
    return path


@pytest.mark.parametrize(
    ("config", "local", "types", "folder"),
    [
        ("", "", ["reflink", "copy"], ".dvc/cache"),
        ('[cache]\n    type = "hardlink,symlink"\n', "", ["hardlink", "symlink"], ".dvc/cache"),
        ("[cache]\n    type = hardlink\n", "[cache]\n    type = copy\n", ["copy"], ".dvc/cache"),
        ("[cache]\n    dir = ../../big\n", "", ["reflink", "copy"], "../big"),
    ],
)
def test_the_cache_as_dvc_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, local: str, types: list[str], folder: str
) -> None:
    for name in ("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    cache = dvc_cache(repository(tmp_path / "r", config, local))
    assert cache is not None
    assert cache.types == types
    assert cache.path.resolve() == (tmp_path / "r" / folder).resolve()


def test_no_repository(tmp_path: Path) -> None:
    assert dvc_cache(tmp_path) is None


def test_a_cache_on_this_file_system_shares_by_hard_links_only_if_they_come_first(tmp_path: Path) -> None:
    assert shares_bytes(tmp_path / "hidden", Cache(tmp_path / "cache", ["hardlink", "copy"]))
    assert not shares_bytes(tmp_path / "hidden", Cache(tmp_path / "cache", ["symlink", "hardlink"]))


def cpu_allocation() -> Any:
    return torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), True),
        (MemoryError(), True),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."
            ),
            True,
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("MPS backend out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_error_of_torch_itself() -> None:
    with pytest.raises(RuntimeError) as caught:
        cpu_allocation()
    assert is_out_of_memory(caught.value)


def test_a_batch_that_is_too_large_names_its_longest_sequence_and_what_to_lower() -> None:
    with pytest.raises(GateError) as caught, told_when_out_of_memory(["a:1", "a:2"], [300, 500]):
        cpu_allocation()
    assert "2 sequences of 800 tokens together, the longest of 500" in caught.value.what
    assert caught.value.where == "a:2"
    assert "lower extract.batch_tokens" in str(caught.value.hint)


def test_a_sequence_that_is_too_long() -> None:
    with pytest.raises(GateError) as caught, told_when_out_of_memory(["a:1"], [300]):
        raise MemoryError
    assert "lower reassemble.max_length below 300" in str(caught.value.hint)
    assert caught.value.what.endswith(": MemoryError")


def test_a_target_that_does_not_fit() -> None:
    with (
        pytest.raises(GateError, match="the target does not fit on cuda:0") as caught,
        told_when_too_large("cuda:0"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "device_map" in str(caught.value.hint)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), told_when_out_of_memory(["a:1"], [3]):
        raise RuntimeError("shapes")
