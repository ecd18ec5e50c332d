from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import registry
from harness.commands.common import find_suites
from harness.registry import load, load_entry_points, lookup, register, registered
from harness.tests.planted import SUITE_FILE, correct, make_suite

pytestmark = pytest.mark.usefixtures("clean_registry")

WriteSuite = Callable[..., Path]


def test_a_file_is_loaded_once_and_remembers_where_it_was_declared(suite_file: WriteSuite) -> None:
    path = suite_file(SUITE_FILE)
    assert load(path) == ["axpy"]
    suite = lookup("axpy").suite
    assert lookup("axpy").path == path
    assert load(str(path)) == ["axpy"]
    assert lookup("axpy").suite is suite


def test_a_folder_gives_every_suite_file_below_it_and_no_other(suite_file: WriteSuite, tmp_path: Path) -> None:
    suite_file(SUITE_FILE, "suite_b.py")
    suite_file(SUITE_FILE.replace('"axpy"', '"deep"'), "deep/er/suite_a.py")
    suite_file("raise RuntimeError('not a suite file')", "helper.py")
    assert sorted(load(tmp_path)) == ["axpy", "deep"]


def test_a_file_of_a_package_is_loaded_under_its_package_name(suite_file: WriteSuite, tmp_path: Path) -> None:
    suite_file("NAME = 'from_package'", "my_suites/names.py")
    suite_file("", "my_suites/__init__.py")
    text = SUITE_FILE.replace('"axpy"', "NAME").replace("import torch", "from my_suites.names import NAME", 1)
    path = suite_file(text, "my_suites/suite_x.py")
    assert load(path) == ["from_package"]
    assert "my_suites.suite_x" in sys.modules
    for name in ("my_suites", "my_suites.names", "my_suites.suite_x"):
        sys.modules.pop(name, None)


def test_two_loose_files_of_one_name_are_two_modules(suite_file: WriteSuite) -> None:
    first = suite_file(SUITE_FILE, "one/suite_x.py")
    second = suite_file(SUITE_FILE.replace('"axpy"', '"other"'), "two/suite_x.py")
    assert (load(first), load(second)) == (["axpy"], ["other"])


def test_a_loose_file_may_import_its_neighbour(suite_file: WriteSuite) -> None:
    suite_file("def kernel(x, y):\n    return 2 * x + y\n", "neighbour_of_axpy.py")
    text = SUITE_FILE.replace("def kernel(x, y):\n    return 2 * x + y\n", "from neighbour_of_axpy import kernel\n")
    assert load(suite_file(text)) == ["axpy"]


def test_a_name_declared_in_two_files_is_refused_and_both_are_named(suite_file: WriteSuite) -> None:
    first, second = suite_file(SUITE_FILE, "suite_a.py"), suite_file(SUITE_FILE, "suite_b.py")
    load(first)
    with pytest.raises(ValueError, match=r"'axpy' is declared in .*suite_a.py and again in .*suite_b.py; rename one"):
        load(second)


def test_the_same_file_may_declare_its_suite_again() -> None:
    register(make_suite(correct))
    again = register(make_suite(correct))
    assert registered()["planted"].suite is again
    assert registered()["planted"].path == Path(__file__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"suite_bad.py registers no suite; a suite file calls harness.register"),
        ("\n\nimport no_such_module\n", r"cannot load .*suite_bad.py:3: ModuleNotFoundError: No module named"),
        ("x = 1\nx = = 2\n", r"cannot load .*suite_bad.py:2: SyntaxError"),
        ("def f():\n    return {}['k']\nf()\n", r"cannot load .*suite_bad.py:2: KeyError: 'k'"),
        (SUITE_FILE.replace("m=[4, 130]", "m=[4, 4]"), r"cannot load .*: suite 'axpy' declares cases twice"),
    ],
)
def test_a_suite_file_that_cannot_be_used_is_named_with_the_line(
    suite_file: WriteSuite, text: str, message: str
) -> None:
    path = suite_file(text, "suite_bad.py")
    with pytest.raises(ValueError, match=message):
        load(path)
    assert not [name for name in sys.modules if name.startswith("_suite_suite_bad")] or "registers" in message


def test_a_missing_path_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such suite file or folder"):
        load(tmp_path / "absent.py")
    with pytest.raises(ValueError, match=r"no suite_\*.py with a suite below"):
        load(tmp_path)


def test_an_unknown_suite_lists_the_known_ones(suite_file: WriteSuite) -> None:
    with pytest.raises(KeyError, match="no suite named 'gemm'; known suites: none"):
        lookup("gemm")
    load(suite_file(SUITE_FILE))
    with pytest.raises(KeyError, match="known suites: axpy"):
        lookup("gemm")


def test_suites_of_installed_packages_come_through_their_entry_point(
    suite_file: WriteSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite_file(SUITE_FILE, "their_package/suites.py")
    suite_file("", "their_package/__init__.py")
    suite_file("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n", "their_package-1.dist-info/METADATA")
    suite_file(
        f"[{registry.ENTRY_POINTS}]\ntheirs = their_package.suites\n", "their_package-1.dist-info/entry_points.txt"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert [entry.name for entry in importlib.metadata.entry_points(group=registry.ENTRY_POINTS)] == ["theirs"]
    assert load_entry_points() == ["axpy"]
    assert [entry.suite.name for entry in find_suites(["axpy"])] == ["axpy"]
    assert [entry.suite.name for entry in find_suites([])] == ["axpy"]
    for name in ("their_package", "their_package.suites"):
        sys.modules.pop(name, None)


def test_suites_are_found_by_name_file_folder_or_one_of_a_file(
    suite_file: WriteSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = SUITE_FILE + SUITE_FILE.replace('"axpy"', '"second"')
    path = suite_file(two, "suites/suite_two.py")
    monkeypatch.chdir(tmp_path)

    def names(*wanted: str) -> list[str]:
        return [entry.suite.name for entry in find_suites(list(wanted))]

    assert names(str(path)) == names("suites") == names() == ["axpy", "second"]
    assert names(f"{path}::second") == names("second") == ["second"]
    assert names(str(path), "axpy", f"{path}::axpy") == ["axpy", "second"], "each once"
    with pytest.raises(KeyError, match="declares no suite 'third'; it declares: axpy, second"):
        names(f"{path}::third")


def test_nothing_to_find_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no suites found.*--suite path/to/suite_my_kernel.py"):
        find_suites([])
