"""Import paths of the first version go on working."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from robolearn.moved import MOVED, PUBLIC


@pytest.mark.parametrize("old", [*PUBLIC, "robolearn.env", "robolearn.tasks.task"])
def test_an_old_import_path_gives_the_very_module_that_moved(old: str) -> None:
    new = {**PUBLIC, **MOVED}[old]
    code = f"import importlib as i; assert i.import_module({old!r}) is i.import_module({new!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_moved_module_is_named_with_its_new_place_and_a_public_one_is_silent() -> None:
    for name in ("robolearn.tasks.terms", "robolearn.make"):
        sys.modules.pop(name, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import robolearn.make
        import robolearn.tasks.terms  # noqa: F401
    notes = [str(w.message) for w in caught if w.category is FutureWarning]
    assert len(notes) == 1
    assert "robolearn.tasks.mdp.terms" in notes[0]


def test_a_name_that_never_was_is_still_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"robolearn\.nothing"):
        __import__("robolearn.nothing")


def test_every_old_name_leads_somewhere() -> None:
    code = "import importlib.util as u, sys; assert all(u.find_spec(name) for name in sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, *PUBLIC.values(), *MOVED.values()], check=True)
